"""What drives a job in a test: real epochs and commits, crashes, other parallelism, and states that
are read back.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from statekit.backend.interface import Backend as RowBackend
from statekit.backend.mutation import Batch
from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError, RestoreError, StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.options import RunOptions
from statekit.keygroup import key_group, pack_group, shard_of_group
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.runtime.local import LocalRunner
from statekit.runtime.shard import obtained
from statekit.state.base import State, StateSpec
from statekit.state.key_scope import Clocks, KeyScope
from statekit.state.timers import Timer
from statekit.timestamp import datetime_to_micros, instant
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies

Backend = Literal["memory", "rocksdb"]


class JobDriver:
    """Runs epochs of a job. Base of the harnesses.

    Parameters:
        job: the job.
        parallelism: shards per operator.
        backend: where rows are kept between epochs.
        checkpoint: to commit to, and to continue from; None keeps everything in memory.
        allow_dropped_state: continue although the code no longer declares a stored state.
    """

    def __init__(
        self,
        job: Job,
        parallelism: int | None,
        backend: Backend,
        checkpoint: str | Path | Repository | None,
        *,
        allow_dropped_state: bool,
    ) -> None:
        if backend not in ("memory", "rocksdb"):
            raise StateTypeError(f'backend={backend!r}: use "memory" or "rocksdb"')
        self._job = job
        self._repository = (
            Repository.in_memory() if checkpoint is None else Repository.of(checkpoint)
        )
        self._backend = backend
        self._allow_dropped_state = allow_dropped_state
        self._directory = tempfile.mkdtemp(prefix="statekit-harness-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._now_us = 0
        self._runner = self._start(parallelism)

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

    # -------------------------------------------------------------------------------------- epochs

    def _epoch(
        self, inputs: Mapping[str, Iterable[Any]] | None = None, **instants: Any
    ) -> dict[str, list[Any]]:
        """Run one epoch, commit it, and return the records of each sink."""
        return self._runner.epoch(inputs or {}, at_us=self._now_us, **instants)

    def _epoch_at_watermark(
        self, to: dt.datetime, operators: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Run an epoch without records whose watermark is `to`.

        Parameters:
            operators: whose watermark this is.
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
        return self._epoch(to=dict.fromkeys(operators, micros))

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

    def _state_of(self, process: Process[Any, Any, Any], name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python."""
        spec = _spec(process, name, local=False)
        with self._opened_at(process, key) as (scope, backend, _):
            return plain(spec, spec.bind(scope, backend))

    def _operator_state_of(self, process: Process[Any, Any, Any], name: str) -> list[Any]:
        """Return operator state after the last epoch: one plain Python value per shard."""
        spec = _spec(process, name, local=True)
        states = []
        for shard in range(self.parallelism):
            with self._copy_of(process, shard) as (backend, plan):
                stay = KeyScope.of_shard(plan, Batch(), _nothing)
                states.append(plain(spec, spec.bind(stay, backend)))
        return states

    def _timers_of(self, process: Process[Any, Any, Any], key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first."""
        with self._opened_at(process, key) as (scope, backend, plan):
            timers = process.bind_timers(scope, backend, plan)
            return [] if timers is None else timers.list()

    def _shard_of(self, process: Process[Any, Any, Any], key: Any) -> int:
        """Return the shard that owns a key."""
        if not process.key:
            raise QueryError(f"{process.name} has no key: its records are distributed round robin")
        process.key_codec.encode(key)  # a key of another type would hash to some shard too
        group = key_group(key, self.key_groups)
        return shard_of_group(group, self.parallelism, self.key_groups)

    @contextlib.contextmanager
    def _copy_of(
        self, process: Process[Any, Any, Any], shard: int
    ) -> Iterator[tuple[RowBackend, ShardPlan]]:
        """Open the rows of a shard after the last epoch."""
        coordinator = self._runner.coordinator
        plan = coordinator.plans(process.name)[shard]
        families = process.families_in(plan)
        copy = obtained(plan, families, coordinator.repository, self._runner.copies)
        try:
            yield copy.backend, plan
        finally:
            copy.abandon()

    @contextlib.contextmanager
    def _opened_at(
        self, process: Process[Any, Any, Any], key: Any
    ) -> Iterator[tuple[KeyScope, RowBackend, ShardPlan]]:
        """Open a key scope after the last epoch."""
        with self._copy_of(process, self._shard_of(process, key)) as (backend, plan):
            scope = KeyScope.of_keys(plan, Batch(), _nothing)
            scope.enter(prefix_of(process, key, self.key_groups), key)
            last = self._runner.coordinator.last
            if last is not None:
                scope.clocks = Clocks(plan.reached_us, last.processing_time_us, plan.reached_us)
            yield scope, backend, plan


def stored_epochs(
    path: str | Path,
    parallelism: int | None,
    key_groups: int | None,
    operators: Iterable[Process[Any, Any, Any]],
) -> Repository:
    """Return a checkpoint in memory with the epochs of a directory, which does not change.

    Parameters:
        path: of `JobDriver.checkpoint`, or a savepoint.
        parallelism, key_groups: of a checkpoint that is made of a savepoint.
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


def prefix_of(process: Process[Any, Any, Any], key: Any, key_groups: int) -> bytes:
    """Return the start of the row keys of a key."""
    return pack_group(key_group(key, key_groups)) + process.key_codec.encode(key)


def _spec(process: Process[Any, Any, Any], name: str, *, local: bool) -> StateSpec:
    """Return the keyed or operator state of that name."""
    specs = [spec for spec in process.states if spec.kind.is_local == local]
    for spec in specs:
        if spec.name == name:
            return spec
    title, other = ("operator state", "state") if local else ("state", "operator_state")
    raise QueryError(
        f"{process.name} has no {title} {name!r}: it has {[spec.name for spec in specs]}; "
        f"use {other}() for the others"
    )


def _nothing() -> None:
    """Do nothing: a scope that only reads never spills."""
