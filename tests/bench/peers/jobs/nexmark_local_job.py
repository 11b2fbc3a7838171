"""A query of Nexmark as a job of statekit in this process alone, one shard, without Spark.

Arguments: those of `nexmark_job`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.json

import statekit as sk
from statekit.sources import Offsets, Source
from tests.bench.nexmark.fronts import Front
from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.streams import PARTITIONS, TIMES, file_schema
from tests.bench.peers.jobs.handshake import bytes_in, done, ready


@dataclass
class BatchFiles(Source):
    """The files of a kind of events, as a query takes them: those of a batch in each epoch."""

    events: Path
    front: Front

    @property
    def is_bounded(self) -> bool:
        return True

    @cached_property
    def _files(self) -> list[Path]:
        return sorted((self.events / "batches" / f"{self.front.kind}s").iterdir())

    def earliest(self) -> Offsets:
        return {"all": 0}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        return {"all": min(start["all"] + PARTITIONS, len(self._files))}

    def read(self, partition: str, start: int | None, end: int) -> Iterator[pa.RecordBatch]:
        options = pyarrow.json.ParseOptions(explicit_schema=file_schema(f"{self.front.kind}s"))
        for file in self._files[start or 0 : end]:
            table = pyarrow.json.read_json(file, parse_options=options)
            for name in set(TIMES) & set(table.column_names):
                column = table[name].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
                table = table.set_column(table.column_names.index(name), name, column)
            yield from self.front.of_columns(table).to_batches()


def main(events: Path, number: int, home: Path, into: str) -> None:
    query = QUERIES[number]
    inputs = {name: BatchFiles(events, front) for name, front in query.fronts.items()}
    out = sk.sinks.parquet(home / "out") if into == "files" else (lambda records, epoch: None)
    ready()
    query.job().run(
        inputs,
        outputs={"out": out},
        checkpoint=home / "checkpoint",
        backend="rocksdb",
        working_directory=home / "working",
        parallelism=1,
    )
    done(check=0, of="nothing", written=bytes_in(home / "checkpoint", home / "working"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
