"""`statekit.mirror`: tables that equal states of a checkpoint, step by step.

A step brings all tables of a mirror from one epoch to a later one. It has a number, which grows
with each step, and is that of its last epoch unless the checkpoint was replaced by an older
version. The number is the epoch of the sinks, so each table has it in the commit of the rows. A
step

1. moves the lease of the mirror to the epoch before the step: a repetition finds its epochs,
2. stages the changed rows,
3. writes the position file, with the number and both epochs,
4. publishes the rows of each table,
5. moves the lease to the epoch after the step.

After a crash, the numbers in the tables show which of them have the step of the position file. The
same step is then taken again, and the sinks replace or keep what is there. If a table has another
number, if it was dropped, or if the epochs of the step are not kept any more, then all rows are
written anew.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.leases.reader_lease import LEASE_TTL, ReaderLease
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.clock import stopwatch_s, unique_id
from statekit.closing import Closing
from statekit.errors import (
    ConnectorError,
    ProcessError,
    QueryError,
    StatekitError,
    StateSchemaError,
    StateTypeError,
    StorageError,
)
from statekit.job.mirror_options import MirrorMode, MirrorOptions, parted
from statekit.mirrors.mirror_position import (
    MirrorPosition,
    TableNumbers,
    store_position,
    stored_position,
)
from statekit.mirrors.mirrored_state import MirroredState
from statekit.mirrors.versions import is_rollback
from statekit.query.changes.state_changes import StateChanges
from statekit.query.rows.epochs import EpochReader, next_manifest
from statekit.sinks.protocol.sink import (
    Attempt,
    Part,
    Publication,
    TableSink,
    sink_failures,
    staged_part,
)

_logger = logging.getLogger("statekit.mirrors")

_EPOCHS_MAX = 1_000
"""The most epochs of a step."""

_MUTATIONS_MAX = 1_000_000
"""A step ends after the epoch with which it has so many mutations: a sink may hold its rows in
memory.
"""

_CHECKED_EVERY_S = 1.0
"""Seconds between two checks of a waiting mirror that the checkpoint was not replaced."""


def mirror(
    checkpoint: str | Path | Repository,
    states: str | Mapping[str, TableSink],
    to: TableSink | None = None,
    *,
    mode: MirrorMode = "table",
    name: str | None = None,
    replace: bool = False,
    every: dt.timedelta | str = "0 seconds",
    compact: int = 100,
    poll: dt.timedelta | str | None = None,
    lease_ttl: dt.timedelta | str = LEASE_TTL,
    token: str | None = None,
    wide_ints: bool = False,
    allow_pickle: bool = False,
    directory: str | Path | None = None,
    rocksdb: RocksOptions | None = None,
) -> Mirror:
    """Return a mirror: a table that equals a state at an epoch, and follows it.

    Nothing is written before the first step. Only the mirror may write its table.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        states: the operator and the state, such as "totals.sum"; or several of them, each with its
            sink, which are at the same epoch after each step.
        to: the sink of the table, such as `sinks.delta(path)`. The mirror chooses its mode and key.
        mode: "table" for the rows of the state; "changes" for a log of all changes; "history" for
            the versions of its rows, with `valid_from` and `valid_until`.
        name: of the mirror, under which the checkpoint keeps its position and its lease, which has
            `mirror-` before it. None for a name made of the states. Two mirrors of one state need
            two names.
        replace: replace the rows of a table that has rows of others. None of them are kept.
        every: for `follow`, the shortest time from one step to the next; a timedelta or text.
        compact: rewrite the small files of a Delta or Iceberg table as large ones as soon as there
            are so many; 0 for never.
        poll: the time between two requests for a new epoch; a timedelta or text. None for 20
            milliseconds on a local disk, and a second on an object store.
        lease_ttl: time to keep the epochs of the mirror after it has stopped; a timedelta or text.
        token: as for `feed`: a text by which a new run takes over from an earlier one at once.
        wide_ints: give ints the type decimal(20, 0), for states with ints of 2^63 or more.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.
        directory: of the local copy of states that can be cleared or expire; None for `TMPDIR`.
        rocksdb: memory limits of that copy.

    Raises:
        StateTypeError: an argument is not valid.
        QueryError: the checkpoint has no such operator or state.
        RestoreError: the checkpoint is a savepoint, or a local path that does not exist.

    >>> import tempfile
    >>> import pyarrow.parquet as pq
    >>> import statekit as sk
    >>> @sk.process(key="user")
    ... def visits(record: dict, count: sk.ValueState[int]) -> None:
    ...     count.update((count.get() or 0) + 1)
    >>> job = sk.Job("site")
    >>> _ = job.source("pages", dict).process(visits)
    >>> home, table = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> pages = [{"user": "ada"}, {"user": "bob"}, {"user": "ada"}]
    >>> _ = job.run({"pages": pages}, checkpoint=home, epoch_size=2)
    >>> with sk.mirror(home, "visits.count", to=sk.sinks.parquet(table)) as mirror:
    ...     mirror.catch_up()
    1
    >>> sorted(pq.read_table(table).to_pydict()["value"])
    [1, 2]
    """
    if isinstance(states, str) != (to is not None) or not states:
        raise StateTypeError(
            "mirror() takes one state and to= its sink, or a sink for each of several states, as a "
            "dict"
        )
    options = MirrorOptions(
        {states: to} if isinstance(states, str) and to is not None else states,  # type: ignore[arg-type]
        mode=mode,
        name=name,
        replace=replace,
        every=every,
        compact=compact,
        poll=poll,
        lease_ttl=lease_ttl,
        wide_ints=wide_ints,
        allow_pickle=allow_pickle,
        directory=directory,
        rocksdb=rocksdb,
    )
    opened = Mirror(EpochReader(checkpoint), options, token)
    opened.check_states()
    return opened


@dataclass(frozen=True)
class _Step:
    """A step of a mirror.

    Parameters:
        before: the epoch before it; None to write all rows of all states.
        epochs: those that it takes, in order.
        whole: the states whose rows are all written.
        number: None for the next number.
    """

    before: EpochManifest | None
    epochs: Sequence[EpochManifest]
    whole: frozenset[str]
    number: int | None = None

    @property
    def last(self) -> EpochManifest:
        """The epoch after the step."""
        return self.epochs[-1]


class Mirror(Closing):
    """Tables that equal states at an epoch. Created by `statekit.mirror`; close it after use.

    Attributes:
        name: of the mirror. That of its lease has `mirror-` before it.
    """

    def __init__(self, epochs: EpochReader, options: MirrorOptions, token: str | None) -> None:
        self.name, self._lease_name = options.known_as, options.lease_name
        self._epochs, self._repository = epochs, epochs.repository
        self._states = [
            _mirrored(epochs, text, sink, options) for text, sink in options.tables.items()
        ]
        self._compacts, self._steps_until_compact = options.compact, 0
        self._mode, self._replaces = options.mode, options.replace
        self._poll_s, self._every_s = epochs.poll_s(options.poll), options.every_s
        self._lease_ttl, self._token = options.lease_ttl, token
        self._writer = unique_id()
        self._lease: ReaderLease | None = None
        self._at: EpochManifest | None = None
        self._pending: _Step | None = None
        self._number = -1
        self._is_closed = False

    @property
    def epoch(self) -> int | None:
        """The epoch that the tables equal; None before the first step."""
        return None if self._at is None else self._at.epoch

    @property
    def lag(self) -> int:
        """The number of committed epochs that the tables do not have yet.

        Before the first step, it counts from the last step that an earlier run has begun.
        """
        latest = self._repository.latest_epoch()
        if latest is None:
            return 0
        at = self._stored_epoch() if self.epoch is None else self.epoch
        return latest + 1 if at is None else max(latest - at, 0)

    def _stored_epoch(self) -> int | None:
        """Return the epoch after the last step that an earlier run has begun; None if none has."""
        found = stored_position(self._repository, self.name)
        end = None if found is None else EpochId.of_text(found.end)
        return None if end is None else end.epoch

    # ---------------------------------------------------------------------------------- the user

    def check_states(self) -> None:
        """Check that the last epoch has the states.

        Raises:
            QueryError: it does not.
        """
        latest = self._latest()
        for state in self._states:
            if latest is not None:
                state.changes.rows(latest)

    def _latest(self) -> EpochManifest | None:
        """Return the last epoch; None before the first, also while the job writes its files."""
        if self._repository.latest_epoch() is None:
            self._repository.check_checkpoint()
            return None
        return self._epochs.latest()

    def catch_up(self) -> int | None:
        """Bring the tables to the last epoch, and return its number; None if nothing is committed.

        Raises:
            FencedError: another run of this mirror has taken over.
            QueryError: there is no such state, or an int is too wide.
            StateSchemaError: a table does not fit the type of its state.
            ConnectorError, ProcessError: a target failed. Nothing is lost: a new mirror continues.
            CorruptCheckpointError: a file is missing or altered.
        """
        while self.step():
            pass
        return self.epoch

    def follow(self, until: int | None = None, *, stop: Event | None = None) -> Iterator[int]:
        """Yield the epoch of the tables after each step, and wait for new epochs.

        Parameters:
            until: end as soon as the tables are at this epoch or a later one; None for no end.
            stop: another thread sets it for a last step, and the end.

        Raises:
            FencedError, QueryError, StateSchemaError, ConnectorError, ProcessError: as `catch_up`.
        """
        stop = stop or Event()
        checked_s = stopwatch_s() - _CHECKED_EVERY_S
        while True:
            is_last, begun_s = stop.is_set(), stopwatch_s()
            is_due = is_last or begun_s - checked_s >= _CHECKED_EVERY_S
            if is_due:
                checked_s = begun_s
            is_stepped = self.step(thorough=is_due)
            if is_stepped and self.epoch is not None:
                yield self.epoch
            if until is not None and self.epoch is not None and self.epoch >= until:
                return
            if not is_stepped:
                if is_last:
                    return
                stop.wait(self._poll_s)
            else:
                stop.wait(begun_s + self._every_s - stopwatch_s())

    def step(self, *, thorough: bool = True) -> bool:
        """Bring the tables to a later epoch with one commit each; return False if there is none.

        Parameters:
            thorough: check that the checkpoint was not replaced, although there is no new epoch.

        Raises:
            FencedError, QueryError, StateSchemaError, ConnectorError, ProcessError: as `catch_up`.
        """
        if self._is_closed:
            raise QueryError("the mirror was closed: open another one, which continues")
        if self._lease is None and not self._resume():
            return False
        assert self._lease is not None, "it was taken"
        self._lease.check()
        step = self._pending or self._next(thorough=thorough)
        if step is None:
            return False
        try:
            self._take(step)
        except QueryError:
            if step.before is None or self._is_kept(step.before):
                raise
            self._take(self._whole())  # epochs of the step were collected meanwhile
        except (ConnectorError, ProcessError, StateSchemaError, StorageError):
            if not self._are_dropped():
                raise
            self._take(self._whole())
        return True

    def _are_dropped(self) -> bool:
        """Return whether a table is gone, which the next step creates."""
        found = False
        for state in self._states:
            with contextlib.suppress(StatekitError):
                found |= state.was_dropped()
        return found

    def close(self) -> None:
        """Close the sinks, and release the lease. A new mirror of this name continues."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.ExitStack() as closing:
            for state in self._states:
                closing.callback(state.close)
            if self._lease is not None:
                closing.callback(self._lease.release)

    # --------------------------------------------------------------------------------- the start

    def _resume(self) -> bool:
        """Take the lease, and find the step to begin with; return False if nothing is committed."""
        latest = self._latest()
        if latest is None:
            return False
        found = stored_position(self._repository, self.name)
        begin = None
        if found is not None:
            kept = (self._kept_manifest(own) for own in (found.start, found.end) if own)
            begin = next(filter(None, kept), None)
        self._hold((begin or latest).epoch)
        found = stored_position(self._repository, self.name)  # an earlier run may have gone on
        if found is None:
            return True
        if found.mode != self._mode:
            raise StateTypeError(
                f"mirror {self.name!r} has mode={found.mode!r}, and {self._mode!r} is given: give "
                "another name= and another table. Nothing was written"
            )
        self._number = found.number
        end = self._kept_manifest(found.end)
        start = None if found.start is None else self._kept_manifest(found.start)
        if end is None or not self._has_states(end):
            return True
        for state in self._states:
            self._prepare(state, end)
        numbers = {state.name: found.tables.get(state.name) for state in self._states}
        if not all(
            own is not None and state.last in (own.before, own.after) and not state.replaces_others
            for state, own in zip(self._states, numbers.values(), strict=True)
        ):
            return True
        if self._is_complete(numbers):
            self._at = end
        elif found.start is None or start is not None:
            self._pending = self._again(found, start, end)
        return True

    def _is_complete(self, numbers: Mapping[str, TableNumbers | None]) -> bool:
        """Return whether all tables have the last step. Files that replace all others may have been
        moved without removing those.
        """
        return all(
            own is not None and state.last == own.after and not state.is_always_whole
            for state, own in zip(self._states, numbers.values(), strict=True)
        )

    def _again(
        self, found: MirrorPosition, start: EpochManifest | None, end: EpochManifest
    ) -> _Step | None:
        """Return the step of a position, to be taken again; None if its epochs are not kept."""
        whole = frozenset(name for name, own in found.tables.items() if own.is_whole)
        if start is None:
            return _Step(None, [end], whole, found.number)
        try:
            epochs = list(self._states[0].changes.manifests(start, end.epoch))
        except QueryError:
            return None
        return _Step(start, epochs, whole, found.number) if epochs else None

    def _kept_manifest(self, position: str) -> EpochManifest | None:
        """Return the manifest of a position; None if its epoch is not kept, or another one."""
        epoch = EpochId.of_text(position)
        with contextlib.suppress(QueryError):
            return None if epoch is None else self._epochs.manifest(epoch)
        return None

    def _is_kept(self, manifest: EpochManifest) -> bool:
        return self._kept_manifest(str(manifest.id)) is not None

    def _has_states(self, manifest: EpochManifest) -> bool:
        return all(state.changes.has_state(manifest) for state in self._states)

    def _hold(self, epoch: int) -> None:
        """Have the lease keep an epoch and all later ones.

        Raises:
            FencedError: another run of this mirror has taken over.
            QueryError: the epoch was collected.
        """
        if self._lease is not None and self._lease.epoch <= epoch:
            self._lease.commit(epoch)
            return
        token = self._token
        if self._lease is not None:  # the checkpoint was replaced by an older version
            token = self._lease.token
            self._lease.stop()
        self._lease = ReaderLease.take(
            self._repository, self._lease_name, epoch, ttl=self._lease_ttl, token=token
        ).keep()

    # ---------------------------------------------------------------------------------- planning

    def _next(self, *, thorough: bool) -> _Step | None:
        """Return the next step; None if there is no later epoch."""
        if self._at is None:
            latest = self._epochs.latest()
            return None if latest is None or not self._has_states(latest) else self._whole()
        try:
            epochs = self._following(self._at, thorough=thorough)
        except QueryError:  # the next epoch was collected, or the checkpoint was replaced
            return self._whole()
        if not epochs:
            return None
        whole = frozenset(
            state.name
            for state in self._states
            if state.is_always_whole
            or (self._mode == "table" and not state.has_same_type(self._at, epochs[0]))
        )
        return _Step(self._at, epochs, whole)

    def _whole(self) -> _Step:
        """Return a step that writes all rows of the last epoch."""
        latest = self._epochs.at(None)
        return _Step(None, [latest], frozenset(state.name for state in self._states))

    def _following(self, at: EpochManifest, *, thorough: bool) -> list[EpochManifest]:
        """Return the next epochs in which all states have one type."""
        found: list[EpochManifest] = []
        mutations = 0
        while len(found) < _EPOCHS_MAX and mutations < _MUTATIONS_MAX:
            last = found[-1] if found else at
            after = next_manifest(self._repository, last, thorough=thorough and not found)
            if after is None:
                break
            if found and not all(state.has_same_type(last, after) for state in self._states):
                break
            takes_back = self._mode == "history" and is_rollback(last, after)
            if found and takes_back:
                break
            found.append(after)
            if takes_back:
                break
            mutations += sum(
                piece.mutations
                for state in self._states
                for piece in state.changes.pieces(last, [after])
            )
        return found

    # ------------------------------------------------------------------------------- one step

    def _take(self, step: _Step) -> None:
        """Take a step: stage the rows, write the position, and publish the rows."""
        self._hold((step.before or step.last).epoch)
        for state in self._states:
            self._prepare(state, step.last)
        number = step.number
        if number is None:
            known = [-1 if state.last is None else state.last for state in self._states]
            number = max(step.last.epoch, self._number + 1, max(known) + 1)
        self._check_history(step)
        for state in self._states:
            with self._failures(state.name, step.last.epoch):
                state.claim()
        staged = [self._stage(state, step, number) for state in self._states]
        changed = [(state, own) for state, own in zip(self._states, staged, strict=True) if own]
        self._write_position(step, number, {state.name for state, _ in changed})
        for own in _together(changed):
            names = ", ".join(state.name for state, _ in own)
            publications = [publication for _, publication in own]
            with self._failures(names, step.last.epoch):
                publications[0].sink.publish_all(publications)
            for state, _ in own:
                state.last, state.is_written, state.replaces_others = number, True, False
        self._at, self._number, self._pending = step.last, number, None
        self._hold(step.last.epoch)
        self._compact()

    def _compact(self) -> None:
        """Rewrite small files at the first step, and then after as many steps as make so many
        files. If there may be more of them, the next step continues: no step waits for long. The
        step is complete: what happens here is no part of it.
        """
        if not self._compacts:
            return
        if self._steps_until_compact:
            self._steps_until_compact -= 1
            return
        self._steps_until_compact = self._compacts
        for state in self._states:
            assert state.outputs is not None, "it was prepared"
            try:
                if state.sink.compact(state.outputs, self._compacts):
                    self._steps_until_compact = 0
            except (ConnectorError, StorageError) as error:
                _logger.warning("the files for %s are not compacted: %s", state.name, error)

    def _check_history(self, step: _Step) -> None:
        """Check that no history is replaced because the epochs after it are not known.

        Raises:
            QueryError: it would be.
        """
        is_first = step.number is not None or all(state.last is None for state in self._states)
        if self._mode == "history" and step.before is None and not (is_first or self._replaces):
            raise QueryError(
                f"mirror {self.name!r} cannot continue its history: the epochs after the last one "
                "that it has were collected, or the checkpoint was replaced. The tables are "
                "unchanged. Give another name and another table, or replace=True (--replace) for a "
                "new history in place of this one"
            )

    def _failures(self, states: str, epoch: int) -> contextlib.AbstractContextManager[None]:
        return sink_failures(f"the sink of {states} in mirror {self.name!r}", epoch)

    def _prepare(self, state: MirroredState, manifest: EpochManifest) -> None:
        with self._failures(state.name, manifest.epoch):
            state.prepare(self.name, manifest, replaces=self._replaces)

    def _stage(self, state: MirroredState, step: _Step, number: int) -> Publication | None:
        """Write the rows of a step to where readers do not see them; return None if it has none."""
        assert state.outputs is not None, "it was prepared"
        assert self._lease is not None, "it was taken"
        is_whole = state.name in step.whole
        if self._mode == "history" and number == state.last:
            return None  # it has the step, and cannot say any more how it was before
        replaces_all = is_whole and (self._mode != "changes" or state.replaces_others)
        attempt = Attempt(
            outputs=state.outputs,
            epoch=number,
            writer=self._writer,
            is_first=not state.is_written or number == state.last,
            without_outputs=(),
            check_owner=self._lease.renew,
            replaces_all=replaces_all,
        )
        part = Part(state.outputs, number, self._writer, 0, replaces_all=replaces_all)
        batches = state.batches(None if is_whole else step.before, step.epochs)
        with self._failures(state.name, step.last.epoch):
            state.sink.open(attempt)
            receipt = staged_part(state.sink, part, batches)
        if receipt is None and not replaces_all:
            return None
        return Publication(state.sink, attempt, [] if receipt is None else [receipt])

    def _write_position(self, step: _Step, number: int, changed: set[str]) -> None:
        """Write the position file: the step is about to be published.

        Parameters:
            changed: the states whose tables change.
        """
        tables = {
            state.name: TableNumbers(
                before=state.last,
                after=number if state.name in changed else state.last,
                is_whole=state.name in step.whole,
            )
            for state in self._states
        }
        position = MirrorPosition(
            name=self.name,
            mode=self._mode,
            number=number,
            start=None if step.before is None else str(step.before.id),
            end=str(step.last.id),
            tables=tables,
            places={state.name: state.place for state in self._states},
        )
        store_position(self._repository, position)


def _mirrored(
    epochs: EpochReader, text: str, sink: TableSink, options: MirrorOptions
) -> MirroredState:
    """Return a state of a mirror, given as "operator.state"."""
    operator, state = parted(text)
    changes = StateChanges(
        epochs.repository,
        operator,
        state,
        wide_ints=options.wide_ints,
        allow_pickle=options.allow_pickle,
        form=options.mode,
    )
    directory = None if options.directory is None else Path(options.directory)
    rocksdb = options.rocksdb or RocksOptions()
    return MirroredState(changes, operator, state, sink, options.mode, directory, rocksdb)


def _together(
    changed: Sequence[tuple[MirroredState, Publication]],
) -> Iterator[Sequence[tuple[MirroredState, Publication]]]:
    """Yield publications in groups, each for one transaction if its target has transactions."""
    groups: dict[object, list[tuple[MirroredState, Publication]]] = {}
    for state, publication in changed:
        shared = publication.sink.transactions
        groups.setdefault(state.name if shared is None else shared, []).append((state, publication))
    yield from groups.values()
