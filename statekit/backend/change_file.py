"""Change files: the mutations of an attempt, as an Arrow IPC file that any Arrow tool can read.

The file is compressed with zstd, unless it is small. Its columns:

    state  dictionary<int16, string>   the state (column family) the mutation belongs to
    op     uint8                       0 = Put, 1 = Delete, 2 = DeleteRange
    key    binary                      the row key; for DeleteRange the first key removed
    value  binary, null for Delete     the row; for DeleteRange the first key kept
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc

from statekit.backend.mutation import DELETE, DELETE_RANGE, PUT, Batch
from statekit.errors import CorruptCheckpointError, StorageError
from statekit.records.arrow_sizes import check_unpacked

# Change files up to this size are assembled in memory.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024

# Smaller change files are read at once. Arrow reads a file of Python in pieces, each in another
# thread, which takes longer than decoding the few mutations of an epoch.
_READ_BYTES_MAX = 1024 * 1024

# Change files whose first batch is smaller are not compressed: zstd takes longer than all the rest,
# and they take a block of the disk anyway.
_PLAIN_BYTES_MAX = 4096

# With a thread for each column, Arrow takes twice the CPU time for the few mutations of an epoch,
# and not less time for many.
_USE_THREADS = False

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("state", pa.dictionary(pa.int16(), pa.string()), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)


def mutation_columns(batch: Batch, codes: Mapping[str, int], names: pa.Array) -> pa.RecordBatch:
    """Return the mutations of a batch as columns of a change file.

    Parameters:
        codes: the place of each state in `names`.
        names: of all states that may occur.
    """
    of_rows = pa.array(list(map(codes.__getitem__, batch.states)), pa.int16())
    columns = [
        pa.DictionaryArray.from_arrays(of_rows, names),
        pa.Array.from_buffers(pa.uint8(), len(batch), [None, pa.py_buffer(bytes(batch.ops))]),
        pa.array(batch.keys, pa.binary()),
        pa.array(batch.values, pa.binary()),
    ]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA)


def put_columns(code: int, names: pa.Array, row_keys: pa.Array, rows: pa.Array) -> pa.RecordBatch:
    """Return rows that are set as columns of a change file.

    Parameters:
        code: the place of their state in `names`.
        names: of all states that may occur.
        row_keys, rows: binary.
    """
    count = len(row_keys)
    codes = pa.repeat(pa.scalar(code, pa.int16()), count)
    ops = pa.repeat(pa.scalar(PUT, pa.uint8()), count)
    columns = [pa.DictionaryArray.from_arrays(codes, names), ops, row_keys, rows]
    return pa.record_batch(columns, schema=CHANGES_SCHEMA)


class Changes:
    """A change file that is being written. It is spooled on the local disk before it is stored.

    Nothing is created before the first mutation.

    Parameters:
        states: the names of all states that may occur, in a fixed order.
    """

    def __init__(self, states: Sequence[str]) -> None:
        self._codes = {name: code for code, name in enumerate(states)}
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._rows = 0
        self.bytes = 0
        """Bytes of keys and values."""

    def append(self, batch: Batch | pa.RecordBatch) -> None:
        """Write the mutations of a batch, or those of columns with the same states.

        Raises:
            StorageError: the local disk is full or failed.
        """
        if not len(batch):
            return
        if isinstance(batch, Batch):
            rows, size = mutation_columns(batch, self._codes, self._names), batch.size_bytes
        else:
            rows, sizes = batch, map(pc.binary_length, batch.columns[2:])
            size = sum(pc.sum(each).as_py() or 0 for each in sizes)
        with _writable():
            self._opened(size).write_batch(rows)
        self._rows += len(batch)
        self.bytes += size

    @cached_property
    def _names(self) -> pa.Array:
        return pa.array(list(self._codes), pa.string())

    def _opened(self, first_bytes: int) -> pa.ipc.RecordBatchFileWriter:
        if self._writer is None:
            codec = "zstd" if first_bytes > _PLAIN_BYTES_MAX else None
            spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES_MAX)  # noqa: SIM115 - see drop()
            self._file = cast("IO[bytes]", spool)
            options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=_USE_THREADS)
            self._writer = pa.ipc.new_file(self._file, CHANGES_SCHEMA, options=options)
        return self._writer

    def finish(self) -> tuple[IO[bytes], int] | None:
        """Return the complete file and its number of mutations; None if there are no mutations.

        Raises:
            StorageError: the local disk is full or failed.
        """
        if self._writer is None or self._file is None:
            return None
        with _writable():
            self._writer.close()  # writes the footer, without which the file is unreadable
        return self._file, self._rows

    def drop(self) -> None:
        """Remove the spooled file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write a change file to {tempfile.gettempdir()}: {error}. Nothing committed is "
            "lost: make space there or set TMPDIR, then start the job again"
        ) from error


def read_changes(source: pa.NativeFile | IO[bytes] | bytes, name: str) -> Iterator[Batch]:
    """Yield the batches of a change file, one at a time.

    Parameters:
        source: the whole file, verified already; bytes or something seekable.
        name: what to call the file in an error.

    Raises:
        CorruptCheckpointError: the bytes are not a change file.

    >>> changes = Changes(["visits"])
    >>> changes.append(Batch([("visits", PUT, b"k", b"v")]))
    >>> file, mutations = changes.finish()
    >>> [list(batch.rows()) for batch in read_changes(file, "example")]
    [[('visits', 0, b'k', b'v')]]
    >>> changes.drop()
    """
    with _unreadable(name):
        for batch in _arrow_batches(source, CHANGES_SCHEMA):
            state, *others = batch.columns
            names = state.dictionary.to_pylist()
            # Not by NumPy, which is as fast, and imports pandas when it is first used.
            states = [names[code] for code in state.indices.to_pylist()]
            ops, keys, values = (column.to_pylist() for column in others)
            if not {PUT, DELETE, DELETE_RANGE}.issuperset(ops):
                raise ValueError("it has an unknown operation")
            yield Batch.of_columns(states, ops, keys, values)


def read_columns(source: pa.NativeFile | IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a change file, one batch at a time.

    Raises:
        CorruptCheckpointError: the bytes are not a change file.
    """
    with _unreadable(name):
        yield from _arrow_batches(source, CHANGES_SCHEMA)


def read_keys(source: IO[bytes], name: str) -> Iterator[pa.RecordBatch]:
    """Yield the columns `state`, `op` and `key` of a change file, one batch at a time.

    The values, mostly the larger part of a file, are not decompressed.

    Raises:
        CorruptCheckpointError: the bytes are not a change file.
    """
    with _unreadable(name):
        columns = list(range(3))
        yield from _arrow_batches(source, pa.schema([CHANGES_SCHEMA[n] for n in columns]), columns)


def _arrow_batches(
    source: pa.NativeFile | IO[bytes] | bytes, schema: pa.Schema, columns: Sequence[int] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a change file.

    Parameters:
        schema: of the columns that are read.
        columns: their numbers; empty for all.
    """
    given = _in_memory(source)
    check_unpacked(given)
    options = pa.ipc.IpcReadOptions(included_fields=list(columns), use_threads=_USE_THREADS)
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


def _in_memory(source: pa.NativeFile | IO[bytes] | bytes) -> pa.NativeFile | IO[bytes]:
    """Return a file that Arrow can read, which is in memory if it is small."""
    if isinstance(source, bytes):
        return pa.BufferReader(source)
    source.seek(0)  # it may just have been written
    start = source.read(_READ_BYTES_MAX)
    if len(start) < _READ_BYTES_MAX:
        return pa.BufferReader(start)
    source.seek(0)
    return source


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
