"""Combine the records of each partition of a frame, before they are shuffled.

Spark aggregates in the JVM where its results are exactly those of Arrow: counts, sums of integers,
and smallest and largest integers, dates and instants. So these records do not leave the JVM.
Everything else is combined by Arrow in Python workers.

Spark aggregates in two steps, one before its own shuffle and one after it, and PySpark has no call
for the first alone. So the first step is taken out of Spark's plan, and its rows become a frame,
which is shuffled as all records are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_schema

from statekit.codec.annotations import peel
from statekit.job.plan import Operator
from statekit.records.panes import LATE
from statekit.records.partial_aggregate import PartialAggregate
from statekit.records.preaggregate import Combiner
from statekit.spark.frames.arrow_schemas import arrow_schema
from statekit.spark.frames.columns import projected_to, quoted
from statekit.spark.frames.placed_frame import logical_frame
from statekit.spark.worker.shards import CombineStep, ShardStep
from statekit.timestamp import MAX_MICROS, MIN_MICROS

_logger = logging.getLogger("statekit.combining")

Combines = Literal["jvm", "python"] | None
"""The place where records are combined before a shuffle; None for no combination."""

_ERROR = "statekit.errors.ProcessError: "  # what `failures.translated` makes a typed error of
_PANE, _TIME = "pane", "time"  # columns, as key_1, value_1 and so on

_KEY_TYPES = (
    spark_types.IntegralType,
    spark_types.BinaryType,
    spark_types.BooleanType,
    spark_types.DateType,
    spark_types.TimestampType,
)


class CombinedFrames:
    """Combines the records of an operator's input within each partition.

    Parameters:
        like: a frame with the columns of later frames.
        operator: an operator with a combiner.
        where: whether Spark combines records if its rows are the same.

    Attributes:
        like: a frame with the columns of combined rows.
    """

    def __init__(
        self, like: DataFrame, operator: Operator, where: Literal["jvm", "python"]
    ) -> None:
        combiner = operator.declared.traits.combiner
        assert combiner is not None
        self._operator, self._late_us = operator.name, operator.declared.late_us
        read = projected_to(combiner.read(like.columns), like)
        schema = combiner.schema(arrow_schema(read.schema))
        self._columns = [quoted(name) for name in read.columns]
        self._schema = from_arrow_schema(schema)
        self._in_jvm: AggregatesInJvm | None = None
        if where == "jvm" and AggregatesInJvm.gives_the_same(combiner, read):
            self._in_jvm = AggregatesInJvm(combiner, read.schema, operator.name)
        self.like = like.sparkSession.createDataFrame([], self._schema)

    def frame(self, df: DataFrame, step: ShardStep) -> DataFrame:
        """Return the combined rows of a frame, which are the input of a step."""
        late_us = self._late_us(step.plans[self._operator].common)
        if self._in_jvm is not None:
            try:
                combined = self._in_jvm.frame(df, late_us)
            except (Py4JError, TypeError) as error:  # a class that is missing cannot be called
                self._in_jvm = None
                _logger.warning(
                    "operator %r: this version of Spark gives no access to its aggregation (%s): "
                    "records are combined in Python, with the same results",
                    self._operator,
                    error,
                )
            else:
                if combined is not None:
                    return combined
        combines = CombineStep(step.chains[0], late_us, step.restores)
        return df.selectExpr(*self._columns).mapInArrow(combines, self._schema)


class AggregatesInJvm:
    """Combines records with Spark's aggregates. The rows are those of a combiner.

    Parameters:
        combiner: for which `gives_the_same`.
        schema: of the columns that it reads.
        operator: whose records, for messages.
    """

    def __init__(self, combiner: Combiner, schema: spark_types.StructType, operator: str) -> None:
        self._combiner = combiner
        self._where = f"{_ERROR}operator {operator!r}: {combiner.record.where}: "
        self._record = F.to_json(
            F.struct(*map(quoted, schema.names)), {"ignoreNullFields": "false"}
        )
        fields = dict.fromkeys(part.field for part in combiner.parts if part.field is not None)
        self._keys = {name: f"key_{place}" for place, name in enumerate(combiner.key)}
        self._values = {name: f"value_{place}" for place, name in enumerate(fields)}
        taken = [*self._keys.items(), *self._values.items()]
        self._inputs = [self._checked(name).alias(column) for name, column in taken]
        groups = list(self._keys.values())
        self._pane = None if combiner.panes is None else combiner.panes.sql(_TIME)
        if combiner.panes is not None:
            self._inputs.append(self._time(combiner.panes.event_time).alias(_TIME))
            groups.append(_PANE)
        self._places: dict[str, str] = {}  # the column of each of Spark's aggregates
        outputs = [*map(F.col, groups), F.col(self._place("count(1)"))]
        outputs += [self._output(part, schema) for part in combiner.parts]
        if combiner.panes is not None:
            outputs.append(F.col(self._place(f"max({_TIME})")))
        names = combiner.combined.field_names
        self._outputs = [of.alias(name) for of, name in zip(outputs, names, strict=True)]
        self._aggregates = list(map(F.expr, self._places))
        self._found = [*groups, *self._places.values()]

    @staticmethod
    def gives_the_same(combiner: Combiner, read: DataFrame) -> bool:
        """Return whether Spark's rows equal the rows of the combiner for all values.

        Parameters:
            read: a frame with the columns that it reads.
        """
        # Both need Python: classes that compute fields, and keys in several forms.
        if combiner.makes_records(read.columns) or combiner.has_spellings:
            return False
        if combiner.panes is not None and combiner.panes.sql(_TIME) is None:
            return False
        types = {field.name: field.dataType for field in read.schema}
        # In a collation, texts that differ may be one group.
        keys = () if combiner.is_global else (types[name] for name in combiner.key)
        if not all(of == spark_types.StringType() or isinstance(of, _KEY_TYPES) for of in keys):
            return False
        return all(_is_the_same(combiner, part, types) for part in combiner.parts)

    def frame(self, df: DataFrame, late_us: int) -> DataFrame | None:
        """Return the combined rows; None if Spark's plan has no such step.

        Parameters:
            df: a frame that has the columns that the combiner reads.
            late_us: the watermark that makes a record late.
        """
        groups = list(map(F.col, self._keys.values()))
        if self._pane is not None:
            groups.append(_unless_late(self._pane, late_us).alias(_PANE))
        found = first_step(df.select(*self._inputs).groupBy(*groups).agg(*self._aggregates))
        if found is None or len(found.columns) != len(self._found):
            return None
        return found.toDF(*self._found).select(*self._outputs)

    def _place(self, aggregate: str) -> str:
        """Return the column of a Spark aggregate, which is added on its first use."""
        return self._places.setdefault(aggregate, f"found_{len(self._places)}")

    def _output(self, part: PartialAggregate, schema: spark_types.StructType) -> Column:
        """Return the value of a part, computed from Spark's aggregates. Late records are only
        counted.
        """
        if part.field is None:
            return F.col(self._place("count(1)"))
        value, type_ = self._values[part.field], schema[part.field].dataType
        if part.verb == "count":
            return self._unless_late(F.col(self._place(f"count({value})")), F.lit(0))
        if part.verb != "sum":
            found = F.col(self._place(f"{part.verb}({value})"))
            is_integral = isinstance(type_, spark_types.IntegralType)
            found = found.cast("bigint") if is_integral else found
        elif isinstance(type_, spark_types.LongType):
            found = self._sum(value, type_.simpleString())
        else:  # it fits, of less than 2 to the 32nd records
            found = F.col(self._place(f"sum({value})"))
        return self._unless_late(found, F.lit(None))

    def _unless_late(self, found: Column, other: Column) -> Column:
        if self._combiner.panes is None:
            return found
        return F.when(F.col(_PANE) == LATE, other).otherwise(found)

    def _sum(self, value: str, type_: str) -> Column:
        """Return a sum of 64-bit integers. The high and low halves are added separately, so nothing
        overflows.
        """
        high = self._place(f"sum(shiftright({value}, 32))")
        low = self._place(f"sum({value} & 4294967295L)")
        upper = f"({high} + shiftright({low}, 32))"
        total = F.expr(f"shiftleft({upper}, 32) | ({low} & 4294967295L)")
        keys = F.to_json(F.struct(*(F.col(of).alias(name) for name, of in self._keys.items())))
        error = self._error(
            f"a sum of {type_} values, that of the key ",
            keys,
            ", does not fit int64: sum a field of Decimal, or of float",
        )
        fits = F.expr(f"{upper} is null or {upper} between -2147483648L and 2147483647L")
        return F.when(fits, total).otherwise(error)

    def _checked(self, name: str) -> Column:
        """Return the column of a field. It raises an error for a null in a field that cannot be
        None.
        """
        if self._combiner.is_global and name in self._keys:
            return F.lit(True)
        column, record = F.col(quoted(name)), self._combiner.record.name
        if name not in self._combiner.required:
            return column
        error = self._error(
            "",
            self._record,
            f" does not fit {record}: {record}.{name} is null, but its type does not allow None",
        )
        return F.when(column.isNotNull(), column).otherwise(error)

    def _time(self, name: str) -> Column:
        """Return the event time in microseconds. It raises an error for a time outside of Python's
        range.
        """
        column = F.col(quoted(name))
        error = self._error(
            f"event time {name!r} of ",
            self._record,
            " is no instant: give each record one, or leave such records out",
        )
        first, last = (F.expr(f"timestamp_micros({end}L)") for end in (MIN_MICROS, MAX_MICROS))
        return F.when(column.between(first, last), F.unix_micros(column)).otherwise(error)

    def _error(self, before: str, what: Column, after: str) -> Column:
        """Return a column that raises a ProcessError about a record or key."""
        return F.raise_error(F.concat(F.lit(self._where + before), what, F.lit(after)))


def _is_the_same(
    combiner: Combiner, part: PartialAggregate, types: Mapping[str, spark_types.DataType]
) -> bool:
    if part.verb in ("first", "arrived", "list"):
        return False
    if part.verb == "count" or part.field is None:
        return True
    type_ = types[part.field]
    if isinstance(type_, spark_types.IntegralType):
        (kind, *_), _, _ = peel(combiner.annotation(part.field))
        return kind is int
    # Spark adds floats in an order that depends on its memory, and NaN is its largest.
    ordered = spark_types.DateType | spark_types.TimestampType
    return part.verb != "sum" and isinstance(type_, ordered)


def _unless_late(pane: str, late_us: int) -> Column:
    """Return the pane of a record, or that of all late records, as `Panes.of` does.

    The watermark is in a struct: Spark compiles numbers into its code, which would be compiled anew
    in each epoch.

    Parameters:
        pane: of a record that is not late, in SQL.
    """
    late = f"named_struct('us', {max(late_us, MIN_MICROS - 1)}L)"
    return F.expr(f"if(named_struct('us', {_TIME}) <= {late}, {LATE}L, {pane})")


def first_step(aggregated: DataFrame) -> DataFrame | None:
    """Return the rows of the part of Spark's aggregation before its shuffle: one per group and
    partition.

    The groups come first, then a column for each aggregate; an aggregate that Spark keeps in
    several columns has several.

    Parameters:
        aggregated: a frame of an aggregation.

    Returns:
        None if Spark does not aggregate in two steps: it may know that there are no rows.
    """
    session: Any = aggregated.sparkSession
    last = aggregated._jdf.queryExecution().sparkPlan()
    if last.nodeName() != "HashAggregate" or last.child().nodeName() != "HashAggregate":
        return None
    prepare = session._jvm.org.apache.spark.sql.execution.QueryExecution.prepareExecutedPlan
    first = prepare(session._jsparkSession, last.child())
    return logical_frame(
        session, last.child().output(), first.execute(), first.outputPartitioning()
    )
