"""A backend of several databases, each for a range of key groups.

The databases are ordered by row key: all keys of one are before the first key of the next.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Generic, TypeVar

from statekit.backend.interface import (
    FirstKey,
    NextKeys,
    RowRange,
    RowReads,
    Rows,
    StateSize,
    scan_one_by_one,
    total_size,
    unknown_state,
    used_after_close,
)
from statekit.backend.mutation import DELETE_RANGE, Batch, Row
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_snapshot import PointGetter, RocksSnapshot
from statekit.keygroup import pack_group

_Fragment = TypeVar("_Fragment", bound=RocksBackend | RocksSnapshot)


class _Fragments(Generic[_Fragment]):
    """The databases of a backend as one store.

    Parameters:
        fragments: of each database, in the order of their key groups.
        bounds: the first row key of each but the first.
    """

    def __init__(self, fragments: Sequence[_Fragment], bounds: Sequence[bytes]) -> None:
        self._fragments = fragments
        self._bounds = bounds

    def get(self, state: str, key: bytes) -> bytes | None:
        return self._fragments[bisect_right(self._bounds, key)].get(state, key)

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        # All scans begin now, not when the first row is asked for.
        scans = [
            fragment.scan(state, start, end, reverse=reverse)
            for fragment in self._fragments[self._touched(start, end)]
        ]
        return chain.from_iterable(reversed(scans) if reverse else scans)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for fragment in self._fragments:
                closing.callback(fragment.close)

    def _touched(self, start: bytes, end: bytes) -> slice:
        """Return the numbers of the fragments that may contain keys from start to end."""
        first = bisect_right(self._bounds, start)
        return slice(first, max(first, bisect_left(self._bounds, end)) + 1)


class FrozenFragments(_Fragments[RocksSnapshot]):
    """The rows of several databases at one point in time."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(state, key) for key in keys]


class FragmentedBackend(_Fragments[RocksBackend]):
    """A shard's rows in several RocksDB databases.

    If a batch fails, some databases may have applied it. `failed` is then true, and none is
    trusted.

    Parameters:
        fragments: one or more databases by their first key group, in order.
    """

    def __init__(self, fragments: Sequence[tuple[int, RocksBackend]]) -> None:
        super().__init__(
            [backend for _, backend in fragments], [pack_group(first) for first, _ in fragments[1:]]
        )
        self.states: Sequence[str] = self._fragments[0].states
        self._closed = False

    @property
    def failed(self) -> bool:
        """True if RocksDB has reported an error since the databases were opened."""
        return any(fragment.failed for fragment in self._fragments)

    @property
    def damaged(self) -> bool:
        """True if one of these errors may mean a damaged database."""
        return any(fragment.damaged for fragment in self._fragments)

    @property
    def sequences(self) -> tuple[int, ...]:
        """RocksDB's sequence number of each database."""
        return tuple(number for each in self._fragments for number in each.sequences)

    def point_getter(self, state: str) -> PointGetter:
        """Return a function that reads single rows in any order, from any thread."""
        getters = [fragment.point_getter(state) for fragment in self._fragments]
        bounds = self._bounds

        def get(key: bytes) -> bytes | None:
            return getters[bisect_right(bounds, key)](key)

        return get

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        # The next keys may belong to the next fragment, which is asked again for them.
        readers = [each.reader(state, next_keys, first_key) for each in self._fragments]
        bounds = self._bounds
        gets = [reader.get for reader in readers]

        def get(key: bytes) -> bytes | None:
            return gets[bisect_right(bounds, key)](key)

        def get_all(keys: Sequence[bytes]) -> list[bytes | None]:
            cuts = pairwise((0, *(bisect_left(keys, bound) for bound in bounds), len(keys)))
            rows: list[bytes | None] = []
            for reader, (start, end) in zip(readers, cuts, strict=True):
                if start < end:
                    rows += reader.get_all(keys[start:end])
            return rows

        def scan(start: bytes, end: bytes) -> Iterable[tuple[bytes, bytes]]:
            touched = readers[self._touched(start, end)]
            if len(touched) == 1:
                return touched[0].scan(start, end)
            return chain.from_iterable(each.scan(start, end) for each in touched)

        def scan_each(
            ranges: Iterable[RowRange], most: int
        ) -> Iterator[Sequence[tuple[bytes, bytes]]]:
            for touched, some in groupby(ranges, lambda each: self._touched(*each)):
                if len(readers[touched]) == 1:
                    yield from readers[touched.start].scan_each(some, most)
                else:
                    yield from scan_one_by_one(scan, some, most)

        return RowReads(get, get_all, scan, scan_each)

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        places = [bisect_right(self._bounds, key) for key in keys]
        for number, fragment in enumerate(self._fragments):
            own = [key for key, place in zip(keys, places, strict=True) if place == number]
            # The first fragment raises for an unknown state or a closed backend.
            if own or not number:
                rows |= zip(own, fragment.get_many(state, own), strict=True)
        return [rows[key] for key in keys]

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        touched = self._fragments[self._touched(start, end)]
        keys = (each.first(state, start, end) for each in touched)
        return next((key for key in keys if key is not None), None)

    def write(self, batch: Batch) -> None:
        if self._closed:
            raise used_after_close()
        for name in set(batch.states).difference(self.states):
            raise unknown_state(name, self.states)
        for fragment, own in self._divided(batch):
            fragment.write(own)

    def sizes(self) -> dict[str, StateSize]:
        counted = [fragment.sizes() for fragment in self._fragments]
        return {name: total_size(sizes[name] for sizes in counted) for name in self.states}

    def flush(self) -> None:
        """Make all writes durable on the local disk.

        Raises:
            StorageError: the disk is full or failed; the databases are not trusted any more.
        """
        for fragment in self._fragments:
            fragment.flush()

    def log_writes(self) -> None:
        """Use the write-ahead log from now on, as `RocksBackend.log_writes` does."""
        for fragment in self._fragments:
            fragment.log_writes()

    def frozen(self) -> FrozenFragments:
        """Return the rows at this point in time. Nothing may be written during the call."""
        return FrozenFragments([fragment.frozen() for fragment in self._fragments], self._bounds)

    def snapshot(self, targets: Sequence[Path]) -> None:
        """Link the databases into other directories, one for each fragment, as
        `RocksBackend.snapshot` does.
        """
        for fragment, target in zip(self._fragments, targets, strict=True):
            fragment.snapshot([target])

    def close(self) -> None:
        self._closed = True
        super().close()

    def _divided(self, batch: Batch) -> Iterator[tuple[RocksBackend, Batch]]:
        if not len(batch):
            return
        if DELETE_RANGE not in batch.ops:
            first = bisect_right(self._bounds, min(batch.keys))
            last = bisect_right(self._bounds, max(batch.keys))
            if first == last:  # the rows of an epoch are in the order of keys
                yield self._fragments[first], batch
                return
        rows: list[list[Row]] = [[] for _ in self._fragments]
        for row in batch.rows():
            _, op, key, value = row
            first = last = bisect_right(self._bounds, key)
            if op == DELETE_RANGE and value is not None:
                last = max(first, bisect_left(self._bounds, value))
            for own in rows[first : last + 1]:
                own.append(row)
        for fragment, own in zip(self._fragments, rows, strict=True):
            if own:
                yield fragment, Batch(own)


FrozenRows = RocksSnapshot | FrozenFragments
"""The rows per state at one point in time. Thread-safe."""
