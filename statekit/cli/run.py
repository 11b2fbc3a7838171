"""`statekit run`: run a job until it ends or is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from statekit.cli.arguments import (
    AllowDroppedState,
    Heartbeat,
    JobName,
    Modules,
    Restart,
    Settings,
    Trigger,
)
from statekit.cli.declared_jobs import SettingError, declared_job
from statekit.cli.run_reports import RunReports, checkpoint_id, reported
from statekit.cli.tables import print_error, say
from statekit.errors import RestoreError, StatekitError, StateTypeError
from statekit.job.job import Job
from statekit.job.loader import check_runs_alone
from statekit.job.options import Pace, StartOptions
from statekit.job.restarts import Restarts, is_mended_by_restart
from statekit.runtime.stop_signals import stop_with_input, stopped_by_signals

ENDS_WITHIN_S = 5.0
"""The time that a run has for its current epoch after the end of its standard input, in seconds."""

FAILED, WRONG_USAGE, FAILED_FOR_GOOD = 1, 2, 3
"""Exit codes of a job that failed, and another start may succeed; of options that no job can run
with; of a job that failed, and another start cannot succeed.
"""


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
    lock: Annotated[
        int | None,
        typer.Option(
            help="The number of a file that the supervisor has locked: this process alone keeps it."
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
    pace: dict[str, Any] = {
        "heartbeat": heartbeat,
        "drain": drain,
        "epoch_size": epoch_size,
        "trigger": trigger,
    }
    stop = Event()
    reports = None if reports_to is None else RunReports(reports_to, checkpoint, stop)
    if lock is not None:
        _keep_from_children(lock)
    try:
        with _settings_of_the_command():
            _check_counts({"parallelism": parallelism, "epoch-size": epoch_size})
            settings = _checked_settings(spark, conf or (), restart)
            start = _start_options({**pace, **options}, follow=follow)
            if spark is None:
                Pace.of(**pace, follow=follow)
        declared = declared_job(job, set_ or (), module)
        check_runs_alone(declared)
        if continues is not None:
            _check_continues(checkpoint, continues)
        with stopped_by_signals(stop), reported(stop, reports) as on_epoch:
            if ends_with_input:
                stop_with_input(stop, ENDS_WITHIN_S)
            if spark is None:
                given = {**pace, **options, "on_epoch": on_epoch}
                _run_here(declared, checkpoint, given, follow=follow, stop=stop)
            else:
                start = replace(start, on_epoch=on_epoch)
                from statekit.spark.command import run_on_spark  # it takes a second to import

                run_on_spark(declared, spark, settings, checkpoint, start, stop)
    except StatekitError as error:
        print_error(error)
        if reports is not None:
            reports.send_error(error)
        raise typer.Exit(_exit_code(error)) from error


def _keep_from_children(lock: int) -> None:
    """Close a file in all processes that this one starts: one that outlives the job must not keep
    its lock.
    """
    try:
        os.set_inheritable(lock, False)
    except OSError as error:
        raise typer.BadParameter(f"--lock={lock}: {error}") from error
    os.register_at_fork(after_in_child=lambda: os.close(lock))


@contextlib.contextmanager
def _settings_of_the_command() -> Iterator[None]:
    try:
        yield
    except StateTypeError as error:
        raise SettingError(str(error)) from error


def _exit_code(error: StatekitError) -> int:
    if isinstance(error, SettingError):
        return WRONG_USAGE
    return FAILED if is_mended_by_restart(error) else FAILED_FOR_GOOD


def _check_counts(counts: Mapping[str, int | None]) -> None:
    """Check numbers here: a range in their types would leave no room for the names of options in
    the help of a narrow terminal.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise StateTypeError(f"--{name}={count}: give a number from 1 on")


def _checked_settings(
    spark: str | None, conf: Sequence[str], restart: str | None
) -> dict[str, str]:
    """Return the settings of Spark, after checking the options that need no job.

    Raises:
        StateTypeError: one is not valid.
    """
    if conf and spark is None:
        raise StateTypeError(
            f"--conf {conf[0]} is an option of Spark, and this run has no Spark: add --spark "
            "MASTER, such as --spark 'local[2]', or leave --conf out"
        )
    if restart is not None:
        Restarts.of(restart)
    return _spark_settings(conf)


def _check_continues(checkpoint: str, id_: str) -> None:
    """Check that a checkpoint with epochs is there, and is the one of before.

    Raises:
        RestoreError: it is not.
        StatekitError: it cannot be read.
    """
    found = checkpoint_id(checkpoint)
    if found == id_:
        return
    what = "has no epoch" if found is None else f"has the id {found}"
    raise RestoreError(
        f"{checkpoint} {what}, and the job has committed epochs to a checkpoint of the id {id_}: "
        "nothing was started, because all outputs would be repeated. Mount or restore the "
        "checkpoint and start the job. To begin anew instead, leave out --continues; at a server: "
        "`statekit start URL NAME --anew`"
    )


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
