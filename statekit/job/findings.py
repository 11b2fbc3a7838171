"""Findings about a job before it runs, of `Job.check` and `statekit check`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from statekit.errors import StatekitError
from statekit.shown import shown_error

Severity = Literal["ok", "warning", "error"]


class JobFinding(NamedTuple):
    """A finding about a job.

    Parameters:
        severity: "error": a run would be refused or fail. "warning": it may, or that was not
            checked. "ok": it was checked.
        where: the part of the job, such as "sink totals".
        what: what was found, and what to do.
    """

    severity: Severity
    where: str
    what: str


def failed_check(where: str, error: BaseException, severity: Severity = "error") -> JobFinding:
    """Return the finding of an error. Errors of statekit have a text for people.

    >>> failed_check("sink totals", OSError("no route to host")).what
    'OSError: no route to host'
    """
    text = str(error) if isinstance(error, StatekitError) else shown_error(error)
    return JobFinding(severity, where, text)
