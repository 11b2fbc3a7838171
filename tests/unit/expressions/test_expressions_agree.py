"""Every way to compute an expression has the same result for every value."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from statekit.errors import ProcessError, StateTypeError
from statekit.expressions.compiled import CompiledExpression
from statekit.expressions.sql_text import tree_of_text
from statekit.expressions.tree import ExpressionNode
from statekit.records.output_type import OutputType
from tests.support.effort import SOAK
from tests.support.expression_trees import ROWS, Row, same_value, trees

ROW_COLUMNS = OutputType(Row, where="the test")


REFUSED = re.compile("digits|levels|DECIMAL.*without a CAST|exact for every value|NULL.* and no")
"""Trees that are well-formed but for too many digits, or a NULL whose type nothing says."""


def checked(tree: ExpressionNode) -> CompiledExpression:
    """The expression of a tree over rows; rejects trees that are not valid for a known reason."""
    try:
        return CompiledExpression(tree, Row, "the test")
    except StateTypeError as error:
        if REFUSED.search(str(error)):
            reject()
        raise


def result_of(expression: CompiledExpression, row: Row) -> tuple[Any, bool]:
    """The value for a row, and whether it fails."""
    try:
        return expression.of_record(row), False
    except (ArithmeticError, ValueError):
        return None, True


@settings(max_examples=5_000 if SOAK else 100, deadline=None)
@given(trees(), st.lists(ROWS, min_size=1, max_size=8))
def test_records_and_batches_have_the_same_values(tree: ExpressionNode, rows: list[Row]) -> None:
    expression = checked(tree)
    results = [result_of(expression, row) for row in rows]
    right = [row for row, (_, fails) in zip(rows, results, strict=True) if not fails]
    values = [value for value, fails in results if not fails]
    if len(right) < len(rows):
        with pytest.raises(ProcessError, match="the record was"):
            expression.of_batch(ROW_COLUMNS.to_batch(rows))
    found = expression.of_batch(ROW_COLUMNS.to_batch(right))
    assert isinstance(found, pa.Array)
    assert found.type == expression.type.arrow
    wanted = pa.array(values, expression.type.arrow).to_pylist()
    assert all(map(same_value, found.to_pylist(), wanted)), (found.to_pylist(), wanted)
    assert all(value is not None for value in values) or expression.type.nullable
    assert all(map(same_value, expression.of_records(right), values))


@settings(max_examples=2_000 if SOAK else 50, deadline=None)
@given(trees("bool"), st.lists(ROWS, max_size=8))
def test_a_condition_is_true_for_the_records_whose_value_is_true(
    tree: ExpressionNode, rows: list[Row]
) -> None:
    expression = checked(tree)
    right = [row for row in rows if not result_of(expression, row)[1]]
    found = expression.are_true(right)
    assert [bool(each) for each in found] == [expression.of_record(row) is True for row in right]


@settings(max_examples=2_000 if SOAK else 50, deadline=None)
@given(trees())
def test_an_expression_is_read_again_from_its_text(tree: ExpressionNode) -> None:
    assert tree_of_text(str(tree)) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert str(tree_of_text(str(tree))) == str(tree)
