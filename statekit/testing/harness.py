"""`Harness`: an operator under test, with real epochs and commits and no cluster."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from statekit.backend.interface import Backend as RowBackend
from statekit.backend.interface import MemoryBackend
from statekit.backend.mutation import Batch
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError, RestoreError, StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.job.stream import Stream
from statekit.keygroup import key_group, pack_group, shard_of_group
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.runtime.local import LocalRunner
from statekit.runtime.shard import obtained
from statekit.runtime.task import ShardTask
from statekit.state.base import State, StateSpec
from statekit.state.key_scope import Clocks, KeyScope
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros, instant
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies

Backend = Literal["memory", "rocksdb"]


class Harness:
    """Drives one operator through the real task, repository and commit protocol.

    Parameters:
        process: the decorated function; or the output stream of an operator, such as
            `stream.window(...).sum(...)`.
        parallelism: shards.
        key_groups: of the checkpoint.
        backend: where rows are kept between epochs: "memory" or "rocksdb".
        checkpoint: a directory or an open repository to commit to, and to continue from if it has
            epochs; None keeps everything in memory.
        allow_dropped_state: continue although the code no longer declares a stored state.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> harness = Harness(count, parallelism=3)
    >>> harness.send({"word": "a"}, {"word": "a"})
    [('a', 1), ('a', 2)]
    >>> harness.state("seen", "a"), harness.state("seen", "b")
    (2, None)
    """

    def __init__(
        self,
        process: Process[Any, Any, Any] | Stream[Any],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
    ) -> None:
        self.process = process = _declared(process)
        self._repository = (
            Repository.in_memory() if checkpoint is None else Repository.of(checkpoint)
        )
        if backend not in ("memory", "rocksdb"):
            raise StateTypeError(f'backend={backend!r}: use "memory" or "rocksdb"')
        self._backend = backend
        self._allow_dropped_state = allow_dropped_state
        self._directory = tempfile.mkdtemp(prefix="statekit-harness-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._job = Job(process.name, key_groups=key_groups)
        records = self._source("records", process.record_type)
        handled = process.handlers.record_type
        broadcast = [] if handled is None else [self._source("broadcast", handled)]
        stream = records.process(process, broadcast=broadcast)
        stream.sink("outputs")
        if process.event_time is not None:
            stream.late.sink("late")
        self._late: list[Any] = []
        self._now_us = 0
        self._runner = self._start(parallelism)

    def _source(self, name: str, records: Records) -> Stream[Any]:
        """Return one source, of one or several types. Records are processed in the order of `send`.

        So event time follows the largest one, of any type.
        """
        if self.process.name == name:
            name = f"{name}-in"
        if isinstance(records, RecordType):
            return self._job.source(name, cast(Any, records))
        return self._job.source(name, *(member.cls for member in records.members))

    def _start(self, parallelism: int | None) -> LocalRunner:
        copies: WorkingCopies = MemoryCopies()
        if self._backend == "rocksdb":
            copies = DiskCopies(self._directory)
        return LocalRunner(
            self._job,
            self._repository,
            copies,
            RunOptions(parallelism=parallelism, allow_dropped_state=self._allow_dropped_state),
        )

    @property
    def parallelism(self) -> int:
        """How many shards there are."""
        return self._runner.coordinator.parallelism

    @property
    def key_groups(self) -> int:
        """How many key groups the checkpoint has."""
        return self._runner.coordinator.key_groups

    @property
    def epoch(self) -> int | None:
        """The number of the last committed epoch."""
        last = self._runner.coordinator.last
        return None if last is None else last.epoch

    def send(self, *records: Any, broadcast: Sequence[Any] = ()) -> list[Any]:
        """Run one epoch over these records, commit it, and return its outputs.

        An error restores the last committed epoch.

        Parameters:
            broadcast: records for the functions decorated with `@….on_broadcast`, in all shards.

        Raises:
            StateTypeError: there are broadcast records, and no such function.
        """
        if broadcast and self.process.handlers.record_type is None:
            raise StateTypeError(
                f"{self.process.name} handles no broadcast records: decorate a function with "
                f"@{self.process.name}.on_broadcast"
            )
        return self._epoch(records, broadcast)

    def broadcast(self, *records: Any) -> list[Any]:
        """Run one epoch with broadcast records only, and return its outputs.

        Raises:
            StateTypeError: there is no function for them.
        """
        return self.send(broadcast=records)

    def advance_watermark(self, to: dt.datetime) -> list[Any]:
        """Run an epoch without records whose watermark is `to`, and return its outputs.

        Parameters:
            to: later than the watermark of the last epoch. Records of that epoch may have advanced
                the watermark of the next one: `to` may equal that, and not be earlier.

        Raises:
            StateTypeError: the process has no event time, or `to` is too early.
        """
        coordinator = self._runner.coordinator
        if self.process.event_time is None:
            raise StateTypeError(
                f"{self.process.name} has no watermark: declare @process(event_time=...)"
            )
        micros = datetime_to_micros(to)
        coordinator.begin(at_us=self._now_us)
        reached = coordinator.watermarks_us[self.process.name]
        last = None if coordinator.last is None else coordinator.last.operators[self.process.name]
        if micros < reached or (last is not None and micros == last.watermark_us):
            raise StateTypeError(
                f"the watermark is at {instant(reached)} already: {to} is not later"
            )
        return self._epoch(to={self.process.name: micros})

    def advance_processing_time(self, to: dt.datetime) -> list[Any]:
        """Run an epoch without records at `to`, and return its outputs.

        A harness starts at 1970-01-01 UTC, and only these calls advance its processing time.

        Raises:
            StateTypeError: `to` is not later than the processing time of the last epoch.
        """
        micros, last = datetime_to_micros(to), self._runner.coordinator.last
        if last is not None and micros <= last.processing_time_us:
            raise StateTypeError(
                f"the processing time is {instant(last.processing_time_us)} already: "
                f"{to} is not later"
            )
        before, self._now_us = self._now_us, micros
        try:
            return self._epoch()
        except BaseException:
            self._now_us = before
            raise

    def _epoch(
        self, records: Sequence[Any] = (), broadcast: Sequence[Any] = (), **instants: Any
    ) -> list[Any]:
        names = [source.name for source in self._job.sources]
        given = dict(zip(names, (records, broadcast), strict=False))
        emitted = self._runner.epoch(given, at_us=self._now_us, **instants)
        self._late += emitted.get("late", [])
        return emitted["outputs"]

    @property
    def late(self) -> list[Any]:
        """The late records so far, in order."""
        return self._late[:]

    def timers(self, key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first."""
        with self._opened_at(key) as (scope, backend, plan):
            timers = self.process.bind_timers(scope, backend, plan)
            return [] if timers is None else timers.list()

    def state(self, name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python: None, the value, a list
        or a dict.
        """
        spec = self._spec(name, local=False)
        with self._opened_at(key) as (scope, backend, _):
            return plain(spec, spec.bind(scope, backend))

    def operator_state(self, name: str) -> list[Any]:
        """Return operator state after the last epoch: one plain Python value per shard.

        None, the value, a list or a dict; for a `Checkpointed` object, its snapshot.
        """
        spec = self._spec(name, local=True)
        states = []
        for shard in range(self.parallelism):
            with self._copy_of(shard) as (backend, plan):
                stay = KeyScope.of_shard(plan, Batch(), _nothing)
                states.append(plain(spec, spec.bind(stay, backend)))
        return states

    def _spec(self, name: str, *, local: bool) -> StateSpec:
        """Return the keyed or operator state of that name."""
        specs = [spec for spec in self.process.states if spec.kind.is_local == local]
        for spec in specs:
            if spec.name == name:
                return spec
        title, other = ("operator state", "state") if local else ("state", "operator_state")
        raise QueryError(
            f"{self.process.name} has no {title} {name!r}: it has {[spec.name for spec in specs]}; "
            f"use {other}() for the others"
        )

    @contextlib.contextmanager
    def _copy_of(self, shard: int) -> Iterator[tuple[RowBackend, ShardPlan]]:
        """Open the rows of a shard after the last epoch."""
        coordinator = self._runner.coordinator
        plan = coordinator.plans(self.process.name)[shard]
        families = self.process.families_in(plan)
        copy = obtained(plan, families, coordinator.repository, self._runner.copies)
        try:
            yield copy.backend, plan
        finally:
            copy.abandon()

    @contextlib.contextmanager
    def _opened_at(self, key: Any) -> Iterator[tuple[KeyScope, RowBackend, ShardPlan]]:
        """Open a key scope after the last epoch."""
        with self._copy_of(self.shard_of(key)) as (backend, plan):
            scope = KeyScope.of_keys(plan, Batch(), _nothing)
            scope.enter(_prefix(self.process, key, self.key_groups), key)
            last = self._runner.coordinator.last
            if last is not None:
                scope.clocks = Clocks(plan.reached_us, last.processing_time_us, plan.reached_us)
            yield scope, backend, plan

    def crash(self) -> None:
        """Drop all uncommitted changes and reopen at the last committed epoch."""
        self._runner = self._start(self.parallelism)

    def rescale(self, parallelism: int) -> None:
        """Restart at the last committed epoch with so many shards.

        Raises:
            RescaleError: the number is not possible.
        """
        self._runner = self._start(parallelism)

    def checkpoint(self, path: str | Path) -> None:
        """Write all committed epochs to a directory, from which `restore` can start."""
        target = Repository(path)
        if target.newest_job_file() is not None:
            raise StatekitError(f"{path} contains a checkpoint already: choose an empty directory")
        self._repository.copy_to(target)

    @classmethod
    def restore(
        cls,
        process: Process[Any, Any, Any] | Stream[Any],
        path: str | Path,
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend = "memory",
        *,
        allow_dropped_state: bool = False,
    ) -> Harness:
        """Return a harness that starts from a directory of `checkpoint`, or from a savepoint. The
        directory does not change.
        """
        repository = Repository.in_memory()
        stored = Repository(path, create=False)
        if stored.newest_job_file() is not None:
            stored.copy_to(repository)
        elif stored.is_savepoint:
            declared = _declared(process)
            import_savepoint(
                Savepoint(stored),
                repository,
                parallelism=parallelism,
                key_groups=key_groups,
                specs={declared.name: declared.states},
            )
        else:
            raise RestoreError(f"{path} contains no checkpoint: write one with checkpoint(path)")
        return cls(
            process,
            parallelism,
            key_groups,
            backend,
            repository,
            allow_dropped_state=allow_dropped_state,
        )

    def shard_of(self, key: Any) -> int:
        """Return the shard that owns a key."""
        if not self.process.key:
            raise QueryError(
                f"{self.process.name} has no key: its records are distributed round robin"
            )
        self.process.key_codec.encode(key)  # a key of another type would hash to some shard too
        group = key_group(key, self.key_groups)
        return shard_of_group(group, self.parallelism, self.key_groups)


def _declared(given: Process[Any, Any, Any] | Stream[Any]) -> Process[Any, Any, Any]:
    """Return the process function of an operator."""
    declared = given.declared if isinstance(given, Stream) else given
    if not isinstance(declared, Process):
        raise StateTypeError(
            f"a Harness drives a function decorated with @process, or an operator, not {given!r}: "
            "give it the function, or the stream that .process() or .window() returned"
        )
    return declared


def _nothing() -> None:
    """Do nothing: a scope that only reads never spills."""


def bind(process: Process[Any, Any, Any], key: Any) -> dict[str, Any]:
    """Return states of a process function at one key, in memory, to call the function directly.

    Operator state is that of one empty shard; broadcast state may be written too.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[int]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield seen.get() or 0
    >>> states = bind(count, "a")
    >>> list(count({"word": "a"}, **states)), list(count({"word": "a"}, **states))
    ([1], [2])
    """
    backend = MemoryBackend(process.families)
    plan = ShardPlan("", process.name, 0, 0, ShardState(first_group=0, last_group=127), None)
    task = ShardTask(process, plan, backend, backend.write)
    task.scope.enter(_prefix(process, key, 128), key)
    task.shard_scope.broadcasting = True
    states = {name: state.handle for name, state in task.states.items()}
    if process.signature.context_parameter is not None:
        states[process.signature.context_parameter] = task.context
    return states


def plain(spec: StateSpec, state: State) -> Any:
    """Return a bound state as plain Python: None, the value, a list or a dict."""
    bound: Any = state
    match spec.kind.shape:
        case RowShape.ELEMENTS:
            return list(bound)
        case RowShape.ENTRIES:
            return dict(bound.items())
        case RowShape.VALUE:
            return bound.get()


def _prefix(process: Process[Any, Any, Any], key: Any, key_groups: int) -> bytes:
    return pack_group(key_group(key, key_groups)) + process.key_codec.encode(key)
