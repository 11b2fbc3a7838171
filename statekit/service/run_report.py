"""Reports of a run to its supervisor: lines of JSON in a pipe that nothing else is written to.

What a user's module prints is in the log of its job, and never a report.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from statekit.checkpoint.sealed_json import COUNT_MAX, Count, Record
from statekit.errors import StatekitError
from statekit.names import StoredId, StoredText

ERROR_MAX = 2_000
"""The longest reported text of an error, in characters."""

_SOURCES_MAX = 10_000


def reported_error(error: StatekitError) -> str:
    """Return the text of an error for reports: its class and kind, then its message.

    >>> from statekit.errors import StorageError
    >>> reported_error(StorageError("the disk is full"))
    'StorageError (storage)\\nthe disk is full'
    """
    return f"{type(error).__name__} ({error.kind})\n{error}"[:ERROR_MAX]


class JobProgress(Record):
    """The last epoch of a job.

    Parameters:
        epoch: its number.
        records_per_second: that it has read.
        lag: records that are not read yet, by source, as far as they are known.
        state_rows, state_bytes: size of all states.
        checkpoint: the id of the checkpoint; None if it was not reported.

    >>> JobProgress.model_validate_json('{"epoch": 7, "records_per_second": 2.5}').epoch
    7
    """

    model_config = ConfigDict(extra="ignore")  # a run prints more of an epoch

    epoch: Count
    records_per_second: Annotated[float, Field(ge=0, le=COUNT_MAX, allow_inf_nan=False)] | None = (
        None
    )
    lag: Annotated[dict[StoredText, Count | None], Field(max_length=_SOURCES_MAX)] = Field(
        default_factory=dict
    )
    state_rows: Count | None = None
    state_bytes: Count | None = None
    checkpoint: StoredId | None = None


class RunReport(Record):
    """A report of a run.

    Parameters:
        progress: the epoch that was committed.
        error: why the run ends.
    """

    progress: JobProgress | None = None
    error: Annotated[str, Field(max_length=ERROR_MAX)] | None = None
