"""Expressions as Python functions: source text, compiled once for a record class."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from statekit.codec.annotations import peel, struct_flavour
from statekit.errors import StateTypeError
from statekit.expressions.failures import (
    INT_MAX,
    INT_MIN,
    divided_by_zero,
    not_a_number,
    out_of_range,
)
from statekit.expressions.like_pattern import regular_expression
from statekit.expressions.tree import MICROSECOND
from statekit.expressions.typed import Typed
from statekit.expressions.value_types import field_annotations, nested_class

_EXACT = decimal.Context(prec=100, Emin=-1000, Emax=1000)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INT_TEXT = "[+-]?[0-9]+"
FLOAT_TEXT = "[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"
"""Regular expressions of the texts that a CAST converts, for Python, RE2 and Java."""

_MOST_IN_A_ROW = 4
"""Conditions of one AND or OR that are nested in one another."""

_LARGEST_FRACTION = 2.0**52
"""Floats from here on are whole numbers."""

_LOWER = {upper: upper + 32 for upper in range(65, 91)}
_UPPER = {lower: lower - 32 for lower in range(97, 123)}
_TRUNCATED = {"minute": 60_000_000, "hour": 3_600_000_000, "second": 1_000_000}
_TRUNCATED |= {"day": 86_400_000_000}

_INT = "({t} if -9223372036854775808 <= ({t} := {0} %s {1}) <= 9223372036854775807 else {over})"
_SIGNED = "({t} if ({t} := %s) <= 9223372036854775807 else {over})"

_TEMPLATES = {
    "not": "(not {0})",
    "equal": "({0} == {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "equal float": "({0} == {1} or ({0} != {0} and {1} != {1}))",
    "less float": "({0} < {1} or ({1} != {1} and {0} == {0}))",
    "less_equal float": "({0} <= {1} or {1} != {1})",
    "equal constant": "({0} == {1})",
    "less constant": "({0} < {1} or {1} != {1})",
    "less_equal constant": "({0} <= {1} or {1} != {1})",
    "in": "({0} in {value})",
    "like": "({value}({0}) is not None)",
    "add int": _INT % "+",
    "subtract int": _INT % "-",
    "multiply int": _INT % "*",
    "add float": "({0} + {1})",
    "subtract float": "({0} - {1})",
    "multiply float": "({0} * {1})",
    "add decimal": "EXACT.add({0}, {1})",
    "subtract decimal": "EXACT.subtract({0}, {1})",
    "multiply decimal": "EXACT.multiply({0}, {1})",
    "divide": "({0} / ({t} if ({t} := {1}) else divided_by_zero({text})))",
    "modulo": "modulo({0}, {1}, {text})",
    "negate int": _SIGNED % "-{0}",
    "negate float": "(-{0})",
    "negate decimal": "EXACT.minus({0})",
    "abs int": _SIGNED % "abs({0})",
    "abs float": "abs({0})",
    "abs decimal": "EXACT.abs({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "concat": "({0} + {1})",
    "length": "len({0})",
    "lower": "{0}.translate(LOWER)",
    "upper": "{0}.translate(UPPER)",
    "to_float int": "float({0})",
    "to_float decimal": "float({0})",
    "to_float text": "float_of_text({0}, {text})",
    "to_int float": "int_of_float({0}, {text})",
    "to_int text": "int_of_text({0}, {text})",
    "to_text": "str({0})",
    "to_decimal": "Decimal({0})",
    "to_date": "{0}.astimezone(UTC).date()",
    "trunc": "truncated({0}, {value})",
    "extract timestamp": "{0}.astimezone(UTC).{value}",
    "extract date": "{0}.{value}",
    "later": "moved({0}, {1}, {text})",
    "earlier": "moved({0}, -{1}, {text})",
    "between_times": "({0} - {1})",
}
"""The source of each operation, by its name alone or with the kind of its first operand.

`{0}` and `{1}` are operands that are not None, `{t}` is a variable, `{text}` the SQL text.
"""

Compiled = Callable[[Any], Any]


def compile_function(typed: Typed, cls: Any, *, is_condition: bool = False) -> Compiled:
    """Return the function from a record to the value of an expression.

    Parameters:
        cls: the class of the records; None for rows, which are dicts by the names of columns.
        is_condition: whether only its truth value is used, so that NULL may become False.
    """
    return _compiled(typed, cls, is_condition, "def function(record):\n return {}")


def compile_over_list(typed: Typed, cls: Any, *, is_condition: bool = False) -> Compiled:
    """Return the function from an iterable of records to the list of the values, as for
    `compile_function`.
    """
    form = "def function(records):\n return [{} for record in records]"
    return _compiled(typed, cls, is_condition, form)


def compile_construction(
    form: str, names: Mapping[str, Any], fields: Sequence[Typed | None], cls: Any
) -> Compiled:
    """Return the function from an iterable of records to the list of the objects that are made of
    some fields or expressions of each.

    Parameters:
        form: the source that makes an object, with a place `{}` for each of its parts in turn.
        names: that the form has.
        fields: the parts; None for the record itself.
        cls: the class of the records.
    """
    writer = _Writer(cls)
    parts = ["record" if typed is None else writer.value(typed) for typed in fields]
    pieces = form.split("{}")
    source = "".join(chain.from_iterable(zip(pieces, [*parts, ""], strict=True)))
    code = f"def function(records):\n return [{source} for record in records]"
    return _function(code, {**names, **writer.constants}, form)


def _compiled(typed: Typed, cls: Any, is_condition: bool, form: str) -> Compiled:
    """Compile a function.

    Parameters:
        form: its source, with a place for the value.
    """
    writer = _Writer(cls)
    source = writer.condition(typed) if is_condition else writer.value(typed)
    return _function(form.replace("{}", source), writer.constants, str(typed.node))


def _function(source: str, names: Mapping[str, Any], title: str) -> Compiled:
    """Compile the source of a function.

    Parameters:
        names: that the source has, beside those of this module.
        title: for tracebacks.

    Raises:
        StateTypeError: an expression in it is nested too deeply.
    """
    known = {**_NAMES, **names}
    try:
        code = compile(source, f"<expression {title}>", "exec")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise StateTypeError(
            f"the expression {title} is nested too deeply: split it, or use a function"
        ) from error
    exec(code, known)
    function: Compiled = known["function"]
    return function


class _Writer:
    """Writes the source of an expression.

    Parameters:
        cls: the class of the records; None for rows.

    Attributes:
        constants: by the names that the source has for them.
    """

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._numbers = count()
        self.constants: dict[str, Any] = {}

    def value(self, typed: Typed) -> str:
        """Return the source of a value, which is None for NULL."""
        match typed.operation:
            case "column":
                return self._column(typed.value)
            case "literal":
                return self._constant(typed.value)
            case "and" | "or":
                return self._logic(typed)
            case "is_null":  # by a variable, as Python warns of `is` with a constant
                return f"(({self._variable()} := {self.value(typed.operands[0])}) is None)"
            case "distinct":
                return self._distinct(typed)
            case "case":
                return self._case(typed, self.value)
            case "coalesce":
                return self._coalesce(typed)
        return self._of_values(typed)

    def condition(self, typed: Typed) -> str:
        """Return the source of a condition whose NULL may be any value that is not true."""
        match typed.operation:
            case "and" | "or":
                joined = f" {typed.operation} ".join(map(self.condition, typed.operands))
                return f"({joined})"
            case "case":
                return self._case(typed, self.condition)
        return self.value(typed)

    def _column(self, path: Sequence[str]) -> str:
        source, cls, may_be_none = "record", self._cls, False
        for name in path:
            if may_be_none:
                held = self._variable()
                guard, source = f"None if ({held} := {source}) is None else ", held
            else:
                guard = ""
            is_mapping = cls is None or struct_flavour(cls) == "typeddict"
            source = f"{source}.get({name!r})" if is_mapping else f"{source}.{name}"
            source = f"({guard}{source})" if guard else source
            if cls is not None:
                annotation, may_lack = field_annotations(cls)[name]
                may_be_none = may_lack or _is_nullable(annotation)
                cls = nested_class(annotation)
            else:
                may_be_none = True
        return source

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int, str):
            return f"({value!r})"
        name = f"constant_{next(self._numbers)}"
        self.constants[name] = value
        return name

    def _variable(self) -> str:
        return f"v{next(self._numbers)}"

    def _logic(self, typed: Typed) -> str:
        """Write AND or OR with three truth values. Later conditions run only if they matter."""
        if len(typed.operands) > _MOST_IN_A_ROW:
            return self._logic(_in_halves(typed))
        decided = "False" if typed.operation == "and" else "True"
        first, *others = typed.operands
        source = self.value(typed.operands[-1])
        nullable = typed.operands[-1].type.nullable
        for operand in reversed([first, *others[:-1]]):
            if not operand.type.nullable:
                source = f"({self.value(operand)} {typed.operation} {source})"
                continue
            held, other = self._variable(), self._variable()
            value = f"({held} := {self.value(operand)})"
            rest = f"({decided} if ({other} := {source}) is {decided} else "
            if nullable:
                rest += f"None if {other} is None else {held})"
            else:
                rest += f"{held})"
            source, nullable = f"({decided} if {value} is {decided} else {rest})", True
        return source

    def _distinct(self, typed: Typed) -> str:
        left, right = (self._variable() for _ in range(2))
        one, other = map(self.value, typed.operands)
        equal = self._filled(_template_key(typed, "equal"), typed, [left, right])
        some = f"(({left} := {one}) is None) | (({right} := {other}) is None)"
        return f"(({left} is not {right}) if {some} else not {equal})"

    def _case(self, typed: Typed, write: Callable[[Typed], str]) -> str:
        *branches, otherwise = typed.operands
        pairs = zip(branches[::2], branches[1::2], strict=True)
        texts = (f"{write(value)} if {self.condition(when)} else " for when, value in pairs)
        return f"({''.join(texts)}{write(otherwise)})"

    def _coalesce(self, typed: Typed) -> str:
        *others, last = typed.operands
        source = self.value(last)
        for operand in reversed(others):
            held = self._variable()
            value = self.value(operand)
            source = f"({held} if ({held} := {value}) is not None else {source})"
        return source

    def _of_values(self, typed: Typed) -> str:
        """Write an operation that is NULL if an operand is, with its operands from the left."""
        guards, sources = [], []
        key = _template_key(typed)
        is_repeated = key.endswith((" float", " constant"))
        for place, operand in enumerate(typed.operands):
            source = self.value(operand)
            has_guard_behind = any(each.type.nullable for each in typed.operands[place + 1 :])
            if (
                operand.type.nullable
                or (is_repeated and not operand.is_constant)
                or (has_guard_behind and operand.can_fail)
            ):
                held = self._variable()
                guards.append(f"({held} := {source}) is None")
                source = held
            sources.append(source)
        filled = self._filled(key, typed, sources)
        return f"(None if {' or '.join(guards)} else {filled})" if guards else filled

    def _filled(self, key: str, typed: Typed, sources: list[str]) -> str:
        template = _TEMPLATES[key]
        variable = self._variable() if "{t}" in template else ""
        text = self._constant(str(typed.node)) if "text" in template or "over" in template else ""
        over = f"out_of_range({variable}, {text})"
        value = self._value_of(typed)
        return template.format(*sources, t=variable, text=text, over=over, value=value)

    def _value_of(self, typed: Typed) -> str:
        match typed.operation:
            case "in":
                return self._constant(frozenset(typed.value))
            case "like":
                return self._constant(re.compile(regular_expression(typed.value)).fullmatch)
            case "trunc":
                return self._constant(typed.value)
            case "extract":
                return str(typed.value).lower()
        return ""


def _in_halves(typed: Typed) -> Typed:
    """Return AND or OR of many conditions as one of two halves, which are nested less deeply."""
    middle = len(typed.operands) // 2
    first, second = typed.operands[:middle], typed.operands[middle:]
    return replace(
        typed, operands=(replace(typed, operands=first), replace(typed, operands=second))
    )


def _template_key(typed: Typed, operation: str | None = None) -> str:
    """Return the key of the template of an operation.

    Parameters:
        operation: in place of its own.
    """
    operation = operation or typed.operation
    if typed.kind == "float" and operation in ("equal", "less", "less_equal"):
        left, right = (each.is_constant and each.value == each.value for each in typed.operands)
        if right or left:  # and no NaN: the other operand alone may be one
            return operation if right else f"{operation} constant"
    by_kind = f"{operation} {typed.kind}"
    return by_kind if by_kind in _TEMPLATES else operation


def _is_nullable(annotation: Any) -> bool:
    return peel(annotation)[1]


# --------------------------------------------------------------- functions that the source calls


def _modulo(number: int, divisor: int, text: str) -> int:
    """Return the remainder with the sign of the number, as in SQL."""
    if not divisor:
        divided_by_zero(text)
    rest = abs(number) % abs(divisor)
    return -rest if number < 0 else rest


def _floor(number: float) -> float:
    return float(math.floor(number)) if abs(number) < _LARGEST_FRACTION else number


def _ceil(number: float) -> float:
    return float(math.ceil(number)) if abs(number) < _LARGEST_FRACTION else number


def _int_of_float(number: float, text: str) -> int:
    if not number.is_integer() or not INT_MIN <= number <= INT_MAX:
        not_a_number(number, text)
    return int(number)


def _int_of_text(given: str, text: str) -> int:
    if not re.fullmatch(INT_TEXT, given):
        not_a_number(given, text)
    number = int(given)
    return number if INT_MIN <= number <= INT_MAX else out_of_range(number, text)


def _float_of_text(given: str, text: str) -> float:
    if not re.fullmatch(FLOAT_TEXT, given):
        not_a_number(given, text)
    return float(given)


def _truncated(time: dt.datetime, unit: str) -> dt.datetime:
    micros = (time - _EPOCH) // MICROSECOND
    size = _TRUNCATED[unit]
    return _EPOCH + dt.timedelta(microseconds=micros // size * size)


def _moved(time: dt.datetime, by: dt.timedelta, text: str) -> dt.datetime:
    try:
        return time.astimezone(dt.UTC) + by
    except OverflowError:
        raise OverflowError(f"{text} is outside of the years 1 to 9999") from None


_NAMES: dict[str, Any] = {
    "EXACT": _EXACT,
    "LOWER": _LOWER,
    "UPPER": _UPPER,
    "UTC": dt.UTC,
    "Decimal": decimal.Decimal,
    "ceil": _ceil,
    "divided_by_zero": divided_by_zero,
    "float_of_text": _float_of_text,
    "floor": _floor,
    "int_of_float": _int_of_float,
    "int_of_text": _int_of_text,
    "modulo": _modulo,
    "moved": _moved,
    "out_of_range": out_of_range,
    "truncated": _truncated,
}
