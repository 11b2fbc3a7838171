"""A backend that counts reads and writes, to prove that only touched rows are touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from statekit.backend.interface import Backend, Rows
from statekit.backend.mutation import DELETE, PUT, Batch
from statekit.testing.faults import WrappedBackend


class CountingBackend(WrappedBackend):
    """A backend that counts the rows read and written per state, and calls another backend.

    Attributes:
        read: rows asked for by key or returned by a scan, per state.
        written: rows put, per state.
        deleted: rows deleted by key, per state.
        ranges_deleted: range deletions, per state.

    >>> from statekit.backend.interface import MemoryBackend
    >>> backend = CountingBackend(MemoryBackend(["visits"]))
    >>> backend.get("visits", b"k")
    >>> backend.read["visits"]
    1
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        self.ranges_deleted: Counter[str] = Counter()

    def get(self, state: str, key: bytes) -> bytes | None:
        self.read[state] += 1
        return self.inner.get(state, key)

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self.read[state] += len(keys)
        return self.inner.get_many(state, keys)

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        self.read[state] += 1
        return self.inner.first(state, start, end)

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        return self._counted(state, self.inner.scan(state, start, end, reverse=reverse))

    def write(self, batch: Batch) -> None:
        for state, op, _, _ in batch.rows():
            kind = {PUT: self.written, DELETE: self.deleted}.get(op, self.ranges_deleted)
            kind[state] += 1
        self.inner.write(batch)

    def _counted(self, state: str, rows: Rows) -> Rows:
        for row in rows:
            self.read[state] += 1
            yield row
