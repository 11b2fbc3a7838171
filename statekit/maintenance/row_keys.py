"""Conversion of row keys to another number of key groups.

The key group of a row is the first part of its row key and only a hash of its key. So another
number of key groups changes these two bytes and nothing else. With G the key group:

    a state      G + key + subkey
    _timers      G + key + clock, time, name
    _waiting     G + time + key + record, position

The indexes `_timers.due` and `_expiry` are not copied but built again, which drops entries of rows
that were deleted or written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from statekit.checkpoint.job_file import EXPIRY, TIMERS, WAITING, Clock, OperatorRecord
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.keygroup import GROUP_BYTES, key_group, pack_group
from statekit.state.timers import CLOCKS, DUE, due_row
from statekit.state.ttl import index_entry
from statekit.stored_types import key_schema
from statekit.timestamp import TIME_BYTES, micros_of_sortable


class RowKeyParts(NamedTuple):
    """A row key without its key group.

    Parameters:
        before: the part that sorts before the key.
        key: encoded.
        after: the rest.
    """

    before: bytes
    key: bytes
    after: bytes

    @classmethod
    def of_subkey(cls, family: str, key: bytes, subkey: bytes) -> RowKeyParts:
        """Parse a subkey. This is the inverse of the property `subkey`."""
        cut = _before_bytes(family)
        return cls(subkey[:cut], key, subkey[cut:])

    @property
    def subkey(self) -> bytes:
        """All parts except the key."""
        return self.before + self.after


class Entry(NamedTuple):
    """The wake time for a row, and its index row.

    Parameters:
        clock: the clock that counts.
        due_us: the wake time.
        family: the index; None if the row itself is sorted by its time.
        row_key: in the index.
    """

    clock: Clock
    due_us: int
    family: str | None = None
    row_key: bytes = b""


class KeyedRows:
    """The keyed rows of an operator, with a number of key groups.

    Parameters:
        operator: the operator of the rows.
        key_groups: the number of key groups.

    Attributes:
        families: all but the indexes.
        indexes: families whose rows are derived from others.
        key_codec: of the keys.
    """

    def __init__(self, operator: OperatorRecord, key_groups: int) -> None:
        self.key_groups = key_groups
        self.families = operator.holds_by_key
        self._expiring = {
            state.name: (state.ttl, state.expiry_era)
            for state in operator.states
            if state.ttl is not None
        }
        indexes = [EXPIRY] if self._expiring else []
        self.indexes = (*indexes, DUE) if operator.timers else tuple(indexes)
        # An operator without a key has no such rows.
        schema = key_schema(operator) if operator.key else Schema("tuple")
        self.key_codec = schema_key_codec(schema)
        # Rows of one key mostly come together.
        self._seen = b""
        self._key, self._group = b"", b""

    def parts(self, family: str, row_key: bytes) -> RowKeyParts:
        """Split a row key.

        Raises:
            CorruptCheckpointError: it contains no key.
        """
        start = GROUP_BYTES + _before_bytes(family)
        if not (self._seen and row_key.startswith(self._seen, start)):
            self._seen = row_key[start : self.key_codec.decode(row_key, start)[1]]
        end = start + len(self._seen)  # no key begins with another one
        return RowKeyParts(row_key[GROUP_BYTES:start], self._seen, row_key[end:])

    def row_key(self, parts: RowKeyParts) -> bytes:
        """Return the row key for this number of key groups.

        Raises:
            CorruptCheckpointError: the key is not one of the operator.
        """
        if parts.key != self._key:
            group = key_group(self.key_codec.decode(parts.key)[0], self.key_groups)
            self._key, self._group = parts.key, pack_group(group)
        return self._group + parts.before + parts.key + parts.after

    def has_entries(self, family: str) -> bool:
        """Return whether rows of a family may have index entries."""
        return family in (TIMERS, WAITING) or family in self._expiring

    def entries(
        self, family: str, row_keys: Sequence[bytes], rows: Sequence[bytes]
    ) -> Iterator[Entry | None]:
        """Yield the index entry of each row of a family; None for a row that needs none."""
        for row_key, row in zip(row_keys, rows, strict=True):
            yield self.entry(family, self.parts(family, row_key), row_key, row)

    def entry(self, family: str, parts: RowKeyParts, row_key: bytes, row: bytes) -> Entry | None:
        """Return the index entry of a row; None if it needs none."""
        if family == TIMERS:
            clock, due = CLOCKS[parts.after[0]], micros_of_sortable(parts.after, 1)
            return Entry(clock, due, DUE, due_row(row_key[:GROUP_BYTES], parts.key, parts.after))
        if family == WAITING:
            return Entry("event", micros_of_sortable(parts.before))
        if family not in self._expiring:
            return None
        ttl, era = self._expiring[family]
        assert ttl is not None, "only such states are listed"
        entry = index_entry(family, ttl, era, row_key, row)
        return None if entry is None else Entry(ttl.clock, entry[1], EXPIRY, entry[0])


def _before_bytes(family: str) -> int:
    return TIME_BYTES if family == WAITING else 0
