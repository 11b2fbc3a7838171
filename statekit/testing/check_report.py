"""The report of a check: its properties, and the histories on which each was tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """One property in the report of a check.

    Parameters:
        name: of the property.
        histories: the number of histories that were run.
        records: the number of records in them.
        left_out: the reason why no history was run, or fewer than were wanted; None if there is no
            such reason.
        only_here: the difference in a history that fails in this process and not in new ones; None
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
    """The report of a check that has found nothing wrong.

    Parameters:
        subject: the name of the function or job.
        seed: the seed, which selects the same histories again.
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
    """Add a report to the collections that are open."""
    for each in _open:
        each.append(report)


@contextlib.contextmanager
def reports() -> Iterator[list[Report]]:
    """Collect the reports of all checks in a block."""
    made: list[Report] = []
    _open.append(made)
    try:
        yield made
    finally:
        _open.remove(made)
