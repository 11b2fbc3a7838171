"""Functions and jobs that are checked, each with what is wrong with it, and the records of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import statekit as sk
from statekit.functions.process import Process

T = TypeVar("T")


class Case(NamedTuple):
    """A function or a job.

    Parameters:
        name: for the command line and the table.
        what: is wrong with it, or why it is right, in a few words.
        given: the function, stream or job.
    """

    name: str
    what: str
    given: Any


class Cases(list[Case]):
    """A list of cases to which functions are added where they are declared."""

    def add(self, what: str) -> Callable[[T], T]:
        """Return a decorator that adds a process function, or what a function without parameters
        returns.
        """

        def added(given: T) -> T:
            made = given if isinstance(given, Process) or not callable(given) else given()
            name: str = given.__name__  # type: ignore[attr-defined]
            self.append(Case(name.replace("_", "-"), what, made))
            return given

        return added


class Order(NamedTuple):
    """What most functions take."""

    customer: str
    at: dt.datetime
    cents: int


class Visit(NamedTuple):
    """A record with values that may be absent, and with floats."""

    customer: str
    at: dt.datetime
    page: str
    score: float | None


IN_TIME: dict[str, Any] = {"key": "customer", "event_time": "at", "lateness": "20 seconds"}
BY_KEY: dict[str, Any] = {"key": "customer"}


def orders(name: str = "shop") -> tuple[sk.Job, sk.Stream[Order]]:
    """Return a job with a source of orders."""
    job = sk.Job(name)
    return job, job.source("orders", Order)
