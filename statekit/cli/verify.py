"""`statekit verify`: check and repair a checkpoint."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import AsJson
from statekit.cli.rollback import epochs_text
from statekit.cli.tables import (
    count_text,
    empty_table,
    out,
    print_error,
    print_json,
    print_table,
    print_title,
    progress_bar,
    range_text,
    say,
)
from statekit.clock import now_us, stopwatch_s
from statekit.errors import StatekitError
from statekit.maintenance.verify.findings import Finding, Orphan, Verification
from statekit.maintenance.verify.repair import Repaired, repair
from statekit.maintenance.verify.verify import verify as verify_all

_DAMAGED, _UNCHECKED = 1, 2
_ADVICE = (
    "Restore these files from a backup, or use --repair to commit a new epoch from what is "
    "intact; --json has the full messages"
)
_DO = re.compile(r"[:.] [Rr]estore .*", re.DOTALL)
"""The words at which the advice in a message starts."""
_FINDINGS_MAX = 50  # of more, the table shows the first


def verify_checkpoint(
    checkpoint: Annotated[
        str, typer.Argument(help="Directory or URL of a checkpoint or a savepoint.")
    ],
    epoch: Annotated[
        int | None, typer.Option(help="Look at this epoch only: its files and rows.")
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all", help="Look at the rows of every epoch, not of the last only.")
    ] = False,
    no_rows: Annotated[
        bool, typer.Option("--no-rows", help="Check the bytes of files, and unpack no rows.")
    ] = False,
    mend: Annotated[
        bool,
        typer.Option("--repair", help="Commit a new epoch from what is intact. Removes nothing."),
    ] = False,
    drop_rows: Annotated[
        bool,
        typer.Option(
            "--drop-rows",
            help="With --repair: leave out rows that cannot be read, and keep them in a file.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every file, row, count and index of a checkpoint, and find orphans.

    The exit code is 0 if it is intact, 1 if it is damaged, and 2 if it cannot be checked. Changes
    nothing without --repair. A job may run meanwhile, but not during a repair.
    """
    is_partial = epoch is not None or no_rows
    _check_options(is_partial=is_partial, all_rows=all_rows, mend=mend, drop_rows=drop_rows)
    try:
        repository, begun = Repository(checkpoint, create=False), stopwatch_s()
        if repository.is_savepoint:
            _check_savepoint_options(of_epochs=epoch is not None or all_rows, mend=mend)
        with progress_bar("bytes") as progress:
            verification = verify_all(
                repository,
                epoch=epoch,
                all_rows=all_rows,
                rows=not no_rows,
                progress=lambda done: progress(done, None),
            )
        took = stopwatch_s() - begun
        if not as_json:
            _print_verification(verification, took, rows=not no_rows)
        if mend:
            verification = _repair(repository, verification, took, drop_rows, as_json)
        elif as_json:
            print_json(_as_data(verification, took, None))
    except StatekitError as error:
        raise _failed(error, _UNCHECKED, {}, as_json=as_json) from None
    if verification.is_damaged:
        raise typer.Exit(_DAMAGED)
    if verification.unread:
        raise typer.Exit(_UNCHECKED)


def _check_options(*, is_partial: bool, all_rows: bool, mend: bool, drop_rows: bool) -> None:
    """Check that the options go together.

    Parameters:
        is_partial: whether some files or rows are left out.

    Raises:
        typer.BadParameter: they do not.
    """
    if mend and is_partial:
        raise typer.BadParameter("--repair looks at everything: leave --epoch and --no-rows out")
    if drop_rows and not mend:
        raise typer.BadParameter("--drop-rows goes with --repair")
    if all_rows and is_partial:
        raise typer.BadParameter("--all means the rows of all epochs: leave the other option out")


def _check_savepoint_options(*, of_epochs: bool, mend: bool) -> None:
    """Check that a savepoint takes the options.

    Parameters:
        of_epochs: whether they choose epochs.

    Raises:
        typer.BadParameter: it does not.
    """
    if mend:
        raise typer.BadParameter("a savepoint is never changed: restore it from a backup")
    if of_epochs:
        raise typer.BadParameter("a savepoint is of one epoch: leave --epoch and --all out")


def _repair(
    repository: Repository, verification: Verification, took: float, drop_rows: bool, as_json: bool
) -> Verification:
    """Repair a checkpoint, print the repairs, and return the verification of the last epoch.

    Parameters:
        verification: of the checkpoint as it is.
        took: the seconds that it took.

    Raises:
        typer.Exit: it cannot be repaired. The error and the findings have been printed.
    """
    try:
        repaired = repair(repository, verification, drop_rows=drop_rows)
    except StatekitError as error:
        findings = _as_data(verification, took, None)
        raise _failed(error, _DAMAGED, findings, as_json=as_json) from None
    if as_json:
        print_json(_as_data(verification, took, repaired))
    else:
        say("\n".join(_repair_lines(repaired)))
    if repaired is None:
        return verification
    return verify_all(repository, epoch=repaired.manifest.epoch)


def _failed(
    error: StatekitError, code: int, findings: dict[str, Any], *, as_json: bool
) -> typer.Exit:
    """Print an error, and return the exit of the command with a code."""
    if as_json:
        print_json({**findings, "error": {"kind": error.kind, "message": str(error)}})
    print_error(error)
    return typer.Exit(code)


def _print_verification(verification: Verification, took: float, *, rows: bool) -> None:
    say(verification.url)
    if verification.findings:
        _print_findings(verification.findings, verification.url)
    if verification.orphans:
        _print_orphans(verification)
    for name in sorted(verification.pickled) if rows else ():
        note = f"{name}: values are pickled and were not looked into; their rows were counted"
        say(note)
    note = f"{verification.files:,} files of {verification.bytes:,} bytes"
    note += f" and {verification.rows:,} rows" if rows else ""
    still_kept = {*verification.looked_at} & {*verification.epochs}
    looked = (
        f"{len(still_kept)} of {len(verification.epochs)} epochs: " if verification.epochs else ""
    )
    say(f"{looked}{note} checked in {took:.2f} s")
    if verification.given_up:
        say(f"the job collected {verification.given_up:,} epochs meanwhile: these were left out")
    if verification.is_damaged:
        findings = count_text(len(verification.findings), "finding", "findings")
        out.print(f"[bold red]damaged[/]: {findings}")
    elif verification.unread:
        out.print("[bold red]not everything could be read[/]")
    elif verification.findings:
        what = "leases of readers and epochs that were rolled back"
        out.print(f"[green]intact[/]: only {what} are damaged")
    else:
        out.print("[green]intact[/]")


def _print_findings(findings: Sequence[Finding], url: str) -> None:
    rows = [
        (
            finding.kind if finding.rows < 2 else f"{finding.kind} × {finding.rows:,}",
            Text(_where(finding)),
            Text(_short(finding, url)),
            _affected(finding.epochs),
        )
        for finding in findings[:_FINDINGS_MAX]
    ]
    print_table((), rows, texts=("what", "where", "what is wrong", "affects"))
    if (more := len(findings) - _FINDINGS_MAX) > 0:
        out.print(f"… and {more:,} more: --json has all of them")
    if any(finding.path is not None for finding in findings):
        say(_ADVICE)


def _short(finding: Finding, url: str) -> str:
    """Return a finding without the words that the table has elsewhere."""
    if finding.brief is not None:
        return finding.brief
    if finding.path is None:
        return finding.what
    text = finding.what.replace(f"{url}/{finding.path} ", "").replace(f"{url}/", "")
    if finding.kind == "unreadable":
        return text.split(". Nothing committed is lost", 1)[0]
    return _DO.sub("", text)


def _where(finding: Finding) -> str:
    if finding.operator is None:
        return finding.path or ""
    state = "" if finding.state is None else f".{finding.state}"
    shard = "" if finding.shard is None else f", key groups {range_text(finding.shard)}"
    return f"{finding.operator}{state}{shard}"


def _affected(epochs: Sequence[int]) -> str:
    """Return the epochs as ranges."""
    runs = [
        [epoch for _, epoch in run]
        for _, run in groupby(enumerate(epochs), lambda placed: placed[1] - placed[0])
    ]
    return epochs_text([(run[0], run[-1]) for run in runs]) if runs else ""


def _print_orphans(verification: Verification) -> None:
    table = empty_table(("files", "bytes", "oldest"), texts=("kind",))
    table.add_column("for example", overflow="fold")
    now = now_us()
    for kind, run in groupby(verification.orphans, lambda orphan: orphan.kind):
        files: list[Orphan] = list(run)
        table.add_row(
            kind,
            f"{len(files):,}",
            f"{sum(file.size for file in files):,}",
            _age_text(now - min(file.changed_us for file in files)),
            Text(files[0].path),
        )
    print_title("unreferenced files: no damage")
    out.print(table)
    if not verification.has_all_names:
        note = "a file that names others cannot be read, so some of these may be needed: keep them"
        out.print(note)


def _age_text(age_us: int) -> str:
    minutes = max(age_us, 0) // 60_000_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"


def _repair_lines(repaired: Repaired | None) -> list[str]:
    if repaired is None:
        return ["nothing to repair: the last epoch is intact"]
    epoch, target = repaired.manifest.epoch, repaired.target.epoch
    if not repaired.is_mended:
        abandoned = epochs_text([(target + 1, epoch - 1)])
        return [
            f"epoch {epoch} has the state of epoch {target}, the last intact one",
            f"lost: what {abandoned} did. The input since epoch {target} is read again, as far as "
            "its source still has it",
            f"outputs of {abandoned}: Parquet sinks take them back when the job next writes; "
            "callbacks and other writers cannot, and are given other epochs under new numbers",
        ]
    lines = [f"epoch {epoch} is epoch {target}, mended: {repaired.mended:,} rows of indexes"]
    if not repaired.left_out:
        return [
            *lines,
            "lost: nothing; all rows of states, timers and buffered records were intact",
        ]
    files = ", ".join(repaired.put_aside)
    return [*lines, f"lost: {repaired.left_out:,} rows that cannot be read, kept in {files}"]


def _as_data(verification: Verification, took: float, repaired: Repaired | None) -> dict[str, Any]:
    return {
        "url": verification.url,
        "is_damaged": verification.is_damaged,
        "epochs": list(verification.epochs),
        "epochs_given_up_meanwhile": verification.given_up,
        "rows_of_epochs": list(verification.rows_of),
        "savepoints": verification.savepoints,
        "files": verification.files,
        "bytes": verification.bytes,
        "rows": verification.rows,
        "seconds": round(took, 3),
        "not_looked_into": sorted(verification.pickled),
        "findings": [dataclasses.asdict(finding) for finding in verification.findings],
        "orphans": [orphan._asdict() for orphan in verification.orphans],
        "repair": None
        if repaired is None
        else {"epoch": repaired.manifest.epoch, "told": _repair_lines(repaired)},
    }
