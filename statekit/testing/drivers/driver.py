"""Base of the harnesses: real epochs and commits, crashes, other parallelism, reads of states."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from statekit.backend.interface import Backend as RowBackend
from statekit.backend.mutation import Batch
from statekit.calls.event_loops import VirtualTimeLoop, with_event_loop
from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError, RestoreError, StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.job.plan import Operator
from statekit.keygroup import GROUP_BYTES, key_group, pack_group, shard_of_group
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.runtime.shard import obtained
from statekit.shown import shown
from statekit.state.base import State, StateSpec
from statekit.state.key_scope import Clocks, KeyScope
from statekit.state.timers import Timer
from statekit.testing.drivers.process_memory import ProcessMemory
from statekit.timestamp import datetime_to_micros, instant
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies
from statekit.working_copy.uploader import uploader

Backend = Literal["memory", "rocksdb"]

_END = b"\xff" * 16  # behind all keys of rows


@dataclass(frozen=True)
class EpochContents:
    """Stored contents after an epoch, as plain Python.

    Parameters:
        states: the values of each operator's keyed states, by operator, state and key.
        timers: the timers, by operator and key.
        operator_states: per shard, by operator and state.
        rows: the number of rows of each keyed state, by operator and state.
        late: the number of late records so far.
    """

    states: dict[tuple[str, str], dict[Any, Any]]
    timers: dict[str, dict[Any, list[Timer]]]
    operator_states: dict[tuple[str, str], list[Any]]
    rows: dict[tuple[str, str], int]
    late: int


def check_backend(name: str) -> None:
    """Check the name of a backend.

    Raises:
        StateTypeError: there is no such backend.
    """
    if name not in get_args(Backend):
        raise StateTypeError(f'backend={shown(name)}: use "memory" or "rocksdb"')


def _remove_copies(directory: str) -> None:
    """Remove working copies, after their uploads have ended."""
    uploader().give_up(f"{directory}{os.sep}")
    shutil.rmtree(directory, ignore_errors=True)


class JobDriver:
    """Base of the harnesses: it runs epochs of a job.

    Parameters:
        job: the job.
        parallelism: shards per operator.
        backend: where rows are kept between epochs; or working copies, which stay after a crash.
        checkpoint: to commit to, and to continue from; None keeps everything in memory.
        allow_dropped_state: continue although the code no longer declares a stored state.
        memory: the memory of the functions outside of states, as a new process has it; None takes
            it now.
    """

    def __init__(
        self,
        job: Job,
        parallelism: int | None,
        backend: Backend | WorkingCopies,
        checkpoint: str | Path | Repository | None,
        *,
        allow_dropped_state: bool,
        memory: ProcessMemory | None = None,
    ) -> None:
        if isinstance(backend, str):
            check_backend(backend)
        if not isinstance(checkpoint, str | Path | Repository | None):
            raise StateTypeError(
                f"checkpoint={shown(checkpoint)}: give a path or an open repository"
            )
        self._job = job
        self._repository = (
            Repository.in_memory() if checkpoint is None else Repository.of(checkpoint)
        )
        self._backend = backend
        self._allow_dropped_state = allow_dropped_state
        self._directory: str | None = None
        self._now_us = 0
        self._memory = memory or memory_of(job)
        self._runner = self._start(parallelism)

    def _start(self, parallelism: int | None) -> LocalRunner:
        copies: WorkingCopies = MemoryCopies()
        if not isinstance(self._backend, str):
            copies = self._backend
        elif self._backend == "rocksdb":
            if self._directory is None:
                self._directory = tempfile.mkdtemp(prefix="statekit-harness-")
                weakref.finalize(self, _remove_copies, self._directory)
            copies = DiskCopies(self._directory)
        return LocalRunner(
            self._job.plan,
            self._repository,
            copies,
            RunOptions(parallelism=parallelism, allow_dropped_state=self._allow_dropped_state),
        )

    @property
    def parallelism(self) -> int:
        """Number of shards per operator."""
        return self._runner.coordinator.parallelism

    @property
    def key_groups(self) -> int:
        """Number of key groups of the checkpoint."""
        return self._runner.coordinator.key_groups

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator, which plans and commits the epochs."""
        return self._runner.coordinator

    @property
    def copies(self) -> WorkingCopies:
        """The working copies of the shards."""
        return self._runner.copies

    @property
    def epoch(self) -> int | None:
        """The number of the last committed epoch; None before the first commit."""
        last = self._runner.coordinator.last
        return None if last is None else last.epoch

    def crash(self) -> None:
        """Drop all uncommitted changes and reopen at the last committed epoch.

        All values that functions keep outside of states are lost, as in a new process: globals,
        attributes of classes, closures and caches are as they were when the harness was made.
        """
        self.rescale(self.parallelism)

    def rescale(self, parallelism: int) -> None:
        """Restart at the last committed epoch with so many shards. The memory of the process is
        lost, as in a crash.

        Raises:
            RescaleError: the number is not possible.
        """
        self._memory.restore()
        self._runner = self._start(parallelism)

    def checkpoint(self, path: str | Path) -> None:
        """Write all committed epochs to a directory, from which `restore` can start."""
        target = Repository(path)
        if target.newest_job_file() is not None:
            raise StatekitError(f"{path} contains a checkpoint already: choose an empty directory")
        self._repository.copy_to(target)

    # -------------------------------------------------------------------------------------- epochs

    def set_clock(self, to: dt.datetime) -> None:
        """Set the processing time of the epochs from now on. It never goes back.

        A harness starts at 1970-01-01 UTC.

        Raises:
            StateTypeError: `to` is earlier than the processing time of the last epoch.
        """
        micros, last = datetime_to_micros(to), self._runner.coordinator.last
        if last is not None and micros < last.processing_time_us:
            raise StateTypeError(
                f"the processing time is {instant(last.processing_time_us)} already: {to} is "
                "earlier"
            )
        self._now_us = micros

    def _epoch(
        self, inputs: Mapping[str, Iterable[Any]] | None = None, **options: Any
    ) -> dict[str, list[Any]]:
        """Run one epoch, commit it, and return the records of each sink.

        Pauses and timeouts of calls take no time.

        Parameters:
            options: as for `LocalRunner.epoch`.
        """
        with with_event_loop(VirtualTimeLoop()):
            return self._runner.epoch(inputs or {}, at_us=self._now_us, **options)

    def _epoch_at_watermark(
        self, to: dt.datetime, operators: Sequence[str], **options: Any
    ) -> dict[str, list[Any]]:
        """Run an epoch without records whose watermark is `to`.

        Parameters:
            operators: the operators whose watermark this is.
            options: as for `LocalRunner.epoch`.
        """
        coordinator, micros = self._runner.coordinator, datetime_to_micros(to)
        coordinator.begin(at_us=self._now_us)
        for name in operators:
            reached = coordinator.watermarks_us[name]
            last = None if coordinator.last is None else coordinator.last.operators[name]
            if micros < reached or (last is not None and micros == last.watermark_us):
                raise StateTypeError(
                    f"the watermark is at {instant(reached)} already: {to} is not later"
                )
        return self._epoch(to=dict.fromkeys(operators, micros), **options)

    def _epoch_at_time(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Run an epoch without records at a processing time."""
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

    # -------------------------------------------------------------------------------------- states

    def _state_of(self, operator: Operator, name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python."""
        spec = _spec(operator, name, local=False)
        with self._opened_at(operator, key) as (scope, backend, _):
            return plain_state(spec, spec.bind(scope, backend))

    def _operator_state_of(self, operator: Operator, name: str) -> list[Any]:
        """Return operator state after the last epoch: one plain Python value per shard."""
        spec = _spec(operator, name, local=True)
        states = []
        for shard in range(self.parallelism):
            with self._copy_of(operator, shard) as (backend, plan):
                stay = KeyScope.of_shard(plan, Batch(), _nothing)
                states.append(plain_state(spec, spec.bind(stay, backend)))
        return states

    def _timers_of(self, operator: Operator, key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first."""
        with self._opened_at(operator, key) as (scope, backend, plan):
            timers = operator.declared.bind_timers(scope, backend, plan)
            return [] if timers is None else timers.list()

    def contents(self) -> EpochContents:
        """Return all states and timers after the last epoch, as plain Python."""
        last = self._runner.coordinator.last
        late = 0 if last is None else sum(each.late_so_far for each in last.operators.values())
        found = EpochContents({}, {}, {}, {}, late)
        for operator in self._job.plan.operators:
            for spec in operator.declared.states:
                if spec.kind.is_local:
                    of_shards = self._operator_state_of(operator, spec.name)
                    found.operator_states[operator.name, spec.name] = of_shards
                else:
                    found.states[operator.name, spec.name] = {}
                    rows = {} if last is None else last.operators[operator.name].rows
                    found.rows[operator.name, spec.name] = rows.get(spec.name, 0)
            found.timers[operator.name] = {}
            if operator.declared.key:
                for shard in range(self.parallelism):
                    self._add_contents(found, operator, shard)
        return found

    def _add_contents(self, found: EpochContents, operator: Operator, shard: int) -> None:
        """Add the states and timers of the keys of a shard."""
        process = operator.declared
        keyed = [spec for spec in process.states if not spec.kind.is_local]
        families = [spec.name for spec in keyed]
        if process.handles_timers:
            families.append(TIMERS)
        decode = process.key_codec.decode
        with self._copy_of(operator, shard) as (backend, plan):
            prefixes = {
                row_key[: decode(row_key, GROUP_BYTES)[1]]
                for family in families
                for row_key, _ in backend.scan(family, b"", _END)
            }
            for prefix in sorted(prefixes):
                key = decode(prefix, GROUP_BYTES)[0]
                scope = self._scope_at(prefix, key, plan)
                for spec in keyed:
                    value = plain_state(spec, spec.bind(scope, backend))
                    if value if spec.kind.shape is not RowShape.VALUE else value is not None:
                        found.states[operator.name, spec.name][key] = value
                timers = process.bind_timers(scope, backend, plan)
                if timers is not None and (pending := list(timers.list())):
                    found.timers[operator.name][key] = pending

    def _shard_of(self, operator: Operator, key: Any) -> int:
        if not operator.declared.key:
            raise QueryError(f"{operator.name} has no key: its records are distributed round robin")
        # A key of another type would hash to some shard too.
        operator.declared.key_codec.encode(key)
        group = key_group(key, self.key_groups)
        return shard_of_group(group, self.parallelism, self.key_groups)

    def states_of(self, operator: Operator, key: Any, plan: ShardPlan) -> dict[str, Any]:
        """Return the keyed states of a key at the start of an epoch, as plain Python.

        Parameters:
            plan: the plan of its shard, or of a part of the shard with the key.
        """
        prefix = row_key_prefix(operator.declared, key, self.key_groups)
        with self._opened(operator, plan) as backend:
            scope = self._scope_at(prefix, key, plan)
            keyed = [spec for spec in operator.declared.states if not spec.kind.is_local]
            return {spec.name: plain_state(spec, spec.bind(scope, backend)) for spec in keyed}

    @contextlib.contextmanager
    def _copy_of(self, operator: Operator, shard: int) -> Iterator[tuple[RowBackend, ShardPlan]]:
        """Open the rows of a shard after the last epoch."""
        plan = self._runner.coordinator.plans(operator.name)[shard]
        with self._opened(operator, plan) as backend:
            yield backend, plan

    @contextlib.contextmanager
    def _opened(self, operator: Operator, plan: ShardPlan) -> Iterator[RowBackend]:
        """Open the rows of a shard at the start of an epoch."""
        families = operator.declared.families_in(plan)
        repository = self._runner.coordinator.repository
        copy = obtained(plan, families, repository, self._runner.copies)
        try:
            yield copy.backend
        finally:
            copy.abandon()

    @contextlib.contextmanager
    def _opened_at(
        self, operator: Operator, key: Any
    ) -> Iterator[tuple[KeyScope, RowBackend, ShardPlan]]:
        """Open a key scope after the last epoch."""
        with self._copy_of(operator, self._shard_of(operator, key)) as (backend, plan):
            prefix = row_key_prefix(operator.declared, key, self.key_groups)
            yield self._scope_at(prefix, key, plan), backend, plan

    def _scope_at(self, prefix: bytes, key: Any, plan: ShardPlan) -> KeyScope:
        """Return a key scope after the last epoch.

        Parameters:
            prefix: of the key.
        """
        scope = KeyScope.of_keys(plan, Batch(), _nothing)
        scope.enter(prefix, key)
        last = self._runner.coordinator.last
        if last is not None:
            scope.clocks = Clocks(plan.reached_us, last.processing_time_us, plan.reached_us)
        return scope


def memory_of(job: Job) -> ProcessMemory:
    """Return the memory of the functions of a job outside of states, as it is now."""
    return ProcessMemory(job, [operator.declared.fn for operator in job.plan.operators])


def stored_epochs(
    path: str | Path,
    parallelism: int | None,
    key_groups: int | None,
    operators: Iterable[Process[Any, Any, Any]],
) -> Repository:
    """Return a checkpoint in memory with the epochs of a directory, which does not change.

    Parameters:
        path: a directory that `JobDriver.checkpoint` has written, or a savepoint.
        parallelism, key_groups: of the checkpoint that is made from a savepoint.
        operators: the process functions that read its states.
    """
    repository = Repository.in_memory()
    stored = Repository(path, create=False)
    if stored.newest_job_file() is not None:
        stored.copy_to(repository)
    elif stored.is_savepoint:
        import_savepoint(
            Savepoint(stored),
            repository,
            parallelism=parallelism,
            key_groups=key_groups,
            specs={declared.name: declared.states for declared in operators},
        )
    else:
        raise RestoreError(f"{path} contains no checkpoint: write one with checkpoint(path)")
    return repository


def plain_state(spec: StateSpec, state: State) -> Any:
    """Return a bound state as plain Python: None, the value, a list or a dict."""
    bound: Any = state
    match spec.kind.shape:
        case RowShape.ELEMENTS:
            return list(bound)
        case RowShape.ENTRIES:
            return dict(bound.items())
        case RowShape.VALUE:
            return bound.get()


def row_key_prefix(process: Process[Any, Any, Any], key: Any, key_groups: int) -> bytes:
    """Return the start of the row keys of a key."""
    return pack_group(key_group(key, key_groups)) + process.key_codec.encode(key)


def _spec(operator: Operator, name: str, *, local: bool) -> StateSpec:
    specs = [spec for spec in operator.declared.states if spec.kind.is_local == local]
    for spec in specs:
        if spec.name == name:
            return spec
    title, other = ("operator state", "state") if local else ("state", "operator_state")
    raise QueryError(
        f"{operator.name} has no {title} {shown(name)}: it has {[spec.name for spec in specs]}; "
        f"use {other}() for the others"
    )


def _nothing() -> None:
    """Do nothing: a scope that only reads never spills."""
