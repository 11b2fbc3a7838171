"""A process function, or a whole job, under test: real epochs, real commits, no cluster."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Literal

from statekit.backend import MemoryBackend
from statekit.errors import QueryError, RestoreError, StatekitError, StateTypeError
from statekit.job import Job
from statekit.keygroup import key_group, shard_of_group
from statekit.list_state import ListState
from statekit.local import LocalRunner
from statekit.map_state import MapState
from statekit.mutation import Batch
from statekit.process import Context, Process
from statekit.repository import Repository, group_bounds
from statekit.state import State, StateSpec, Visit
from statekit.working_copy import DiskCopies, MemoryCopies, WorkingCopies

__all__ = ["Harness", "bind"]

Backend = Literal["memory", "rocksdb"]


class Harness:
    """Drives one process function through the real task, repository and commit protocol.

    Parameters:
        process: the decorated function.
        parallelism: shards.
        key_groups: of the checkpoint.
        backend: where rows are kept between epochs: "memory" or "rocksdb".
        checkpoint: a directory to commit to, and to continue from if it has epochs; None keeps
            everything in memory.

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
        process: Process[Any, Any, Any],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend = "memory",
        checkpoint: str | Path | None = None,
    ) -> None:
        repository = Repository.in_memory() if checkpoint is None else Repository(checkpoint)
        self._open(process, repository, parallelism, key_groups, backend)

    def _open(
        self,
        process: Process[Any, Any, Any],
        repository: Repository,
        parallelism: int | None,
        key_groups: int | None,
        backend: Backend,
    ) -> None:
        if backend not in ("memory", "rocksdb"):
            raise StateTypeError(f'backend={backend!r}: use "memory" or "rocksdb"')
        self.process = process
        self._repository = repository
        self._backend = backend
        self._directory = tempfile.mkdtemp(prefix="statekit-harness-")
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._job = Job(process.name, key_groups=key_groups)
        source = "records" if process.name != "records" else "incoming"
        stream = self._job.source(source, process.record_type.cls).process(process)
        stream.sink("outputs")
        self._runner = self._start(parallelism)

    def _start(self, parallelism: int | None) -> LocalRunner:
        copies: WorkingCopies = MemoryCopies()
        if self._backend == "rocksdb":
            copies = DiskCopies(self._directory)
        return LocalRunner(self._job, self._repository, copies, parallelism=parallelism)

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

    def send(self, *records: Any) -> list[Any]:
        """Run one epoch over these records, commit it, and return what it put out.

        An error leaves everything as it was after the last committed epoch.
        """
        return self._runner.epoch({self._job.sources[0].name: records})["outputs"]

    def state(self, name: str, key: Any) -> Any:
        """What a state holds for a key after the last epoch, as plain Python.

        None, the value, a list or a dict.
        """
        spec = next((spec for spec in self.process.states if spec.name == name), None)
        if spec is None:
            known = [spec.name for spec in self.process.states]
            raise QueryError(f"{self.process.name} has no state {name!r}: it has {known}")
        coordinator = self._runner.coordinator
        plan = coordinator.plan(self.process.name, self.shard_of(key))
        copy = self._runner.copies.obtain(
            plan.checkpoint_id,
            plan.operator,
            tuple(spec.name for spec in self.process.states),
            plan.base,
            plan.base_epoch,
            coordinator.repository,
        )
        try:
            visit = _visit(self.process, key, self.key_groups)
            return plain(spec, spec.bind(visit, copy.backend))
        finally:
            copy.drop()

    def crash(self) -> None:
        """Drop everything that is not committed and reopen at the last committed epoch."""
        self._runner = self._start(self.parallelism)

    def checkpoint(self, path: str | Path) -> None:
        """Write all committed epochs to a directory, from which `restore` can start."""
        target = Repository(path)
        if target.job_file() is not None:
            raise StatekitError(f"{path} holds a checkpoint already: choose an empty directory")
        self._repository.copy_to(target)

    @classmethod
    def restore(
        cls,
        process: Process[Any, Any, Any],
        path: str | Path,
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend = "memory",
    ) -> Harness:
        """A harness that starts from what `checkpoint` wrote. The directory is left as it is."""
        repository = Repository.in_memory()
        stored = Repository(path, create=False)
        if stored.job_file() is None:
            raise RestoreError(f"{path} holds no checkpoint: write one with checkpoint(path)")
        stored.copy_to(repository)
        made = cls.__new__(cls)
        made._open(process, repository, parallelism, key_groups, backend)
        return made

    def shard_of(self, key: Any) -> int:
        """The shard that owns a key."""
        self.process.key_codec.encode(key)  # a key of another type would hash to some shard too
        group = key_group(key, self.key_groups)
        return shard_of_group(group, self.parallelism, self.key_groups)


def bind(process: Process[Any, Any, Any], key: Any) -> dict[str, Any]:
    """States of a process function at one key, in memory, to call the function directly with.

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
    backend = MemoryBackend([spec.name for spec in process.states])
    visit = _visit(process, key, 128)

    def spill() -> None:
        backend.write(visit.batch)
        visit.batch.clear()

    visit.spill = spill
    states: dict[str, Any] = {spec.name: spec.bind(visit, backend) for spec in process.states}
    if process.context_parameter is not None:
        states[process.context_parameter] = Context(visit, shard=0)
    return states


def plain(spec: StateSpec, state: State) -> Any:
    """What a bound state holds, as plain Python: None, the value, a list or a dict."""
    if isinstance(state, ListState):
        return list(state)
    if isinstance(state, MapState):
        return dict(state.items())
    return state.get()  # type: ignore[attr-defined]


def _visit(process: Process[Any, Any, Any], key: Any, key_groups: int) -> Visit:
    group = key_group(key, key_groups)
    prefix = group_bounds(group, group)[0] + process.key_codec.encode(key)
    return Visit(process.name, 0, Batch(), lambda: None, prefix, key)
