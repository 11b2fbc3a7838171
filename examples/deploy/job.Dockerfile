# A job in one process, without Spark. Replace orders.py and requirements.txt by your own.
FROM python:3.12-slim-bookworm
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt \
    && useradd --uid 1000 --create-home statekit \
    && install --directory --owner=statekit /copies /state
COPY orders.py ./
USER 1000
ENV PYTHONUNBUFFERED=1
EXPOSE 9464
ENTRYPOINT ["statekit", "run", "orders:job", "--follow", "--metrics", "0.0.0.0:9464", "--working-directory", "/copies"]
CMD ["--checkpoint", "/state/orders"]
