"""`statekit diff`: compare two epochs, checkpoints or savepoints."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Annotated, Any

import typer

from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import AllowPickle, AsJson
from statekit.cli.tables import count_text, out, print_table, print_values, say
from statekit.maintenance.diff.compare import (
    Difference,
    EpochSource,
    RowDifference,
    SavepointSource,
    StateSource,
    compare,
)

_DIFFERENT = 3
"""The exit code for a difference, which is not an error."""

_WITH_EPOCH = re.compile(r"(.+)@(\d+)")


def source_of(text: str) -> StateSource:
    """Return the state for an argument: a checkpoint, CHECKPOINT@EPOCH, or a savepoint.

    Raises:
        StatekitError: there is no such checkpoint, epoch or savepoint.
    """
    match = _WITH_EPOCH.fullmatch(text)
    if match is None or os.path.isdir(text):
        is_savepoint = Repository(text, create=False).is_savepoint
        return SavepointSource(text) if is_savepoint else EpochSource(text)
    return EpochSource(match[1], int(match[2]))


def diff(
    a: Annotated[str, typer.Argument(help="A checkpoint, or CHECKPOINT@EPOCH.")],
    b: Annotated[str, typer.Argument(help="What to compare it with.")],
    rows: Annotated[int, typer.Option(min=0, help="Show so many rows that differ per state.")] = 0,
    as_json: AsJson = False,
    allow_pickle: AllowPickle = False,
) -> None:
    """Compare two states: schemas, and the rows of each state.

    The exit code is 0 if they are equal, and 3 if they differ.
    """
    difference = compare(source_of(a), source_of(b), examples=rows, allow_pickle=allow_pickle)
    if as_json:
        print_values({"same": difference.is_same, **dataclasses.asdict(difference)})
    else:
        _print_difference(difference)
    if not difference.is_same:
        raise typer.Exit(_DIFFERENT)


def _print_difference(difference: Difference) -> None:
    """Print schemas, then the numbers of different rows, then the requested rows."""
    say(f"A {difference.a}\nB {difference.b}")
    _print_schemas(difference)
    headings = ("rows in A", "rows in B", "added", "removed", "changed")
    rows = []
    for state in difference.states:
        counts = (state.rows_a, state.rows_b, state.added, state.removed, state.changed)
        rows.append((f"{state.operator}.{state.state}", *(f"{count:,}" for count in counts)))
    print_table(headings, rows, texts=("state",))
    for state in difference.states:
        for row in state.examples:
            say(f"{state.operator}.{state.state} {_row_text(row)}")
    read = count_text(difference.shards_read, "shard was", "shards were")
    skipped = f", {difference.shards_skipped:,} of the same attempt were not"
    out.print(f"{read} read{skipped if difference.shards_skipped else ''}")
    out.print("the same" if difference.is_same else "different")


def _print_schemas(difference: Difference) -> None:
    """Print operators and states that only one side has, and types that differ."""
    for name in dict.fromkeys([*difference.operators_a, *difference.operators_b]):
        key_a, key_b = difference.operators_a.get(name), difference.operators_b.get(name)
        if key_a != key_b:
            say(_change_text(f"operator {name} by", key_a, key_b))
    for state in difference.states:
        if state.type_a != state.type_b:
            subject = f"state {state.operator}.{state.state}:"
            say(_change_text(subject, state.type_a, state.type_b))


def _change_text(what: str, a: str | None, b: str | None) -> str:
    if a is None:
        return f"{what} {b} is only in B"
    return f"{what} {a} is only in A" if b is None else f"{what} {a} in A, {b} in B"


def _row_text(row: RowDifference) -> str:
    at = _json(row.key) if row.place is None else f"{_json(row.key)} {_json(row.place)}"
    match row.change:
        case "added":
            return f"+ {at}: {_json(row.new)}"
        case "removed":
            return f"- {at}: {_json(row.old)}"
    return f"~ {at}: {_json(row.old)} → {_json(row.new)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
