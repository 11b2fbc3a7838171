# A server that runs the jobs that users submit. It has the modules that their documents may name.
FROM python:3.12-slim-bookworm
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt \
    && useradd --uid 1000 --create-home statekit \
    && install --directory --owner=statekit /copies /state /work
COPY orders.py ./
USER 1000
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1
EXPOSE 8321
ENTRYPOINT ["statekit", "server", "--host", "0.0.0.0", "--directory", "/copies", "--work", "/work", "--allow", "orders"]
CMD ["/state/registry", "--tokens", "/tokens/tokens.json", "--checkpoints-below", "/state"]
