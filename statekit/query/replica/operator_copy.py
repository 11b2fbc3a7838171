"""Operator copy: a replica's copy of one operator, its rows after an epoch, in local RocksDB.

    <home>/copy.json    key groups and states of the databases
    <home>/db/…         the databases, as those of a working copy

A copy of a part of the key groups has the operator state of each shard with key groups in that
part. Operator state has the first key group of its shard, which may be before the part.

A copy is restored as a working copy is: from base snapshots and change files. Then it applies the
change files of one epoch after the other. Unlike a working copy it stays open, so it writes with a
write-ahead log, and a row of its own states the epoch that it is at. That row is in the same
batches as the changes. If the process is killed in the middle of an epoch, the row also names that
epoch. Its files are then applied again from the first one: mutations set and remove rows whatever
was there, so applying a part of them before makes no difference.
"""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from statekit.backend.interface import Rows
from statekit.backend.mutation import PUT, Batch
from statekit.backend.range_partitioned import FrozenRows
from statekit.backend.rocksdb import DatabaseError
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import own_files
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows_of_shard, restore_plan
from statekit.checkpoint.sealed_json import Count, Record
from statekit.errors import QueryError, StatekitError, StorageError
from statekit.keygroup import pack_group
from statekit.working_copy.clipping import Database, opened
from statekit.working_copy.directory import Ranges
from statekit.working_copy.restore import restored
from statekit.working_copy.uploaded_tables import forget_stored_below

POSITION = "_position"
"""Column family with the row that has the epoch. User states cannot have such names."""

_DESCRIPTION = "copy.json"

T = TypeVar("T")


class Position(Record):
    """The epoch that a copy is at.

    Parameters:
        epoch: the last epoch that was applied completely.
        manifest: the checksum of its manifest. A checkpoint that was replaced by a backup may have
            another epoch of that number.
        applying: the checksum of the next epoch's manifest, if a part of that epoch was applied.
    """

    epoch: Count
    manifest: str
    applying: str | None = None

    @classmethod
    def at(cls, manifest: EpochManifest) -> Self:
        """Return the position after an epoch."""
        return cls(epoch=manifest.epoch, manifest=manifest.id.manifest)


class _Description(Record):
    """The contents of `copy.json`: the key groups and states that the databases contain."""

    groups: tuple[Count, Count]
    states: tuple[str, ...]
    fragments: Ranges


class OperatorCopy:
    """The rows of an operator in a range of key groups. Only one thread may advance it.

    Parameters:
        home: its directory.
        operator: the operator.
        groups: first and last key group.
        backend: the open databases.
        fragments: the key groups of each database.
        position: the epoch that they are at.
    """

    def __init__(
        self,
        home: Path,
        operator: OperatorRecord,
        groups: tuple[int, int],
        backend: Database,
        fragments: Ranges,
        position: Position,
    ) -> None:
        self.home = home
        self.operator = operator.name
        self.groups = groups
        self.states = operator.holds
        self.has_operator_state = any(state.is_local for state in operator.states)
        self.position = position
        self.version = 0
        """Number that increases whenever rows begin to change: a read between two equal versions
        is of one epoch.
        """
        self._backend, self._fragments = backend, fragments
        backend.log_writes()
        self._readers: weakref.WeakSet[EpochRows] = weakref.WeakSet()
        self.getters = {name: backend.point_getter(name) for name in self.states}
        self.get_many = backend.get_many

    @classmethod
    def restore(
        cls,
        repository: Repository,
        manifest: EpochManifest,
        operator: OperatorRecord,
        groups: tuple[int, int],
        home: Path,
        options: RocksOptions,
    ) -> Self:
        """Restore a copy from the checkpoint.

        Tables of another copy beside `home` are linked instead of fetched.

        Parameters:
            home: a directory that does not exist.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed.
        """
        states = operator.holds
        plan = restore_plan(repository, manifest, operator.name, *groups)
        try:
            home.mkdir(parents=True)
            fragments, backend = restored(
                repository, home, groups, [plan], [*states, POSITION], options, beside=home.parent
            )
            with contextlib.ExitStack() as failing:
                failing.callback(backend.close)
                position = Position.at(manifest)
                copy = cls(home, operator, groups, backend, fragments, position)
                copy._write(_rows_before(repository, manifest, operator, groups[0]), position)
                _describe(home, _Description(groups=groups, states=states, fragments=fragments))
                failing.pop_all()
        except (OSError, DatabaseError) as error:
            shutil.rmtree(home, ignore_errors=True)
            forget_stored_below(home.parent)  # a table of another copy may be damaged
            raise unwritable(home, error) from error
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        return copy

    @classmethod
    def reopen(
        cls, operator: OperatorRecord, groups: tuple[int, int], home: Path, options: RocksOptions
    ) -> Self | None:
        """Open a copy of an earlier process; None if it is damaged or has other rows."""
        try:
            found = _Description.model_validate_json((home / _DESCRIPTION).read_bytes())
        except (OSError, ValidationError):
            return None
        if (found.groups, found.states) != (groups, operator.holds):
            return None
        try:
            backend = opened(home, found.fragments, [*found.states, POSITION], options)
        except StorageError:
            return None
        position = _position(backend, found.fragments)
        if position is None:
            backend.close()
            return None
        return cls(home, operator, groups, backend, found.fragments, position)

    # --------------------------------------------------------------------------------- advancing

    def advance(self, repository: Repository, before: EpochManifest, after: EpochManifest) -> None:
        """Apply the change files of the epoch after the one that the copy is at.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed. The copy is then of neither epoch:
                advance it again, or restore another one.
        """
        try:
            self._write(self._batches(repository, before, after), Position.at(after))
        except DatabaseError as error:
            raise self.failure(error) from error

    def _batches(
        self, repository: Repository, before: EpochManifest, after: EpochManifest
    ) -> Iterator[Batch]:
        states = frozenset(self.states)
        for shard, refs in own_files(repository, before, after, self.operator):
            is_inside = self.groups[0] <= shard.first_group and shard.last_group <= self.groups[1]
            if not shard.overlaps(*self.groups):
                continue
            for ref in refs:
                first = shard.first_group if ref.local else self.groups[0]
                bounds = group_bounds(min(first, self.groups[0]), self.groups[1])
                for batch in repository.batches(ref):
                    is_clean = is_inside and states.issuperset(batch.states)
                    yield batch if is_clean else batch.within(*bounds, states)

    def _write(self, batches: Iterable[Batch], position: Position) -> None:
        """Write batches, with the new position in the last one."""
        self.version += 1
        # The last batch is held back, so that it gets the new position in the same write.
        waiting: Batch | None = None
        for batch in batches:
            if waiting is None:
                self.position = self.position.model_copy(update={"applying": position.manifest})
                self._note(batch, self.position)
            else:
                self._backend.write(waiting)
            waiting = batch
        last = Batch() if waiting is None else waiting
        self._note(last, position)
        self._backend.write(last)
        self.position = position

    def _note(self, batch: Batch, position: Position) -> None:
        """Add the position to a batch, for each database."""
        data = position.model_dump_json().encode()
        for key in _position_keys(self._fragments):
            batch.put(POSITION, key, data)

    # ----------------------------------------------------------------------------------- reading

    def rows(self) -> EpochRows:
        """Return the present rows. No epoch may be applied during the call."""
        rows = EpochRows(self, self._backend.frozen())
        self._readers.add(rows)
        return rows

    @property
    def is_damaged(self) -> bool:
        """True if RocksDB reported damaged files."""
        return self._backend.damaged

    def failure(self, error: DatabaseError) -> StorageError:
        """Return the error of the replica for an error of one of the databases."""
        if not self.is_damaged:
            return unwritable(self.home, error)
        return StorageError(
            f"the replica's copy of operator {self.operator!r} in {self.home} is damaged: "
            f"{error.__cause__ or error}. The checkpoint is not affected, and the replica restores "
            "the copy from it: read again. If this happens again, check the local disk"
        )

    @property
    def is_read(self) -> bool:
        """True if rows of an epoch may still be read from it."""
        return any(not rows.is_closed for rows in self._readers)

    def close(self) -> None:
        """Close the databases. Open `EpochRows` keep the files until they are closed."""
        self._backend.close()

    def remove(self) -> None:
        """Close the copy and remove its files."""
        for rows in list(self._readers):
            rows.close("the replica was closed: open it again")
        with contextlib.suppress(StorageError):  # the files are removed anyway
            self.close()
        shutil.rmtree(self.home, ignore_errors=True)


class EpochRows:
    """The rows of a copy after one epoch. Any thread may read them.

    While no later epoch is applied, point reads use the database itself, which takes a third of the
    time of its snapshot. If a change began during the read, it is repeated on the snapshot.
    """

    def __init__(self, copy: OperatorCopy, frozen: FrozenRows) -> None:
        self._copy = copy
        self._frozen = frozen
        self._version = copy.version
        self._closed: str | None = None

    @property
    def is_damaged(self) -> bool:
        """True if the files of the rows are damaged."""
        return self._copy.is_damaged

    @property
    def is_closed(self) -> bool:
        """True if the rows were released."""
        return self._closed is not None

    def get(self, state: str, key: bytes) -> bytes | None:
        """Return the row at `key`; None if there is none."""
        copy, version = self._copy, self._version
        if copy.version == version and self._closed is None:
            try:
                row = copy.getters[state](key)
            except DatabaseError as error:
                raise copy.failure(error) from error
            if copy.version == version:
                return row
        return self._read(lambda: self._frozen.get(state, key))

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows at `keys`, in that order; None for keys without a row."""
        copy, version = self._copy, self._version
        if copy.version == version and self._closed is None:
            rows = self._read(lambda: copy.get_many(state, keys))
            if copy.version == version:
                return rows
        return self._read(lambda: self._frozen.get_many(state, keys))

    def scan(
        self,
        state: str,
        start: bytes,
        end: bytes,
        check: Callable[[], None] = lambda: None,
        *,
        reverse: bool = False,
    ) -> Rows:
        """Yield rows with `start <= key < end` in key order.

        Parameters:
            check: raises if the view of the reader was closed.
        """
        check()
        self.check_open()
        try:
            for row in self._frozen.scan(state, start, end, reverse=reverse):
                yield row
                check()
                if self._closed is not None:
                    self.check_open()
        except DatabaseError as error:
            raise self._copy.failure(error) from error

    def _read(self, read: Callable[[], T]) -> T:
        self.check_open()
        try:
            return read()
        except DatabaseError as error:
            raise self._copy.failure(error) from error

    def close(self, why: str) -> None:
        """Release the rows. Further reads fail.

        Parameters:
            why: the message of the error.
        """
        if self._closed is None:
            self._closed = why
            self._frozen.close()

    def check_open(self) -> None:
        """Raise QueryError if the rows were released."""
        if self._closed is not None:
            raise QueryError(self._closed)


def unwritable(home: Path, error: OSError | DatabaseError) -> StorageError:
    """Return the error for a copy that cannot be written to the local disk."""
    return StorageError(
        f"the replica cannot use its copy in {home}: {error.__cause__ or error}. The checkpoint is "
        "not affected: make space there, or choose another directory"
    )


def _rows_before(
    repository: Repository, manifest: EpochManifest, operator: OperatorRecord, first: int
) -> Iterator[Batch]:
    """Yield the operator state of the shard with key group `first`, if it begins before that."""
    for shard in manifest.shards_over(operator.name, first, first):
        if shard.first_group < first:
            prefix = pack_group(shard.first_group)
            stored = local_rows_of_shard(repository, operator, manifest, shard)
            for state, rows in stored.items():
                yield Batch((state, PUT, prefix + subkey, row) for subkey, row in rows)


def _position_keys(fragments: Ranges) -> list[bytes]:
    """Return the key of the position in each database."""
    return [pack_group(first) + b"position" for first, _ in fragments]


def _position(backend: Database, fragments: Ranges) -> Position | None:
    """Return the position of databases; None if they are at different ones.

    They differ if the machine lost power, which may lose the last writes of some of them.
    """
    try:
        rows = set(backend.get_many(POSITION, _position_keys(fragments)))
        row = rows.pop()
        return None if rows or row is None else Position.model_validate_json(row)
    except (ValidationError, StatekitError):
        return None


def _describe(home: Path, description: _Description) -> None:
    draft = home / f"{_DESCRIPTION}.draft"
    try:
        draft.write_text(description.model_dump_json())
        draft.rename(home / _DESCRIPTION)
    except OSError as error:
        raise unwritable(home, error) from error
