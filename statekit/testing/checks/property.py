"""`Property`: a property of runs, and the comparison of a plain run with a disturbed one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from statekit.errors import StatekitError
from statekit.testing.runs.comparison import Compare, exactly
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject


class RunDifference(NamedTuple):
    """A difference between two runs that should be the same, or an error in one run.

    Parameters:
        what: the difference, as text.
        titles: the titles of the two runs.
        runs: their results; the second may be missing.
    """

    what: str
    titles: tuple[str, str]
    runs: tuple[Observed, Observed | None]


@dataclass(frozen=True)
class Property:
    """A property that holds for every history.

    Parameters:
        name: the name, by which it is excused.
        means: the consequence for a job if it does not hold, in a sentence.
        find: returns the difference for a history and an argument; None if there is none.
        applies: returns the reason why the property is not checked for a subject; None if it is.
        arguments: a strategy of disturbances of a run.
        takes: the annotation of the argument.
        share: the share of the usual number of histories: some properties take longer.
        is_shrunk: whether a history that fails is made smaller.
        is_confirmed: whether a history that fails here has to fail in new processes, too.
        given: the function of the user that the property calls, if any.
    """

    name: str
    means: str
    find: Callable[[Subject, History, Any], RunDifference | None]
    applies: Callable[[Subject], str | None] = lambda _: None
    arguments: SearchStrategy[Any] = field(default_factory=st.none)
    takes: Any = None
    share: float = 1.0
    is_shrunk: bool = True
    is_confirmed: bool = True
    given: Callable[..., Any] | None = None


def compared(
    disturbed: Callable[[Subject, History, Any], Observed],
    title: Callable[[Any], str],
    compare: Compare = exactly,
    *,
    when_late: bool = True,
    every: dt.timedelta | None = None,
) -> Callable[[Subject, History, Any], RunDifference | None]:
    """Return a function that compares a run with a disturbed one.

    Parameters:
        title: returns the title of the disturbed run, for its argument.
        when_late: whether the runs are compared if records were late.
        every: the processing time between two epochs of the first run, as for `Subject.steps`.
    """

    def find(subject: Subject, history: History, argument: Any) -> RunDifference | None:
        one = subject.plain_run(history, every)
        if one is None:
            return None  # for the property that there are no errors
        second = partial(disturbed, subject, history, argument)
        return between(one, second, title(argument), compare, when_late=when_late)

    return find


def between(
    one: Observed,
    second: Callable[[], Observed],
    title: str,
    compare: Compare = exactly,
    *,
    when_late: bool = True,
) -> RunDifference | None:
    """Return the difference between a plain run and a second one.

    Parameters:
        second: runs the second run.
        title: the title of the second run.
        when_late: as for `compared`.
    """
    titles = "one shard in memory", title
    try:
        other = second()
    except StatekitError as error:
        return RunDifference(f"the second run fails: {error}", titles, (one, None))
    if not when_late and (one.late or other.late):
        return None
    what = compare(one, other)
    return None if what is None else RunDifference(what, titles, (one, other))


def alone(what: str | None, observed: Observed) -> RunDifference | None:
    """Return the difference for an error in a single run; None if there is no error."""
    return (
        None if what is None else RunDifference(what, ("one shard in memory", ""), (observed, None))
    )
