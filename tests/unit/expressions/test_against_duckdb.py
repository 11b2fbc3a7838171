"""Expressions have the values of DuckDB, where it means the same."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from statekit.expressions.compiled import CompiledExpression
from statekit.expressions.tree import CallNode, ExpressionNode, LiteralNode, walk
from statekit.expressions.typed import Typed
from tests.support.effort import SOAK
from tests.support.expression_trees import ROWS, Row, trees
from tests.unit.expressions.test_expressions_agree import ROW_COLUMNS, checked, result_of

OTHERS = {"lower", "upper", "to_int", "modulo", "divide"}
"""Letters beyond ASCII, casts that round or trim, and divisors of zero, which are NULL there."""


def means_the_same(typed: Typed) -> bool:
    """Whether DuckDB computes an expression by the same rules."""
    if typed.operation in OTHERS or (typed.operation == "to_float" and typed.kind == "text"):
        return False
    if typed.operation == "like" and "\\" in typed.value:
        return False  # it has no escape character
    if typed.type.kind in ("interval", "null"):
        return False  # an interval has months, too
    if typed.operation == "coalesce" and typed.type.kind == "decimal":
        return False  # it has a smaller type, which the sum of others leaves
    return all(map(means_the_same, typed.operands))


def has_long_literals(tree: ExpressionNode) -> bool:
    """Whether there is a float with so many digits that DuckDB, for which it is a decimal, rounds
    it twice.
    """
    values = [node.value for node in walk(tree) if isinstance(node, LiteralNode)]
    return any(isinstance(value, float) and len(repr(value)) > 15 for value in values)


def values_in_duckdb(expression: CompiledExpression, rows: list[Row]) -> list[Any]:
    """The values of rows; rejects expressions that DuckDB has no type for."""
    table = pa.Table.from_batches([ROW_COLUMNS.to_batch(rows)])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given_rows", table)
        try:
            found = connection.sql(f"SELECT {expression} AS value FROM given_rows")
            column = found.to_arrow_table().column("value")
        except (duckdb.BinderException, duckdb.OutOfRangeException, duckdb.ConversionException):
            reject()
    is_decimal = expression.type.kind == "decimal"
    return list((column if is_decimal else column.cast(expression.type.arrow)).to_pylist())


def are_equal(one: Any, other: Any) -> bool:
    are_nan = one != one and other != other
    return are_nan or bool(one == other)


@settings(max_examples=2_000 if SOAK else 50, deadline=None)
@given(trees(), st.lists(ROWS, min_size=1, max_size=5))
def test_it_has_the_same_values(tree: ExpressionNode, rows: list[Row]) -> None:
    expression = checked(tree)
    calls = {node.function for node in walk(tree) if isinstance(node, CallNode)}
    if calls & {"FLOOR", "CEIL"} or not means_the_same(expression.typed):
        reject()  # it computes FLOOR and CEIL of ints as floats
    if has_long_literals(tree):
        reject()
    right = [row for row in rows if not result_of(expression, row)[1]]
    wanted = pa.array(map(expression.of_record, right), expression.type.arrow).to_pylist()
    found = values_in_duckdb(expression, right)
    assert all(map(are_equal, found, wanted)), (found, wanted)
