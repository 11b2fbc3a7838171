"""Sources in a Spark Python worker: ranges of partitions in, Arrow batches of records out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from statekit.checkpoint.sealed_json import Count, Record
from statekit.job.plan import Input
from statekit.names import StoredText
from statekit.records.output_type import OutputType
from statekit.records.output_union import AnyOutput
from statekit.runtime.inputs import Range, bad_record_error, input_failures
from statekit.runtime.stream_forms import SourceForm
from statekit.sources.decoding.decoder import BadRecord, Decoder
from statekit.sources.source import Source
from statekit.spark.worker.commit_records import Reporter
from statekit.spark.worker.failure_texts import readable_errors
from statekit.spark.worker.pickling import Pickled, unpickled
from statekit.spark.worker.rows import Batches
from statekit.spark.worker.worker_process import acknowledge_at_once, collect_rarely

RECORD, ERROR = "record", "error"
"""The columns of a frame of records and bad records: one of them is null in each row."""


class ReadCount(Record):
    """The report of a task about the records of a partition: those that fit, and bad ones."""

    source: StoredText
    partition: StoredText
    read: Count
    bad: Count


@dataclass(frozen=True)
class ReadStep:
    """The function for a frame with a row per range of a source: the row's number.

    Parameters:
        read: the input, with its source.
        ranges: all ranges of the epoch.
        collects: whether bad records are in the frame, beside the others.
        epoch: the number of the epoch, for messages.
        reporter: of the numbers of records.
    """

    read: Pickled[Input]
    ranges: tuple[Range, ...]
    collects: bool
    epoch: int
    reporter: Reporter

    @readable_errors
    def __call__(self, batches: Batches) -> Batches:
        acknowledge_at_once()
        collect_rarely()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with input_failures(unpickled(self.read).name, self.epoch):
                    yield from self._read(self.ranges[number])
        self.reporter.send()

    def _read(self, range_: Range) -> Iterator[pa.RecordBatch]:
        declared, (decode, columns) = unpickled(self.read), _made(self.read)
        read = bad = 0
        for batch in _source_of(declared).read(*range_):
            decoded = decode(range_.partition, batch)
            bad += len(decoded.bad)
            read += len(decoded.records)
            if decoded.bad and declared.on_error == "fail":
                raise bad_record_error(declared, decoded.bad[0], self.epoch)
            if decoded.records or (decoded.bad and self.collects):
                rows = columns.to_batch(decoded.records)
                yield _with_errors(rows, decoded.bad) if self.collects else rows
        count = ReadCount(source=declared.name, partition=range_.partition, read=read, bad=bad)
        self.reporter.report(count)


@cache
def _made(read: Pickled[Input]) -> tuple[Decoder, AnyOutput]:
    """Return the decoder of a source, and the type of its records, made once per worker."""
    declared = unpickled(read)
    decoder = _source_of(declared).decoder(declared.record_type, declared.name)
    return decoder, SourceForm(declared.record_type).output_type


def _source_of(declared: Input) -> Source:
    assert isinstance(declared.source, Source), "the driver gives it"
    return declared.source


@cache
def error_type() -> OutputType:
    """Return the type of bad records as columns."""
    return OutputType(BadRecord, "bad records", noun="record")


def read_schema(columns: AnyOutput, *, collects: bool) -> pa.Schema:
    """Return the columns of a frame of records, with those of bad records if it collects them."""
    if not collects:
        return columns.arrow_schema
    return pa.schema(
        [
            pa.field(RECORD, pa.struct(list(columns.arrow_schema))),
            pa.field(ERROR, pa.struct(list(error_type().arrow_schema))),
        ]
    )


def _with_errors(rows: pa.RecordBatch, bad: list[BadRecord]) -> pa.RecordBatch:
    """Return records and bad records as the columns of `read_schema`."""
    errors = error_type().to_batch(bad)
    structs = [
        pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
        for batch in (rows, errors)
    ]
    empty = [
        pa.nulls(count, array.type)
        for count, array in ((len(errors), structs[0]), (len(rows), structs[1]))
    ]
    columns = [pa.concat_arrays([structs[0], empty[0]]), pa.concat_arrays([empty[1], structs[1]])]
    return pa.record_batch(columns, names=[RECORD, ERROR])
