"""Search for a history for which a property does not hold. All properties are tried on the same
histories, each of which has one plain run. A history that fails is made smaller: first in this
process, where it is fast, and then in new processes, where nothing is left of earlier runs.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from textwrap import shorten
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.testing.checks.disturbed import NotThereError, found_in_new_processes
from statekit.testing.checks.property import Property, RunDifference
from statekit.testing.counterexamples import counterexample
from statekit.testing.effort import Effort
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

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
        subject, properties: the given ones.
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
        self.subject, self.properties = subject, properties
        self.effort, self._until_s = effort, until_s
        arguments = st.tuples(*(each.arguments for each in properties))
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
        return len(self.properties) if self._failed is None else self._failed.place

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
        find = self.properties[place].find
        try:
            return is_found(find, self.subject, drawn.history, drawn.arguments[place])
        except Exception:  # noqa: BLE001 - the search for the smallest history raises it again
            return True

    def _check_sizes(self) -> None:
        made = self._made
        if self.is_late() or self._failed is not None or len(made) < _HISTORIES_MIN:
            return  # the first histories that are drawn are the smallest ones
        if sum(made) < len(made):
            raise StateTypeError(
                f"{len(made)} histories of {self.subject.name!r} have {sum(made)} records "
                "together, so nothing is checked: the class refuses most values of its types, or "
                "events= has few. Give examples: events=[...]"
            )


def _size(history: History) -> int:
    return sum(len(records) for epoch in history for records in epoch.values())


# ------------------------------------------------------------------------- the smallest history

_TRIES = 3
"""Number of runs of a failed history in new processes: some failures depend on chance."""

_TRIES_PRINTED = 10
"""Maximum number of searches in new processes for the history of a printed test."""

_SHARE = 0.3
"""Share of the histories that are tried in new processes, which are slow, if a failure of this
process does not occur there.
"""

_SHRINKS_THERE = 100
"""Maximum number of tries to shrink a history that fails in new processes: each takes a fork."""

_WIDTH = 200
"""Maximum length of a text in a line of the report, in characters."""

Found = tuple[History, Any, RunDifference | None]
"""A history, the disturbance of its run, and the difference; None if it did not occur again."""


class Search:
    """Search for the smallest history for which a property does not hold.

    Parameters:
        shared: the histories on which the property was tried.
        place: the place of the property among those that were tried on them.

    Attributes:
        only_here: the difference in a history that fails in this process and not in new ones; None
            if there is no such history.
    """

    def __init__(self, shared: SharedHistories, place: int) -> None:
        self._shared, self._place = shared, place
        self._subject, self._wanted = shared.subject, shared.properties[place]
        self.only_here: str | None = None

    def found_again(self, known: Drawn) -> Found | None:
        """Return the smallest history that fails; None if it fails in this process only.

        Parameters:
            known: a history that fails.
        """
        # However late it is: it takes a part of the time that it took to find it.
        found = self._smallest(self._wanted.find, self._shared.batch, 1.0, lambda: False)
        if found is None:
            found = self._without_others(known, self._remembered(self._wanted.find))
        if self._can_be_confirmed:
            with contextlib.suppress(NotThereError):
                return self._found_there(found)
        return *found, self._wanted.find(self._subject, *found)

    def found_in_new_processes(self) -> Found | None:
        """Return a history that fails in new processes although none fails in this one; None if
        none does.
        """
        if self._can_be_confirmed:
            with contextlib.suppress(NotThereError):
                return self._found_there(None)
        return None

    def _found_there(self, found: tuple[History, Any] | None) -> Found | None:
        """Return a history that fails in new processes: the one that has failed here, or another
        one. None if none fails.

        Memory that Python cannot look into is left in this process after a run. If a history fails
        here, and no history fails in new processes, `only_here` is set.
        """
        for _ in range(_TRIES if found is not None else 0):
            assert found is not None
            if (difference := self._in_new_processes(self._subject, *found)) is not None:
                return *found, difference
        for _ in range(1 if found is not None else _TRIES_PRINTED):
            share, effort = _SHARE * self._wanted.share, self._shared.effort
            find, is_late = self._in_new_processes, self._shared.is_late
            there = self._smallest(find, effort, share, is_late, _SHRINKS_THERE)
            if there is not None:
                return *there, self._in_new_processes(self._subject, *there)
        if found is not None:
            difference = self._wanted.find(self._subject, *found)
            what = "not when it is run again" if difference is None else difference.what
            self.only_here = shorten(what, _WIDTH, placeholder=" …")
        return None

    @property
    def _can_be_confirmed(self) -> bool:
        return self._wanted.is_confirmed and self._subject.not_sent is None

    def _in_new_processes(
        self, subject: Subject, history: History, argument: Any
    ) -> RunDifference | None:
        return found_in_new_processes(subject, self._wanted, history, argument)

    def _smallest(
        self,
        find: Find,
        effort: Effort,
        share: float,
        is_over: Callable[[], bool],
        shrinks_max: int | None = None,
    ) -> tuple[History, Any] | None:
        fails = self._remembered(find)
        found = counterexample(
            self._shared.inputs,
            lambda made: fails(made[0], made[1][self._place]),
            effort,
            share=share,
            is_shrunk=self._wanted.is_shrunk,
            shrinks_max=shrinks_max,
            is_over=is_over,
        )
        return None if found is None else self._without_others(Drawn(*found[0]), fails)

    def _remembered(self, find: Find) -> Callable[[History, Any], bool]:
        return _Remembered(partial(is_found, find, self._subject))

    def _without_others(
        self, failed: Drawn, fails: Callable[[History, Any], bool]
    ) -> tuple[History, Any]:
        """Return a failed history and its disturbance, without the parts that do not matter for the
        failure.
        """
        history, argument = failed.history, failed.arguments[self._place]
        if not self._wanted.is_shrunk:
            return history, argument
        history, argument = without_others(history, argument, fails)
        return history, _with_fewer(argument, partial(fails, history))


class _Remembered:
    """A test of histories that remembers its results.

    Hypothesis also makes the disturbances of the other properties smaller. Two of three histories
    that it tries are then as one before, with the same disturbance.

    Parameters:
        fails: whether a history with a disturbance fails.
    """

    def __init__(self, fails: Callable[[History, Any], bool]) -> None:
        self._fails = fails
        self._results: dict[bytes, bool] = {}

    def __call__(self, history: History, argument: Any) -> bool:
        pickled = io.BytesIO()
        try:  # not by equality: a class may leave fields out of it
            _ByClass(pickled).dump((history, argument))
        except Exception:  # noqa: BLE001 - whatever a class of the user raises
            return self._fails(history, argument)
        tried = pickled.getvalue()
        if tried not in self._results:
            self._results[tried] = self._fails(history, argument)
        return self._results[tried]


class _ByClass(pickle.Pickler):
    """Pickles objects of all classes, also of those that no module has."""

    def persistent_id(self, value: Any) -> int | None:
        return id(value) if isinstance(value, type) else None


def without_others(
    history: History, argument: Any, fails: Callable[[History, Any], bool]
) -> tuple[History, Any]:
    """Return a history without the records and epochs that do not matter for its failure, and its
    disturbance. The epochs of the disturbance are renumbered if an earlier one is left out.
    """
    number = len(history) - 1
    while number >= 0:
        without = [*history[:number], *history[number + 1 :]]
        moved = _without_epoch(argument, number)
        if fails(without, moved):
            history, argument = without, moved
        else:
            for name in history[number]:
                history = _with_fewer_records(history, argument, number, name, fails)
        number -= 1
    return history, argument


def _without_epoch(argument: Any, number: int) -> Any:
    """Return the epochs of a disturbance after one epoch of the history is left out."""
    if not isinstance(argument, set):
        return argument
    return {each - 1 if each > number else each for each in argument}


def _with_fewer_records(
    history: History, argument: Any, number: int, name: str, fails: Callable[[History, Any], bool]
) -> History:
    """Return a history without the records of one epoch and source that do not matter. Large parts
    are left out first, so that records go that matter only together, such as an opening and its
    end.
    """
    records = history[number][name]
    size = 1 << max(0, (len(records) // 2).bit_length() - 1)
    while size > 0:
        for place in reversed(range(0, len(records) - size + 1, max(1, size // 2))):
            shorter = [*records[:place], *records[place + size :]]
            tried = [*history[:number], {**history[number], name: shorter}, *history[number + 1 :]]
            if len(shorter) < len(records) and fails(tried, argument):
                history, records = tried, shorter
        size //= 2
    return history


def _with_fewer(argument: Any, fails: Callable[[Any], bool]) -> Any:
    """Return a disturbance without the elements that do not matter for the failure."""
    if isinstance(argument, set | list):
        for each in list(argument):
            fewer = type(argument)(other for other in argument if other is not each)
            if fewer and fails(fewer):
                argument = fewer
    return argument
