"""Runs in new processes, as after a crash: copies of a process that has never run the job.

There are two such processes. The first call of each starts it. Each has its own hash seed, which is
the same in every run of a test. Two places are compared: each has its own process, time zone and
time. One time is that of the histories, where a record may be of today or of tomorrow; the other
one is more than a year ahead.
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

from statekit.job.job import Job
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.drivers.memory_directory import memory_directory
from statekit.testing.drivers.processes import Child, OtherProcess, call_functions
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.quiet_logs import quiet_logs
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

_AHEAD = dt.timedelta(days=400, hours=7)

_SEEDS = ("1", "4242")
"""Hash seeds of the processes."""


class _Place(NamedTuple):
    """A place in which histories run: a process, a time zone and a time.

    Parameters:
        title: its name in messages.
        number: the number of its process.
        zone: the time zone.
        at: returns the time there, or its distance ahead of the time here.
    """

    title: str
    number: int
    zone: str
    at: Callable[[], dt.datetime | dt.timedelta]

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function there, and return its result or raise its error."""
        given = self.zone, self.at(), function, arguments
        return _process(self.number).call(_called_elsewhere, *given)


def called_in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in another process, at the same time and in the same time zone. Return its
    result or raise its error.
    """
    return _process(0).call(function, *arguments)


@cache
def _process(number: int) -> OtherProcess:
    return OtherProcess("runs histories", serve_runs, {"PYTHONHASHSEED": _SEEDS[number]})


def serve_runs(end: int) -> None:
    """Import the libraries that copies of this process need, then call functions.

    Parameters:
        end: as for `call_functions`.
    """
    import pyarrow as pa

    pa.array([0])  # imports pandas, if there is one
    with quiet_logs():
        call_functions(end)


def _called_elsewhere(
    zone: str,
    at: dt.datetime | dt.timedelta,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    import time_machine

    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        with time_machine.travel(at):
            return function(*arguments)
    finally:
        del os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


def _noon() -> dt.datetime:
    from statekit.testing.histories import NOON  # needs Hypothesis

    return NOON


PLACES = (
    _Place("a process", 0, "Pacific/Marquesas", _noon),
    _Place("another one for each epoch", 1, "Asia/Kathmandu", lambda: _AHEAD),
)
"""The places that are compared. Hardly any computer has their time zones, 9:30 hours behind UTC and
5:45 ahead.
"""


@lru_cache(maxsize=1)
def _loaded(pickled: bytes) -> Job:
    job: Job = pickle.loads(pickled)  # noqa: S301 - of our own process
    return job


def run_there(pickled: bytes, history: History) -> Observed:
    """Run a history in a copy of this process.

    Parameters:
        pickled: the job.
    """
    subject = Subject(_loaded(pickled))
    ran: Observed = Child(lambda: subject).call("run", history)
    return ran


def run_in_many(pickled: bytes, history: History) -> Observed:
    """Run a history in copies of this process, a new one for each epoch.

    Parameters:
        pickled: the job.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if 0 < number < len(history):
            harness.crash()
        return harness

    with memory_directory("killed") as place:
        return Subject(_loaded(pickled), killed_in=place).run(history, disturb)


def found_there(
    pickled: bytes, find: Callable[[Subject, History, Any], Any], history: History, argument: Any
) -> Any:
    """Return the difference that a property finds in copies of this process; None if there is none.

    Parameters:
        pickled: the job.
        find: the function of the property.
    """
    with memory_directory("killed") as place:  # the copy is killed while it still has harnesses
        subject = Subject(_loaded(pickled), killed_in=place)
        return Child(lambda: subject).call("found", find, history, argument)
