"""Search for the smallest history for which a property does not hold: first in this process, where
it is fast, and then in new processes, where nothing is left of runs before.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.testing.counterexamples import Effort, counterexample
from statekit.testing.properties import Difference, NotThereError, Property, found_in_new_processes
from statekit.testing.subject import History, Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_HISTORIES_MIN = 30
"""Of so many histories, most have records."""

_TRIES = 3
"""So often a history that failed is run in new processes: some depend on chance."""

_TRIES_PRINTED = 10
"""So often the history of a printed test is run in new processes until it fails there."""

_SHARE = 0.3
"""Of the histories, if those that fail in this process do not in new ones, which are slow."""

_WIDTH = 200
"""Of a text in a line of the report."""

Found = tuple[History, Any, Difference | None]
"""A history, how it was disturbed, and what differs; None if it did not when it was run again."""

Find = Callable[[Subject, History, Any], Difference | None]


class Search:
    """Search for a history of a subject for which a property does not hold.

    Parameters:
        subject: what is checked.
        wanted: the property.
        inputs: a strategy of disturbances and histories.
        effort: how many histories are tried.
        until_s: until this reading of `stopwatch_s`; None for as long as it takes.

    Attributes:
        sizes: how many records each history had.
        only_here: what differs in a history that fails in this process and not in new ones; None
            if there is no such history.
    """

    def __init__(
        self,
        subject: Subject,
        wanted: Property,
        inputs: SearchStrategy[tuple[Any, History]],
        effort: Effort,
        until_s: float | None = None,
    ) -> None:
        self._subject, self._wanted = subject, wanted
        self._inputs, self._effort, self._until_s = inputs, effort, until_s
        self.sizes: list[int] = []
        self.only_here: str | None = None

    def found(self, is_given: bool = False, is_printed: bool = False) -> Found | None:
        """Return the smallest history that fails; None if none does.

        What Python cannot look into is left in this process after a run. So a history that fails
        here is a counterexample only if it does in new processes, too. If it does not, and no other
        history does, `only_here` is set.

        Parameters:
            is_given: whether there is one history.
            is_printed: whether there is one disturbance, as in a test that a check printed. If
                there is one history, it is also run in new processes when it passes here.

        Raises:
            StateTypeError: the histories have hardly any records.
        """
        self._subject.runs, self._subject.failed = 0, []
        found = self._smallest(self._wanted.find, 1.0)
        if found is None:
            self._check_sizes(is_given)
            if not (is_given and is_printed and self._can_be_confirmed):
                return None
        try:
            if found is None or self._can_be_confirmed:
                return self._found_in_new_processes(found)
        except NotThereError:
            if found is None:
                return None
        return *found, self._wanted.find(self._subject, *found)

    def _found_in_new_processes(self, found: tuple[History, Any] | None) -> Found | None:
        """Return a history that fails there: what has failed here, or another one."""
        for _ in range(_TRIES if found is not None else 0):
            assert found is not None
            if (difference := self._in_new_processes(self._subject, *found)) is not None:
                return *found, difference
        for _ in range(1 if found is not None else _TRIES_PRINTED):
            there = self._smallest(self._in_new_processes, _SHARE)
            if there is not None:
                return *there, self._in_new_processes(self._subject, *there)
        if found is not None:
            difference = self._wanted.find(self._subject, *found)
            what = "not when it is run again" if difference is None else difference.what
            self.only_here = shorten(what, _WIDTH, placeholder=" …")
        return None

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return self._until_s is not None and stopwatch_s() > self._until_s

    @property
    def _can_be_confirmed(self) -> bool:
        return self._wanted.is_confirmed and self._subject.not_sent is None

    def _in_new_processes(
        self, subject: Subject, history: History, argument: Any
    ) -> Difference | None:
        return found_in_new_processes(subject, self._wanted, history, argument)

    def _smallest(self, find: Find, share: float) -> tuple[History, Any] | None:
        def fails(drawn: tuple[Any, History]) -> bool:
            argument, tried = drawn
            self.sizes.append(sum(len(records) for epoch in tried for records in epoch.values()))
            difference = find(self._subject, tried, argument)
            self._subject.is_cut_short = self._subject.has_no_end  # not during it
            return difference is not None

        found = counterexample(
            self._inputs,
            fails,
            self._effort,
            share=share * self._wanted.share,
            is_shrunk=self._wanted.is_shrunk,
            until_s=self._until_s,
        )
        if found is None:
            return None
        argument, failed = found[0]
        if self._wanted.is_shrunk:
            failed, argument = without_others(
                failed, argument, lambda tried, disturbed: fails((disturbed, tried))
            )
            argument = _with_fewer(argument, lambda tried: fails((tried, failed)))
        return failed, argument

    def _check_sizes(self, is_given: bool) -> None:
        made = self.sizes
        if is_given or self.is_late or len(made) < _HISTORIES_MIN:
            return  # the first histories that are drawn are the smallest ones
        if sum(made) < len(made):
            raise StateTypeError(
                f"{len(made)} histories of {self._subject.name!r} have {sum(made)} records "
                "together, so nothing is checked: the class refuses most values of its types, or "
                "events= has few. Give examples: events=[...]"
            )


def without_others(
    history: History, argument: Any, fails: Callable[[History, Any], bool]
) -> tuple[History, Any]:
    """Return a history without the records and epochs that do not matter for its failure, and how
    it is disturbed then: in the same epochs, which have other numbers if one before is left out.
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
    """Return the epochs of a disturbance when an epoch before or among them is left out."""
    if not isinstance(argument, set):
        return argument
    return {each - 1 if each > number else each for each in argument}


def _with_fewer_records(
    history: History, argument: Any, number: int, name: str, fails: Callable[[History, Any], bool]
) -> History:
    """Return a history without records that do not matter, of one epoch and source. Parts are left
    out first, so that records go that matter only together, such as an opening and its end.
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
    """Return how a history is disturbed, without what does not matter for its failure."""
    if isinstance(argument, set | list):
        for each in list(argument):
            fewer = type(argument)(other for other in argument if other is not each)
            if fewer and fails(fewer):
                argument = fewer
    return argument
