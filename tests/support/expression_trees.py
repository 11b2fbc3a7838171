"""Random expressions of every type, and rows of values that are likely to show a difference."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

from hypothesis import strategies as st

from statekit.expressions.expression import lit
from statekit.expressions.sql_text import EXTRACT_UNITS, TRUNC_UNITS
from statekit.expressions.tree import (
    BinaryNode,
    CallNode,
    CaseNode,
    CastNode,
    ColumnNode,
    ExpressionNode,
    InNode,
    LikeNode,
    UnaryNode,
    logic,
    minus,
)
from statekit.records.arrow_scalars import Decimals

Trees = st.SearchStrategy[ExpressionNode]
Draw = Callable[..., Any]


class Inner(NamedTuple):
    """A nested record."""

    n: int
    s: str | None


class Row(NamedTuple):
    """A record with a field of every type, and one of it that may be None."""

    i: int
    j: int | None
    f: float
    g: float | None
    d: Annotated[decimal.Decimal, Decimals(9, 2)]
    e: Annotated[decimal.Decimal | None, Decimals(6, 4)]
    s: str
    t: str | None
    b: bool
    c: bool | None
    day: dt.date | None
    since: dt.datetime
    until: dt.datetime | None
    wait: dt.timedelta | None
    nest: Inner | None


FIELDS: dict[str, tuple[str, ...]] = {
    "int": ("i", "j", "nest.n"),
    "float": ("f", "g"),
    "decimal": ("d", "e"),
    "text": ("s", "t", "nest.s"),
    "bool": ("b", "c"),
    "date": ("day",),
    "timestamp": ("since", "until"),
    "interval": ("wait",),
}

_EARLIEST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
_LATEST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
_MICROS = st.sampled_from([0, 1, -1, 999_999, 86_400_000_000, -86_400_000_001, 3_599_999_999])


def _decimals(digits: int, places: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**digits - 1
    numbers = st.sampled_from([0, 1, -1, most, -most, 150]) | st.integers(-most, most)
    return numbers.map(lambda number: decimal.Decimal(number).scaleb(-places))


INTS = st.sampled_from([0, 1, -1, 2, 7, -7, 100, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]) | (
    st.integers(-20, 20)
)
FLOATS = (
    st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.5, 2.0**53, 1e22, -(2.0**63), 2.0**63, 5e-324, 1e308])
    | st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.1, -0.5, 4503599627370495.5])
    | st.floats(-100, 100)
)
TEXTS = st.sampled_from(
    ["", "a", "A", "ab", "ab ", " ", "a%b", "a_b", "a\\b", "ä", "Ä", "ß", "😀", "a😀b", "\ue000"]
) | st.sampled_from(
    ["a\nb", "12", "-7", "+3", " 5", "1.5", "1e3", "x", "İ", "e\u0301", "it's", '"', "0x1F"]
)
DATES = st.sampled_from([dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)]) | (
    st.dates(dt.date(1960, 1, 1), dt.date(2040, 1, 1))
)
TIMES = st.sampled_from([_EARLIEST, _LATEST, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]) | (
    st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2040, 1, 1), timezones=st.just(dt.UTC))
)
WAITS = _MICROS.map(lambda micros: dt.timedelta(microseconds=micros))

LITERALS: dict[str, st.SearchStrategy[Any]] = {
    "int": INTS,
    "float": FLOATS,
    "decimal": _decimals(5, 2) | _decimals(3, 0),
    "text": TEXTS,
    "bool": st.booleans(),
    "date": DATES,
    "timestamp": TIMES,
    "interval": WAITS,
}

ROWS: st.SearchStrategy[Row] = st.builds(
    Row,
    INTS,
    st.none() | INTS,
    FLOATS,
    st.none() | FLOATS,
    _decimals(9, 2),
    st.none() | _decimals(6, 4),
    TEXTS,
    st.none() | TEXTS,
    st.booleans(),
    st.none() | st.booleans(),
    st.none() | DATES,
    TIMES,
    st.none() | TIMES,
    st.none() | WAITS,
    st.none() | st.builds(Inner, INTS, st.none() | TEXTS),
)


@cache
def trees(kind: str | None = None, depth: int = 3) -> Trees:
    """Return trees whose values are of a kind; of any kind by default."""
    if kind is None:
        return st.sampled_from(sorted(FIELDS)).flatmap(lambda chosen: trees(chosen, depth))
    columns = st.sampled_from(FIELDS[kind]).map(lambda name: ColumnNode(tuple(name.split("."))))
    literals = (LITERALS[kind] | st.none()).map(_literal)
    leaves: Trees = columns | columns | literals
    if depth == 0:
        return leaves
    return leaves | st.deferred(lambda: st.one_of(*_operations(kind, depth - 1)))


def _literal(value: Any) -> ExpressionNode:
    return lit(value).tree


def _operations(kind: str, depth: int) -> list[Trees]:
    """Return the strategies of all operations that have a result of a kind."""
    own, conditions = trees(kind, depth), trees("bool", depth)
    of_kinds: Mapping[str, Callable[[Draw], list[Trees]]] = {
        "int": _ints,
        "float": _floats,
        "decimal": _decimal_trees,
        "text": _texts,
        "bool": _conditions,
        "date": lambda inner: [st.builds(CastNode, inner("timestamp"), st.just("DATE"))],
        "timestamp": _times,
        "interval": _intervals,
    }
    of_kind = of_kinds[kind]
    return [
        st.builds(
            lambda given: CallNode("COALESCE", tuple(given)), st.lists(own, min_size=1, max_size=3)
        ),
        st.builds(
            lambda branches, otherwise: CaseNode(tuple(branches), otherwise),
            st.lists(st.tuples(conditions, own), min_size=1, max_size=2),
            own,
        ),
        *of_kind(lambda inner_kind: trees(inner_kind, depth)),
    ]


def _binary(operators: str, left: Trees, right: Trees) -> Trees:
    return st.builds(BinaryNode, st.sampled_from(operators.split()), left, right)


def _calls(names: str, argument: Trees) -> Trees:
    chosen = st.sampled_from(names.split())
    return st.builds(lambda name, of: CallNode(name, (of,)), chosen, argument)


def _units(name: str, units: Sequence[str], argument: Trees) -> Trees:
    chosen = st.sampled_from(units)
    return st.builds(lambda unit, of: CallNode(name, (of,), unit), chosen, argument)


def _ints(inner: Draw) -> list[Trees]:
    return [
        _binary("+ - * %", inner("int"), inner("int")),
        inner("int").map(minus),
        _calls("ABS FLOOR CEIL", inner("int")),
        _calls("LENGTH", inner("text")),
        st.builds(CastNode, inner("text") | inner("float"), st.just("BIGINT")),
        _units("EXTRACT", EXTRACT_UNITS, inner("timestamp")),
        _units("EXTRACT", ["YEAR", "MONTH", "DAY"], inner("date")),
    ]


def _floats(inner: Draw) -> list[Trees]:
    return [
        _binary("+ - * /", inner("float"), inner("float") | inner("int")),
        _binary("/", inner("int"), inner("int")),
        inner("float").map(minus),
        _calls("ABS FLOOR CEIL", inner("float")),
        st.builds(CastNode, inner("int") | inner("decimal") | inner("text"), st.just("DOUBLE")),
    ]


def _decimal_trees(inner: Draw) -> list[Trees]:
    return [
        _binary("+ - *", inner("decimal"), inner("decimal") | inner("int")),
        inner("decimal").map(minus),
        _calls("ABS", inner("decimal")),
        st.builds(CastNode, inner("decimal") | inner("int"), st.just("DECIMAL(30, 6)")),
    ]


def _texts(inner: Draw) -> list[Trees]:
    return [
        _binary("||", inner("text"), inner("text")),
        _calls("LOWER UPPER", inner("text")),
        st.builds(CastNode, inner("int"), st.just("VARCHAR")),
    ]


def _times(inner: Draw) -> list[Trees]:
    return [
        _binary("+ -", inner("timestamp"), inner("interval")),
        _units("DATE_TRUNC", [unit.lower() for unit in TRUNC_UNITS], inner("timestamp")),
    ]


def _intervals(inner: Draw) -> list[Trees]:
    return [_binary("-", inner("timestamp"), inner("timestamp"))]


def _conditions(inner: Draw) -> list[Trees]:
    alike = [(kind, kind) for kind in FIELDS] + [("int", "float"), ("decimal", "int")]
    patterns = st.sampled_from(
        ["", "%", "_", "a%", "%b", "a_b", r"a\%b", "%😀%", "__", r"a\\b", "a.*"]
    )
    found: list[Trees] = []
    for left, right in alike:
        operators = "= <>" if left == "bool" else "= <> < <= > >="
        found.append(_binary(operators, inner(left), inner(right)))
        distinct = st.just("IS DISTINCT FROM")
        found.append(st.builds(BinaryNode, distinct, inner(left), inner(right)))
        options = st.lists(inner(right), min_size=1, max_size=3).map(tuple)
        found.append(st.builds(InNode, inner(left), options))
        found.append(inner(left).map(lambda of: UnaryNode("IS NULL", of)))
    found.append(st.builds(LikeNode, inner("text"), patterns))
    found.append(inner("bool").map(lambda of: UnaryNode("NOT", of)))
    some = st.lists(inner("bool"), min_size=2, max_size=3)
    found.append(
        st.builds(lambda op, given: logic(op, *given), st.sampled_from(["AND", "OR"]), some)
    )
    return [st.one_of(*found)]


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values are the same: NaN is itself, and zeros have their sign."""
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and bool(one == other)
