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
from statekit.cli.rollback import epochs_text
from statekit.cli.tables import (
    count_text,
    empty_table,
    out,
    print_error,
    print_json,
    progress_bar,
    range_text,
    say,
)
from statekit.clock import now_us, stopwatch_s
from statekit.errors import StatekitError
from statekit.maintenance.verify.findings import Finding, Verification
from statekit.maintenance.verify.orphans import Orphan
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


def verify(
    checkpoint: Annotated[
        str,
        typer.Argument(help="Directory or URL of a checkpoint or a savepoint.", show_default=False),
    ],
    epoch: Annotated[
        int | None,
        typer.Option(help="Look at this epoch only: its files and rows.", show_default=False),
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check every file, row, count and index of a checkpoint, and find orphans.

    The exit code is 0 if it is intact, 1 if it is damaged, and 2 if it cannot be checked. Changes
    nothing without --repair. A job may run meanwhile, but not during a repair.
    """
    if mend and (epoch is not None or no_rows):
        raise typer.BadParameter("--repair looks at everything: leave --epoch and --no-rows out")
    if drop_rows and not mend:
        raise typer.BadParameter("--drop-rows goes with --repair")
    if all_rows and (epoch is not None or no_rows):
        raise typer.BadParameter("--all means the rows of all epochs: leave the other option out")
    try:
        code = _verify(checkpoint, epoch, all_rows, not no_rows, mend, drop_rows, as_json)
    except StatekitError as error:
        code = _UNCHECKED
        _print_error(error, None, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _print_error(error: StatekitError, found: dict[str, Any] | None, *, as_json: bool) -> None:
    """Print the error that ended the command; as data together with the findings so far."""
    if as_json:
        print_json({**(found or {}), "error": {"kind": error.kind, "message": str(error)}})
    print_error(error)


def _verify(
    checkpoint: str,
    epoch: int | None,
    all_rows: bool,
    rows: bool,
    mend: bool,
    drop_rows: bool,
    as_json: bool,
) -> int:
    repository, begun = Repository(checkpoint, create=False), stopwatch_s()
    if mend and repository.is_savepoint:
        raise typer.BadParameter("a savepoint is never changed: restore it from a backup")
    if (epoch is not None or all_rows) and repository.is_savepoint:
        raise typer.BadParameter("a savepoint is of one epoch: leave --epoch and --all out")
    with progress_bar("bytes") as progress:
        found = verify_all(
            repository,
            epoch=epoch,
            all_rows=all_rows,
            rows=rows,
            progress=lambda done: progress(done, None),
        )
    took, made = stopwatch_s() - begun, None
    if not as_json:
        _print_found(found, took, rows=rows)
    if mend:
        try:
            made = repair(repository, found, drop_rows=drop_rows)
        except StatekitError as error:
            _print_error(error, _as_data(found, took, None), as_json=as_json)
            return _DAMAGED
    if as_json:
        print_json(_as_data(found, took, made))
    elif mend:
        _print_repair(made)
    if made is not None:
        found = verify_all(repository, epoch=made.manifest.epoch)
    if found.is_damaged:
        return _DAMAGED
    return 0 if found.is_whole or not found.unread else _UNCHECKED


def _print_found(found: Verification, took: float, *, rows: bool) -> None:
    say(found.url)
    if found.findings:
        _print_findings(found.findings, found.url)
    if found.orphans:
        _print_orphans(found)
    for name in sorted(found.pickled) if rows else ():
        told = f"{name}: values are pickled and were not looked into; their rows were counted"
        say(told)
    told = f"{found.files:,} files of {found.bytes:,} bytes"
    told += f" and {found.rows:,} rows" if rows else ""
    kept = {*found.looked_at} & {*found.epochs}
    looked = f"{len(kept)} of {len(found.epochs)} epochs: " if found.epochs else ""
    say(f"{looked}{told} checked in {took:.2f} s")
    if found.given_up:
        say(f"the job gave {found.given_up:,} epochs up meanwhile: these were left out")
    if found.is_damaged:
        findings = count_text(len(found.findings), "finding", "findings")
        out.print(f"[bold red]damaged[/]: {findings}")
    elif found.unread:
        out.print("[bold red]not everything could be read[/]")
    elif found.findings:
        out.print("[green]intact[/]: only epochs that were rolled back are damaged")
    else:
        out.print("[green]intact[/]")


def _print_findings(findings: Sequence[Finding], url: str) -> None:
    table = empty_table((), texts=("what", "where", "what is wrong", "affects"))
    for finding in findings[:_FINDINGS_MAX]:
        table.add_row(
            finding.kind if finding.rows < 2 else f"{finding.kind} × {finding.rows:,}",
            Text(_where(finding)),
            Text(_short(finding, url)),
            _affected(finding.epochs),
        )
    out.print(table)
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
    told = finding.what.replace(f"{url}/{finding.path} ", "").replace(f"{url}/", "")
    if finding.kind == "unreadable":
        return told.split(". Nothing committed is lost", 1)[0]
    return _DO.sub("", told)


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


def _print_orphans(found: Verification) -> None:
    table = empty_table(
        ("files", "bytes", "oldest"),
        texts=("kind",),
        title="files that nothing names: no damage",
    )
    table.add_column("for example", overflow="fold")
    now = now_us()
    for kind, run in groupby(found.orphans, lambda orphan: orphan.kind):
        files: list[Orphan] = list(run)
        table.add_row(
            kind,
            f"{len(files):,}",
            f"{sum(file.size for file in files):,}",
            _age_text(now - min(file.changed_us for file in files)),
            Text(files[0].path),
        )
    out.print(table)
    if not found.has_all_names:
        told = "a file that names others cannot be read, so some of these may be needed: keep them"
        out.print(told)


def _age_text(age_us: int) -> str:
    minutes = max(age_us, 0) // 60_000_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"


def _print_repair(made: Repaired | None) -> None:
    if made is None:
        out.print("nothing to repair: the last epoch is intact")
        return
    for line in _repair_lines(made):
        say(line)


def _repair_lines(made: Repaired) -> list[str]:
    epoch, target = made.manifest.epoch, made.target.epoch
    if not made.is_mended:
        gone = epochs_text([(target + 1, epoch - 1)])
        return [
            f"epoch {epoch} has the state of epoch {target}, the last intact one",
            f"lost: what {gone} did. The input since epoch {target} is read again, as far as its "
            "source still has it",
            f"outputs of {gone}: Parquet sinks take them back when the job next writes; callbacks "
            "and other writers cannot, and are given other epochs under new numbers",
        ]
    lines = [f"epoch {epoch} is epoch {target}, mended: {made.mended:,} rows of indexes"]
    if not made.left_out:
        return [
            *lines,
            "lost: nothing; all rows of states, timers and buffered records were intact",
        ]
    kept = ", ".join(made.put_aside)
    return [*lines, f"lost: {made.left_out:,} rows that cannot be read, kept in {kept}"]


def _as_data(found: Verification, took: float, made: Repaired | None) -> dict[str, Any]:
    return {
        "url": found.url,
        "is_damaged": found.is_damaged,
        "epochs": list(found.epochs),
        "epochs_given_up_meanwhile": found.given_up,
        "rows_of_epochs": list(found.rows_of),
        "savepoints": found.savepoints,
        "files": found.files,
        "bytes": found.bytes,
        "rows": found.rows,
        "seconds": round(took, 3),
        "not_looked_into": sorted(found.pickled),
        "findings": [dataclasses.asdict(finding) for finding in found.findings],
        "orphans": [orphan._asdict() for orphan in found.orphans],
        "repair": None
        if made is None
        else {"epoch": made.manifest.epoch, "told": _repair_lines(made)},
    }
