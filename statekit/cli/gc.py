"""`statekit gc`: collect the garbage of a checkpoint."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Annotated

import typer

from statekit.checkpoint.gc.collector import GRACE, Collected, Collector
from statekit.checkpoint.gc.kept_files import Size
from statekit.checkpoint.gc.readers import Readers, readers_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import DEFAULT_RETENTION, STAGED_FOR, Retention
from statekit.cli.arguments import AsJson, Checkpoint, DryRun
from statekit.cli.readers import print_readers, readers_as_data
from statekit.cli.tables import count_text, print_json, print_table, progress_bar, say
from statekit.errors import StateTypeError
from statekit.timestamp import duration_to_micros


def gc(
    checkpoint: Checkpoint,
    epochs: Annotated[
        int, typer.Option(min=1, help="Keep at least so many of the last epochs.")
    ] = DEFAULT_RETENTION.epochs,
    age: Annotated[
        str | None,
        typer.Option(
            help='And those that were committed no longer before the last: "7 days", "12h".'
        ),
    ] = None,
    readers: Annotated[
        str,
        typer.Option(
            help=(
                "Readers may keep earlier epochs that were committed no longer before the last. 0: "
                "they keep nothing."
            )
        ),
    ] = str(DEFAULT_RETENTION.readers),
    grace: Annotated[
        str,
        typer.Option(
            help=(
                "Delete orphans that were stored this long before the last commit. 0 if no job, "
                "savepoint or other command is running."
            )
        ),
    ] = f"{GRACE.total_seconds() / 3600:g}h",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete old epochs, and files that no kept epoch references.

    The job may run meanwhile. Savepoints and Spark's part are never touched.
    """
    retention = Retention(
        epochs=epochs,
        age=None if age is None else _duration(age, "--age"),
        readers=None if readers == "0" else _duration(readers, "--readers"),
    )
    patience = dt.timedelta(0) if grace == "0" else _duration(grace, "--grace")
    _collect(Repository(checkpoint, create=False), retention, patience, dry_run, as_json)


def _collect(
    repository: Repository,
    retention: Retention,
    patience: dt.timedelta,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Collect the garbage of a checkpoint, and print the result.

    Parameters:
        patience: how long before the last commit orphans were stored.
    """
    with progress_bar("epochs") as progress:
        collector = Collector(
            repository, retention, grace=patience, dry_run=dry_run, progress=progress
        )
        done = collector.collect(sweep=True)
    if done is None:
        repository.check_nothing_lost()
    kept_for = readers_of(repository, retention)
    if as_json:
        data = _as_data(repository.url, done, dry_run=dry_run)
        print_json({**data, **readers_as_data(kept_for)})
    elif done is None:
        say(f"{repository.url} has no committed epoch: nothing is collected")
    else:
        _print(repository.url, done, kept_for, patience, dry_run=dry_run)


def _duration(given: str, option: str) -> dt.timedelta:
    try:
        return dt.timedelta(microseconds=duration_to_micros(given, option))
    except StateTypeError:
        raise typer.BadParameter(
            f'{option} {given!r} is no duration: give one such as "7 days" or "12h"'
        ) from None


def _print(
    url: str, done: Collected, readers: Readers, grace: dt.timedelta, *, dry_run: bool
) -> None:
    say(url)
    say(f"kept: epochs {done.first} to {done.last} ({done.kept:,})")
    for number, why in sorted(done.held.items()):
        say(f"kept: epoch {number}: {why}")
    print_readers(readers, otherwise="what this retention keeps without them")
    if done.young is not None and done.young.files:
        hours = max(grace, STAGED_FOR).total_seconds() / 3600
        say(
            f"kept: {_size_text(done.young)}, unreferenced, stored less than {hours:g} hours "
            "before the last commit or since: a running epoch may reference them"
        )
    verb = "would be deleted" if dry_run else "deleted"
    if not done.deleted:
        say("nothing to delete")
        return
    sizes = sorted(done.deleted.items())
    rows = [(kind, f"{size.files:,}", f"{size.bytes:,}") for kind, size in sizes]
    print_table(("files", "bytes"), rows, texts=(verb,))
    total = Size(sum(size.files for _, size in sizes), sum(size.bytes for _, size in sizes))
    say(f"{_size_text(total)} {verb}")
    if dry_run:
        say("dry run: nothing was changed")


def _size_text(size: Size) -> str:
    return f"{count_text(size.files, 'file', 'files')} of {size.bytes:,} bytes"


def _as_data(url: str, done: Collected | None, *, dry_run: bool) -> dict[str, object]:
    kept = done and {
        "first": done.first,
        "last": done.last,
        "epochs": done.kept,
        "held": {str(number): why for number, why in sorted(done.held.items())},
        "unnamed": done.young and asdict(done.young),
    }
    deleted = {} if done is None else {k: asdict(size) for k, size in sorted(done.deleted.items())}
    return {"checkpoint": url, "dry_run": dry_run, "kept": kept, "deleted": deleted}
