"""Expressions that are checked against a record class, and computed for records and batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from statekit.codec.annotations import show
from statekit.errors import ProcessError, StateTypeError
from statekit.expressions.arrow_kernels import BatchFailure, computed
from statekit.expressions.expression import Expression, as_expression
from statekit.expressions.python_code import compile_function, compile_over_list
from statekit.expressions.tree import ColumnNode, ExpressionNode, walk
from statekit.expressions.typed import Typed
from statekit.expressions.typing_rules import converted, typed_tree
from statekit.expressions.value_types import ValueType, holding_type
from statekit.records.record_type import RecordType


class CompiledExpression:
    """An expression over the records of one class. Created by `compiled`.

    It is pickled as its tree and the class, and compiled again on demand.

    Parameters:
        tree: of the expression.
        cls: the class of the records.
        where: the declaration, for messages.
        wanted: the type of its values, which they are converted to; None for their own.
    """

    def __init__(
        self, tree: ExpressionNode, cls: Any, where: str, wanted: ValueType | None = None
    ) -> None:
        self.tree, self.cls = tree, cls
        self._where, self._wanted = where, wanted
        _ = self.typed

    def __str__(self) -> str:
        return str(self.tree)

    def __call__(self, record: Any) -> Any:
        """Return the value for a record, as `of_record`."""
        return self.of_record(record)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tree, self.cls, self._where, self._wanted)

    @functools.cached_property
    def typed(self) -> Typed:
        """The checked expression, for those that compute it in another way.

        Raises:
            StateTypeError: a field or a type does not fit.
        """
        found = typed_tree(self.tree, self.cls, self._where)
        if self._wanted is None:
            return found
        as_wanted = converted(found, self._wanted)
        if as_wanted is None:
            raise StateTypeError(f"{self._where}: {self} is {found.type}, not {self._wanted}")
        return as_wanted

    @property
    def type(self) -> ValueType:
        """The type of the values."""
        return self.typed.type

    def fields(self) -> frozenset[str]:
        """Return the names of the fields that it reads, nested ones with dots."""
        return self.tree.fields()

    @functools.cached_property
    def of_record(self) -> Callable[[Any], Any]:
        """The function from a record to the value of the expression; None is NULL.

        It raises an ArithmeticError or a ValueError if a number leaves its range, a divisor is
        zero, or a text is no number.
        """
        return compile_function(self.typed, self.cls)

    @functools.cached_property
    def of_records(self) -> Callable[[Iterable[Any]], list[Any]]:
        """The function from records to the list of their values, as `of_record`."""
        return compile_over_list(self.typed, self.cls)

    @functools.cached_property
    def are_true(self) -> Callable[[Iterable[Any]], list[Any]]:
        """The function from records to a list that has a true value for each record for which the
        condition is true.
        """
        return compile_over_list(self.typed, self.cls, is_condition=True)

    def of_batch(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values for the rows of a record batch that has the fields as columns.

        Raises:
            ProcessError: a row fails.
        """
        try:
            return computed(self.typed, batch)
        except BatchFailure:
            return self._row_by_row(batch)

    @functools.cached_property
    def _of_row(self) -> Callable[[Any], Any]:
        return compile_function(self.typed, None)

    def _row_by_row(self, batch: pa.RecordBatch) -> pa.Array:
        columns = sorted({node.path[0] for node in walk(self.tree) if isinstance(node, ColumnNode)})
        rows = batch.select(columns).to_pylist() if columns else [{}] * batch.num_rows
        values = []
        for row in rows:
            try:
                values.append(self._of_row(row))
            except (ArithmeticError, ValueError) as error:
                raise ProcessError(f"{self._where}: {error}; the record was {row}") from error
        return pa.array(values, self.type.arrow)


def compiled(
    expression: Expression | str, record_type: RecordType | type[Any], where: str | None = None
) -> CompiledExpression:
    """Check an expression against a record class.

    Parameters:
        expression: or its SQL text.
        record_type: of the records, or their class.
        where: the declaration, for messages.

    Raises:
        StateTypeError: the text is no expression, there is no such field, or types do not fit.

    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     country: str
    ...     cents: int
    >>> euros = compiled("cents / 100", Order)
    >>> str(euros.type), sorted(euros.fields()), euros.of_record(Order("de", 250))
    ('DOUBLE', ['cents'], 2.5)
    >>> euros.of_batch(pa.record_batch({"cents": [250, 50]})).to_pylist()
    [2.5, 0.5]
    >>> compiled("country > 1", Order)
    Traceback (most recent call last):
    statekit.errors.StateTypeError: expression over Order: in country > 1: country is VARCHAR, 1 \
is BIGINT, and these are not compared without a CAST
    """
    cls = record_type.cls if isinstance(record_type, RecordType) else record_type
    found = RecordType.of(cls, where=where or "compiled()")
    where = where or f"expression over {found.name}"
    if found.fields is None:
        raise StateTypeError(
            f"{where}: a dict does not say which fields it has: use a record class"
        )
    made = CompiledExpression(as_expression(expression).tree, cls, where)
    assert made.of_record is not None, "compiled now, so that its faults are found here"
    return made


def condition(
    expression: Expression | str, record_type: RecordType | type[Any], where: str
) -> CompiledExpression:
    """Check a condition against a record class, as `compiled`.

    Raises:
        StateTypeError: as for `compiled`; or the expression is no condition.
    """
    found = compiled(expression, record_type, where)
    if found.type.kind not in ("bool", "null"):
        raise StateTypeError(
            f"{where}: {found} is {found.type}, and a filter needs a condition: compare it"
        )
    return found


def as_field(
    expression: Expression, record_type: RecordType, annotation: Any, field: str, where: str
) -> CompiledExpression:
    """Check an expression whose values become those of a field of another record class.

    Parameters:
        annotation: the type of the field.
        field: its name, for messages.

    Raises:
        StateTypeError: as for `compiled`; or the field does not hold every value.
    """
    found = compiled(expression, record_type, where)
    wanted = holding_type(annotation)
    fits = wanted is not None and converted(found.typed, wanted) is not None
    if wanted is None or not fits:
        raise StateTypeError(
            f"{where}: {field} is {show(annotation)}, and {found} is {found.type}: convert it with "
            "CAST, or use map()"
        )
    if found.type.nullable and not wanted.nullable:
        raise StateTypeError(
            f"{where}: {field} is {show(annotation)}, and {found} may be NULL: give it a value "
            "with COALESCE, or declare the field with | None"
        )
    return CompiledExpression(found.tree, found.cls, where, wanted)
