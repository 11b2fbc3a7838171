"""Changes of a state as rows of plain data: those of the feed, and those of change tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.codec.json_form import json_form
from statekit.query.changes.state_changes import StateChanges
from statekit.records.json_rows import json_rows

ABOUT = ("epoch", "cause", "kind", "watermark", "processing_time", "op", "expires")
Row = dict[str, Any]


def rows_of_feed(
    checkpoint: str | Path | Repository,
    operator: str,
    state: str,
    after: int | None = None,
    until: int | None = None,
) -> list[Row]:
    """The changes that the feed gives."""
    rows = []
    for epoch in sk.feed(checkpoint, operator, state, after=after, until=until):
        for change in epoch:
            about = {name: getattr(epoch, name) for name in ABOUT[:5]}
            rows.append({**about, **change._asdict()})
    return in_order(rows)


def rows_of_tables(
    checkpoint: str | Path | Repository, operator: str, state: str, after: int | None = None
) -> list[Row]:
    """The changes that change tables have."""
    changes = StateChanges(checkpoint, operator, state)
    before = None if after is None else changes.epochs.manifest(after)
    pieces = changes.pieces(before, changes.manifests(before, 1 << 40))
    tables = [batch for piece in pieces for batch in changes.batches(piece)]
    latest = changes.epochs.latest()
    assert latest is not None
    names = changes.table(latest).key_names
    return in_order(row_of(names, row) for table in tables for row in decoded_rows(table))


def row_of(key_names: Sequence[str], row: Mapping[str, Any]) -> Row:
    """A row of a change table in the form of the feed.

    Parameters:
        key_names: the columns of the key.
    """
    rest = {name: value for name, value in row.items() if name not in (*ABOUT, *key_names)}
    place, position = rest.pop("map_key", None), rest.pop("position", None)
    earlier = rest.pop("earlier", None)
    value = None
    if row["op"] == "upsert":
        value = rest.get("value", rest)
        value = value if earlier is None else json.loads(earlier)
    key: Any = [row[name] for name in key_names]
    return {
        **{name: row[name] for name in ABOUT},
        "key": key[0] if len(key) == 1 else key,
        "place": place if position is None else position,
        "value": value,
        "before": None,
    }


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows of plain data, in an order that does not depend on that of the changes."""
    shown: list[Row] = [plain(row) for row in rows]
    return sorted(shown, key=lambda row: json.dumps(row, sort_keys=True))


def plain(value: Any) -> Any:
    """Values of Python as the data that JSON has."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else json_form(value)


def decoded_rows(batch: pa.RecordBatch) -> Iterable[Row]:
    """The rows of a table, as a client decodes their JSON."""
    return [msgspec.json.decode(msgspec.json.encode(row)) for row in json_rows(batch)]
