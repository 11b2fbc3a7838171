"""Search for the smallest history for which a property does not hold: first in this process, where
it is fast, and then in new processes, where nothing is left of earlier runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from textwrap import shorten
from typing import Any

from statekit.testing.checks.disturbed import NotThereError, found_in_new_processes
from statekit.testing.checks.property import Property, RunDifference
from statekit.testing.checks.shared_histories import Drawn, Find, SharedHistories, is_found
from statekit.testing.counterexamples import Effort, counterexample
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

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
    """Search for a history of a subject for which a property does not hold.

    Parameters:
        subject: the subject of the check.
        wanted: the property.
        shared: the histories on which the property was tried.
        place: the place of the property among those that were tried on them.

    Attributes:
        only_here: the difference in a history that fails in this process and not in new ones; None
            if there is no such history.
    """

    def __init__(
        self, subject: Subject, wanted: Property, shared: SharedHistories, place: int
    ) -> None:
        self._subject, self._wanted, self._shared, self._place = subject, wanted, shared, place
        self.only_here: str | None = None

    def found_again(self, known: Drawn) -> Found | None:
        """Return the smallest history that fails; None if it fails in this process only.

        Parameters:
            known: a history that fails.
        """
        # However late it is: it takes a part of the time that it took to find it.
        found = self._smallest(self._wanted.find, self._shared.batch, 1.0, lambda: False)
        if found is None:
            found = self._without_others(known, self._wanted.find)
        with contextlib.suppress(NotThereError):
            return self._found_there(found) if self._can_be_confirmed else self._here(found)
        return self._here(found)

    def found_in_new_processes(self) -> Found | None:
        """Return a history that fails in new processes although none fails in this one; None if
        none does.
        """
        if self._can_be_confirmed:
            with contextlib.suppress(NotThereError):
                return self._found_there(None)
        return None

    def _here(self, found: tuple[History, Any]) -> Found:
        return *found, self._wanted.find(self._subject, *found)

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
        found = counterexample(
            self._shared.inputs,
            lambda made: is_found(find, self._subject, made[0], made[1][self._place]),
            effort,
            share=share,
            is_shrunk=self._wanted.is_shrunk,
            shrinks_max=shrinks_max,
            is_over=is_over,
        )
        return None if found is None else self._without_others(Drawn(*found[0]), find)

    def _without_others(self, failed: Drawn, find: Find) -> tuple[History, Any]:
        """Return a failed history and its disturbance, without the parts that do not matter for the
        failure.
        """
        history, argument = failed.history, failed.arguments[self._place]
        if not self._wanted.is_shrunk:
            return history, argument
        fails = partial(is_found, find, self._subject)
        history, argument = without_others(history, argument, fails)
        return history, _with_fewer(argument, partial(fails, history))


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
