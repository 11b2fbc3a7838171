"""Search for states that grow without end. A history is repeated, weeks apart, and then time
advances to its end: the elements that are left must stop growing.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from itertools import chain, islice
from typing import NamedTuple

from statekit.errors import StatekitError
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.runs.comparison import fields_by_name
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject
from statekit.testing.runs.varied_records import VariedRecords

_APART = dt.timedelta(days=45)
"""Time between two repetitions, by event time and by processing time. It is longer than most values
are needed, and short enough that one value per year does not count as growth.
"""

_TIMES = (15, 30, 70)
"""Numbers of repetitions of a history, each in an epoch. A list of the last 64 elements reaches its
end within them.
"""

_LARGE = 2_100
"""Number of records in the last run: a list of the last 1,000 elements reaches its end, too."""

_RECORDS_MAX = 6
"""Maximum number of records of each source that are repeated."""

_STEPS_MIN = 3
"""Minimum number of elements that growth adds from the first run to the second one. Fewer are
chance.
"""

_LINEAR = 0.75
"""Share of the expected growth from which on a state grows without end."""

_TEXT = 16
"""Number of characters or bytes that count as one element, so that longer texts count as growth."""

Where = tuple[str, str, str]
"""An operator, a state, and the text of a key."""


class Growth(NamedTuple):
    """State of a key, or timers, that grow without end.

    Parameters:
        where: the operator, the state and the key.
        elements: the number of elements, by the number of repetitions.
    """

    where: Where
    elements: dict[int, int]

    def __str__(self) -> str:
        operator, state, key = self.where
        some = [f"{number:,} after {times:,}" for times, number in self.elements.items()]
        first, *others = some
        return (
            f"what is left at the end in state {state!r} of {operator} at the key {key}: "
            f"{first.replace(' after', ' elements after')} repetitions of the history, "
            f"{', '.join(others)}"
        )


def grows_without_end(subject: Subject, history: History) -> Growth | None:
    """Return the state that grows with each repetition of a history; None if no state does.

    A history is not tried if it lacks records of a source or type: state that is kept until such a
    record arrives would grow.
    """
    varied = {
        source.name: VariedRecords(source, _keys_of(subject), _APART)
        for source in subject.job.plan.sources
    }
    few = {name: _first_records(history, name) for name in varied}
    if not all(of.has_all(few[name]) for name, of in varied.items()):
        return None
    key: dict[str, object] = {}
    for name, of in varied.items():
        few[name] = [of.at_one_key(record, key) for record in few[name]]
    repeated = _Repeated(subject, varied, few)
    try:
        return repeated.growth()
    except (StatekitError, OverflowError):
        return None  # an error is for the property that there are no errors


def _first_records(history: History, source: str) -> list[object]:
    records = chain.from_iterable(epoch.get(source, ()) for epoch in history)
    return list(islice(records, _RECORDS_MAX))


def _keys_of(subject: Subject) -> set[str]:
    """Return the fields of all keys."""
    return {name for declared in subject.functions for name in declared.key}


class _Repeated:
    """Runs with repetitions of a history.

    Parameters:
        varied: makes varied records of each source.
        records: the records that are repeated, by source.
    """

    def __init__(
        self,
        subject: Subject,
        varied: Mapping[str, VariedRecords],
        records: Mapping[str, list[object]],
    ) -> None:
        self._subject = subject
        self._varied = varied
        self._records = records

    def growth(self) -> Growth | None:
        """Return the state that grows; None if no state does."""
        few, some, many = _TIMES
        observed = self._run(few)
        if observed.is_endless:
            return None  # for the property that nothing is left over
        first, halfway = (_elements(observed.contents[at]) for at in (-1, few // 2))
        if all(first[where] - halfway[where] < _STEPS_MIN - 1 for where in first):
            return None
        second = _elements(self._run(some).contents[-1])
        growing = {where for where in second if second[where] - first[where] >= _STEPS_MIN}
        if known := [where for where in growing if where[:2] in self._subject.growing]:
            where = known[0]  # from another history
            return Growth(where, {few: first[where], some: second[where]})
        third = _elements(self._run(many).contents[-1]) if growing else Counter[Where]()
        for where in growing:
            sizes = {few: first[where], some: second[where], many: third[where]}
            if _is_linear(sizes) and self._goes_on(where, sizes):
                return Growth(where, sizes)
        return None

    def _goes_on(self, where: Where, sizes: dict[int, int]) -> bool:
        """Return whether the state also grows with many records. If so, add its size to `sizes`."""
        _, some, many = _TIMES
        each = max(2, _LARGE // (many * sum(map(len, self._records.values()))))
        elements = _elements(self._run(many, each).contents[-1])[where]
        by_time = (sizes[many] - sizes[some]) / (many - some)
        expected = sizes[some] + _LINEAR * by_time * (many * each - some)
        if elements < expected and elements != sizes[many]:  # equal if it grows with each epoch
            return False
        sizes[many * each] = elements
        self._subject.growing.add(where[:2])
        return True

    def _run(self, epochs: int, each: int = 1) -> Observed:
        """Run the repetitions, and return the result.

        Parameters:
            each: the number of repetitions in each epoch.
        """
        history = [
            {
                name: [
                    self._varied[name].of(record, number)
                    for number in range(epoch * each, (epoch + 1) * each)
                    for record in records
                ]
                for name, records in self._records.items()
            }
            for epoch in range(epochs)
        ]
        return self._subject.run(history, every=each * _APART)


def _is_linear(sizes: Mapping[int, int]) -> bool:
    """Return whether the state grows as fast after the second number of repetitions as before."""
    (few, first), (some, second), (many, third) = sizes.items()
    expected = (second - first) * (many - some) / (some - few)
    return third - second >= _LINEAR * expected


def _elements(contents: EpochContents) -> Counter[Where]:
    """Return the number of elements in each state of each key, and the number of its timers."""
    found: Counter[Where] = Counter()
    for (operator, state), values in contents.states.items():
        for key, value in values.items():
            found[operator, state, repr(key)] = _size(value)
    for operator, of_keys in contents.timers.items():
        for key, timers in of_keys.items():
            found[operator, "timers", repr(key)] = len(timers)
    return found


def _size(value: object) -> int:
    """Return the number of elements in a value, including nested ones. A record counts as its
    largest field.
    """
    if isinstance(value, str | bytes):
        return 1 + len(value) // _TEXT
    if isinstance(value, Mapping):
        return sum(max(1, _size(part)) for part in value.values())
    if isinstance(value, list | set | frozenset):
        return sum(max(1, _size(part)) for part in value)
    parts = value if isinstance(value, tuple) else fields_by_name(value).values()
    return max(map(_size, parts), default=1)
