# The driver and the executors of a job on Spark: a Python that statekit needs, and Spark beside it.
FROM apache/spark:4.1.1-scala2.13-java17-ubuntu AS spark

FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        openjdk-17-jre-headless=17.* procps=2:* tini=0.* \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark /opt/spark /opt/spark
COPY --from=spark /opt/entrypoint.sh /opt/entrypoint.sh
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt pyspark==4.1.1 \
    && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java \
    && useradd --uid 1000 --create-home statekit
COPY orders.py ./
USER 1000
ENV JAVA_HOME=/opt/java SPARK_HOME=/opt/spark PYSPARK_PYTHON=/usr/local/bin/python3
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1
EXPOSE 9464
# Spark starts executors with the argument `executor`; other arguments are run as a command.
ENTRYPOINT ["/opt/entrypoint.sh"]
CMD ["statekit", "run", "orders:job", "--help"]
