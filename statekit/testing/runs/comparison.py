"""Comparison of the results of two runs."""

from __future__ import annotations

import decimal
import enum
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statekit.shown import shown
from statekit.testing.runs.observed import Observed

_FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")

Compare = Callable[[Observed, Observed], str | None]
"""A function that returns the first difference between two runs; None if there is none."""


def exactly(one: Observed, other: Observed) -> str | None:
    """Compare all records in order, states, operator states, timers and the number of late records,
    after each epoch.
    """
    return _by_epoch(one, other, is_same, _in_contents, _in_operator_states, _in_late)


def in_any_order(one: Observed, other: Observed) -> str | None:
    """Compare the records of each epoch in any order, states, timers and the number of late
    records.
    """
    return _by_epoch(one, other, have_the_same, _in_contents, _in_late)


def emitted_in_any_order(one: Observed, other: Observed) -> str | None:
    """Compare the records of each epoch in any order, and no stored contents."""
    return _by_epoch(one, other, have_the_same)


def _by_epoch(
    one: Observed,
    other: Observed,
    agree: Callable[[list[Any], list[Any]], bool],
    *stored: Callable[[Observed, Observed, int], str | None],
) -> str | None:
    """Compare the records of each sink and the stored contents, epoch by epoch. Return the first
    difference.

    Parameters:
        agree: compares the records of a sink.
        stored: compare the stored contents after an epoch.
    """
    if len(one.epochs) != len(other.epochs):
        return f"the number of epochs: {len(one.epochs)} and {len(other.epochs)}"
    for number, (emitted, again) in enumerate(zip(one.epochs, other.epochs, strict=True)):
        for sink, records in emitted.items():
            if not agree(records, again[sink]):
                return f"the records of sink {sink!r} in epoch {number}"
        for compare in stored:
            if (what := compare(one, other, number)) is not None:
                return what
    return None


def in_total(one: Observed, other: Observed) -> str | None:
    """Compare all records of all epochs in any order, and the states and timers at the end."""
    for sink in one.epochs[0] if one.epochs else ():
        records, again = (
            [record for epoch in each.epochs for record in epoch[sink]] for each in (one, other)
        )
        if not have_the_same(records, again):
            return f"all records of sink {sink!r} together"
    return _in_contents(one, other, -1) if one.contents and other.contents else None


def _in_contents(one: Observed, other: Observed, number: int) -> str | None:
    """Return the first difference in states and timers after an epoch; None if there is none."""
    first, second = one.contents[number], other.contents[number]
    after = "at the end" if number < 0 else f"after epoch {number}"
    for (operator, name), values in first.states.items():
        for key in _keys(values, second.states[operator, name]):
            value, again = values.get(key), second.states[operator, name].get(key)
            if not is_same(value, again):
                where = f"state {name!r} of {operator} at the key {shown(key)} {after}"
                return f"{where}: {shown(value, 100)} and {shown(again, 100)}"
    for operator, timers in first.timers.items():
        for key in _keys(timers, second.timers[operator]):
            if timers.get(key) != second.timers[operator].get(key):
                return f"the timers of {operator} at the key {shown(key)} {after}"
    return None


def _in_operator_states(one: Observed, other: Observed, number: int) -> str | None:
    """Return the first operator state that differs after an epoch; None if all are the same."""
    first, second = (each.contents[number].operator_states for each in (one, other))
    for (operator, name), values in first.items():
        if not is_same(values, second[operator, name]):
            return f"operator state {name!r} of {operator} after epoch {number}"
    return None


def _in_late(one: Observed, other: Observed, number: int) -> str | None:
    """Return the numbers of late records if they differ; otherwise None."""
    first, second = one.contents[number].late, other.contents[number].late
    return None if first == second else f"late records up to epoch {number}: {first} and {second}"


def _keys(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Any]:
    return list(dict.fromkeys([*one, *other]))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same."""
    return bool(one == other) or text_of(one) == text_of(other)  # NaN is not equal to itself


def have_the_same(records: Sequence[Any], again: Sequence[Any]) -> bool:
    """Return whether two lists have the same records, in any order."""
    one, other = (Counter(map(text_of, each)) for each in (records, again))
    return one == other


def missing(records: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Return the records that another list does not have, or has fewer times.

    >>> missing([1, 2, 2, 3], [2, 3, 4])
    [1, 2]
    """
    left = Counter(map(text_of, other))
    found = []
    for record in records:
        text = text_of(record)
        if left[text] == 0:
            found.append(record)
        left[text] = max(0, left[text] - 1)
    return found


def agree(records: Sequence[Any], again: Sequence[Any]) -> bool:
    """Return whether two lists have the same records, in any order. The last digits of floats may
    differ: they depend on the order of additions.
    """
    if have_the_same(records, again):
        return True
    one, other = (sorted(_rounded(each) for each in some) for some in (records, again))
    return one == other


def _rounded(record: Any) -> str:
    """Return the text of a record with nine digits of each float."""
    return _FLOAT.sub(lambda found: f"{float(found[0]) + 0.0:.9g}", text_of(record))


def text_of(value: Any) -> str:
    """Return a text that equal values have in common, also sets, decimals and dicts.

    >>> text_of({"b": frozenset({1, 2}), "a": decimal.Decimal("1.50")})
    "{'a': 1.5, 'b': {1, 2}}"
    """
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(text_of, value)))}}}"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return format(value.normalize(), "f") if value else "0"
    if isinstance(value, dict):
        pairs = sorted(f"{text_of(key)}: {text_of(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(text_of, value))})"
    if fields := fields_by_name(value):
        return f"{type(value).__name__}{text_of(fields)}"
    return repr(value)


def fields_by_name(value: Any) -> dict[str, Any]:
    """Return the fields of an object by name, also of one without a `__dict__`. A class and a
    member of an enum have none.
    """
    cls = type(value)
    if isinstance(value, type | enum.Enum):
        return {}
    names = getattr(cls, "__struct_fields__", None) or getattr(cls, "__dataclass_fields__", None)
    if names is not None:
        return {name: getattr(value, name, None) for name in names}
    return dict(getattr(value, "__dict__", {}))
