"""Hot rows: a cache in memory of the rows of a state after one epoch.

An epoch does not change, so these rows are never stale. They are dropped with their epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

BYTES_MAX = 32 * 2**20
"""Limit of memory for the cached rows of one state, in bytes."""

_OF_ENTRY = 150
"""Bytes that Python takes for an entry, in addition to its key and row."""

_UNKNOWN = b"unknown"
"""Marker for a row that was not read yet. It is compared by identity."""


class HotRows:
    """Cached rows by their encoded keys. Threads may share it.

    Parameters:
        bytes_max: limit of memory. Once it is reached, no further rows are cached.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._rows: dict[bytes, bytes | None] = {}
        self._left = bytes_max

    def known(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """Return the cached row of each key, in that order; None if a row is not cached."""
        rows = self._rows
        try:
            # Most of the time goes to memory that no cache of the processor holds.
            return [rows[key] for key in keys]
        except KeyError:
            return None

    def get_many(
        self, keys: Sequence[bytes], read: Callable[[list[bytes]], list[bytes | None]]
    ) -> list[bytes | None]:
        """Return the row of each key, in that order.

        Parameters:
            read: returns the rows of keys that are not cached.
        """
        found: list[bytes | None] = list(map(self._rows.get, keys, repeat(_UNKNOWN)))
        unknown = [place for place, row in enumerate(found) if row is _UNKNOWN]
        if unknown:
            missing = [keys[place] for place in unknown]
            rows = read(missing)
            for place, row in zip(unknown, rows, strict=True):
                found[place] = row
            self._keep(missing, rows)
        return found

    def _keep(self, keys: list[bytes], rows: list[bytes | None]) -> None:
        if self._left <= 0:
            return
        self._rows.update(zip(keys, rows, strict=True))
        self._left -= sum(map(len, keys)) + sum(len(row or b"") for row in rows)
        self._left -= _OF_ENTRY * len(keys)

    def forget(self) -> None:
        """Remove all rows, and cache no more rows."""
        self._left = 0
        self._rows = {}
