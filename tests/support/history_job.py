"""A job that reads a history of Parquet files, then JSON lines that are appended meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import statekit as sk
from statekit import sinks, sources

FILES, ROWS = 3, 40
HISTORY = FILES * ROWS


class Number(NamedTuple):
    number: int
    key: int


@sk.process(key="key")
def counted(number: Number, count: sk.ValueState[int]) -> Iterator[Number]:
    count.update((count.get() or 0) + 1)
    yield number


def record(number: int) -> Number:
    return Number(number, number % 17)


def write_history(home: Path) -> None:
    """Write the files of the history, and make the directory of the stream."""
    (home / "history").mkdir(parents=True)
    (home / "then").mkdir()
    for part in range(FILES):
        records = [record(number)._asdict() for number in range(part * ROWS, (part + 1) * ROWS)]
        pq.write_table(pa.Table.from_pylist(records), home / f"history/{part}.parquet")


def append(home: Path, first: int, count: int) -> None:
    """Add a file of these numbers to the stream."""
    lines = [json.dumps(record(number)._asdict()) + "\n" for number in range(first, first + count)]
    draft = home / f"{first:06d}.draft"
    draft.write_text("".join(lines))
    draft.rename(home / f"then/{first:06d}.jsonl")


def history_job(home: Path) -> sk.Job:
    job = sk.Job("numbers")
    stream = job.source(
        "numbers",
        Number,
        history=sources.parquet(home / "history", static=True),
        then=sources.json_lines(home / "then"),
    )
    stream.process(counted).sink("out", sinks.parquet(home / "out"))
    return job


def check_once(home: Path, total: int) -> None:
    """Check that state and output have each of these numbers once."""
    rows = sk.read(home / "checkpoint", "counted", "count").read_all().to_pylist()
    expected = [sum(number % 17 == key for number in range(total)) for key in range(17)]
    assert {row["key"]: row["value"] for row in rows} == dict(enumerate(expected))
    written = pq.read_table(home / "out")["number"].to_pylist()
    assert sorted(written) == list(range(total))
