"""`statekit run`: run a job until it ends or is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from statekit.checking.checkpoint_fit import stored_job
from statekit.cli.arguments import (
    AllowDroppedState,
    Heartbeat,
    JobName,
    Modules,
    Restart,
    Settings,
    Trigger,
)
from statekit.cli.tables import print_error, say
from statekit.codec.json_form import instant_text
from statekit.documents.settings import with_settings
from statekit.errors import RestoreError, StatekitError, StateTypeError
from statekit.job.job import Job
from statekit.job.loader import check_runs_alone, load_job
from statekit.job.options import StartOptions
from statekit.job.progress import Progress
from statekit.job.restarts import is_mended_by_restart
from statekit.runtime.progress_line import ProgressLine
from statekit.runtime.stop_signals import stop_with_input, stopped_by_signals
from statekit.service.run_report import ERROR_MAX

ENDS_WITHIN_S = 5.0
"""The time that a run has for its current epoch after the end of its standard input, in seconds."""

FAILED, FAILED_FOR_GOOD = 1, 3
"""Exit codes of a job that failed: another start may succeed, or it cannot."""


def run_job(
    job: JobName,
    checkpoint: Annotated[str, typer.Option(help="Directory or URL of the checkpoint.")],
    spark: Annotated[
        str | None,
        typer.Option(help="Run on Spark, with this master, such as local[2] or sc://host."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="A setting of Spark: NAME=VALUE. Any number of times.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Read streams until it is stopped.")
    ] = False,
    parallelism: Annotated[
        int | None, typer.Option(help="Shards per operator; that of the checkpoint by default.")
    ] = None,
    set_: Settings = None,
    restart: Restart = None,
    trigger: Trigger = None,
    heartbeat: Heartbeat = None,
    epoch_size: Annotated[
        int | None, typer.Option(help="Records per source and epoch, at most.")
    ] = None,
    drain: Annotated[
        bool | None,
        typer.Option(help="Whether event time ends with the input; unless it is a stream."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Serve metrics at a port or an address, as 0.0.0.0:9464.")
    ] = None,
    working_directory: Annotated[
        Path | None, typer.Option(help="Of working copies of the state, on a local disk.")
    ] = None,
    from_savepoint: Annotated[
        str | None, typer.Option(help="The savepoint that a new checkpoint starts from.")
    ] = None,
    from_epoch: Annotated[
        int | None, typer.Option(help="Roll the checkpoint back to this epoch first.")
    ] = None,
    allow_dropped_state: AllowDroppedState = False,
    module: Modules = None,
    ends_with_input: Annotated[
        bool,
        typer.Option(
            "--ends-with-input",
            help="Also stop when the standard input ends, because the supervisor has ended.",
        ),
    ] = False,
    continues: Annotated[
        str | None,
        typer.Option(help="The id that the checkpoint must have: refuse another or an empty one."),
    ] = None,
    reports_to: Annotated[
        int | None,
        typer.Option(
            "--reports-to", help="The number of a file that the supervisor has opened for reports."
        ),
    ] = None,
) -> None:
    """Run a job: in this process, or on Spark.

    In a terminal it shows its progress in a line. Otherwise it prints one line of JSON per epoch.
    """
    options: dict[str, Any] = {
        "parallelism": parallelism,
        "working_directory": working_directory,
        "from_savepoint": from_savepoint,
        "from_epoch": from_epoch,
        "allow_dropped_state": allow_dropped_state,
        "metrics": int(metrics) if metrics is not None and metrics.isdigit() else metrics,
        "restart": restart,
    }
    pace = {"heartbeat": heartbeat, "drain": drain, "epoch_size": epoch_size, "trigger": trigger}
    stop = Event()
    reports = None if reports_to is None else _Reports(reports_to, checkpoint, stop)
    try:
        declared = declared_job(job, set_ or (), module)
        check_runs_alone(declared)
        if continues is not None:
            _check_continues(checkpoint, continues)
        with stopped_by_signals(stop), _reported(stop, reports) as on_epoch:
            if ends_with_input:
                stop_with_input(stop, ENDS_WITHIN_S)
            options["on_epoch"] = on_epoch
            if spark is None:
                _run_here(declared, checkpoint, {**pace, **options}, follow=follow, stop=stop)
            else:
                settings = _spark_settings(conf or ())
                start = _start_options({**pace, **options}, follow=follow)
                from statekit.spark.command import run_on_spark  # it takes a second to import

                run_on_spark(declared, spark, settings, checkpoint, start, stop)
    except StatekitError as error:
        print_error(error)
        if reports is not None:
            text = f"{type(error).__name__} ({error.kind})\n{error}"
            reports.send({"error": text[:ERROR_MAX]})
        raise typer.Exit(FAILED if is_mended_by_restart(error) else FAILED_FOR_GOOD) from error


def declared_job(text: str, settings: Sequence[str], modules: Sequence[str] | None) -> Job:
    """Return the job of a command.

    Parameters:
        text: `module:attribute`, or the path of a document.
        settings: as for `with_settings`.
        modules: as for `Job.from_json`.

    Raises:
        StateTypeError: there is no such job or document, or a setting is not valid.
    """
    if not text.endswith(".json"):
        job = load_job(text)
        return job if not settings else Job.from_json(with_settings(job.to_json(), settings))
    document = read_text(text)
    if settings:
        document = with_settings(document, settings)
    return Job.from_json(document, modules=modules)


def read_text(path: str) -> str:
    """Return the text of a document.

    Raises:
        StateTypeError: it cannot be read.
    """
    try:
        return Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise StateTypeError(f"the document {path} cannot be read: {error}") from error


def _check_continues(checkpoint: str, id_: str) -> None:
    """Check that a checkpoint with epochs is there, and is the one of before.

    Raises:
        RestoreError: it is not.
        StatekitError: it cannot be read.
    """
    found = _checkpoint_id(checkpoint)
    if found == id_:
        return
    what = "has no epoch" if found is None else f"has the id {found}"
    raise RestoreError(
        f"{checkpoint} {what}, and the job has committed epochs to a checkpoint of the id {id_}: "
        "nothing was started, because all outputs would be repeated. Mount or restore the "
        "checkpoint and start the job. To begin anew instead, leave out --continues; at a server: "
        "`statekit start URL NAME --anew`"
    )


def _checkpoint_id(checkpoint: str) -> str | None:
    stored = stored_job(checkpoint)
    return None if stored is None or stored.last is None else stored.job_file.id


def _run_here(
    job: Job, checkpoint: str, options: dict[str, Any], *, follow: bool, stop: Event
) -> None:
    run = job.run(checkpoint=checkpoint, backend="rocksdb", follow=follow, stop=stop, **options)
    if sys.stdout.isatty():
        last = "" if run.last_epoch is None else f"; the last epoch is {run.last_epoch}"
        say(f"{run.epochs:,} {'epoch' if run.epochs == 1 else 'epochs'} committed{last}")


def _start_options(options: dict[str, Any], *, follow: bool) -> StartOptions:
    trigger = options.pop("trigger")
    if follow and options["drain"]:
        raise StateTypeError(
            "--drain is for runs that end with their input, and --follow never does"
        )
    if not follow:
        trigger = {"availableNow": True}
    return StartOptions(trigger=trigger, **options)


def _spark_settings(conf: Sequence[str]) -> dict[str, str]:
    settings = dict(each.split("=", 1) for each in conf if "=" in each)
    if wrong := [each for each in conf if "=" not in each]:
        raise StateTypeError(f"--conf {wrong[0]}: write NAME=VALUE")
    return settings


class _Reports:
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
                self._id = _checkpoint_id(self._checkpoint)
        self.send({"progress": {**progress_as_data(progress), "checkpoint": self._id}})

    def send(self, report: dict[str, object]) -> None:
        """Send a report at once."""
        try:
            print(json.dumps(report), file=self._pipe, flush=True)
        except BrokenPipeError:
            self._stop.set()


@contextlib.contextmanager
def _reported(stop: Event, reports: _Reports | None) -> Iterator[Callable[[Progress], None]]:
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
