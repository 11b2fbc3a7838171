"""Rows in RocksDB, one column family per state.

Facts of rocksdict that shape this file:

- The directory lock is released only when no object refers to the database any more. So each column
  family and each running scan is closed before the database.
- Iterator bounds in `ReadOptions` do not work in raw mode. So scans check their end themselves.
- An iterator that reaches an unreadable block ends as if there were no more rows. So a scan that
  runs out of rows checks that this was the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from time import sleep
from typing import cast

import rocksdict

from statekit.backend.hard_link import linked
from statekit.backend.interface import (
    FirstKey,
    NextKeys,
    RowReads,
    Rows,
    StateSize,
    size_of,
    unknown_state,
    used_after_close,
)
from statekit.backend.mutation import DELETE, PUT, Batch
from statekit.backend.read_ahead import SortedReads
from statekit.backend.rocksdb_options import RocksOptions
from statekit.backend.rocksdb_snapshot import FrozenState, PointGetter, RocksSnapshot
from statekit.errors import StatekitError, StorageError

# Universal compaction merges runs of similar size, so what an epoch costs follows what it wrote.
# A run appears with every flush. A merge starts when enough runs exist and the database is opened,
# and runs beside the epoch. If this many runs accumulate nevertheless, all are merged at once.
SORTED_RUNS_MAX = 24

# A merge starts at this many runs, and sooner if short ranges are read: each of them costs a seek
# in each run. That option is changed only if several runs were added since the last merge, as
# changing it takes 3 ms.
_RUNS_BEFORE_MERGE = 8
_RUNS_BEFORE_MERGE_OF_RANGES = 4
_ADDED_RUNS_OF_RANGES = 3

# How often a flush checks whether the merges have ended, and a write whether it is taken. rocksdict
# has no call that waits.
_BETWEEN_CHECKS_S = 0.001

# Tables of rows that are merged, or loaded in order. Each that is read in an epoch is opened, which
# takes some 50 µs; but the cost of writing one, and its filter, grow with its rows.
_TABLE_BYTES_MAX = 128 * 1024 * 1024

# If the disk is slower than the writer, full write buffers accumulate. Above this multiple of
# their limit, the writer waits for the disk.
_WRITE_MEMORY_FACTOR = 1.5

# RocksDB's message for a write that would have to wait.
_NOT_TAKEN = "Write stall"

# RocksDB's message for a full disk.
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))

# What a scan gives before its first row. From Python 3.12 on, a generator that never began keeps
# its arguments when it is closed: here RocksDB's iterator, and with it the lock of the database.
_BEGUN = (b"", b"")


@cache
def _block_cache(capacity_bytes: int) -> rocksdict.Cache:
    """Return the block cache that all databases of this process share.

    RocksDB's usual cache has 64 shards. The filter of a table of a million rows fills such a shard,
    so it is evicted with every block that is read, and has to be read again. This cache has shards
    of 32 MiB. The 0 means blocks of various sizes.
    """
    return rocksdict.Cache.new_hyper_clock_cache(capacity_bytes, 0)


@cache
def _write_buffers(capacity_bytes: int) -> rocksdict.WriteBufferManager:
    """Return the manager of the write buffers of all databases of this process."""
    return rocksdict.WriteBufferManager(capacity_bytes, False)


def _rocksdb_options(options: RocksOptions, *, create: bool) -> rocksdict.Options:
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(_block_cache(options.block_cache_bytes))
    if options.bloom_bits:
        tables.set_bloom_filter(options.bloom_bits, False)
    # A quarter as large, as keys of neighbours are alike.
    tables.set_index_block_restart_interval(16)
    # Otherwise their memory grows with the rows of all open shards.
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    rocks_options = rocksdict.Options(raw_mode=True)
    rocks_options.create_if_missing(create)
    rocks_options.create_missing_column_families(create)
    rocks_options.set_block_based_table_factory(tables)
    rocks_options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    rocks_options.set_compression_type(rocksdict.DBCompressionType.lz4())
    rocks_options.set_level_zero_file_num_compaction_trigger(_RUNS_BEFORE_MERGE)
    rocks_options.set_write_buffer_size(options.write_buffer_bytes)
    rocks_options.set_write_buffer_manager(_write_buffers(options.write_memory_bytes))
    rocks_options.set_target_file_size_base(_TABLE_BYTES_MAX)
    rocks_options.set_max_open_files(options.open_files)
    # Otherwise 16 threads are started per state, for at most 16 files: they cost more than they
    # gain.
    rocks_options.set_max_file_opening_threads(1)
    rocks_options.set_keep_log_file_num(1)
    rocks_options.set_stats_dump_period_sec(0)
    return rocks_options


def _added_runs(family: rocksdict.Rdict) -> int:
    """Return the number of sorted runs at level 0: those added since the last merge, mostly."""
    return family.property_int_value("rocksdb.num-files-at-level0") or 0


def link_database(source: Path, target: Path) -> None:
    """Create a database that shares the files of a closed one. The closed one must not change.

    RocksDB writes its tables once and only ever deletes them, so they get a hard link, as in
    RocksDB's own checkpoints. Files that a database changes are copied.

    Raises:
        OSError: a file cannot be read, linked or written; `target` is then unusable.
    """
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".sst" and linked(file, target / file.name):
            continue
        if file.name != "LOCK" and not file.name.startswith("LOG"):
            shutil.copyfile(file, target / file.name)


class DatabaseError(StorageError):
    """RocksDB failed. The cause contains its message."""


class RocksBackend:
    """The rows of a shard in a RocksDB database at `path`.

    Parameters:
        path: the database directory; created if absent.
        states: all states, each of which becomes a column family.
        options: limits of RocksDB.
        create: whether the database, or a state in it, may be missing; it then starts empty.

    Raises:
        StorageError: the directory cannot be opened or written, or another process holds it.

    >>> import tempfile
    >>> from statekit.backend.mutation import PUT, Batch
    >>> backend = RocksBackend(tempfile.mkdtemp(), ["visits"])
    >>> backend.write(Batch([("visits", PUT, b"a", b"1")]))
    >>> backend.get("visits", b"a")
    b'1'
    >>> backend.close()
    """

    def __init__(
        self,
        path: str | Path,
        states: Sequence[str],
        options: RocksOptions | None = None,
        *,
        create: bool = True,
    ) -> None:
        self.states: Sequence[str] = tuple(states)
        self._path = str(path)
        self._closed = False
        self.failed = False
        """True if RocksDB has reported an error since the database was opened."""
        self.damaged = False
        """True if one of the errors may mean damaged files, not a full disk."""
        options = options or RocksOptions()
        self._write_memory_bytes = options.write_memory_bytes
        self._options = rocks_options = _rocksdb_options(options, create=create)
        # "default" is RocksDB's own column family, so a state's family carries a prefix.
        families = {f"state.{name}": rocks_options for name in states}
        with _StorageErrors(self, "open"):
            self._db = rocksdict.Rdict(self._path, rocks_options, column_families=families)
        self._families = {n: self._db.get_column_family(f"state.{n}") for n in states}
        self._handles = {n: self._db.get_column_family_handle(f"state.{n}") for n in states}
        self._write_options = rocksdict.WriteOptions()
        self._write_options.disable_wal = True
        self._write_options.no_slowdown = True
        self._written: set[str] = set()
        self._read_by_ranges: set[str] = set()
        self._readers: weakref.WeakSet[SortedReads] = weakref.WeakSet()
        self._scans: weakref.WeakSet[Generator[tuple[bytes, bytes]]] = weakref.WeakSet()

    def get(self, state: str, key: bytes) -> bytes | None:
        family = self._family(state)
        with _StorageErrors(self, "read"):
            return family.get(key)

    def point_getter(self, state: str) -> PointGetter:
        """Return a function that reads single rows in any order, from any thread."""
        look = self._family(state).get

        def get(key: bytes) -> bytes | None:
            try:
                return look(key)
            except Exception as error:
                raise self._failure("read", error) from error

        return get

    def reader(
        self, state: str, next_keys: NextKeys | None = None, first_key: FirstKey | None = None
    ) -> RowReads:
        """Return reads of one state, which read ahead.

        A shard processes its keys in order. If it processes many of its keys, reading a block of
        rows ahead costs a third of single reads. If few rows of a block are used, reading ahead
        stops. Rows of predicted keys are then fetched together, which costs two thirds. A write
        invalidates everything that was read ahead.

        Starting a scan costs as much as tens of rows, and far more after deletes: it has to skip
        all deleted rows. A block skips them once.
        """
        family = self._family(state)
        scan, check = partial(self.scan, state), partial(self._check_readable, family)
        errors = _StorageErrors(self, "read")
        cursor = partial(self._cursor_of_ranges, state)
        reads = SortedReads(family, scan, cursor, check, errors, next_keys, first_key)
        self._readers.add(reads)
        return RowReads(reads.get, reads.get_all, reads.scan, reads.scan_each)

    def _cursor_of_ranges(self, state: str) -> rocksdict.RdictIter:
        """Return an iterator for many short ranges, and have the runs merged sooner."""
        family = self._family(state)
        if state not in self._read_by_ranges:
            self._read_by_ranges.add(state)
            if _added_runs(family) >= _ADDED_RUNS_OF_RANGES:
                trigger = str(_RUNS_BEFORE_MERGE_OF_RANGES)
                family.set_options({"level0_file_num_compaction_trigger": trigger})
        return family.iter()

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        family = self._family(state)
        with _StorageErrors(self, "read"):
            return family.get(list(keys))

    def first(self, state: str, start: bytes, end: bytes) -> bytes | None:
        return next(self.scan(state, start, end), (None,))[0]

    def scan(self, state: str, start: bytes, end: bytes, *, reverse: bool = False) -> Rows:
        rows = self._rows(self._family(state), start, end, reverse)
        next(rows)  # so the iterator pins its view of the data now, not with the first row
        self._scans.add(rows)
        return rows

    def write(self, batch: Batch) -> None:
        self._check_open()
        names = set(batch.states)
        for name in names:
            self._family(name)
        with _StorageErrors(self, "write"):
            while not self._is_taken(batch):
                self._await_space()
            self._written |= names
            self._keep_to_write_memory()
        for reader in self._readers:
            reader.forget()

    def _is_taken(self, batch: Batch) -> bool:
        """Write a batch unless RocksDB must flush or merge tables first. Return whether it was
        written.

        RocksDB would wait itself, but on a full disk without end: what it does to go on then waits
        for the write. It would also keep the GIL.
        """
        write_batch = rocksdict.WriteBatch(raw_mode=True)  # a write that is refused uses it up
        self._gather(write_batch, batch)
        try:
            self._db.write(write_batch, self._write_options)
        except Exception as error:  # rocksdict's are bare
            if _NOT_TAKEN not in str(error):
                raise
            return False
        return True

    def _await_space(self) -> None:
        """Wait until RocksDB can accept a write again."""
        while self._count("is-write-stopped") or self._count("actual-delayed-write-rate"):
            if self._count("background-errors"):
                self._flush_written()  # raises what a flush met, unless a merge met it alone
                raise self._failure("write", Exception("tables cannot be merged, see LOG there"))
            sleep(_BETWEEN_CHECKS_S)

    def _count(self, name: str) -> int:
        """Return a numeric property of the RocksDB database."""
        return self._db.property_int_value(f"rocksdb.{name}") or 0

    def _gather(self, write_batch: rocksdict.WriteBatch, batch: Batch) -> None:
        """Add the mutations of a batch to RocksDB's write batch."""
        handles = self._handles
        if not any(batch.ops) and None not in batch.values:
            # All of them put a row: a call for each, and nothing else.
            rows = cast("list[bytes]", batch.values)
            deque(map(write_batch.put, batch.keys, rows, map(handles.get, batch.states)), maxlen=0)
            return
        put, delete, delete_range = write_batch.put, write_batch.delete, write_batch.delete_range
        for state, op, key, value in batch.rows():
            if op == PUT and value is not None:
                put(key, value, handles[state])
            elif op == DELETE or value is None:
                delete(key, handles[state])
            elif key < value:  # RocksDB takes an empty range for an error, and stays in it
                delete_range(key, value, handles[state])

    def load(self, state: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load rows in key order into an empty range of a state, durably.

        This takes half as long as batches, because the files are written in their final form.

        Raises:
            StorageError: the disk is full or failed; the database is not trusted any more.
        """
        family, waiting = self._family(state), iter(rows)
        taking = rocksdict.IngestExternalFileOptions()
        taking.set_move_files(True)
        draft = f"{self._path}/loading.sst"
        with _StorageErrors(self, "write"):
            while (row := next(waiting, None)) is not None:
                writer = rocksdict.SstFileWriter(self._options)
                writer.open(draft)
                writer[row[0]] = row[1]
                size = 0
                for key, value in waiting:
                    writer[key] = value
                    size += len(key) + len(value)
                    if size > _TABLE_BYTES_MAX:
                        break
                writer.finish()
                family.ingest_external_file([draft], taking)
        for reader in self._readers:
            reader.forget()

    @property
    def sequences(self) -> tuple[int, ...]:
        """RocksDB's sequence number of the database. Each write increases it."""
        self._check_open()
        return (self._db.latest_sequence_number(),)

    def sizes(self) -> dict[str, StateSize]:
        self._check_open()
        return {name: size_of(self.scan(name, b"", b"\xff")) for name in self._families}

    def flush(self) -> None:
        """Make all writes durable on the local disk.

        Raises:
            StorageError: the disk is full or failed; the database is not trusted any more.
        """
        self._check_open()
        if not self._written:
            return
        with _StorageErrors(self, "flush"):
            self._await_merges()
            self._flush_written()
        self._written.clear()

    def _flush_written(self) -> None:
        for name in sorted(self._written):
            family = self._families[name]
            family.flush()
            if _added_runs(family) > SORTED_RUNS_MAX:
                family.compact_range(None, None)

    def log_writes(self) -> None:
        """Use the write-ahead log from now on. If the process is killed, no earlier write is lost.

        What was written before is flushed. If the machine loses power, the last writes may be
        lost, and the earlier ones are complete.

        Raises:
            StorageError: the disk is full or failed.
        """
        self.flush()
        self._write_options.disable_wal = False

    def frozen(self) -> RocksSnapshot:
        """Return the rows at this point in time. Nothing may be written during the call."""
        self._check_open()
        states = {name: FrozenState.of(family) for name, family in self._families.items()}
        return RocksSnapshot(states, self._failure)

    def snapshot(self, targets: Sequence[Path]) -> None:
        """Link the flushed database into a new directory.

        The new database shares the tables of this one: the cost is a hard link per file.

        Parameters:
            targets: this directory. A backend of several databases needs one for each.

        Raises:
            StorageError: the disk is full or failed. This database is not affected.
        """
        self._check_open()
        (target,) = targets
        try:
            rocksdict.Checkpoint(self._db).create_checkpoint(str(target))
        except Exception as error:  # rocksdict's are bare
            raise StorageError(
                f"cannot take a snapshot of the working copy at {self._path} in {target}: {error}. "
                "Nothing is lost: check that the disk has space and may be written"
            ) from error

    def change_states(self, states: Sequence[str]) -> None:
        """Add new, empty states to a closed database, and delete other states with their rows.

        Raises:
            StorageError: the disk is full or failed.
        """
        self._check_open()
        with _StorageErrors(self, "write"):
            for name in set(self.states).difference(states):
                self._handles.pop(name)
                self._families.pop(name).close()
                self._db.drop_column_family(f"state.{name}")
            for name in set(states).difference(self.states):
                self._db.create_column_family(f"state.{name}", self._options).close()

    def compact(self) -> None:
        """Compact the database. Each row is then stored once, and no deleted row is left.

        Raises:
            StorageError: the disk is full or failed.
        """
        self._check_open()
        for family in self._families.values():
            with _StorageErrors(self, "compact"):
                family.compact_range(None, None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for rows in list(self._scans):
            rows.close()
        for reader in self._readers:
            reader.forget()
        self._handles.clear()
        families, self._families = self._families, {}
        with _StorageErrors(self, "close"), contextlib.ExitStack() as closing:
            closing.callback(self._db.close)
            for family in families.values():
                closing.callback(family.close)

    def _await_merges(self) -> None:
        """Wait until no compaction is running.

        Closing the database would cancel a running merge. The next epoch would start it again from
        the beginning, and so would each epoch that is shorter than the merge.

        RocksDB starts a merge that failed, as on a full disk, again and again. Nobody waits for it:
        the flush fails, too, or needs no merge.
        """
        while self._count("num-running-compactions") and not self._count("background-errors"):
            sleep(_BETWEEN_CHECKS_S)

    def _keep_to_write_memory(self) -> None:
        """Wait for the disk while write buffers exceed their limit.

        Each writer waits for the buffers of its own database. RocksDB's own wait would never end if
        idle databases hold the buffers.
        """
        most = self._write_memory_bytes
        if _write_buffers(most).get_usage() <= _WRITE_MEMORY_FACTOR * most:
            return
        for name in self._written:
            family = self._families[name]
            if family.property_int_value("rocksdb.num-immutable-mem-table"):
                family.flush()

    def _family(self, state: str) -> rocksdict.Rdict:
        self._check_open()
        family = self._families.get(state)
        if family is None:
            raise unknown_state(state, self._families)
        return family

    def _check_open(self) -> None:
        if self._closed:
            raise used_after_close()

    def _rows(
        self, family: rocksdict.Rdict, start: bytes, end: bytes, reverse: bool
    ) -> Generator[tuple[bytes, bytes]]:
        items = family.items(backwards=reverse, from_key=end if reverse else start)
        yield _BEGUN
        first, last = start, end  # rows between them may be unreadable
        if reverse:
            for row in items:
                if row[0] < start:
                    return
                if row[0] < end:
                    last = row[0]
                    yield row
        else:
            for row in items:
                first = row[0]
                if first >= end:
                    return
                yield row
        self._check_readable(family, first, last)

    def _check_readable(self, family: rocksdict.Rdict, start: bytes, end: bytes) -> None:
        """Raise an error if rows with `start <= key < end` are missing because they are
        unreadable.
        """
        rows = family.iter()
        try:
            with _StorageErrors(self, "read"):
                rows.seek(start)
                while rows.valid() and rows.key() < end:
                    rows.next()
                rows.status()
        finally:
            del rows  # a traceback would keep it, and it would keep the lock

    def _failure(self, doing: str, error: Exception) -> StatekitError:
        """Return the error for an exception of rocksdict, which only contains a text."""
        if self._closed and isinstance(error, rocksdict.DbClosedError):
            return used_after_close()
        self.failed = True
        self.damaged |= not any(text in str(error) for text in _FULL)
        return DatabaseError(
            f"cannot {doing} the working copy at {self._path}: {error}. Nothing "
            "committed is lost: check that the disk has space and may be written, that no "
            "other process holds the directory, then start the job again"
        )


class _StorageErrors:
    """Converts exceptions of rocksdict to `StorageError` with the path and advice."""

    def __init__(self, backend: RocksBackend, doing: str) -> None:
        self._backend = backend
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StatekitError):
            raise self._backend._failure(self._doing, error) from error
