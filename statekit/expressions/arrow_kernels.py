"""Expressions over Arrow record batches.

All operands are computed for all rows. A row may so fail in a branch that it does not need; then
the batch is computed by the Python function, row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekit.expressions.failures import INT_MIN
from statekit.expressions.like_pattern import regular_expression
from statekit.expressions.python_code import FLOAT_TEXT, INT_TEXT
from statekit.expressions.typed import Typed
from statekit.timestamp import MAX_MICROS, MIN_MICROS

Values = Any
"""An Arrow array, or a scalar for the same value in all rows."""


class BatchFailure(Exception):  # noqa: N818 - never leaves this package
    """A row of a batch fails, maybe in a branch that it does not need."""


def computed(typed: Typed, batch: Any) -> Any:
    """Return the array of an expression's values for the rows of a record batch.

    Raises:
        BatchFailure: a row fails.
    """
    try:
        values = _values(typed, batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
        raise BatchFailure from error
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, batch.num_rows)
    return values


def column_of(typed: Typed, batch: Any) -> Any:
    """Return a column of a batch, or a field of a column of structs, in the type of its field."""
    name, *inner = typed.value
    array = batch.column(name)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    for part in inner:
        array = pc.struct_field(array, part)
    if typed.type.kind == "other" or array.type == typed.type.arrow:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return pc.cast(array, typed.type.arrow)


def _values(typed: Typed, batch: Any) -> Values:
    if typed.operation == "column":
        return column_of(typed, batch)
    if typed.operation == "literal":
        return pa.scalar(typed.value, typed.type.arrow)
    operands = [_values(operand, batch) for operand in typed.operands]
    kernel = _KERNELS.get(f"{typed.operation} {typed.kind}") or _KERNELS[typed.operation]
    return kernel(typed, *operands)


# ----------------------------------------------------------------------------------- conditions


def _all_of(typed: Typed, first: Values, *others: Values) -> Values:
    for other in others:
        first = pc.and_kleene(first, other)
    return first


def _any_of(typed: Typed, first: Values, *others: Values) -> Values:
    for other in others:
        first = pc.or_kleene(first, other)
    return first


def _equal_floats(typed: Typed, left: Values, right: Values) -> Values:
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(typed: Typed, left: Values, right: Values) -> Values:
    nan_is_right = pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right))
    return pc.or_(pc.less(left, right), nan_is_right)


def _less_equal_floats(typed: Typed, left: Values, right: Values) -> Values:
    # A null on the left stays null, as `or_` has no result for it.
    return pc.or_(pc.less_equal(left, right), pc.is_nan(right))


def _distinct(typed: Typed, left: Values, right: Values) -> Values:
    equal = _equal_floats if typed.kind == "float" else _plain(pc.equal)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    is_equal = pc.coalesce(equal(typed, left, right), False)
    return pc.invert(pc.or_(both_null, is_equal))


def _among(typed: Typed, operand: Values) -> Values:
    options = pa.array(list(typed.value), typed.operands[0].type.arrow)
    found = pc.is_in(operand, value_set=options)
    return pc.if_else(pc.is_valid(operand), found, pa.scalar(None, pa.bool_()))


def _like(typed: Typed, operand: Values) -> Values:
    return pc.match_substring_regex(operand, pattern=rf"\A{regular_expression(typed.value)}\z")


def _case(typed: Typed, *operands: Values) -> Values:
    *branches, value = operands
    for place in range(len(branches) - 2, -1, -2):
        condition = pc.coalesce(branches[place], False)
        value = pc.if_else(condition, branches[place + 1], value)
    return value


# ------------------------------------------------------------------------------------- numbers


def _plain(kernel: Callable[..., Values]) -> Callable[..., Values]:
    """Return a kernel that has no use for the typed expression."""
    return lambda typed, *operands: kernel(*operands)


def _modulo(typed: Typed, number: Values, divisor: Values) -> Values:
    # The smallest int has no quotient by -1, and the same remainder by 1.
    divisor = pc.if_else(pc.equal(divisor, -1), pa.scalar(1, pa.int64()), divisor)
    return pc.subtract(number, pc.multiply(pc.divide_checked(number, divisor), divisor))


def _negate(typed: Typed, number: Values) -> Values:
    _refuse_any(pc.equal(number, INT_MIN))
    return pc.negate(number)


def _abs(typed: Typed, number: Values) -> Values:
    _refuse_any(pc.equal(number, INT_MIN))
    return pc.abs(number)


def _without_minus_zero(kernel: Callable[..., Values]) -> Callable[..., Values]:
    return lambda typed, number: pc.add(kernel(number), 0.0)


def _refuse_any(condition: Values) -> None:
    is_any = condition if isinstance(condition, pa.Scalar) else pc.any(condition)
    if is_any.as_py():
        raise BatchFailure


# ----------------------------------------------------------------------------------- conversions


def _each(convert: Callable[[Any], Any], target: Any) -> Callable[..., Values]:
    """Return a kernel that converts each value in Python, as Arrow rounds in another way."""

    def kernel(typed: Typed, values: Values) -> Values:
        if isinstance(values, pa.Scalar):
            return pa.scalar(None if not values.is_valid else convert(values.as_py()), target)
        return pa.array([None if of is None else convert(of) for of in values.to_pylist()], target)

    return kernel


def _of_text(pattern: str, target: Any) -> Callable[..., Values]:
    def kernel(typed: Typed, texts: Values) -> Values:
        _refuse_any(pc.invert(pc.match_substring_regex(texts, pattern=rf"\A(?:{pattern})\z")))
        return pc.cast(texts, target)

    return kernel


def _date(typed: Typed, times: Values) -> Values:
    return pc.cast(pc.floor_temporal(times, 1, "day"), pa.date32())


# ----------------------------------------------------------------------------------------- time


def _truncated(typed: Typed, times: Values) -> Values:
    return pc.floor_temporal(times, 1, typed.value)


def _extracted(typed: Typed, times: Values) -> Values:
    return _EXTRACTS[typed.value](times)


def _moved(kernel: Callable[..., Values]) -> Callable[..., Values]:
    def moved(typed: Typed, times: Values, by: Values) -> Values:
        found = kernel(times, by)
        micros = pc.cast(found, pa.int64())
        _refuse_any(pc.or_(pc.less(micros, MIN_MICROS), pc.greater(micros, MAX_MICROS)))
        return found

    return moved


_EXTRACTS = {
    "YEAR": pc.year,
    "MONTH": pc.month,
    "DAY": pc.day,
    "HOUR": pc.hour,
    "MINUTE": pc.minute,
}

_KERNELS: dict[str, Callable[..., Values]] = {
    "and": _all_of,
    "or": _any_of,
    "not": _plain(pc.invert),
    "is_null": _plain(pc.is_null),
    "equal": _plain(pc.equal),
    "less": _plain(pc.less),
    "less_equal": _plain(pc.less_equal),
    "equal float": _equal_floats,
    "less float": _less_floats,
    "less_equal float": _less_equal_floats,
    "distinct": _distinct,
    "in": _among,
    "like": _like,
    "add": _plain(pc.add_checked),
    "subtract": _plain(pc.subtract_checked),
    "multiply": _plain(pc.multiply_checked),
    "divide": _plain(pc.divide_checked),
    "modulo": _modulo,
    "negate": _plain(pc.negate),
    "negate int": _negate,
    "abs": _plain(pc.abs),
    "abs int": _abs,
    "floor": _without_minus_zero(pc.floor),
    "ceil": _without_minus_zero(pc.ceil),
    "concat": lambda typed, left, right: pc.binary_join_element_wise(left, right, ""),
    "length": lambda typed, text: pc.cast(pc.utf8_length(text), pa.int64()),
    "lower": _plain(pc.ascii_lower),
    "upper": _plain(pc.ascii_upper),
    "case": _case,
    "coalesce": _plain(pc.coalesce),
    "to_float int": lambda typed, number: pc.cast(number, pa.float64(), safe=False),
    "to_float decimal": _each(float, pa.float64()),
    "to_float text": _of_text(FLOAT_TEXT, pa.float64()),
    "to_int float": lambda typed, number: pc.cast(number, pa.int64()),
    "to_int text": _of_text(INT_TEXT, pa.int64()),
    "to_text": lambda typed, number: pc.cast(number, pa.string()),
    "to_decimal": lambda typed, number: pc.cast(number, typed.type.arrow),
    "to_date": _date,
    "trunc": _truncated,
    "extract": _extracted,
    "later": _moved(pc.add_checked),
    "earlier": _moved(pc.subtract_checked),
    "between_times": _plain(pc.subtract),
}
"""The kernel of each operation, by its name alone or with the kind of its first operand."""
