"""DataFrames of operators: their construction and the checks of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema

from statekit.errors import ProcessError, StateTypeError
from statekit.job.chaining import Chain
from statekit.job.plan import Input, Operator, Plan
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.spark.frames.arrow_schemas import arrow_schema
from statekit.spark.frames.columns import projected_to, quoted, selected, with_derived
from statekit.spark.frames.combined_frames import CombinedFrames, Combines
from statekit.spark.frames.key_columns import PassOptions, group_expression, key_columns, order_of
from statekit.spark.frames.placed_frame import TASK
from statekit.spark.worker.pickling import Pickled
from statekit.spark.worker.rows import (
    ARRIVAL,
    FIRST_MARK,
    GROUP,
    INPUT,
    SLOT,
    ColumnRecords,
    UnionReader,
    UnionRows,
    input_types,
    row_of,
)
from statekit.spark.worker.shards import (
    ERRORS,
    OUTPUTS,
    LateStep,
    ShardStep,
    chain_column,
    pass_schema,
)


def check_input(df: DataFrame, source: Input, job: Plan) -> None:
    """Check a frame's columns against the records and keys of a job, before anything runs.

    Raises:
        ProcessError: a column is missing, cannot be read as its field, or cannot be a key.
        StateTypeError: the source has records of several types, or handles bad records.
    """
    record_type = check_one_type(source)
    if source.on_error != "fail":
        raise StateTypeError(
            f"input {source.name!r} is a frame, and on_error={source.on_error!r} is for sources "
            "that statekit reads: let one read it, or leave out on_error="
        )
    _check_case(record_type, df, source.name)
    try:
        projected = projected_to(record_type, df)
        record_type.reader(arrow_schema(projected.schema))
        _check_consumers(projected, source.name, job)
    except ProcessError as error:
        error.add_note(f"while looking at the input {source.name!r}")
        raise


def check_one_type(source: Input) -> RecordType:
    """Return the type of the records of a source, which Spark reads as the rows of a frame.

    Raises:
        StateTypeError: they are of several types.
    """
    record_type, *others = source.record_type.members
    if others:
        raise StateTypeError(
            f"source {source.name!r} has {source.record_type.name}, and the rows of a frame are of "
            "one type: declare a source for each of them, and join them with union()"
        )
    return record_type


def _check_case(record_type: RecordType, df: DataFrame, source: str) -> None:
    """Check that no two columns that are read differ in case only, and that no column differs from
    its field in case only.

    Raises:
        ProcessError: one does.
    """
    reads = df.columns if record_type.fields is None else record_type.field_names
    for name in reads:
        alike = (column for column in df.columns if column.lower() == name.lower())
        others = [column for column in alike if column != name]
        if others and name not in df.columns:
            raise ProcessError(
                f"input {source!r} has no column {name!r} for the field of {record_type.name}, "
                f"and a column {others[0]!r}: names differ if their case does, so rename the "
                f"column with withColumnRenamed({others[0]!r}, {name!r})"
            )
        if others and df.sparkSession.conf.get("spark.sql.caseSensitive") != "true":
            raise ProcessError(
                f"input {source!r} has the columns {name!r} and {others[0]!r}, which are one "
                "name to Spark: rename or drop one of them"
            )


def _check_consumers(df: DataFrame, stream: str, job: Plan) -> None:
    """Check the columns of a stream against all consumers of its records, including consumers of
    late records.

    A function may emit other records; those have the columns of their type.
    """
    for transform in job.transforms_of(stream):
        if transform.function.selects_columns:
            _check_consumers(selected(transform, df), transform.name, job)
        elif transform.function.keeps_records:
            _check_consumers(df, transform.name, job)
    for operator in job.consumers_of(stream):
        if stream not in operator.inputs:
            continue  # broadcast records need no key
        if not operator.declared.is_global:
            key_columns(df, operator)
        _check_event_time(df, operator)
        if len(operator.declared.record_type.members) == 1:
            _check_consumers(df, operator.late, job)


@dataclass(frozen=True)
class FirstInput:
    """Rows that an operator processes in its first epoch, before all other records.

    Parameters:
        frame: the rows.
        records: their type.
        reader: reads them and the records of the operator's stream in a worker.
    """

    frame: DataFrame
    records: RecordType
    reader: UnionReader


@dataclass(frozen=True)
class Slot:
    """The records of one type of one stream, among the rows of an operator.

    Parameters:
        stream: the number of the stream.
        type: of the records.
        column: of the stream's frame that has them as structs; None if its columns are theirs.
    """

    stream: int
    type: RecordType
    column: str | None = None

    def own(self, df: DataFrame) -> DataFrame:
        """Return the columns of the slot's records, from a frame of the stream."""
        own = df if self.column is None else df.select(f"{quoted(self.column)}.*")
        return projected_to(self.type, own)


def slots_of(operator: Operator, job: Plan) -> list[Slot]:
    """Return the slots of an operator: one per type of each of its streams."""
    slots = []
    for number, stream in enumerate(operator.streams):
        records = job.record_of(stream)
        assert records is not None, "streams without records feed nothing"
        for member in records.members:
            column = member.name if len(records.members) > 1 else None
            slots.append(Slot(number, member, column))
    return slots


def reader_of(operator: Operator, job: Plan) -> UnionReader | None:
    """Return the reader of an operator's rows; None if the operator has one stream of one type."""
    slots = slots_of(operator, job)
    if len(slots) == 1:
        return None
    classes = [of.cls for of in input_types(operator.declared)]
    types = [classes.index(slot.type.cls) for slot in slots]
    restores = [not job.has_given_rows(operator.streams[slot.stream]) for slot in slots]
    return partial(UnionRows, types=types, restores=restores)


@dataclass(frozen=True)
class Route:
    """The distribution of rows over tasks.

    Parameters:
        tasks: the number of Spark tasks, at most the number of shards. None for one task without a
            shuffle.
        placed: the frame that places them on executors; None to let Spark choose.
    """

    tasks: int | None
    placed: DataFrame | None = None


class ShardFrames:
    """Runs the shards of a pass over rows with key groups, epoch after epoch.

    Everything that is the same in each epoch is built once and kept: every call into the JVM takes
    a millisecond, and an epoch of a hundred records takes only some tens of them.

    Each shard gets a mark: a row with the number of the shard that sorts before its records. So a
    shard learns its number from its data. Without marks, Spark would skip partitions that it can
    prove to be empty, but shards without records must run. A task of Spark runs one shard, or
    several adjacent ones.

    Parameters:
        keyed: a frame with the columns of the rows.
        options: of the pass.
        inputs: the number of input streams.
    """

    def __init__(self, keyed: DataFrame, options: PassOptions, inputs: int = 1) -> None:
        self._marks = marks(keyed, options.shards)
        self._order = order_of(keyed, options, inputs)
        self._shards = options.shards
        self._shard_of_row = _shard_of_row(options.shards, options.groups)
        self._tasks_of_row: dict[int, Column] = {}  # by the number of tasks
        self._schema = from_arrow_schema(pass_schema(options.each.chains))

    def run(self, rows: Sequence[DataFrame], step: ShardStep, route: Route) -> DataFrame:
        """Return the outputs over the rows of some frames."""
        tasks = route.tasks
        marked = reduce(DataFrame.unionAll, [*rows, self._marks])
        if tasks is None:
            routed = marked.coalesce(1)
        else:
            if tasks not in self._tasks_of_row:
                task = f"cast((bigint({self._shard_of_row}) * {tasks}) div {self._shards} as int)"
                self._tasks_of_row[tasks] = F.expr(task)
            routed = marked.repartitionById(tasks, self._tasks_of_row[tasks])
            if route.placed is not None:
                is_placed = self._tasks_of_row[tasks] == F.col(TASK)
                routed = routed.join(route.placed.hint("shuffle_hash"), is_placed, "left")
                routed = routed.drop(TASK)
        return routed.sortWithinPartitions(*self._order).mapInArrow(step, self._schema)


class OperatorFrames(ShardFrames):
    """Builds an operator's frame, epoch after epoch.

    The JVM computes the key group. `arrival` is taken before the shuffle. It keeps the order of the
    input, which neither the shuffle nor the sort keeps, and a recomputed attempt sees the same
    order.

    Parameters:
        like: a frame with the columns of later frames.
        options: of the pass.
        record_type: of the records that are shuffled.
        combines: where records are combined before the shuffle, if the operator has a combiner.
            This is a stage of its own, which takes longer than a few records do without it.
    """

    def __init__(
        self,
        like: DataFrame,
        options: PassOptions,
        record_type: RecordType,
        *,
        combines: Combines = None,
    ) -> None:
        operator, declared = options.operator, options.operator.declared
        self._combined = None
        if declared.traits.combiner is not None and combines is not None:
            self._combined = CombinedFrames(like, operator, combines)
            like, record_type = self._combined.like, declared.traits.combiner.combined
        elif declared.traits.combiner is not None:
            record_type = declared.traits.combiner.read(like.columns)
        self._record_type = record_type
        like = projected_to(record_type, like)
        self._all: str | None = None
        if declared.is_global and self._combined is None:
            (self._all,) = declared.key
            like = like.withColumn(self._all, F.lit(True))
        group = group_expression(like, options)
        self._selected = [
            f"cast({group} as int) as {GROUP}",
            *map(quoted, like.columns),
            f"monotonically_increasing_id() as {ARRIVAL}",
        ]
        super().__init__(like.selectExpr(*self._selected), options)

    def frame(self, dfs: Sequence[DataFrame], step: ShardStep, route: Route) -> DataFrame:
        """Return the outputs of the operator over its one input; for `route` see `run`."""
        (df,) = dfs
        if self._combined is not None:
            df = self._combined.frame(df, step)
        df = with_derived(self._record_type, df)
        if self._all is not None:
            df = df.withColumn(self._all, F.lit(True))
        return self.run([df.selectExpr(*self._selected)], step, route)


class UnionFrames(ShardFrames):
    """Builds the frame of an operator with several slots, epoch after epoch.

    All streams become one frame. Each row has the key fields, by which it is sorted, the number of
    its input, and its own columns in a struct that is null in the rows of other slots. Each
    broadcast row is copied for every shard, with the shard's mark, a negative number, as key group.
    A row with only the mark sorts before them. Key groups are not negative, so both sort before all
    keyed records.

    Parameters:
        likes: frames with the columns of later frames, one per stream.
        slots: the types of the records of each stream.
        inputs: the number of keyed inputs, which come first.
        options: of the chain.

    Attributes:
        selected: the columns of rows, for each stream.
        selects: whether `selected` are all columns of its rows: not if columns must be derived
            first, or a stream has several types.
    """

    def __init__(
        self, likes: Sequence[DataFrame], slots: Sequence[Slot], inputs: int, options: PassOptions
    ) -> None:
        self._inputs = inputs
        self._key = options.key
        numbered = list(enumerate(slots))
        self._slots = [[one for one in numbered if one[1].stream == at] for at in range(len(likes))]
        has_parts = any(slot.column is not None for slot in slots)
        self.selects = not has_parts and not any(
            slot.type.derived for slot in slots if isinstance(slot.type, ColumnRecords)
        )
        owns = [slot.own(likes[slot.stream]) for slot in slots]
        rows = [
            spark_types.StructField(row_of(number), own.schema) for number, own in enumerate(owns)
        ]
        prepared_likes = [
            owns[self._slots[number][0][0]]
            if self._is_plain(number)
            else self._prepared(number, like)
            for number, like in enumerate(likes)
        ]
        self.selected: list[list[Column]] = []
        for number, prepared in enumerate(prepared_likes):
            columns = [F.lit(number).alias(INPUT)]
            if has_parts:
                columns.append(self._slot_of_row(number).alias(SLOT))
            of_stream = dict(self._slots[number])
            columns += [
                self._own(place, of_stream[place], prepared)
                if place in of_stream
                else nothing_as(row)
                for place, row in enumerate(rows)
            ]
            columns.append(F.monotonically_increasing_id().alias(ARRIVAL))
            if number < inputs:
                columns[:0] = _group_and_key(prepared, options)
            self.selected.append(columns)
        keyed = prepared_likes[0].select(*self.selected[0])
        no_key = [nothing_as(field) for field in keyed.schema.fields[: len(options.key) + 1]]
        for columns in self.selected[inputs:]:
            columns[:0] = no_key
        super().__init__(keyed, options, inputs=len(likes))
        self._copies = F.sequence(F.lit(FIRST_MARK - options.shards + 1), F.lit(FIRST_MARK))

    def _is_plain(self, number: int) -> bool:
        """Return whether a stream has a single type whose fields are the columns of its frame."""
        return self._slots[number][0][1].column is None

    def _prepared(self, number: int, df: DataFrame) -> DataFrame:
        """Return a stream's frame, prepared for the selection of the columns of its rows.

        A stream of several types gets a column for each key field, whatever type a row has.
        """
        slots = self._slots[number]
        if self._is_plain(number):
            return with_derived(slots[0][1].type, df)
        structs = {row_of(place): quoted(slot.column or "") for place, slot in slots}
        columns = [F.col(name).alias(row) for row, name in structs.items()]
        for key in self._key if number < self._inputs else ():
            of_types = [F.col(f"{name}.{quoted(key)}") for name in structs.values()]
            columns.append(F.coalesce(*of_types).alias(key))
        return df.select(*columns)

    def _slot_of_row(self, number: int) -> Column:
        slots = self._slots[number]
        if self._is_plain(number):
            return F.lit(slots[0][0])
        return F.coalesce(*(F.when(F.col(row_of(n)).isNotNull(), F.lit(n)) for n, _ in slots))

    def _own(self, place: int, slot: Slot, prepared: DataFrame) -> Column:
        if slot.column is not None:
            return F.col(row_of(place))
        return F.struct(*(F.col(quoted(name)) for name in prepared.columns)).alias(row_of(place))

    def frame(self, dfs: Sequence[DataFrame], step: ShardStep, route: Route) -> DataFrame:
        """Return the outputs of the operator over a frame per stream."""
        given = [self._prepared(number, df) for number, df in enumerate(dfs)]
        selected = [df.select(*columns) for df, columns in zip(given, self.selected, strict=True)]
        keyed, broadcast = selected[: self._inputs], selected[self._inputs :]
        copied = [df.withColumn(GROUP, F.explode(self._copies)) for df in broadcast]
        return self.run([*keyed, *copied], step, route)

    def frame_of_rows(self, rows: Sequence[DataFrame], step: ShardStep, route: Route) -> DataFrame:
        """Return the outputs over the combined rows of all streams.

        Parameters:
            rows: frames with the columns `selected`, each with the rows of one or several streams.
        """
        if self._slots[self._inputs :]:
            copies = F.when(F.col(GROUP).isNull(), self._copies).otherwise(F.array(GROUP))
            rows = [df.withColumn(GROUP, F.explode(copies)) for df in rows]
        return self.run(rows, step, route)


def _group_and_key(df: DataFrame, options: PassOptions) -> list[Column]:
    """Return the columns that route and sort the records of an input."""
    group = F.expr(group_expression(df, options)).cast("int").alias(GROUP)
    keys = key_columns(df, options.operator)
    return [group, *(F.expr(key.expression).alias(key.name) for key in keys)]


def outputs_of_chain(number: int, df: DataFrame) -> DataFrame:
    """Return the outputs of one chain, from the outputs of a pass with several chains."""
    return _structs_of(chain_column(number), df)


def outputs_and_errors(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the outputs and the failed records of a chain that emits both."""
    return _structs_of(OUTPUTS, df), _structs_of(ERRORS, df)


def _structs_of(column: str, df: DataFrame) -> DataFrame:
    """Return the structs of a column as rows."""
    return df.where(F.col(column).isNotNull()).select(f"{column}.*")


def late_records(
    df: DataFrame,
    records: Records,
    operator: Operator,
    chained: Pickled[Chain],
    watermark_us: int,
    *,
    restores: bool,
) -> DataFrame:
    """Return the late records of one input of an operator, as they arrived.

    This is `watermark.is_late` in SQL, unless a record may have another event time than its column.
    Then records are created as for the operator, since only they have the event time.

    Parameters:
        df: the frame of the input.
        records: the type, or types, of its records.
        chained: the chain that the operator is the first of.
        watermark_us: of the operator.
        restores: whether the job wrote the rows, as for `RecordType.reader`.
    """
    time, members = operator.declared.event_time, records.members
    assert time is not None
    if len(members) > 1:
        projected = df.select(*(F.col(quoted(member.name)) for member in members))
        times = [f"unix_micros({quoted(member.name)}.{quoted(time)})" for member in members]
    else:
        projected = projected_to(members[0], df)
        if isinstance(members[0], ColumnRecords):
            projected = projected.drop(*members[0].derived)
        times = [f"unix_micros({quoted(time)})"]
    if records.may_change_fields:
        classes = [of.cls for of in operator.declared.record_type.members]
        types = tuple(classes.index(member.cls) for member in members)
        step = LateStep(chained, types, watermark_us, restores)
        late = projected.mapInArrow(step, projected.schema)
    else:
        late = projected.where(f"coalesce({', '.join(times)}) <= {watermark_us}")
    if len(members) > 1 or len(operator.declared.record_type.members) == 1:
        return late
    own = F.struct(*(F.col(quoted(name)) for name in late.columns))
    return late.select(own.alias(members[0].name))


def marks(like: DataFrame, shards: int) -> DataFrame:
    """Return one mark per shard: a row with a number below all key groups in place of a key
    group.
    """
    mark = (F.lit(FIRST_MARK) - F.col("id")).cast("int").alias(GROUP)
    nothing = [nothing_as(field) for field in like.schema.fields[1:]]
    return like.sparkSession.range(0, shards, 1, 1).select(mark, *nothing)


def nothing_as(field: spark_types.StructField) -> Column:
    """Return a null column with this name and type."""
    return F.lit(None).cast(field.dataType).alias(field.name)


def _shard_of_row(shards: int, groups: int) -> str:
    """Return the SQL expression of the shard of a row. A mark contains its shard, other rows their
    key group.
    """
    return f"if({GROUP} < 0, {FIRST_MARK} - {GROUP}, ({GROUP} * {shards}) div {groups})"


def _check_event_time(df: DataFrame, operator: Operator) -> None:
    name = operator.declared.event_time
    if name is None:
        return
    if name not in df.columns:
        raise ProcessError(
            f"operator {operator.name!r}: the input has no column {name!r} for its event time (it "
            f"has {', '.join(df.columns)}): add it, or change event_time="
        )
    type_found = df.schema[name].dataType
    if not isinstance(type_found, spark_types.TimestampType):
        raise ProcessError(
            f"operator {operator.name!r}: its event time {name!r} is {type_found.simpleString()}, "
            "which is no instant: cast it to timestamp, in the session time zone it was written "
            "in"
        )
