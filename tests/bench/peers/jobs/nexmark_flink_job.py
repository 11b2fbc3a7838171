"""A query of Nexmark on Flink SQL: two tasks, state in RocksDB, incremental checkpoints.

Arguments: the events, as `tests.bench.nexmark.streams` writes them, the number of the query, a
scratch directory, the seconds between checkpoints, and `nowhere` or `files` for the results, which
are changes as Debezium writes them, in `out`. No Python runs but to start the job.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.nexmark.flink_sql import OPTIONS, QUERIES, TABLES
from tests.bench.peers.jobs.flink_job import configuration
from tests.bench.peers.jobs.handshake import bytes_in, done, ready

# Behind `flink_job`, which tells pyflink where Java is.
from pyflink.table import EnvironmentSettings, TableEnvironment  # isort: skip

PARALLELISM = 2


def table_environment(home: Path, every_s: str) -> TableEnvironment:
    settings = configuration(home, every_s)
    options = {
        "parallelism.default": str(PARALLELISM),
        "pipeline.object-reuse": "true",
        "state.backend.rocksdb.localdir": str(home / "working"),
        **OPTIONS,
    }
    for name, value in options.items():
        settings.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )


def main(events: Path, number: int, home: Path, every_s: str, into: str) -> None:
    tables = table_environment(home, every_s)
    for name, columns in TABLES.items():
        files = f"'connector' = 'filesystem', 'path' = 'file://{events}/partitions/{name}'"
        tables.execute_sql(f"CREATE TABLE {name} ({columns}) WITH ({files}, 'format' = 'json')")
    query = QUERIES[number]
    results = {
        "nowhere": "'connector' = 'blackhole'",
        "files": f"'connector' = 'filesystem', 'path' = 'file://{home}/out', "
        "'format' = 'debezium-json', 'debezium-json.timestamp-format.standard' = 'ISO-8601'",
    }
    tables.execute_sql(f"CREATE TABLE results ({query.columns}) WITH ({results[into]})")
    ready()
    tables.execute_sql(f"INSERT INTO results {query.text}").wait()
    done(check=0, of="nothing", written=bytes_in(home / "checkpoints"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5])
