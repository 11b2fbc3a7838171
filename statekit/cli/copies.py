"""`statekit copies`: list and remove local working copies."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from statekit.checkpoint.object_store import StoreOptions
from statekit.checkpoint.repository import Repository
from statekit.cli.tables import count_text, print_table, range_text, say
from statekit.errors import RestoreError, StatekitError, StorageError
from statekit.timestamp import instant
from statekit.working_copy.copies import default_working_directory
from statekit.working_copy.disk_space import CopySpace, FoundCopy

_PATIENCE = StoreOptions(retry_seconds=2, timeout_seconds=3, connect_seconds=2)
"""Short time limits: a store that does not answer makes the job of its copies unknown."""
_ASKED_AT_ONCE = 16


def copies(
    directory: Annotated[
        str | None,
        typer.Argument(help="A working directory on this host; default: that of jobs without one."),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove what killed processes left, and copies of lost checkpoints."
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --clean: remove all copies that are not in use.")
    ] = False,
) -> None:
    """Show the working copies on this host, and remove unused ones.

    Jobs may run meanwhile: a copy in use is never removed. A copy is not part of a checkpoint; a
    job restores it when needed.
    """
    if everything and not clean:
        raise typer.BadParameter("--all goes with --clean")
    space = CopySpace(directory or default_working_directory())
    _check(space)
    all_copies = space.copies()
    jobs = _jobs(space, {copy.checkpoint_id for copy in all_copies})
    if clean:
        _clean(space, [c for c in all_copies if everything or jobs[c.checkpoint_id] is None])
    _print(space, space.copies() if clean else all_copies, jobs)
    if unread := space.unreadable():
        raise StorageError(
            f"{unread[0]} may not be read, so copies in there are not shown{_others(unread)}: run "
            "this as the user that the jobs run as"
        )


def _check(space: CopySpace) -> None:
    """Refuse a directory that is missing, unreadable, or not a working directory."""
    try:
        is_ours = space.is_ours
    except (FileNotFoundError, NotADirectoryError):
        raise RestoreError(
            f"there is no directory {space.root}: pass a job's working_directory"
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot read {space.root}: {error.strerror}. Run this as the user that the jobs run as"
        ) from error
    if not is_ours:
        raise RestoreError(
            f"{space.root} is no working directory, as nothing in it was put there by a job: pass "
            "a job's working_directory"
        )


def _clean(space: CopySpace, useless: list[FoundCopy]) -> None:
    """Remove leftovers and copies, and print their number and size."""
    leftovers, before = space.remove_leftovers(), space.copies()
    removed = sum(space.remove(copy.home) for copy in useless)
    removed_bytes = _total_bytes(before) - _total_bytes(space.copies())
    say(
        f"removed {count_text(removed, 'copy', 'copies')} of {removed_bytes:,} bytes, and "
        f"{count_text(leftovers, 'leftover', 'leftovers')} of killed processes"
    )
    stuck = [c.home for c in useless if os.path.isdir(c.home / "db") and not c.is_in_use]
    if stuck:
        raise StorageError(
            f"{stuck[0]} cannot be removed{_others(stuck)}, although it is not in use: run this as "
            f"a user that may write there and in {space.root}"
        )


def _print(space: CopySpace, copies_found: list[FoundCopy], jobs: dict[str, str | None]) -> None:
    say(str(space.root))
    if not copies_found:
        say("no working copies")
        return
    headings = ("checkpoint", "job", "operator", "groups", "bytes", "last used (UTC)", "in use")
    rows = [
        (
            copy.checkpoint_id[:10],
            Text(jobs.get(copy.checkpoint_id) or "checkpoint is gone"),
            Text(copy.operator),
            range_text(copy.groups),
            f"{copy.bytes:,}",
            f"{instant(copy.last_used_us):%Y-%m-%d %H:%M}",
            "yes" if copy.is_in_use else "no",
        )
        for copy in copies_found
    ]
    print_table(headings, rows)
    say(f"{count_text(len(copies_found), 'copy', 'copies')}, {_total_bytes(copies_found):,} bytes")


def _others(paths: list[Path]) -> str:
    return f", and {len(paths) - 1:,} more" if len(paths) > 1 else ""


def _total_bytes(copies_found: list[FoundCopy]) -> int:
    """Return the total bytes of copies; shared files count once."""
    sizes = {file: size for copy in copies_found for file, size in copy.files.items()}
    return sum(sizes.values())


def _jobs(space: CopySpace, checkpoints: Collection[str]) -> dict[str, str | None]:
    """Return the jobs of checkpoints. Their stores are asked in parallel."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        jobs = threads.map(lambda checkpoint: _job(space, checkpoint), checkpoints)
        return dict(zip(checkpoints, jobs, strict=True))


def _job(space: CopySpace, checkpoint_id: str) -> str | None:
    """Return the job of copies; None if its checkpoint is deleted or was replaced."""
    url = space.origin(checkpoint_id)
    if url is None:
        return "unknown"
    try:
        repository = Repository(url, create=False, options=_PATIENCE)
        if (last := repository.latest_epoch()) is not None:
            job = repository.job_file(repository.manifest(last).job_file.path)
        elif (newest := repository.newest_job_file()) is not None:
            job = newest[0]
        else:
            return None
    except RestoreError:
        return None
    except StatekitError:
        return "unknown"
    return job.name if job.id == checkpoint_id else None
