"""Runs in new processes, as after a crash: copies of a process that has never run the job.

There are three of those, which are started by the first call. They have the same hashes of texts in
each run of a test. Two have another time zone and another time: a year ahead, and that of the
histories, where a record may be of today or of tomorrow.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from statekit.job.job import Job
from statekit.testing.child import Child
from statekit.testing.job_harness import JobHarness
from statekit.testing.other_process import OtherProcess, serve
from statekit.testing.subject import History, Observed, Subject

_AHEAD = dt.timedelta(days=400, hours=7)


class _Place(NamedTuple):
    """Where histories run.

    Parameters:
        title: by which a message calls it.
        serving: the function that its process runs.
        environment: of the process.
    """

    title: str
    serving: Callable[[], None]
    environment: dict[str, str]


def other_processes() -> Iterator[OtherProcess]:
    """Yield the processes. The first has the time and the time zone of this one; the others have
    time zones that are nobody's default, 5:45 hours ahead of UTC and 9:30 behind.
    """
    return map(other_process, range(len(_PLACES)))


@cache
def other_process(number: int) -> OtherProcess:
    """Return one of the processes."""
    title, serving, environment = _PLACES[number]
    return OtherProcess("runs histories", serving, environment, title)


def serve_ahead() -> None:
    """Call functions at a later time."""
    import time_machine

    serve_runs(partial(time_machine.travel, _AHEAD))


def serve_near() -> None:
    """Call functions at the time at which most histories begin, each one anew."""
    import time_machine

    from statekit.testing.histories import NOON

    serve_runs(partial(time_machine.travel, NOON))


def serve_runs(around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
    """Call functions, and have what copies of this process need.

    Parameters:
        around: is entered for each call.
    """
    import pyarrow as pa

    pa.array([0])  # imports pandas, if there is one
    serve(around)


_PLACES = (
    _Place("a process", serve_runs, {"PYTHONHASHSEED": "1"}),
    _Place(
        "another one for each epoch",
        serve_ahead,
        {"PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu"},
    ),
    _Place("another process", serve_near, {"PYTHONHASHSEED": "7", "TZ": "Pacific/Marquesas"}),
)


@lru_cache(maxsize=1)
def _loaded(pickled: bytes) -> Job:
    job: Job = pickle.loads(pickled)  # noqa: S301 - of our own process
    return job


def run_there(pickled: bytes, history: History, kills: bool) -> Observed:
    """Run a history in copies of this process.

    Parameters:
        pickled: the job.
        kills: whether there is a new one for each epoch of the history.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if kills and 0 < number < len(history):
            harness.crash()
        return harness

    subject = Subject(_loaded(pickled), is_killed=True)
    return subject.run(history, disturb)


def found_there(
    pickled: bytes, find: Callable[[Subject, History, Any], Any], history: History, argument: Any
) -> Any:
    """Return what a property finds in copies of this process.

    Parameters:
        pickled: the job.
        find: of the property.
    """
    finding = Child(partial(_Finding, _loaded(pickled), find))
    return finding.call("found", history, argument)


class _Finding:
    """A property of a job whose runs are in processes of their own."""

    def __init__(self, job: Job, find: Callable[[Subject, History, Any], Any]) -> None:
        self._subject = Subject(job, is_killed=True)
        self._find = find

    def found(self, history: History, argument: Any) -> Any:
        """Return the difference; None if there is none."""
        return self._find(self._subject, history, argument)
