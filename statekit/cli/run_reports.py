"""Reports of a run about each epoch: in a terminal, as lines of JSON, and to its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from threading import Event

import typer

from statekit.checking.checkpoint_fit import stored_job
from statekit.codec.json_form import instant_text
from statekit.errors import StatekitError
from statekit.job.progress import Progress
from statekit.runtime.progress_line import ProgressLine
from statekit.service.run_report import reported_error


class RunReports:
    """The reports to a supervisor, in a pipe that it has opened.

    Parameters:
        number: of the open file.
        checkpoint: of the run.
        stop: is set if nobody reads them any more.
    """

    def __init__(self, number: int, checkpoint: str, stop: Event) -> None:
        try:
            self._pipe = os.fdopen(number, "w")
            os.set_inheritable(number, False)  # not for processes that the job starts
        except OSError as error:
            raise typer.BadParameter(f"--reports-to={number}: {error}") from error
        self._checkpoint, self._stop = checkpoint, stop
        self._id: str | None = None

    def send_progress(self, progress: Progress) -> None:
        """Send an epoch, with the id of the checkpoint."""
        if self._id is None:
            with contextlib.suppress(StatekitError):  # the next epoch asks again
                self._id = checkpoint_id(self._checkpoint)
        self.send({"progress": {**progress_as_data(progress), "checkpoint": self._id}})

    def send_error(self, error: StatekitError) -> None:
        """Send the reason of the end of the run."""
        self.send({"error": reported_error(error)})

    def send(self, report: dict[str, object]) -> None:
        """Send a report at once."""
        try:
            print(json.dumps(report), file=self._pipe, flush=True)
        except BrokenPipeError:
            self._stop.set()


@contextlib.contextmanager
def reported(stop: Event, reports: RunReports | None) -> Iterator[Callable[[Progress], None]]:
    """Yield what reports each epoch: a line in the terminal, or JSON.

    Parameters:
        stop: is set if nobody reads the JSON any more.
        reports: to a supervisor, which gets each epoch too; None without one.
    """

    def print_json(progress: Progress) -> None:
        if reports is not None:
            reports.send_progress(progress)
        try:
            print(json.dumps(progress_as_data(progress)), flush=True)
        except BrokenPipeError:
            stop.set()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # later lines

    if not sys.stdout.isatty():
        yield print_json
        return
    line = ProgressLine(out=sys.stdout)
    try:
        yield line
    finally:
        line.close()


def progress_as_data(progress: Progress) -> dict[str, object]:
    """Return the progress of a run for a line of JSON."""
    return {
        "epoch": progress.epoch,
        "records": progress.records_in,
        "records_per_second": round(progress.events_per_second, 1),
        "seconds": round(progress.seconds, 3),
        "outputs": progress.records_out,
        "late": progress.late,
        "failed": progress.failed,
        "bad_records": progress.bad_records,
        "lag": progress.source_lags,
        "state_rows": sum(progress.state_rows.values()),
        "state_bytes": sum(progress.state_bytes.values()),
        "written_bytes": progress.changed_bytes,
        "watermarks": {name: instant_text(at) for name, at in progress.watermarks.items()},
        "processing_time": instant_text(progress.processing_time),
    }


def checkpoint_id(checkpoint: str) -> str | None:
    """Return the id of a checkpoint; None if it has no epoch.

    Raises:
        StatekitError: it cannot be read.
    """
    stored = stored_job(checkpoint)
    return None if stored is None or stored.last is None else stored.job_file.id
