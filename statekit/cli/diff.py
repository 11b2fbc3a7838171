"""`statekit diff`: compare two epochs, checkpoints or savepoints."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any

from statekit.checkpoint.repository import Repository
from statekit.cli.tables import empty_table, out, say
from statekit.maintenance.diff.compare import Difference, EpochSource, RowDifference, StateSource
from statekit.maintenance.diff.savepoint_source import SavepointSource

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


def as_data(difference: Difference) -> dict[str, Any]:
    """Return the difference as JSON-able data."""
    return {"same": difference.is_same, **dataclasses.asdict(difference)}


def print_difference(difference: Difference) -> None:
    """Print schemas, then the numbers of different rows, then the requested rows."""
    say(f"A {difference.a}\nB {difference.b}")
    _print_schemas(difference)
    headings = ("rows in A", "rows in B", "added", "removed", "changed")
    table = empty_table(headings, texts=("state",))
    for state in difference.states:
        counts = (state.rows_a, state.rows_b, state.added, state.removed, state.changed)
        table.add_row(f"{state.operator}.{state.state}", *(f"{count:,}" for count in counts))
    out.print(table)
    for state in difference.states:
        for row in state.examples:
            say(f"{state.operator}.{state.state} {_row_text(row)}")
    read = (
        "1 shard was" if difference.shards_read == 1 else f"{difference.shards_read:,} shards were"
    )
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
