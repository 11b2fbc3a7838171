"""The frames of an epoch that reads sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statekit.checkpoint.manifest import EpochOffsets
from statekit.job.plan import Input, Plan
from statekit.runtime.inputs import RunInputs, SourceInput, ranges
from statekit.runtime.stream_forms import SourceForm
from statekit.spark.worker.commit_records import Reports
from statekit.spark.worker.pickling import Pickled, pickled
from statekit.spark.worker.reading import (
    ERROR,
    RECORD,
    ReadCount,
    ReadStep,
    error_type,
    read_schema,
)


class SourceFrames:
    """Makes the frames of epochs, with a task per partition of a source that has new records.

    Parameters:
        spark: the session of the frames.
        job: the job.
        inputs: of the run.
        frames: static frames, by input.
        reports: receives the numbers of records.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Plan,
        inputs: RunInputs,
        frames: Mapping[str, DataFrame],
        reports: Reports[ReadCount],
    ) -> None:
        self._spark, self._inputs, self._given = spark, inputs, frames
        self._collects = {each.name: job.errors_of(each.name) for each in job.sources}
        self._reports = reports
        self._reporter = self._reports.begin()
        self._sent: dict[str, Pickled[Input]] = {}
        self._schemas: dict[str, StructType] = {}
        self._empty: dict[str, DataFrame] = {}
        self._persisted: list[DataFrame] = []
        for each in job.sources:
            found = inputs.inputs.get(each.name)
            if isinstance(found, SourceInput):
                read = replace(each, source=found.source)
                self._sent[each.name] = pickled(read, f"source {each.name!r}")
                columns = SourceForm(each.record_type).output_type
                schema = read_schema(columns, collects=self._collects[each.name] is not None)
                self._schemas[each.name] = from_arrow_schema(schema)
                self._empty[each.name] = self._frame_of(columns.arrow_schema)
            elif each.errors_of is not None:
                self._empty[each.name] = self._frame_of(error_type().arrow_schema)
            else:
                self._empty[each.name] = frames[each.name].limit(0)

    def _frame_of(self, schema: object) -> DataFrame:
        return self._spark.createDataFrame([], from_arrow_schema(schema))

    @property
    def empty(self) -> Mapping[str, DataFrame]:
        """The frames of an epoch without input."""
        return self._empty

    def of(self, ends: EpochOffsets, epoch: int) -> Mapping[str, DataFrame]:
        """Return the frames of an epoch that ends at these offsets."""
        self._reporter = self._reports.begin()
        frames = dict(self._empty)
        for name, end in ends.items():
            start = self._inputs.offsets[name]
            if end == start:
                continue
            if name in self._given:
                frames[name] = self._given[name]
                continue
            read = self._read(name, start, end, epoch)
            errors = self._collects[name]
            if errors is None:
                frames[name] = read
                continue
            read = read.persist()  # for its two halves
            self._persisted.append(read)
            frames[name] = read.where(F.col(RECORD).isNotNull()).select(f"{RECORD}.*")
            frames[errors] = read.where(F.col(ERROR).isNotNull()).select(f"{ERROR}.*")
        return frames

    def _read(self, name: str, start: object, end: object, epoch: int) -> DataFrame:
        parts = tuple(ranges(start, end))  # type: ignore[arg-type]
        collects = self._collects[name] is not None
        step = ReadStep(self._sent[name], parts, collects, epoch, self._reporter)
        numbers = self._spark.range(0, len(parts), 1, len(parts))
        return numbers.mapInArrow(step, self._schemas[name])

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Return the numbers of records and of bad records of the epoch, by source, after its
        frames were read. Attempts at a partition report the same numbers.
        """
        reports = self._reports.of(self._reporter)
        read, bad = Counter[str](), Counter[str]()
        for each in {(each.source, each.partition): each for each in reports}.values():
            read[each.source] += each.read
            bad[each.source] += each.bad
        return read, bad

    def release(self) -> None:
        """Release the persisted frames of an epoch."""
        while self._persisted:
            self._persisted.pop().unpersist()
