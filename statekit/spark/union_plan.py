"""Build the DataFrame of an operator with several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types

from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.records.record_type import RecordType
from statekit.spark.merged_inputs import MergedInputs
from statekit.spark.plan import (
    FrameOptions,
    ShardFrames,
    group_expression,
    key_expression,
    nothing_as,
    projected_to,
    quoted,
    with_derived,
)
from statekit.spark.worker import ShardStep
from statekit.spark.worker_rows import (
    ARRIVAL,
    FIRST_MARK,
    GROUP,
    INPUT,
    ColumnRecords,
    UnionReader,
    UnionRows,
    input_types,
    row_of,
)


@dataclass(frozen=True)
class FirstInput:
    """Rows that an operator processes in its first epoch, before all others.

    Parameters:
        frame: the rows.
        records: their type.
        reader: reads them and the records of the operator's stream in a worker.
    """

    frame: DataFrame
    records: RecordType
    reader: UnionReader


def reader_of(operator: Operator, job: Job) -> UnionReader | None:
    """Return the reader of the rows of an operator; None if it has one input stream."""
    if len(operator.streams) == 1:
        return None
    classes = [of.cls for of in input_types(operator.declared)]
    types = [classes.index(of.cls) for of in record_types(operator, job)]
    return partial(UnionRows, types=types)


def record_types(operator: Operator, job: Job) -> list[RecordType]:
    """Return the record type of each stream of an operator."""
    records = [job.record_of(stream) for stream in operator.streams]
    return [one.members[0] for one in records if one is not None]  # all are connected


class UnionFrames(ShardFrames):
    """Builds the frame of an operator with several input streams, epoch after epoch.

    All streams become one frame. Each row has the key fields, by which it is sorted, the number of
    its input, and its own columns in a struct that is null in the rows of other inputs. Each
    broadcast row is copied for every shard, with the shard's mark, a negative number, as key group.
    A row with only the mark sorts before them. Key groups are not negative, so both sort before all
    keyed records.

    Parameters:
        likes: frames with the columns of later frames, one per stream.
        types: of the records of each.
        inputs: the number of keyed inputs, which come first.
        options: of the chain.

    Attributes:
        reads_merged: whether it can read rows of the merged inputs: not if columns must be derived
            first.
    """

    def __init__(
        self,
        likes: Sequence[DataFrame],
        types: Sequence[RecordType],
        inputs: int,
        options: FrameOptions,
    ) -> None:
        self._inputs = inputs
        self._types = list(types)
        self.reads_merged = not any(of.derived for of in types if isinstance(of, ColumnRecords))
        projected = [projected_to(of, like) for of, like in zip(types, likes, strict=True)]
        rows = [
            spark_types.StructField(row_of(number), df.schema)
            for number, df in enumerate(projected)
        ]
        self._selected: list[list[Column]] = []
        for number, df in enumerate(projected):
            own = F.struct(*(F.col(quoted(name)) for name in df.columns)).alias(row_of(number))
            columns = [
                F.lit(number).alias(INPUT),
                *(own if place == number else nothing_as(row) for place, row in enumerate(rows)),
                F.monotonically_increasing_id().alias(ARRIVAL),
            ]
            self._selected.append(columns)
            if number < inputs:
                columns[:0] = _group_and_key(df, options)
        keyed = projected[0].select(*self._selected[0])
        no_key = [nothing_as(field) for field in keyed.schema.fields[: len(options.key) + 1]]
        for columns in self._selected[inputs:]:
            columns[:0] = no_key
        super().__init__(keyed, options, inputs=len(types))
        self._copies = F.sequence(F.lit(FIRST_MARK - options.shards + 1), F.lit(FIRST_MARK))

    def frame(self, dfs: Sequence[DataFrame], step: ShardStep, tasks: int | None) -> DataFrame:
        """Return the outputs of the operator over a frame per stream."""
        given = map(with_derived, self._types, dfs)
        selected = [df.select(*columns) for df, columns in zip(given, self._selected, strict=True)]
        keyed, broadcast = selected[: self._inputs], selected[self._inputs :]
        copied = [df.withColumn(GROUP, F.explode(self._copies)) for df in broadcast]
        return self.run([*keyed, *copied], step, tasks)

    def frame_of_merged(
        self, inputs: MergedInputs, streams: Sequence[str], step: ShardStep, tasks: int | None
    ) -> DataFrame:
        """Return the outputs over the merged inputs, which are read once.

        Parameters:
            streams: the names of its streams, each another of the inputs.
        """
        rows = inputs.selected(dict(zip(streams, self._selected, strict=True)))
        if streams[self._inputs :]:
            copies = F.when(F.col(GROUP).isNull(), self._copies).otherwise(F.array(GROUP))
            rows = rows.withColumn(GROUP, F.explode(copies))
        return self.run([rows], step, tasks)


def _group_and_key(df: DataFrame, options: FrameOptions) -> list[Column]:
    """Return the columns by which the records of an input are routed and sorted."""
    group = F.expr(group_expression(df, options)).cast("int").alias(GROUP)
    expressions = [key_expression(df, name, options.operator.name) for name in options.key]
    keys = zip(expressions, options.key, strict=True)
    return [group, *(F.expr(expression).alias(name) for expression, name in keys)]
