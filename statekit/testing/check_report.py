"""What a check has tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """A property in a check.

    Parameters:
        name: of the property.
        histories: how many were run.
        records: how many records they had together.
        left_out: why none was run, or fewer than were wanted; None if there is no such reason.
        only_here: what differs in a history that fails in this process and not in new ones; None
            if there is no such history.
    """

    name: str
    histories: int = 0
    records: int = 0
    left_out: str | None = None
    only_here: str | None = None

    def __str__(self) -> str:
        ran = f"{self.histories:,} histories, {self.records:,} records"
        if self.left_out is not None:
            ran = f"{ran}; " if self.histories else "not checked: "
            ran += self.left_out
        if self.only_here is not None:
            ran += (
                f"; a history fails in this process and not in new ones ({self.only_here}): a "
                "library keeps something here, a test has replaced something, or it is chance"
            )
        return f"{self.name:<15} {ran}"


@dataclass(frozen=True)
class Report:
    """What a check has tried, if nothing was wrong.

    Parameters:
        subject: the name of the function or job.
        seed: with which the same histories are tried again.
        properties: in the order in which they were checked.

    >>> checked = Checked("errors", 30, 412), Checked("epochs", left_out="has timers")
    >>> Report("spent", 0, checked)
    spent (seed 0)
      errors          30 histories, 412 records
      epochs          not checked: has timers
    """

    subject: str
    seed: int
    properties: tuple[Checked, ...]

    def __str__(self) -> str:
        lines = [f"{self.subject} (seed {self.seed})"]
        lines += [f"  {each}" for each in self.properties]
        return "\n".join(lines)

    __repr__ = __str__


_open: list[list[Report]] = []


def add_report(report: Report) -> None:
    """Add a report to those that are collected."""
    for each in _open:
        each.append(report)


@contextlib.contextmanager
def reports() -> Iterator[list[Report]]:
    """Collect the reports of all checks within."""
    made: list[Report] = []
    _open.append(made)
    try:
        yield made
    finally:
        _open.remove(made)
