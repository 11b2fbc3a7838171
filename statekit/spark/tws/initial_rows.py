"""Initial state of a processor, read before the records of its first epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from statekit.records.keyed_batch import KeyedBatch
from statekit.spark.tws.process import ProcessorProcess
from statekit.spark.tws.row_records import Initial
from statekit.spark.worker_rows import UnionRows

_FIRST_TIME_US = 1  # in the first epoch of a processor, an event time of 0 would be late


class InitialRows(UnionRows):
    """Reads the rows of a processor's first epoch: its initial state, and then its input.

    Rows of initial state are wrapped in `Initial`. They count as input and are never late.
    """

    def __init__(
        self, declared: ProcessorProcess, batches: Iterator[pa.RecordBatch], key_groups: int
    ) -> None:
        super().__init__(declared, batches, key_groups, types=())
        self._types = [declared.initial_records, *declared.record_type.members]

    def _batch(self, rows: pa.RecordBatch) -> KeyedBatch:
        return super()._batch(rows)._replace(inputs=())

    def _read(self, number: int, rows: pa.RecordBatch) -> list[Any]:
        records = super()._read(number, rows)
        return records if number else list(map(Initial, records))

    def _times(self, number: int, rows: pa.RecordBatch, records: list[Any]) -> Sequence[int]:
        return super()._times(number, rows, records) if number else [_FIRST_TIME_US] * len(records)
