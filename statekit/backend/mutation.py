"""Mutations: the changes of state, as data.

A batch is the only thing that ever changes state. The same batch is applied to a backend, written
to a change file, and applied again by whoever replays that file, so all three agree by
construction. Order matters: later mutations win, and a `DeleteRange` removes only what came
before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, repeat

PUT = 0
DELETE = 1
DELETE_RANGE = 2

# A batch is flushed at this size, so that an epoch of any size fits in memory.
BATCH_ROWS_MAX = 65_536
BATCH_BYTES_MAX = 16 * 1024 * 1024

Row = tuple[str, int, bytes, bytes | None]
"""A mutation as plain data: `(state, op, key, value)`, the columns of a change file."""


class Batch:
    """Ordered mutations, in the columns of a change file.

    >>> batch = Batch()
    >>> size = batch.put("visits", b"k1", b"v")
    >>> batch.delete_range("visits", b"a", b"b")
    >>> list(batch.rows())
    [('visits', 0, b'k1', b'v'), ('visits', 2, b'a', b'b')]
    """

    __slots__ = ("keys", "ops", "size_bytes", "states", "values")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.states: list[str] = []
        self.ops: list[int] = []
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.size_bytes = 0
        """Bytes of keys and values."""
        for row in rows:
            self.append(*row)

    def put(self, state: str, key: bytes, value: bytes) -> int:
        """Set the row at `key`. Return the size of key and value in bytes."""
        self.states.append(state)
        self.ops.append(PUT)
        self.keys.append(key)
        self.values.append(value)
        size = len(key) + len(value)
        self.size_bytes += size
        return size

    def put_all(self, state: str, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        """Set many rows of a state. Return the size of all keys and values in bytes."""
        self.states.extend(repeat(state, len(keys)))
        self.ops.extend(repeat(PUT, len(keys)))
        self.keys.extend(keys)
        self.values.extend(values)
        size = sum(map(len, keys)) + sum(map(len, values))
        self.size_bytes += size
        return size

    def delete(self, state: str, key: bytes) -> None:
        self.append(state, DELETE, key)

    def delete_all(self, state: str, keys: Sequence[bytes]) -> None:
        """Remove many rows of a state."""
        self.states.extend(repeat(state, len(keys)))
        self.ops.extend(repeat(DELETE, len(keys)))
        self.keys.extend(keys)
        self.values.extend(repeat(None, len(keys)))
        self.size_bytes += sum(map(len, keys))

    def delete_range(self, state: str, start: bytes, end: bytes) -> None:
        """Remove every row with `start <= key < end`."""
        self.append(state, DELETE_RANGE, start, end)

    def clear(self) -> None:
        for column in (self.states, self.ops, self.keys, self.values):
            column.clear()
        self.size_bytes = 0

    def cut(self, length: int, size_bytes: int) -> None:
        """Remove the last mutations.

        Parameters:
            length: the number of mutations that stay.
            size_bytes: of these.
        """
        for column in (self.states, self.ops, self.keys, self.values):
            del column[length:]
        self.size_bytes = size_bytes

    @property
    def full(self) -> bool:
        """True if the batch should be flushed before more mutations are added."""
        return len(self.keys) >= BATCH_ROWS_MAX or self.size_bytes >= BATCH_BYTES_MAX

    def within(self, start: bytes, end: bytes, states: Collection[str]) -> Batch:
        """Return the mutations of these states with a key in `start <= key < end`.

        A `DeleteRange` never crosses a key group, so its first key decides.
        """
        keys = self.keys
        if keys and start <= min(keys) and max(keys) < end and set(self.states).issubset(states):
            return self
        wanted = [s in states and start <= k < end for s, k in zip(self.states, keys, strict=True)]
        return Batch.of_columns(
            list(compress(self.states, wanted)),
            list(compress(self.ops, wanted)),
            list(compress(keys, wanted)),
            list(compress(self.values, wanted)),
        )

    @classmethod
    def of_columns(
        cls, states: list[str], ops: list[int], keys: list[bytes], values: list[bytes | None]
    ) -> Batch:
        """Return a batch with the mutations of some columns. It takes ownership of the columns."""
        batch = cls()
        batch.states, batch.ops, batch.keys, batch.values = states, ops, keys, values
        batch.size_bytes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
        return batch

    def rows(self) -> Iterator[Row]:
        """Return the mutations as plain data."""
        return zip(self.states, self.ops, self.keys, self.values, strict=True)

    def append(self, state: str, op: int, key: bytes, value: bytes | None = None) -> None:
        """Add one mutation, given as plain data."""
        self.states.append(state)
        self.ops.append(op)
        self.keys.append(key)
        self.values.append(value)
        self.size_bytes += len(key) + (0 if value is None else len(value))

    def __len__(self) -> int:
        return len(self.keys)


def in_batches(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Batch]:
    """Yield rows in batches. Each batch is valid until the next one is requested.

    Parameters:
        rows: family, row key, row.
    """
    batch = Batch()
    for row in rows:
        batch.put(*row)
        if batch.full:
            yield batch
            batch.clear()
    if len(batch):
        yield batch
