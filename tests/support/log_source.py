"""A source of two partitions in files, to which a test appends while a job reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekit.sources import Offsets, Source


class LogSource(Source):
    """Lines of JSON in a file per partition. An offset is a number of lines."""

    def __init__(self, home: Path, *, is_bounded: bool = False) -> None:
        self.home = home
        self._is_bounded = is_bounded
        self.calls: list[str] = []

    def __repr__(self) -> str:
        return "LogSource"

    @property
    def is_bounded(self) -> bool:
        return self._is_bounded

    def append(self, partition: str, rows: Iterable[Any]) -> None:
        """Add rows to a partition. A row is a dict, or a namedtuple."""
        with (self.home / f"{partition}.jsonl").open("a") as file:
            for row in rows:
                file.write(json.dumps(row if isinstance(row, dict) else row._asdict()) + "\n")

    def _rows(self, partition: str) -> list[Any]:
        return list(map(json.loads, (self.home / f"{partition}.jsonl").read_text().splitlines()))

    def open(self, *, reads_here: bool) -> None:
        self.calls.append("open here" if reads_here else "open")

    def earliest(self) -> Offsets:
        return {path.stem: 0 for path in sorted(self.home.glob("*.jsonl"))}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        there = {path.stem: len(self._rows(path.stem)) for path in self.home.glob("*.jsonl")}
        ends, left = {}, limit
        for partition, count in sorted({**start, **there}.items()):
            taken = min(left, count - start.get(partition, 0))
            ends[partition] = start.get(partition, 0) + taken
            left -= taken
        return ends

    def read(self, partition: str, start: int | None, end: int) -> Iterator[pa.RecordBatch]:
        self.calls.append(f"read {partition} {start or 0} {end}")
        rows = self._rows(partition)[start or 0 : end]
        yield pa.RecordBatch.from_pylist(
            [{**row, "__offset": (start or 0) + number} for number, row in enumerate(rows)]
        )

    def lag(self, offsets: Offsets) -> int:
        there = {path.stem: len(self._rows(path.stem)) for path in self.home.glob("*.jsonl")}
        return sum(count - offsets.get(name, 0) for name, count in there.items())

    def close(self) -> None:
        self.calls.append("close")
