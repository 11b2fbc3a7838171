"""The `Backend` protocol of row stores for a shard, and its in-memory implementation.

Rows are kept in one ordered map per state. Keys and values are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Protocol, Self
from weakref import WeakSet

from sortedcontainers import SortedDict

from statekit.backend.mutation import DELETE, PUT, Batch
from statekit.errors import StatekitError
from statekit.keygroup import GROUP_BYTES, group_of_row, pack_group
from statekit.timestamp import micros_of_sortable, sortable_micros


class StateSize(NamedTuple):
    """Rows and bytes of one state in one shard."""

    rows: int
    bytes: int


def size_of(rows: Iterable[tuple[bytes, bytes]]) -> StateSize:
    """Count rows, and bytes of their keys and values.

    >>> size_of([(b"ab", b"c")])
    StateSize(rows=1, bytes=3)
    """
    count = size = 0
    for key, row in rows:
        count += 1
        size += len(key) + len(row)
    return StateSize(count, size)


def total_size(sizes: Iterable[StateSize]) -> StateSize:
    """Add up the sizes of several parts.

    >>> total_size([StateSize(1, 10), StateSize(2, 5)])
    StateSize(rows=3, bytes=15)
    """
    parts = list(sizes)
    return StateSize(sum(part.rows for part in parts), sum(part.bytes for part in parts))


NextKeys = Callable[[bytes], Sequence[bytes]]
"""A hint: returns the keys that are probably read after a given one, in order."""

FirstKey = Callable[[], bytes]
"""A hint: the key, or a prefix of it, from which on rows are read now, in any order."""

Rows = Iterator[tuple[bytes, bytes]]
"""Keys and rows in order."""


RowRange = tuple[bytes, bytes]
"""The first row key, and the one behind the last."""

Scan = Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]]


class RowReads(NamedTuple):
    """Reads of the rows of one state, for the hot loop. Not valid after `close`.

    Parameters:
        get: returns the row of a key; None if there is none.
        get_all: returns the rows of keys that are in order; None for a key without a row.
        scan: returns keys and rows between two keys of a key group.
        scan_each: yields keys and rows in each of several ranges that are in order, at most so many
            of each. A write between two of them may be visible or not.
    """

    get: Callable[[bytes], bytes | None]
    get_all: Callable[[Sequence[bytes]], list[bytes | None]]
    scan: Scan
    scan_each: Callable[[Iterable[RowRange], int], Iterator[Sequence[tuple[bytes, bytes]]]]

    @classmethod
    def each_by_itself(
        cls,
        get: Callable[[bytes], bytes | None],
        get_all: Callable[[Sequence[bytes]], list[bytes | None]],
        scan: Scan,
    ) -> RowReads:
        """Return reads in which several ranges are scanned one by one."""
        return cls(get, get_all, scan, partial(scan_one_by_one, scan))


def scan_one_by_one(
    scan: Scan, ranges: Iterable[RowRange], most: int
) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Yield the rows in each range, at most so many of each, by a scan for each."""
    for start, end in ranges:
        yield list(islice(scan(start, end), most))


class Backend(Protocol):
    """An ordered map of rows per state, changed only by batches."""

    @property
    def states(self) -> Sequence[str]:
        """The states of the backend, fixed when it was opened."""

    def get(self, state: str, key: bytes) -> bytes | None:
        """Return the row at `key`; None if there is none."""

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        """Return reads of one state, optimised for keys and short ranges that are mostly in order.

        They read forward only; use `scan` for reverse order.

        Parameters:
            next_keys: called while a key is read; the rows of the returned keys may be read along
                with it.
            first_key: called while a key is read; the rows from the returned key on may be read
                along with it.
        """

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows at `keys`, in that order."""

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        """Return the key of the first row with `start <= key < end`; None if there is none."""

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        """Return rows with `start <= key < end` in key order. Later writes are not visible to the
        scan.
        """

    def write(self, batch: Batch) -> None:
        """Apply a batch atomically."""

    def sizes(self) -> dict[str, StateSize]:
        """Count rows and bytes of keys and values per state."""

    def close(self) -> None:
        """Release all resources. Afterwards, all calls except `close` fail."""


_PIECES = 16, 1_000
"""How many rows of a scan in memory are read at first, and then at a time."""


class _LaterRows:
    """The rows of a scan that were not read yet, in pieces. A write keeps all of them before."""

    def __init__(self, rows: SortedDict[bytes, bytes], keys: Iterator[bytes]) -> None:
        self._rows, self._keys = rows, keys
        self._kept: list[tuple[bytes, bytes]] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[tuple[bytes, bytes]]:
        if self._kept is None:
            piece = self.read(_PIECES[1])
        else:
            piece, self._kept = self._kept, []
        if not piece:
            raise StopIteration
        return piece

    def read(self, most: int | None) -> list[tuple[bytes, bytes]]:
        """Return the next rows, at most so many."""
        rows = self._rows
        return [(key, rows[key]) for key in islice(self._keys, most)]

    def keep(self) -> None:
        """Read all rows, which may change now."""
        if self._kept is None:
            self._kept = self.read(None)


class MemoryBackend:
    """Rows in process memory. This is the reference for the behaviour of backends.

    >>> from statekit.backend.mutation import PUT, Batch
    >>> backend = MemoryBackend(["visits"])
    >>> backend.write(Batch([("visits", PUT, b"a", b"1"), ("visits", PUT, b"b", b"2")]))
    >>> backend.get("visits", b"a")
    b'1'
    >>> list(backend.scan("visits", b"a", b"c", reverse=True))
    [(b'b', b'2'), (b'a', b'1')]
    """

    def __init__(self, states: Sequence[str]) -> None:
        self.states: Sequence[str] = tuple(states)
        self._rows: dict[str, SortedDict[bytes, bytes]] = {name: SortedDict() for name in states}
        self._scans: WeakSet[_LaterRows] = WeakSet()
        self._closed = False

    def get(self, state: str, key: bytes) -> bytes | None:
        return self._state(state).get(key)

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        get = self._state(state).get
        get_all, scan = partial(self.get_many, state), partial(self.scan, state)
        return RowReads.each_by_itself(get, get_all, scan)

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._state(state).get, keys))

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        return next(self._state(state).irange(start, end, inclusive=(True, False)), None)

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        rows = self._state(state)
        keys = rows.irange(start, end, inclusive=(True, False), reverse=reverse)
        later = _LaterRows(rows, keys)
        first = later.read(_PIECES[0])
        if len(first) < _PIECES[0]:
            return iter(first)
        self._scans.add(later)
        return chain(first, chain.from_iterable(later))

    def write(self, batch: Batch) -> None:
        self._check_open()
        for name in set(batch.states):
            self._state(name)
        for scan in list(self._scans):
            scan.keep()
        for state, op, key, value in batch.rows():
            rows = self._rows[state]
            if op == DELETE or value is None:
                rows.pop(key, None)
            elif op == PUT:
                rows[key] = value
            else:
                for row in list(rows.irange(key, value, inclusive=(True, False))):
                    del rows[row]

    def sizes(self) -> dict[str, StateSize]:
        self._check_open()
        return {name: size_of(rows.items()) for name, rows in self._rows.items()}

    def close(self) -> None:
        self._rows = {}
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise used_after_close()

    def _state(self, name: str) -> SortedDict[bytes, bytes]:
        self._check_open()
        rows = self._rows.get(name)
        if rows is None:
            raise unknown_state(name, self._rows)
        return rows


def unknown_state(name: str, known: Iterable[str]) -> StatekitError:
    """Return the error for a state that is missing in a backend."""
    return StatekitError(
        f"this backend has no state {name!r} (it has {sorted(known)}): open it with all declared "
        "states"
    )


def used_after_close() -> StatekitError:
    """Return the error for the use of a closed backend."""
    return StatekitError("this backend was closed: open it again, and keep nothing of it meanwhile")


def first_of_groups(
    backend: Backend, state: str, tag: bytes, groups: tuple[int, int], later: bytes = b""
) -> bytes | None:
    """Return the first row key whose key group is followed by `tag`. Other rows are skipped with
    seeks.

    Parameters:
        groups: first and last key group to search.
        later: in the first key group, only rows from `tag + later` on.
    """
    group, last = groups
    start, end = pack_group(group) + tag + later, pack_group(last + 1)
    while (row := backend.first(state, start, end)) is not None:
        here = row[:2] + tag
        if row.startswith(here):
            return row
        # A row of another tag, before or after ours in its key group.
        start = here if row < here else pack_group(group_of_row(row) + 1) + tag
    return None


def due_of_groups(
    backend: Backend,
    state: str,
    tag: bytes,
    groups: tuple[int, int],
    until: int,
    wakes_at: Callable[[int], None],
) -> Iterator[Rows]:
    """Yield the due rows of each key group, in order of time. Seeks skip all other key groups.

    Parameters:
        tag: follows the key group in the row keys, and is followed by the time.
        groups: first and last key group to search.
        until: the latest time of due rows, in microseconds.
        wakes_at: called with the soonest time of each key group that is not due.
    """
    time_at = GROUP_BYTES + len(tag)
    (group, last), later = groups, b""
    while (first := first_of_groups(backend, state, tag, (group, last), later)) is not None:
        group, soonest = group_of_row(first), micros_of_sortable(first, time_at)
        if soonest > until:
            wakes_at(soonest)
            group, later = group + 1, b""
            continue
        later = sortable_micros(until + 1)
        yield backend.scan(state, first, first[:time_at] + later)


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix.

    >>> prefix_end(b"ab"), prefix_end(b"a" + bytes([255]))
    (b'ac', b'b')
    """
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise StatekitError("a prefix of only 0xFF bytes has no end: row keys never start with one")
    return stem[:-1] + bytes([stem[-1] + 1])
