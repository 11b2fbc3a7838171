"""Compiled checks of values: the values that a type accepts, and the values that are read back
unchanged.

There are two checks. A declared type accepts a value if it can be written and read back. The value
is *exact* if reading it back gives the very same value: an int in a float field is accepted, but
not exact. The same code builds both checks.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from textwrap import indent
from types import MappingProxyType
from typing import Any

from statekit.codec.annotations import SCALARS
from statekit.errors import StateTypeError
from statekit.timestamp import datetime_to_micros

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""The ints that MessagePack can hold."""

NESTING_MAX = 100
"""The maximum nesting of a value of a recursive type in levels. Readers and user functions recurse:
the bound leaves them most of Python's stack.
"""

_COLUMNS_FROM = 16
"""From so many tuples on, it is faster to check them part by part."""

Predicate = Callable[[Any], bool]


class Check:
    """A predicate over values, in the forms that larger checks are compiled from.

    Parameters:
        one: checks one value.
        each: checks all values of a collection; None where `one` is called for each.
        term: the same as `one`, as source text over `{0}`; by default a call of it.
        names: what the term names.
    """

    __slots__ = ("each", "names", "one", "term")

    def __init__(
        self,
        one: Predicate,
        each: Callable[[Collection[Any]], bool] | None = None,
        term: str = "",
        names: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.one = one
        self.each = each
        call = f"check_{id(one)}"
        self.term = term or f"{call}({{0}})"
        self.names = names if term else {call: one}


def is_text(value: str) -> bool:
    """Return whether a str can be encoded as UTF-8: it has no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_NAMES: dict[str, Any] = {"datetime": dt.datetime, "UTC": dt.UTC, "is_text": is_text}
_FITS = f"{INT_MIN} <= {{0}} <= {INT_MAX}"


def _ints(values: Collection[Any]) -> bool:
    return (
        {int}.issuperset(map(type, values))
        and min(values, default=0) >= INT_MIN
        and max(values, default=0) <= INT_MAX
    )


def _texts(values: Collection[Any]) -> bool:
    return {str}.issuperset(map(type, values)) and (
        all(map(str.isascii, values)) or all(map(is_text, values))
    )


def _instants_in_utc(values: Collection[Any]) -> bool:
    return (
        {dt.datetime}.issuperset(map(type, values))
        and all(map(partial(is_, dt.UTC), map(attrgetter("tzinfo"), values)))
        and not any(map(attrgetter("fold"), values))
    )


def _is_instant(value: Any) -> bool:
    if type(value) is not dt.datetime:
        return False
    if value.tzinfo is not dt.UTC and value.utcoffset() is None:  # UTC always has an offset
        return False
    if 1 < value.year < 9999:
        return True
    try:
        datetime_to_micros(value)
    except StateTypeError:
        return False
    return True


def _of_term(
    term: str,
    each: Callable[[Collection[Any]], bool] | None = None,
    names: Mapping[str, Any] = MappingProxyType({}),
) -> Check:
    one = eval(f"lambda value: {term.format('value')}", {**_NAMES, **names})  # noqa: S307  own text
    return Check(one, each, term, names)


def _of_class(cls: type) -> Check:
    """Return a check of the exact class of a value."""
    only, name = frozenset({cls}), f"class_{id(cls)}"
    return _of_term(
        f"(type({{0}}) is {name})", lambda values: only.issuperset(map(type, values)), {name: cls}
    )


def scalar_checks(kind: str, cls: type) -> tuple[Check, Check]:
    """Return the two checks of a scalar type: for accepted values, and for values that are read
    back unchanged.

    Parameters:
        kind: of its schema.
        cls: the class of an enum's members; ignored for other kinds.
    """
    return _SCALARS.get(kind) or (_of_class(cls),) * 2


_INT = _of_term(f"(type({{0}}) is int and {_FITS})", _ints)
_STR = _of_term("(type({0}) is str and ({0}.isascii() or is_text({0})))", _texts)
_SCALARS: dict[str, tuple[Check, Check]] = {
    **{kind: (_of_class(cls),) * 2 for kind, cls in SCALARS.items()},
    "int": (_INT, _INT),
    "str": (_STR, _STR),
    "float": (
        _of_term(f"(type({{0}}) is float or type({{0}}) is int and {_FITS})"),
        _of_class(float),
    ),
    "datetime": (
        Check(_is_instant),
        _of_term(
            "(type({0}) is datetime and {0}.tzinfo is UTC and {0}.fold == 0)", _instants_in_utc
        ),
    ),
}


# ------------------------------------------------------------------ of several


def accepting_none(check: Check) -> Check:
    """Return a check that accepts None, and all values that `check` accepts."""
    each = check.each
    each_optional = each and (lambda values: each([part for part in values if part is not None]))
    return _of_term(f"({{0}} is None or {check.term})", each_optional, check.names)


def any_of(checks: Sequence[Check]) -> Check:
    """Return the check of a union."""
    terms = " or ".join(check.term for check in checks)
    return _of_term(f"({terms})", names=_names_of(checks))


def _names_of(checks: Sequence[Check]) -> dict[str, Any]:
    return {name: named for check in checks for name, named in check.names.items()}


def check_each(check: Check) -> Callable[[Any], bool]:
    """Return a check of any number of values of one type."""
    one = check.one
    return check.each or (lambda values: all(map(one, values)))


def check_parts(
    cls: type,
    checks: Sequence[Check],
    read: str,
    condition: str = "True",
    is_kept: Predicate | None = None,
) -> Check:
    """Return a check of a class and of the parts of its instances, compiled from source text.

    The check of many values has the same code in a loop, which saves a call for each.

    Parameters:
        cls: the exact class of a value.
        checks: of the parts.
        read: a statement that assigns the parts of `value` to `part0`, `part1`, …
        condition: of `value`, as source text; checked before the parts are read.
        is_kept: a predicate that the condition may call by this name.
    """
    names: dict[str, Any] = {**_NAMES, **_names_of(checks), "cls": cls, "is_kept": is_kept}
    terms = [check.term.format(f"part{index}") for index, check in enumerate(checks)]
    of_value = f"""\
if type(value) is not cls:
    return False
try:
    if not ({condition}):
        return False
    {read}
except AttributeError:
    return False
if not ({" and ".join(terms) or "True"}):
    return False
"""
    source = f"""\
def check(value):
{indent(of_value, 4 * " ")}
    return True

def check_all(values):
    for value in values:
{indent(of_value, 8 * " ")}
    return True
"""
    exec(source, names)
    in_turn = names["check_all"]
    if (read, condition.removesuffix(" and True")) != unpacking(len(checks)) or not checks:
        return Check(names["check"], in_turn)
    by_column = _by_column(cls, checks)

    def check_all(values: Collection[Any]) -> bool:
        return bool((in_turn if len(values) < _COLUMNS_FROM else by_column)(values))

    return Check(names["check"], check_all)


def _by_column(cls: type, checks: Sequence[Check]) -> Callable[[Collection[Any]], bool]:
    """Return a check of many tuples, which checks each part of all of them at once."""
    only, sizes, of_parts = (
        frozenset({cls}),
        frozenset({len(checks)}),
        list(map(check_each, checks)),
    )

    def check_all(values: Collection[Any]) -> bool:
        if not (only.issuperset(map(type, values)) and sizes.issuperset(map(len, values))):
            return False
        columns = zip(*values, strict=True)
        return all(of(column) for of, column in zip(of_parts, columns, strict=True))

    return check_all


def unpacking(size: int) -> tuple[str, str]:
    """Return the source text that unpacks a tuple of `size` parts, and its condition on the
    length.
    """
    targets = "".join(f"part{index}, " for index in range(size))
    return (f"{targets}= value" if size else "pass"), f"len(value) == {size}"


# ------------------------------------------------------------------ recursive types


class _Depth(threading.local):
    levels = 0
    exceeded = False


_DEPTH = _Depth()


def deeper(check: Callable[[], Check], levels: int) -> Check:
    """Return the check for a recursive type nested in itself. It fails below `NESTING_MAX` levels.

    Parameters:
        check: returns the type's own check, which is compiled later.
        levels: how many levels deeper a value is nested each time.
    """

    def one(value: Any) -> bool:
        _DEPTH.levels += levels
        try:
            if _DEPTH.levels > NESTING_MAX:
                _DEPTH.exceeded = True
                return False
            return check().one(value)
        finally:
            _DEPTH.levels -= levels

    return Check(one)


def exceeds_nesting(check: Check, value: Any) -> bool:
    """Return whether a value is refused because it has more than `NESTING_MAX` levels."""
    _DEPTH.exceeded = False
    return not check.one(value) and _DEPTH.exceeded
