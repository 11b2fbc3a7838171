"""Histories on which all properties are tried: each is drawn once, and has one plain run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.testing.checks.property import Property, RunDifference
from statekit.testing.counterexamples import Effort, counterexample
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_HISTORIES_MIN = 30
"""Number of histories from which on most must have records."""

_BATCH = 10
"""Number of histories that are drawn from one seed. Hypothesis draws ten independent ones, and
after them many that differ little from the one before.
"""

_SEEDS_APART = 1_000_003
"""Distance of the seeds of two batches: checks with consecutive seeds have no batch in common."""


class Drawn(NamedTuple):
    """A history, and the disturbance of each property.

    Parameters:
        arguments: the disturbances, in the order of the properties.
    """

    history: History
    arguments: tuple[Any, ...]


Find = Callable[[Subject, History, Any], RunDifference | None]


def is_found(find: Find, subject: Subject, history: History, argument: Any) -> bool:
    """Return whether a property finds a difference."""
    difference = find(subject, history, argument)
    subject.is_cut_short = subject.has_no_end  # not during it
    return difference is not None


class Failed(NamedTuple):
    """A property that does not hold.

    Parameters:
        place: its place among the properties that were tried.
        drawn: the history for which it does not hold.
    """

    place: int
    drawn: Drawn


class SharedHistories:
    """Histories on which properties are tried in turn.

    Parameters:
        subject: the subject of the check.
        properties: the properties, in the order of the search for one that does not hold.
        histories: a strategy of histories.
        effort: the number of histories, and their seed.
        until_s: the reading of `stopwatch_s` at which the search ends; None for no limit.

    Attributes:
        sizes: for each property, the numbers of records of the histories on which it was tried.
        inputs: a strategy of the parts of `Drawn`.
        effort: the given effort.
        batch: the number of histories and the seed of the last batch.
    """

    def __init__(
        self,
        subject: Subject,
        properties: Sequence[Property],
        histories: SearchStrategy[History],
        effort: Effort,
        until_s: float | None = None,
    ) -> None:
        from hypothesis import strategies as st

        self._subject, self._properties = subject, properties
        self.effort, self._until_s = effort, until_s
        arguments = st.tuples(*(each.arguments() for each in properties))
        self.inputs = st.tuples(histories, arguments)  # whose parts Hypothesis does not show
        self._share = max(each.share for each in properties)
        parts = (Fraction(each.share / self._share) for each in properties)
        self._parts = [part.limit_denominator(1_000) for part in parts]
        self.batch = effort
        self.sizes: list[list[int]] = [[] for _ in properties]
        self._made: list[int] = []
        self._last: Drawn | None = None
        self._drawn = 0
        self._last_of: list[Drawn | None] = [None] * len(properties)
        self._failed: Failed | None = None

    def first_failed(self) -> Failed | None:
        """Return the first property that does not hold for one of the histories; None if all hold.

        Properties after it may not have been tried on all histories. Histories are drawn as if all
        held, so that the same ones are drawn again for one property alone.

        Raises:
            StateTypeError: the histories have hardly any records.
        """
        wanted = max(1, int(self.effort.inputs() * self._share))
        for number in range(math.ceil(wanted / _BATCH)):
            self._start_batch(number, wanted - len(self._made))
            counterexample(self.inputs, self._tried, self.batch, is_over=self._has_ended)
            if self._drawn < self.batch.inputs() or self._has_ended():
                break  # there are no others, or no more are wanted
        if self._last is not None:  # there are so few that not all had their turn
            untried = [place for place in range(self._before) if not self.sizes[place]]
            self._try(untried, self._last)
        self._check_sizes()
        return self._failed

    def _start_batch(self, number: int, wanted: int) -> None:
        """Select the next histories. Each batch begins with the smallest one, once more."""
        self._drawn = 0
        seed = (self.effort.filled().seed or 0) + number * _SEEDS_APART
        self.batch = replace(self.effort, seed=seed, examples=min(_BATCH, wanted) + bool(number))

    def _has_ended(self) -> bool:
        return self.is_late() or self._before == 0

    def is_late(self) -> bool:
        """Return whether the time limit has passed."""
        return self._until_s is not None and stopwatch_s() > self._until_s

    @property
    def _before(self) -> int:
        """Number of properties before the one that is known to fail."""
        return len(self._properties) if self._failed is None else self._failed.place

    def _tried(self, made: tuple[History, tuple[Any, ...]]) -> bool:
        drawn = Drawn(*made)
        self._drawn += 1
        if self._drawn == 1 and self._made:
            return False  # the smallest one
        number, self._last = len(self._made), drawn
        self._made.append(_size(drawn.history))
        self._try(filter(partial(self._has_turn, number), range(self._before)), drawn)
        # No failure is reported to Hypothesis, which would shrink it and draw other histories.
        return False

    def _has_turn(self, number: int, place: int) -> bool:
        """Return whether a property is tried on a history. A property with a small share is tried
        on few histories, spread evenly, since the first ones are the smallest.
        """
        part = self._parts[place]
        return math.floor((number + 1) * part) > math.floor(number * part)

    def _try(self, places: Iterable[int], drawn: Drawn) -> None:
        """Try properties on a history until one fails."""
        for place in places:
            if self.is_late() and self.sizes[place]:
                return
            if self._is_as_before(place, drawn):
                continue  # the history is given
            self.sizes[place].append(_size(drawn.history))
            if self._fails(place, drawn):
                self._failed = Failed(place, drawn)
                return

    def _is_as_before(self, place: int, drawn: Drawn) -> bool:
        """Return whether a property was tried on the same history before, with the same
        disturbance.
        """
        last = self._last_of[place]
        self._last_of[place] = drawn
        return (
            last is not None
            and last.history is drawn.history
            and last.arguments[place] == drawn.arguments[place]
        )

    def _fails(self, place: int, drawn: Drawn) -> bool:
        find = self._properties[place].find
        try:
            return is_found(find, self._subject, drawn.history, drawn.arguments[place])
        except Exception:  # noqa: BLE001 - the search for the smallest history raises it again
            return True

    def _check_sizes(self) -> None:
        made = self._made
        if self.is_late() or self._failed is not None or len(made) < _HISTORIES_MIN:
            return  # the first histories that are drawn are the smallest ones
        if sum(made) < len(made):
            raise StateTypeError(
                f"{len(made)} histories of {self._subject.name!r} have {sum(made)} records "
                "together, so nothing is checked: the class refuses most values of its types, or "
                "events= has few. Give examples: events=[...]"
            )


def _size(history: History) -> int:
    return sum(len(records) for epoch in history for records in epoch.values())
