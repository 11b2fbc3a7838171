"""Mutations: the changes of state, as data.

A batch is the only thing that ever changes state. The same batch is applied to a backend, written
to a change file, and applied again by whoever replays that file, so all three agree by
construction. Order matters: later mutations win, and a `DeleteRange` removes only what came
before it.

A change file is an Arrow IPC file, zstd compressed, that any Arrow tool can read:

    state  dictionary<int16, string>   the state (column family) the mutation belongs to
    op     uint8                       0 = Put, 1 = Delete, 2 = DeleteRange
    key    binary                      the row key; for DeleteRange the first key removed
    value  binary, null for Delete     the row; for DeleteRange the first key kept
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import IO, NamedTuple

import pyarrow as pa

from statekit.errors import CorruptCheckpointError
from statekit.records.arrow_sizes import check_unpacked

PUT = 0
DELETE = 1
DELETE_RANGE = 2

# A batch is flushed at this size, so that an epoch of any size fits in memory.
BATCH_ROWS_MAX = 65_536
BATCH_BYTES_MAX = 16 * 1024 * 1024

_SCHEMA = pa.schema(
    [
        pa.field("state", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)


class Put(NamedTuple):
    """Set the row at `key` to `value`."""

    state: str
    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Remove the row at `key`, if it exists."""

    state: str
    key: bytes


class DeleteRange(NamedTuple):
    """Remove every row with `start <= key < end`."""

    state: str
    start: bytes
    end: bytes


Mutation = Put | Delete | DeleteRange
_OPS: dict[type[Mutation], int] = {Put: PUT, Delete: DELETE, DeleteRange: DELETE_RANGE}


Row = tuple[str, int, bytes, bytes | None]
"""A mutation as plain data: `(state, op, key, value)`, the columns of a change file."""


class Batch:
    """Ordered mutations, in the columns of a change file.

    >>> batch = Batch()
    >>> size = batch.put("visits", b"k1", b"v")
    >>> batch.delete_range("visits", b"a", b"b")
    >>> list(batch)
    [Put(state='visits', key=b'k1', value=b'v'), DeleteRange(state='visits', start=b'a', end=b'b')]
    """

    __slots__ = ("keys", "ops", "size_bytes", "states", "values")

    def __init__(self, mutations: Iterable[Mutation] = ()) -> None:
        self.states: list[str] = []
        self.ops: list[int] = []
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.size_bytes = 0
        """Bytes of keys and values."""
        for mutation in mutations:
            self.add(mutation)

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
        self._append(state, DELETE, key)

    def delete_all(self, state: str, keys: Sequence[bytes]) -> None:
        """Remove many rows of a state."""
        self.states.extend(repeat(state, len(keys)))
        self.ops.extend(repeat(DELETE, len(keys)))
        self.keys.extend(keys)
        self.values.extend(repeat(None, len(keys)))
        self.size_bytes += sum(map(len, keys))

    def delete_range(self, state: str, start: bytes, end: bytes) -> None:
        """Remove every row with `start <= key < end`."""
        self._append(state, DELETE_RANGE, start, end)

    def add(self, mutation: Mutation) -> None:
        state, key, *value = mutation
        self._append(state, _OPS[type(mutation)], key, *value)

    def clear(self) -> None:
        for column in (self.states, self.ops, self.keys, self.values):
            column.clear()
        self.size_bytes = 0

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
    def of_rows(cls, rows: Iterable[Row]) -> Batch:
        """Return a batch with the mutations of some rows."""
        batch = cls()
        for row in rows:
            batch._append(*row)
        return batch

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

    def _append(self, state: str, op: int, key: bytes, value: bytes | None = None) -> None:
        self.states.append(state)
        self.ops.append(op)
        self.keys.append(key)
        self.values.append(value)
        self.size_bytes += len(key) + (0 if value is None else len(value))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Mutation]:
        for state, op, key, value in self.rows():
            if op == DELETE or value is None:
                yield Delete(state, key)
            else:
                yield Put(state, key, value) if op == PUT else DeleteRange(state, key, value)


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


class ChangeFileWriter:
    """Writes batches to a binary file object as one change file.

    Parameters:
        file: open for binary writing.
        states: the names of all states that may occur, in a fixed order.
    """

    def __init__(self, file: IO[bytes], states: Sequence[str]) -> None:
        self._codes = {name: code for code, name in enumerate(states)}
        self._names = pa.array(list(states), pa.string())
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_file(file, _SCHEMA, options=options)
        self.rows = 0

    def append(self, batch: Batch) -> None:
        if not len(batch):
            return
        codes = pa.array(list(map(self._codes.__getitem__, batch.states)), pa.int16())
        columns = [
            pa.DictionaryArray.from_arrays(codes, self._names),
            pa.Array.from_buffers(pa.uint8(), len(batch), [None, pa.py_buffer(bytes(batch.ops))]),
            pa.array(batch.keys, pa.binary()),
            pa.array(batch.values, pa.binary()),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        self.rows += len(batch)

    def close(self) -> None:
        """Write the footer. Without it, the file is unreadable."""
        self._writer.close()


def read_changes(source: pa.NativeFile | IO[bytes] | bytes, name: str) -> Iterator[Batch]:
    """Yield the batches of a change file, one at a time.

    Parameters:
        source: the whole file, verified already; bytes or something seekable.
        name: what to call the file in an error.

    Raises:
        CorruptCheckpointError: the bytes are not a change file.

    >>> import io
    >>> file = io.BytesIO()
    >>> writer = ChangeFileWriter(file, ["visits"])
    >>> writer.append(Batch([Put("visits", b"k", b"v")]))
    >>> writer.close()
    >>> [list(batch) for batch in read_changes(file.getvalue(), "example")]
    [[Put(state='visits', key=b'k', value=b'v')]]
    """
    with _unreadable(name):
        for batch in _arrow_batches(source, _SCHEMA):
            state, *others = batch.columns
            names = state.dictionary.to_pylist()
            # Not by NumPy, which is as fast, and imports pandas when it is first used.
            states = [names[code] for code in state.indices.to_pylist()]
            ops, keys, values = (column.to_pylist() for column in others)
            if not {PUT, DELETE, DELETE_RANGE}.issuperset(ops):
                raise ValueError("it has an unknown operation")
            yield Batch.of_columns(states, ops, keys, values)


def read_keys(source: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
    """Yield the columns `state`, `op` and `key` of a change file, one batch at a time.

    The values, mostly the larger part of a file, are not decompressed.

    Raises:
        CorruptCheckpointError: the bytes are not a change file.
    """
    with _unreadable(name):
        columns = list(range(3))
        options = pa.ipc.IpcReadOptions(included_fields=columns)
        yield from _arrow_batches(source, pa.schema([_SCHEMA[n] for n in columns]), options)


def _arrow_batches(
    source: pa.NativeFile | IO[bytes] | bytes,
    schema: pa.Schema,
    options: pa.ipc.IpcReadOptions | None = None,
) -> Iterator[pa.RecordBatch]:
    given = pa.BufferReader(source) if isinstance(source, bytes) else source
    check_unpacked(given)
    reader = pa.ipc.open_file(given, options=options)
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        if batch.schema != schema:
            raise ValueError(f"it has the columns {', '.join(map(str, batch.schema))}")
        # Arrow follows offsets and indices as it finds them; a wrong one would end the process.
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns[:3]):
            raise ValueError("a mutation lacks its state, operation or key")
        yield batch


@contextlib.contextmanager
def _unreadable(name: str) -> Iterator[None]:
    """Convert any error of Arrow to an error that the file is not a change file."""
    try:
        yield
    # Arrow reports what it cannot decode as OSError too.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptCheckpointError(
            f"{name} is not a readable change file ({error}): restore the file from a backup, "
            "or roll back to an epoch before it"
        ) from error
