"""Savepoint tables: their columns, and the conversion of rows to columns.

Typed columns come first, for people and tools: the fields of the key under their own names, then

    a map                map_key
    a list               position, from 0
    timers               timer, clock, at
    buffered records     at
    all but timers       value
    operator state       shard, in place of a key
    states with a TTL    written

The last columns are the exact bytes, from which a savepoint is restored: `_key`, the encoded key,
`_subkey`, the rest of the row key, and `_row`. A key field whose name is taken gets the prefix
`key_`; names are compared without case, as in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from statekit.checkpoint.job_file import TIMERS, OperatorRecord
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import (
    Table,
    columns_of_key,
    plain_column,
    renamed,
    row_key_columns,
    written_column,
)
from statekit.query.tables.value_columns import Offered, TableColumn, whole_values

EXACT = ("_key", "_subkey", "_row")
"""The columns from which a savepoint is restored."""


class SavedRow(NamedTuple):
    """A row of a savepoint.

    Parameters:
        key: encoded.
        subkey: the row key without key group and key.
        row: as stored.
        position: the number of rows of the same key before it.
    """

    key: bytes
    subkey: bytes
    row: bytes
    position: int


def key_of_shard(shard: int) -> bytes:
    """Return the bytes that represent a shard in place of a key."""
    return shard.to_bytes(4, "big")


def shard_of_key(key: bytes) -> int:
    """Return the shard in such bytes. This is the inverse of `key_of_shard`."""
    return int.from_bytes(key, "big")


def savepoint_table(operator: OperatorRecord, family: str, *, wide: bool = False) -> Table:
    """Return the table of a state, of the timers or of the buffered records of an operator.

    Parameters:
        operator: its operator.
        family: the name of the state, or `TIMERS`, or `WAITING`.
        wide: give ints 20 digits.
    """
    state = Family(operator, family)
    own, exact = list(_own(state, wide)), list(_exact())
    keys = renamed(columns_of_key(state), [column.name for column in (*own, *exact)], "key_")
    built = [offered.build(offered.name) for offered in (*keys, *own, *exact)]
    # The schema of a savepoint has no metadata: `savepoint.json` has the types.
    return Table(state, [TableColumn(field.remove_metadata(), array) for field, array in built])


def _own(family: Family, wide: bool) -> Iterator[Offered]:
    yield from row_key_columns(family, wide)
    if family.name != TIMERS:
        yield Offered("value", lambda _: whole_values(family, wide=wide))
    if family.state is not None and family.state.ttl is not None:
        yield written_column(family)


def _exact() -> Iterator[Offered]:
    key, subkey, row = EXACT
    yield plain_column(key, pa.binary(), lambda parts: parts.key_bytes)
    yield plain_column(subkey, pa.binary(), lambda parts: parts.subkey_bytes)
    yield plain_column(row, pa.binary(), lambda parts: pa.array(parts.rows.rows, pa.binary()))
