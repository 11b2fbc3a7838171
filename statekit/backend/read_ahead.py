"""Read-ahead: rows of one state are read in blocks, for keys that are mostly read in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from statekit.backend.interface import FirstKey, NextKeys, RowRange

# Blocks grow while they are of use, in steps after which bytes are counted; after a large row
# nothing is read ahead.
_BLOCK_STEP = 64
_BLOCK_ROWS_MAX = 512
_BLOCK_BYTES_MAX = 256 * 1024
_BLOCK_ROW_BYTES_MAX = 1024

# So many scans begin without a block after a small one was of little use, twice as many after the
# next such one, and so on. To read a small block costs about as much as to begin a scan.
_PAUSE_MIN, _PAUSE_MAX = 16, 1024

# Row keys start with a key group, which is less.
_BEHIND_ALL = b"\xff"


@dataclass(eq=False, repr=False)
class SortedReads:
    """Reads that are answered from a block that was read ahead, or from rows that were fetched
    together.

    A block covers the keys from `_first` to `_last`; a key in this range that is not in `_rows` has
    no row. It has answered `_asked` reads, where a scan counts as one for each row. `_ahead` is the
    largest number of rows to read, 0 for none. `_found` has rows of scattered keys, None for a key
    without a row. `_next_keys` predicts keys, until its predictions turn out to be wrong.
    `_scanned` scans started without a block since the last one was tried; after `_pause` of them a
    block is tried again. If rows are read in any order, blocks start at `_first_key`, at
    `_map_start` the last time, as long as `_from_first`; `_beyond` keys of the same map were behind
    the block since it was read. `_cursor` goes from one short range to the next: to begin a scan
    costs five times as much as to move it. It sees no write after its first use.

    Parameters:
        family: the column family of rocksdict.
        scan: returns the rows between two keys.
        cursor: returns an iterator of rocksdict, for many short ranges.
        check_readable: raises if rows between two keys are unreadable.
        errors: converts the errors of rocksdict.
        next_keys: predicts the keys that are read next.
        first_key: returns where the rows begin that are read in any order; None if each row is read
            in order.
    """

    _family: Any
    _scan: Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]]
    _new_cursor: Callable[[], Any]
    _check_readable: Callable[[bytes, bytes], None]
    _errors: AbstractContextManager[None]
    _hint: NextKeys | None
    _first_key: FirstKey | None

    def __post_init__(self) -> None:
        self._look = self._family.get
        self._cursor: Any = None
        self.forget()

    def get(self, key: bytes) -> bytes | None:
        row = self._rows.get(key)
        if row is None:
            return self._sought(key)
        self._asked += 1
        return row

    def _sought(self, key: bytes) -> bytes | None:
        """Return the row of a key outside of the block."""
        try:
            if self._first <= key <= self._last or key in self._found:
                self._asked += 1
                return self._found.get(key)
            if self._next_keys is not None and not self._ahead:
                return self._look_along(key, self._next_keys)
            row: bytes | None = self._look(key)
            if self._ahead and key > self._last:
                start = self._block_start(key)
                if start is not None:
                    self._read_ahead(start, row)
            return row
        except Exception:
            with self._errors:  # entered here only: it would cost as much as the read
                raise

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows of distinct keys in sorted order."""
        rows: list[bytes | None] = []
        at, count = 0, len(keys)
        with self._errors:
            while at < count:
                if self._ahead and keys[at] > self._last:
                    self._read_ahead(keys[at], rows[-1] if rows else None)
                end = bisect_right(keys, self._last, at) if keys[at] >= self._first else at
                if end == at:  # there is no block, or it starts later
                    rows += self._look(list(keys[at:]))
                    break
                self._asked += end - at
                rows += map(self._rows.get, keys[at:end])
                at = end
        return rows

    def scan(self, start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
        entries = self._in_block(start, end)
        return self._scan(start, end) if entries is None else entries

    def scan_each(
        self, ranges: Iterable[RowRange], most: int
    ) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        for start, end in ranges:
            entries = self._in_block(start, end)
            if entries is None:
                with self._errors:
                    entries = self._from_cursor(start, end, most)
            yield entries if len(entries) <= most else entries[:most]

    def _in_block(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the rows of a range, if they are in the block or should be read in one."""
        if start > self._last and (self._ahead or self._tries_again()):
            with self._errors:
                self._read_ahead(start)
        if not (self._first <= start and end <= self._last):
            return None
        keys, rows = self._keys, self._rows
        first = bisect_left(keys, start)
        if first == len(keys) or keys[first] >= end:
            self._asked += 1
            return []
        entries = [(key, rows[key]) for key in keys[first : bisect_left(keys, end, first)]]
        self._asked += len(entries) or 1
        return entries

    def _from_cursor(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first rows of a range."""
        cursor = self._cursor = self._cursor or self._new_cursor()
        entries: list[tuple[bytes, bytes]] = []
        try:
            cursor.seek(start)
            while len(entries) < most and cursor.valid():
                key = cursor.key()
                if key >= end:
                    return entries
                entries.append((key, cursor.value()))
                cursor.next()
            cursor.status()  # raises if it is at the end as rows are unreadable
        finally:
            del cursor  # a traceback would keep it, and it would keep the lock
        return entries

    def forget(self) -> None:
        """Drop all rows that were read. Called after a write."""
        self._drop()
        self._cursor = None
        self._ahead = _BLOCK_STEP
        self._scanned = 0
        self._pause = _PAUSE_MIN
        self._next_keys = self._hint
        self._from_first, self._map_start = True, b""

    def _drop(self) -> None:
        """Drop the block, so that no key is between its ends."""
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._found: dict[bytes, bytes | None] = {}
        self._first, self._last = _BEHIND_ALL, b""
        self._asked = self._beyond = 0

    def _tries_again(self) -> bool:
        """Return whether to try read-ahead again after useless blocks."""
        self._scanned += 1
        if self._scanned < self._pause:
            return False
        self._ahead = _BLOCK_STEP
        self._scanned = 0
        self._pause = min(2 * self._pause, _PAUSE_MAX)
        return True

    def _look_along(self, key: bytes, next_keys: NextKeys) -> bytes | None:
        """Return the row of a key, and fetch the rows of predicted keys with it."""
        useful = self._asked * 4 >= len(self._found)
        self._drop()
        keys = [key, *next_keys(key)] if useful else [key]
        rows: list[bytes | None] = self._look(keys)
        if not useful or any(row and len(row) > _BLOCK_ROW_BYTES_MAX for row in rows):
            self._next_keys = None
        self._found, self._asked = dict(zip(keys, rows, strict=True)), 1
        return rows[0]

    def _block_start(self, key: bytes) -> bytes | None:
        """Return the start of a new block for a key behind the present block; None to keep the
        present block.

        Of rows that are read in any order, a block is kept until half of it was read. If it is of
        little use, as where entries are appended to large maps, blocks start at the keys.
        """
        if self._first_key is None or not self._from_first:
            return key
        start = min(key, self._first_key())
        count = len(self._rows)
        if start <= self._first <= key:
            if 2 * self._asked >= count:
                return key
            self._beyond += 1
            if self._beyond < count or 4 * self._asked >= count:
                return None
        elif 4 * self._asked >= count or self._first != self._map_start:
            self._map_start = start
            return start
        self._drop()
        self._from_first, self._ahead = False, _BLOCK_STEP
        return key

    def _read_ahead(self, key: bytes, row: bytes | None = None) -> None:
        """Read the block that starts at `key`.

        After a useless block comes a small one, after a useless small one none. Scans try again
        some time later.
        """
        if self._asked * 4 < len(self._rows):
            self._ahead = _BLOCK_STEP if len(self._rows) > _BLOCK_STEP else 0
        elif self._rows:
            self._pause = _PAUSE_MIN
        self._drop()
        items = self._family.items(from_key=key) if self._ahead else iter(())
        rows = dict(islice(items, 1))
        if any(len(one) > _BLOCK_ROW_BYTES_MAX for one in (row or b"", *rows.values())):
            self._ahead, self._next_keys = 0, None
        if not self._ahead:
            return
        last, size = key, 0
        while len(rows) < self._ahead and size < _BLOCK_BYTES_MAX:
            wanted = _BLOCK_STEP - len(rows) % _BLOCK_STEP
            step = dict(islice(items, wanted))
            rows |= step
            size += sum(map(len, step.values()))
            last = next(reversed(rows), key)
            if len(step) < wanted:
                self._check_readable(last, _BEHIND_ALL)
                last = max(last, _BEHIND_ALL)
                break
        self._rows, self._keys, self._first, self._last = rows, list(rows), key, last
        self._ahead = min(2 * self._ahead, _BLOCK_ROWS_MAX)
