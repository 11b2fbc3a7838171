"""Compile checks of values: which values a type accepts, and which are read back as they are.

There are two checks. A declared type accepts a value if it can be written and read back. The value
is *exact* if reading it back gives the very same value: an int in a float field is accepted, but
not exact. The same code builds both checks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from statekit.codec.annotations import SCALARS
from statekit.errors import StateTypeError
from statekit.timestamp import datetime_to_micros

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""The ints that MessagePack can hold."""

NESTING_MAX = 100
"""How many levels a value of a recursive type may have. Readers recurse, and so do functions that
handle such values: the bound leaves most of Python's stack to them."""

Predicate = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A predicate over values, in the forms from which larger checks are compiled.

    Parameters:
        one: checks one value.
        types: set where a value's exact class alone decides.
        term: the same as `one`, as source text over `{0}`; None where only a call will do.
        each: checks all values of a collection; None where `one` is called for each.
    """

    one: Predicate
    types: frozenset[type] | None = None
    term: str | None = None
    each: Callable[[Collection[Any]], bool] | None = None


def is_text(value: str) -> bool:
    """Return whether a str can be written as UTF-8: it has no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_NAMES: dict[str, Any] = {
    **{cls.__name__: cls for cls in SCALARS.values()},
    "UTC": dt.UTC,
    "is_text": is_text,
}
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


def _compiled(term: str) -> Predicate:
    check: Predicate = eval(f"lambda value: {term.format('value')}", _NAMES)  # noqa: S307  own text
    return check


def _of_term(term: str, each: Callable[[Collection[Any]], bool] | None = None) -> Check:
    return Check(_compiled(term), None, term, each)


def check_types(types: frozenset[type]) -> Check:
    """Return a check of a value's exact class only."""
    names = [kind.__name__ for kind in types]
    if not types <= {*SCALARS.values()}:
        term = None
    else:
        conditions = [
            "{0} is None" if name == "NoneType" else f"type({{0}}) is {name}" for name in names
        ]
        term = f"({' or '.join(sorted(conditions))})"
    if len(types) == 1:
        (only,) = types
        return Check(lambda value: type(value) is only, types, term)
    return Check(lambda value: type(value) in types, types, term)


def scalar_checks(kind: str, cls: type) -> tuple[Check, Check]:
    """Return the two checks of a scalar type: which values it accepts, and which are exact.

    Parameters:
        kind: of its schema.
        cls: the class of an enum's members; ignored for other kinds.
    """
    return _SCALARS.get(kind) or (check_types(frozenset({cls})),) * 2


_INT = _of_term(f"(type({{0}}) is int and {_FITS})", _ints)
_STR = _of_term("(type({0}) is str and ({0}.isascii() or is_text({0})))", _texts)
_SCALARS: dict[str, tuple[Check, Check]] = {
    **{kind: (check_types(frozenset({cls})),) * 2 for kind, cls in SCALARS.items()},
    "int": (_INT, _INT),
    "str": (_STR, _STR),
    "float": (
        _of_term(f"(type({{0}}) is float or type({{0}}) is int and {_FITS})"),
        check_types(frozenset({float})),
    ),
    "datetime": (
        Check(_is_instant),
        _of_term("(type({0}) is datetime and {0}.tzinfo is UTC and {0}.fold == 0)"),
    ),
}


# ------------------------------------------------------------------ of several


def optional(check: Check) -> Check:
    """Return the check of a type, or None."""
    if check.types is not None:
        return check_types(check.types | {type(None)})
    if check.term is not None:
        return _of_term(f"({{0}} is None or {check.term})")
    one = check.one
    return Check(lambda value: value is None or one(value))


def any_of(checks: Sequence[Check]) -> Check:
    """Return the check of a union."""
    if all(check.types is not None for check in checks):
        return check_types(frozenset().union(*(check.types or () for check in checks)))
    if all(check.term is not None for check in checks):
        return _of_term(f"({' or '.join(check.term or '' for check in checks)})")
    ones = [check.one for check in checks]

    def one(value: Any) -> bool:
        for check in ones:  # noqa: SIM110  a generator costs a frame per level of nesting
            if check(value):
                return True
        return False

    return Check(one)


def check_each(check: Check) -> Callable[[Any], bool]:
    """Return a check of any number of values of one type."""
    if check.each is not None:
        return check.each
    if check.types is not None:
        return lambda values, types=check.types: types.issuperset(map(type, values))  # type: ignore[misc]
    one = check.one
    return lambda values: all(map(one, values))


def check_parts(cls: type, checks: Sequence[Check], read: str, condition: str = "True") -> Check:
    """Return a check of a class and of parts of its instances, compiled as `dataclasses` does it.

    Parameters:
        cls: the exact class of a value.
        checks: of the parts.
        read: a statement that assigns the parts of `value` to `part0`, `part1`, …
        condition: of `value`, as source text; checked before the parts are read.
    """
    names: dict[str, Any] = {**_NAMES, "cls": cls}
    terms = []
    for index, check in enumerate(checks):
        if check.term is not None:
            terms.append(check.term.format(f"part{index}"))
        elif check.types is not None and len(check.types) == 1:
            (names[f"type{index}"],) = check.types
            terms.append(f"type(part{index}) is type{index}")
        else:
            names[f"check{index}"] = check.one
            terms.append(f"check{index}(part{index})")
    source = f"""\
def check(value):
    if type(value) is not cls:
        return False
    try:
        if not ({condition}):
            return False
        {read}
    except AttributeError:
        return False
    return {" and ".join(terms) or "True"}
"""
    exec(source, names)
    return Check(names["check"])


def unpacking(size: int) -> tuple[str, str]:
    """For `check_parts`: how the parts of a tuple are read, and that it has that many."""
    targets = "".join(f"part{index}, " for index in range(size))
    return (f"{targets}= value" if size else "pass"), f"len(value) == {size}"


# ------------------------------------------------------------------ recursive types


class _Depth(threading.local):
    levels = 0
    exceeded = False


_DEPTH = _Depth()


def deeper(check: Callable[[], Check], levels: int) -> Check:
    """Return the check of a recursive type within itself: false below `NESTING_MAX` levels.

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
    """Return whether a value is not accepted because it has more than `NESTING_MAX` levels."""
    _DEPTH.exceeded = False
    return not check.one(value) and _DEPTH.exceeded
