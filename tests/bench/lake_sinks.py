"""Sinks of lake tables, each beside the sink of Parquet files that writes the same rows.

An epoch is one part, as a process has it. What is measured is the CPU of this process: threads of
deltalake and pyiceberg are in it, and waiting for a disk is not.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from statekit.sinks import Attempt, Outputs, Part, Sink, delta, iceberg, parquet
from tests.bench.report import Arm, Row

ROWS = 200_000
_BATCH_ROWS = 10_000
EPOCHS = 21
_DURABLE = "all of it: files are synced, then committed"


def _rows() -> pa.Table:
    """Orders, with text that compresses as text of that kind does."""
    chosen = random.Random(7)
    return pa.table(
        {
            "customer": [f"customer-{chosen.randrange(20_000)}" for _ in range(ROWS)],
            "cents": [chosen.randrange(100_000) for _ in range(ROWS)],
            "at": pa.array(
                [1_767_268_800_000_000 + 1_000 * n for n in range(ROWS)], pa.timestamp("us", "UTC")
            ),
            "price": [chosen.random() for _ in range(ROWS)],
        }
    )


class _Written:
    """A sink that writes the same rows as one epoch after the other."""

    def __init__(self, name: str, sink: Sink, rows: pa.Table) -> None:
        self._sink, self._rows = sink, rows
        self._outputs = Outputs("5f" * 16, name, rows.schema)
        self._epoch = 0
        sink.begin(self._outputs)

    def epoch(self) -> float:
        """Write an epoch, and return its CPU seconds."""
        number, is_first = self._epoch, self._epoch == 0
        self._epoch += 1
        batches = iter(self._rows.to_batches(_BATCH_ROWS))
        began = time.process_time()
        attempt = Attempt(self._outputs, number, "bench", is_first, (), lambda: None)
        self._sink.open(attempt)
        receipt = self._sink.write(Part(self._outputs, number, "bench", 0), batches)
        assert receipt is not None
        self._sink.publish(attempt, [receipt])
        return time.process_time() - began


def _beside_parquet(name: str, made: Callable[[Path], Sink]) -> list[Row]:
    rows = _rows()
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as home:
        own = _Written("lake", made(Path(home) / "lake"), rows)
        files = _Written("files", parquet(Path(home) / "files"), rows)
        turns = [(own.epoch(), files.epoch()) for _ in range(EPOCHS + 2)][2:]
    ours, theirs = zip(*turns, strict=True)
    ratio = statistics.median(a / b for a, b in turns)
    arms = [
        Arm(arm, statistics.median(spent), _DURABLE, ROWS, turns=spent)
        for arm, spent in ((f"statekit, {name}", ours), ("statekit, sinks.parquet", theirs))
    ]
    result = f"{ratio:.2f} times the CPU of sinks.parquet, median of {EPOCHS} pairs"
    return [Row(f"{name}, epochs of {ROWS:,} rows", result, "at most 1.3 times", tuple(arms))]


def in_delta() -> list[Row]:
    """The sink of Delta Lake tables."""
    return _beside_parquet("sinks.delta", delta)


def in_iceberg() -> list[Row]:
    """The sink of Iceberg tables."""
    return _beside_parquet("sinks.iceberg", lambda home: iceberg("bench.orders", warehouse=home))


BENCHMARKS = {"lake-delta": in_delta, "lake-iceberg": in_iceberg}
