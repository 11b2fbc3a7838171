# The server of committed state. It needs no code of jobs.
FROM python:3.12-slim-bookworm
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt \
    && useradd --uid 1000 --create-home statekit \
    && install --directory --owner=statekit /copies
USER 1000
ENV PYTHONUNBUFFERED=1
EXPOSE 8321
ENTRYPOINT ["statekit", "serve", "--host", "0.0.0.0", "--directory", "/copies"]
CMD ["orders=/state/orders"]
