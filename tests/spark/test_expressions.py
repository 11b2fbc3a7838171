"""Expressions as columns of Spark have the values of the Python function."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statekit.errors import ProcessError, StateTypeError
from statekit.expressions.compiled import CompiledExpression, compiled
from statekit.records.arrow_scalars import Decimals
from statekit.records.output_type import OutputType
from statekit.spark.failures import translated
from statekit.spark.frames.expression_columns import expression_column
from tests.support.expression_trees import ROWS, Row, same_value, trees

TREES, ROW_COUNT, PER_JOB = 360, 60, 60


def examples_of(strategy: st.SearchStrategy[Any], number: int) -> list[Any]:
    """The same examples of a strategy in each run."""
    found: list[Any] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def expressions() -> Iterator[CompiledExpression]:
    for tree in dict.fromkeys(examples_of(trees(), TREES)):
        try:
            yield CompiledExpression(tree, Row, "the test")
        except StateTypeError:
            continue


def results_of(expression: CompiledExpression, rows: list[Row]) -> tuple[list[Any], list[int]]:
    """The values of all rows, and the numbers of those that fail."""
    values, failing = [], []
    for number, row in enumerate(rows):
        try:
            values.append(expression.of_record(row))
        except (ArithmeticError, ValueError):
            values.append(None)
            failing.append(number)
    return pa.array(values, expression.type.arrow).to_pylist(), failing


@pytest.fixture(params=[("UTC", "true"), ("America/St_Johns", "false")], ids=["ansi", "not-ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with other settings, which results must not depend on."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in zip(SETTINGS, request.param, strict=True):
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.set(name, str(old))


SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")


def frame_of(rows: list[Row], spark: SparkSession) -> DataFrame:
    table = pa.Table.from_batches([OutputType(Row, where="the test").to_batch(rows)])
    # Arrow cannot convert a null struct whose fields are not nullable.
    inner = table.column("nest").combine_chunks()
    fields = [field.with_nullable(True) for field in inner.type]
    nullable = pa.StructArray.from_arrays(inner.flatten(), fields=fields, mask=inner.is_null())
    table = table.set_column(table.column_names.index("nest"), "nest", nullable)
    return spark.createDataFrame(table.append_column("id", pa.array(range(len(rows)))))


@pytest.mark.slow
def test_spark_has_the_values_of_python(session: SparkSession) -> None:
    rows = examples_of(ROWS, ROW_COUNT)
    df = frame_of(rows, session)
    checked = list(expressions())
    assert len(checked) > TREES // 2
    for start in range(0, len(checked), PER_JOB):
        part = checked[start : start + PER_JOB]
        wanted, columns = [], []
        for number, expression in enumerate(part):
            values, failing = results_of(expression, rows)
            column = expression_column(expression, df)
            if failing:
                column = F.when(~F.col("id").isin(failing), column)
            columns.append(column.alias(f"c{number}"))
            wanted.append(values)
        found = df.select("id", *columns).orderBy("id").toArrow()
        for number, expression in enumerate(part):
            got = found.column(f"c{number}").cast(expression.type.arrow).to_pylist()
            differ = [
                (rows[place], one, other)
                for place, (one, other) in enumerate(zip(got, wanted[number], strict=True))
                if not same_value(one, other)
            ]
            assert not differ, (str(expression), differ[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "i + 9223372036854775807",
        "i - 9223372036854775807 - 10",
        "i * 9223372036854775807",
        "i / (i - i)",
        "f / 0",
        "i % 0",
        "-(i - i - 9223372036854775807 - 1)",
        "ABS(i - i - 9223372036854775807 - 1)",
        "CAST(f AS BIGINT)",
        "CAST(s AS BIGINT)",
        "CAST(s AS DOUBLE)",
        "since + INTERVAL '4000000' DAY",
        "CASE WHEN i > 0 THEN i % 0 ELSE 0 END",
        "COALESCE(j, i % 0)",
    ],
)
def test_a_row_that_fails_in_python_fails_in_spark(session: SparkSession, text: str) -> None:
    row = EXAMPLE
    expression = compiled(text, Row)
    with pytest.raises((ArithmeticError, ValueError)):
        expression.of_record(row)
    df = frame_of([row], session)
    with pytest.raises(PySparkException) as caught:
        df.select(expression_column(expression, df)).collect()
    error = translated(caught.value)
    assert isinstance(error, ProcessError)
    assert str(expression.typed.node) in str(error) or "CASE" in text or "COALESCE" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "i % 0 / NULL",
        "NULL / (i % 0)",
        "-(i % 0) + CAST(NULL AS BIGINT)",
        "CAST(ABS(i - i - 9223372036854775807 - 1) AS VARCHAR) || NULL",
        "j + i % 0",
        "t || CAST(CAST(s AS BIGINT) AS VARCHAR)",
        "j < CAST(f AS BIGINT)",
    ],
)
def test_operands_that_null_leaves_out_do_not_fail(session: SparkSession, text: str) -> None:
    row = EXAMPLE._replace(t=None)
    expression = compiled(text, Row)
    assert expression.of_record(row) is None
    df = frame_of([row], session)
    # Spark computes a part that two columns share before both, unless it may be left out.
    columns = [expression_column(expression, df).alias(name) for name in ("one", "other")]
    assert df.select(*columns).collect() == [(None, None)]


EXAMPLE = examples_of(ROWS, 1)[0]._replace(i=7, j=None, f=0.5, s="x")


class Amount(NamedTuple):
    n: int
    x: float
    d: Annotated[decimal.Decimal, Decimals(9, 2)]
    s: str


@pytest.mark.slow
def test_columns_of_other_types_are_read_as_their_fields(session: SparkSession) -> None:
    schema = "n smallint, x float, d decimal(4,1), s string collate UTF8_LCASE"
    rows: Any = [
        (32_767, 0.5, decimal.Decimal("1.5"), "A"),
        (-1, 1.5, decimal.Decimal("-2.0"), "a"),
    ]
    df = session.createDataFrame(rows, schema)
    for text in ("n + n", "x * 2", "d + d", "d * n", "s = 'a'", "s < 'a'", "n > x"):
        expression = compiled(text, Amount)
        found = df.select(expression_column(expression, df).alias("value")).toArrow()
        wanted = [expression.of_record(Amount(*row)) for row in rows]
        assert found.column("value").to_pylist() == wanted, text
    wide = session.createDataFrame(rows, schema.replace("(4,1)", "(9,4)"))
    with pytest.raises(ProcessError, match="'d', declared as DECIMAL\\(9, 2\\), from a column of"):
        expression_column(compiled("d > 1", Amount), wide)
    with pytest.raises(ProcessError, match="the input has no column 'd'"):
        expression_column(compiled("d > 1", Amount), df.drop("d"))
