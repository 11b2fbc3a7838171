"""Outputs in a Spark Python worker: Arrow batches in, receipts of a sink out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from statekit.shown import shown
from statekit.sinks.protocol.sink import (
    Earlier,
    Outputs,
    Part,
    Receipt,
    Sink,
    sink_failures,
    staged_part,
)
from statekit.spark.worker.failure_texts import readable_errors
from statekit.spark.worker.pickling import Pickled, unpickled
from statekit.spark.worker.rows import Batches
from statekit.spark.worker.worker_process import acknowledge_at_once

RECEIPTS = "part int, receipt string"
"""The columns of receipts, as DDL. Receipts are JSON."""


@dataclass(frozen=True)
class StageStep:
    """The function for the partitions of a frame of outputs: each becomes a part of the epoch.

    Parameters:
        sink: the sink.
        outputs: its outputs, with the schema of any runtime.
        epoch: the number of the epoch.
        writer: the run.
        is_only: whether the frame has one partition because the sink wants one part.
    """

    sink: Pickled[Sink]
    outputs: Outputs
    epoch: int
    writer: str
    is_only: bool = False

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        context = TaskContext.get()
        assert context is not None, "Spark calls it"
        runs_again = context.attemptNumber() > 0
        earlier: Earlier = "epoch" if self.is_only else "part" if runs_again else "none"
        part = Part(self.outputs, self.epoch, self.writer, context.partitionId(), earlier)
        rows = (self._typed(batch) for batch in batches if batch.num_rows)
        with sink_failures(f"sink {self.outputs.sink!r}", self.epoch):
            receipt = staged_part(unpickled(self.sink), part, rows)
            text = None if receipt is None else _as_json(receipt)
        if text is not None:
            yield pa.record_batch({"part": pa.array([part.number], pa.int32()), "receipt": [text]})
        for _ in rows:  # a sink that leaves out rows must not leave out shards
            continue

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the types of every runtime: Spark's timestamps have the session's
        time zone.
        """
        schema = self.outputs.schema
        is_typed = batch.schema.equals(schema, check_metadata=True)
        return batch if is_typed else batch.select(schema.names).cast(schema)


def _as_json(receipt: Receipt) -> str:
    try:
        return json.dumps(receipt)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"write() returned {shown(receipt)}, which is no JSON ({error}): return a dict of "
            "texts and numbers"
        ) from error


def receipts_of(rows: Iterator[tuple[int, str]]) -> list[Receipt]:
    """Return the receipts of a frame, in the order of their parts."""
    return [json.loads(receipt) for _, receipt in sorted(rows)]
