"""Change feed: what each epoch changed in one state.

Most epochs have change files of their own, and the feed reads only those. After a rollback, a
repair, an import, or a change of the state's type or TTL, an epoch has none that lead to it. The
feed then compares the state before with the state after. So whoever applies the feed to a table
always ends with the state of the epoch.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from statekit.backend.mutation import BATCH_ROWS_MAX, Batch, Put
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.manifest import Cause, EpochManifest, ShardState
from statekit.checkpoint.own_files import follows_by_files, own_files
from statekit.checkpoint.replay import local_rows
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import restore_plan
from statekit.checkpoint.retention import still_kept
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import sleep_s
from statekit.errors import QueryError
from statekit.functions.process import Process
from statekit.keygroup import MAX_GROUPS, group_of_row, pack_group
from statekit.query.epochs import EpochReader, next_manifest
from statekit.query.net_changes import NetChanges, joined
from statekit.query.operator_keys import GROUP_BYTES
from statekit.query.state_rows import Row, StateRows, expiry_time_us
from statekit.timestamp import instant
from statekit.watermark import BEGINNING
from statekit.working_copy.restore import restored

Kind = Literal["snapshot", "changes", "difference"]
"""How the changes of an epoch were found: all rows, for a table that starts empty; from the change
files of the epoch; or by comparing two states.
"""


class Change(NamedTuple):
    """One change of a state.

    Parameters:
        op: "upsert" sets the row at `key` and `place`; "delete" removes it, if it exists; "clear"
            removes all rows of `key`, or of the state if `key` is None.
        key: of the operator; for operator state the number of the shard.
        place: the map key, or the position of a list element: text that sorts as the elements do.
            None for states with one row per key, and for "clear".
        value: the value, element or entry; None if `op` is not "upsert".
        expires: when the row expires by the clock of its TTL; None if it does not.
    """

    op: Literal["upsert", "delete", "clear"]
    key: Any
    place: Any = None
    value: Any = None
    expires: dt.datetime | None = None


@dataclass(frozen=True)
class EpochChanges:
    """What an epoch changed in a state. Iterating reads the changes; each time, they are read
    anew.

    Attributes:
        epoch: its number.
        kind: how the changes were found. Before a "snapshot", empty the table.
        cause: what made the epoch: "records" of a run, or the command that changed the checkpoint.
        watermark: of the operator, in event time; None before any record or without event time.
        processing_time: of the epoch.
    """

    epoch: int
    kind: Kind
    cause: Cause
    watermark: dt.datetime | None
    processing_time: dt.datetime
    _source: _Source = field(repr=False)

    def __iter__(self) -> Iterator[Change]:
        """Yield the net changes: each row at most once, and "clear" before the rows of its key.

        A row that has expired may still be in the table, with its time in `expires`: it is deleted
        in a later epoch, when the job removes it.

        Raises:
            QueryError: the epoch was collected meanwhile.
            CorruptCheckpointError: a file is missing or altered.
        """
        return self._source.changes()


def feed(
    checkpoint: str | Path | Repository,
    operator: str,
    state: str,
    after: int | None = None,
    *,
    until: int | None = None,
    follow: bool = False,
    poll: Any = None,
    function: Process[Any, Any, Any] | None = None,
    allow_pickle: bool = False,
) -> Feed:
    """Return the changes of a state, epoch by epoch.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator, state: their names.
        after: the epoch that the consumer has applied; None for a consumer without anything, which
            first gets all rows of the first epoch that is kept.
        until: the last epoch to return; None for no end.
        follow: wait for new epochs, and do not end after the last one.
        poll: how often to ask for a new epoch; a timedelta or text. None for 20 milliseconds on a
            local disk, and a second on an object store.
        function: the process function, for typed keys and values, converted by its migrate hooks;
            None for what JSON can hold.
        allow_pickle: unpickle values, which can run any code that whoever wrote the checkpoint
            chose.

    Raises:
        QueryError: the epoch `after` was collected, or never committed; or it has no such operator
            or state.
        RestoreError: the checkpoint is a savepoint, or a local path that does not exist.
        StateSchemaError: the function declares a type that would misread stored rows.

    >>> import tempfile
    >>> import statekit as sk
    >>> @sk.process(key="user")
    ... def visits(record: dict, count: sk.ValueState[int]) -> None:
    ...     count.update((count.get() or 0) + 1)
    >>> job = sk.Job("site")
    >>> _ = job.source("pages", dict).process(visits)
    >>> home = tempfile.mkdtemp()
    >>> pages = [{"user": "ada"}, {"user": "bob"}, {"user": "ada"}]
    >>> _ = job.run({"pages": pages}, checkpoint=home, epoch_size=2)
    >>> for epoch in sk.feed(home, "visits", "count"):
    ...     print(epoch.epoch, epoch.kind, sorted((c.op, c.key, c.value) for c in epoch))
    0 snapshot [('upsert', 'ada', 1), ('upsert', 'bob', 1)]
    1 changes [('upsert', 'ada', 2)]
    """
    reader = EpochReader(checkpoint)
    return Feed(
        reader,
        operator,
        state,
        after,
        function,
        until=until,
        poll_s=reader.poll_s(poll) if follow else None,
        allow_pickle=allow_pickle,
    )


class Feed:
    """The changes of one state, epoch by epoch. Created by `statekit.feed`.

    Attributes:
        epoch: the last epoch that was returned, or that the feed started after; None before any.
    """

    def __init__(
        self,
        reader: EpochReader,
        operator: str,
        state: str,
        after: int | None,
        function: Process[Any, Any, Any] | None,
        *,
        until: int | None,
        poll_s: float | None,
        allow_pickle: bool,
    ) -> None:
        self._reader = reader
        self._operator = operator
        self._state = state
        self._function = function
        self._allow_pickle = allow_pickle
        self._until = until
        self._poll_s = poll_s
        self._last: EpochManifest | None = None
        if after is not None:
            self._last = reader.manifest(after)
            self._rows(self._last)
        self.epoch = after

    def __iter__(self) -> Iterator[EpochChanges]:
        """Yield the changes of each epoch.

        Raises:
            QueryError: the next epoch was collected, or has no such operator or state.
            CorruptCheckpointError: a file is missing or altered.
        """
        while self._until is None or self.epoch is None or self.epoch < self._until:
            after = next_manifest(self._reader.repository, self._last)
            if after is not None:
                changes = self._changes(after)
                self._last, self.epoch = after, after.epoch
                yield changes
            elif self._poll_s is None:
                return
            else:
                sleep_s(self._poll_s)

    def _changes(self, after: EpochManifest) -> EpochChanges:
        rows = self._rows(after)
        source = self._source(after, rows)
        watermark = after.operators[self._operator].watermark_us
        return EpochChanges(
            epoch=after.epoch,
            kind=source.kind,
            cause=after.cause,
            watermark=None if watermark in (None, BEGINNING) else instant(watermark),
            processing_time=instant(after.processing_time_us),
            _source=source,
        )

    def _source(self, after: EpochManifest, rows: StateRows) -> _Source:
        before, repository = self._last, self._reader.repository
        if before is None or self._operator not in before.operators:
            return _Comparison("snapshot", repository, after, rows)
        rows_before = self._rows(before)
        if rows_before.state == rows.state and follows_by_files(before, after):
            return _Files("changes", repository, after, rows, before)
        return _Comparison("difference", repository, after, rows, before, rows_before)

    def _rows(self, manifest: EpochManifest) -> StateRows:
        return StateRows(
            self._reader.job_file(manifest),
            self._operator,
            self._state,
            self._function,
            allow_pickle=self._allow_pickle,
        )


@dataclass(frozen=True)
class _Source:
    """Where the changes of an epoch are read from.

    Parameters:
        after: the manifest of the epoch.
        rows: how its rows are read.
    """

    kind: Kind
    repository: Repository
    after: EpochManifest
    rows: StateRows

    def changes(self) -> Iterator[Change]:
        """Yield the net changes."""
        with still_kept(self.repository, self.after.epoch, QueryError):
            yield from self._changes()

    def _changes(self) -> Iterator[Change]:
        raise NotImplementedError

    @property
    def _shards(self) -> Sequence[ShardState]:
        return self.after.operators[self.rows.operator.name].shards

    def _numbers(self) -> dict[int, int]:
        """Return the number of each shard by its first key group, which its operator state has."""
        return {shard.first_group: number for number, shard in enumerate(self._shards)}

    def _all_of_shards(self) -> Iterator[Change]:
        """Yield operator state completely: its shards are others than before."""
        name = self.rows.state.name
        yield Change("clear", None)
        rows_of = local_rows(self.repository, self.rows.operator, self.after)[name]
        for number, own in enumerate(rows_of):
            prefix = pack_group(self._shards[number].first_group)
            for subkey, row in own:
                yield self._upsert(prefix + subkey, row, number)

    def _upsert(self, row_key: bytes, row: bytes, shard: int | None = None) -> Change:
        rows = self.rows
        key, end = (shard, GROUP_BYTES) if rows.is_local else rows.keys.split(row_key)
        deadline = rows.deadline_us(row)
        expires = None if deadline is None else instant(deadline)
        return Change("upsert", key, rows.place(row_key, end), rows.value(row), expires)

    def _delete(self, row_key: bytes, shard: int | None = None) -> Change:
        rows = self.rows
        key, end = (shard, GROUP_BYTES) if rows.is_local else rows.keys.split(row_key)
        return Change("delete", key, rows.place(row_key, end))


@dataclass(frozen=True)
class _Files(_Source):
    """Changes that follow from the change files of the epoch."""

    before: EpochManifest

    def _changes(self) -> Iterator[Change]:
        rows, operator = self.rows, self.rows.operator.name
        layouts = [m.operators[operator].shards for m in (self.before, self.after)]
        if rows.is_local and len({tuple(s.groups for s in shards) for shards in layouts}) > 1:
            yield from self._all_of_shards()
            return
        for _, refs in own_files(self.repository, self.before, self.after, operator):
            yield from self._of_shard([ref for ref in refs if rows.is_local or not ref.local])

    def _of_shard(self, refs: Sequence[FileRef]) -> Iterator[Change]:
        rows, numbers = self.rows, self._numbers()
        with NetChanges(self.repository, refs, rows.state.name) as net:
            for start, _ in net.cleared:
                if not rows.is_local:
                    yield Change("clear", rows.keys.split(start)[0])
                elif (number := numbers.get(group_of_row(start))) is not None:
                    yield Change("clear", number)
            for row_key, row in net.rows:
                shard = numbers.get(group_of_row(row_key)) if rows.is_local else None
                if row is None:
                    yield self._delete(row_key, shard)
                else:
                    yield self._upsert(row_key, row, shard)


@dataclass(frozen=True)
class _Comparison(_Source):
    """Changes between two states, or all rows if there is no state before."""

    before: EpochManifest | None = None
    rows_before: StateRows | None = None

    def _changes(self) -> Iterator[Change]:
        if self.rows.is_local:
            yield from self._all_of_shards()
            return
        for groups_before, groups in self._pieces():
            with scratch_directory("feed") as place, contextlib.ExitStack() as closing:
                before: Iterator[Row] = iter(())
                if groups_before is not None:
                    before = self._rows_before(groups_before, place, closing)
                now_us = expiry_time_us(self.after, self.rows.operator.name, self.rows.state)
                after = self._unpacked(self.after, self.rows, groups, place / "after", closing)
                yield from self._compared(before, self.rows.unexpired(after, now_us))

    def _compared(self, before: Iterator[Row], after: Iterator[Row]) -> Iterator[Change]:
        """Yield how the rows before become the rows after. Rows that are the same are left out."""
        is_same_type = self.rows_before is None or self.rows_before.state == self.rows.state
        for row_key, old, new in joined(before, after):
            if new is None:
                yield self._delete(row_key)
            elif old is None or not (old == new if is_same_type else self._is_same(old, new)):
                yield self._upsert(row_key, new)

    def _is_same(self, old: bytes, new: bytes) -> bool:
        """Return whether rows that were read as different types show the same."""
        assert self.rows_before is not None
        of_old, of_new = (
            (rows.value(row), rows.deadline_us(row))
            for rows, row in ((self.rows_before, old), (self.rows, new))
        )
        return of_old == of_new

    def _rows_before(
        self, groups: tuple[int, int], place: Path, closing: contextlib.ExitStack
    ) -> Iterator[Row]:
        """Return the rows before, with the key groups of the state after."""
        assert self.before is not None
        assert self.rows_before is not None
        stored = self._unpacked(self.before, self.rows_before, groups, place / "before", closing)
        if self.before.key_groups == self.after.key_groups:
            return stored
        name, rows = self.rows.state.name, self.rows
        regrouped = RocksBackend(place / "regrouped", [name])
        closing.callback(regrouped.close)
        while few := list(islice(stored, BATCH_ROWS_MAX)):
            regrouped.write(Batch([Put(name, rows.keys.regrouped(key), row) for key, row in few]))
        return regrouped.scan(name, *group_bounds(0, MAX_GROUPS - 1))

    def _unpacked(
        self,
        manifest: EpochManifest,
        rows: StateRows,
        groups: tuple[int, int],
        place: Path,
        closing: contextlib.ExitStack,
    ) -> Iterator[Row]:
        """Return the rows of the state in some key groups after an epoch, from the local disk."""
        operator, name = rows.operator.name, rows.state.name
        plan = restore_plan(self.repository, manifest, operator, *groups)
        _, backend = restored(self.repository, place, groups, [plan], [name])
        closing.callback(backend.close)
        return backend.scan(name, *group_bounds(*groups))

    def _pieces(self) -> list[tuple[tuple[int, int] | None, tuple[int, int]]]:
        """Return the key groups of both states that are compared with each other."""
        before, after = self.before, self.after
        own = [shard.groups for shard in self._shards]
        if before is None:
            return [(None, groups) for groups in own]
        if before.key_groups == after.key_groups:
            return [(groups, groups) for groups in own]
        return [((0, before.key_groups - 1), (0, after.key_groups - 1))]


"""
"""
