"""`statekit copies`.

What lives here: the command and its table. What does not: finding and removing working copies
(`copy_space`).
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from statekit.cli_tables import range_text, table_of_numbers
from statekit.copy_space import CopySpace, FoundCopy
from statekit.errors import RestoreError, StatekitError
from statekit.job_file import JobFile
from statekit.repository import Repository
from statekit.timestamp import instant
from statekit.working_copy import default_working_directory

__all__ = ["copies"]

_out = Console()


def copies(
    directory: Annotated[
        str | None,
        typer.Argument(
            help="A working directory on this host; the one that jobs use if they are not told "
            "another.",
            show_default=False,
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove what killed processes left, and copies of lost checkpoints."
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --clean: remove all copies that nobody uses.")
    ] = False,
) -> None:
    """Show the working copies on this host, and remove those without use.

    Jobs may run meanwhile: a copy in use is never removed. A copy is no part of a checkpoint; a job
    that needs one again makes it anew.
    """
    if everything and not clean:
        raise typer.BadParameter("--all goes with --clean")
    space = CopySpace(directory or default_working_directory())
    if not space.root.is_dir():
        raise RestoreError(f"there is no directory {space.root}: pass a job's working_directory")
    found = space.copies()
    jobs = {copy.checkpoint_id: _job(space, copy.checkpoint_id) for copy in found}
    if clean:
        space.remove_leftovers()
        for copy in found:
            if everything or jobs[copy.checkpoint_id] is None:
                space.remove(copy.home)
    kept = space.copies()
    if clean:
        gone = _taken(found) - _taken(kept)
        _out.print(f"removed {len(found) - len(kept)} copies, {gone:,} bytes", highlight=False)
    _print(space, kept, jobs)


def _print(space: CopySpace, found: list[FoundCopy], jobs: dict[str, str | None]) -> None:
    _out.print(str(space.root), markup=False, highlight=False, soft_wrap=True)
    if not found:
        _out.print("no working copies", highlight=False)
        return
    headings = ("checkpoint", "job", "operator", "groups", "bytes", "last used (UTC)", "in use")
    table = table_of_numbers(None, headings)
    for copy in found:
        job = jobs.get(copy.checkpoint_id)
        table.add_row(
            copy.checkpoint_id[:10],
            Text("checkpoint is gone" if job is None else job),
            Text(copy.operator),
            range_text(copy.groups),
            f"{copy.bytes:,}",
            f"{instant(copy.last_used_us):%Y-%m-%d %H:%M}",
            "yes" if copy.is_in_use else "no",
        )
    _out.print(table)
    _out.print(f"{len(found)} copies, {_taken(found):,} bytes", highlight=False)


def _taken(found: list[FoundCopy]) -> int:
    """How many bytes copies take together, those that they share once."""
    sizes = {file: size for copy in found for file, size in copy.files.items()}
    return sum(sizes.values())


def _job(space: CopySpace, checkpoint_id: str) -> str | None:
    """The job whose copies these are; None if its checkpoint is gone, or is another one now."""
    url = space.origin(checkpoint_id)
    if url is None:
        return "unknown"
    try:
        repository = Repository(url, create=False)
        last = repository.latest_epoch()
        named = None if last is None else repository.manifest(last).job_file.path
        found = repository.job_file(named)
    except RestoreError:
        return None
    except StatekitError:
        return "unknown"
    job: JobFile | None = None if found is None else found[0]
    return job.name if job is not None and job.id == checkpoint_id else None
