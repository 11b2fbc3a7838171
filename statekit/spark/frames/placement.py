"""Placement: the choice of executors for the shards of an operator on a cluster.

A shard runs where its working copy is, epoch after epoch. The driver chooses an executor for each
task, and Spark prefers it (`placed_frame`). Shards return to executors that have their copies from
an earlier run. No correctness depends on it: a task that runs elsewhere restores its shards, or
applies the changes that their copies have missed.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from statekit.checkpoint.manifest import EpochManifest, IdleShards, Report, ShardState
from statekit.errors import StorageError
from statekit.job.chaining import Pass
from statekit.spark.frames.placed_frame import PlacedFrames
from statekit.spark.worker.worker_process import executor_id

_logger = logging.getLogger("statekit.placement")

_UNEVEN = 1.25
"""Tasks move between running executors if one has more than this many times its share."""

_TASK_ROWS = 10_000
"""The weight of a task without rows, in rows."""
_COLUMNS = "executor string, operator string, first int, last int"
Shard = tuple[str, tuple[int, int]]
"""An operator and the key groups of one shard."""


class Executor(NamedTuple):
    """An executor of the cluster.

    Parameters:
        id: Spark's.
        host: where it runs.
        cores: how many tasks it runs at a time.
    """

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """The name of the executor as a preferred location of a task."""
        return f"executor_{self.host}_{self.id}"


def assigned(
    weights: Sequence[int], executors: Sequence[Executor], before: Sequence[str | None]
) -> list[str]:
    """Return the executor of each task.

    A task stays where it was, as long as that executor is up. The others are given to the executors
    with the least work for their cores. If an executor then has much more than its share, as few
    tasks as possible leave it.

    Parameters:
        weights: of the tasks, above 0.
        executors: those that are up, at least one.
        before: the id of the executor of each task; None if it had none.

    >>> two = [Executor("0", "a", 1), Executor("1", "b", 1)]
    >>> assigned([5, 5, 5, 5], two, ["0", "0", None, "gone"])
    ['0', '0', '1', '1']
    """
    cores = {executor.id: max(1, executor.cores) for executor in executors}
    chosen = [own if own in cores else None for own in before]
    load = dict.fromkeys(cores, 0)
    for own, weight in zip(chosen, weights, strict=True):
        if own is not None:
            load[own] += weight

    queue = [(load[id] / cores[id], id) for id in cores]
    heapq.heapify(queue)
    homeless = [task for task, own in enumerate(chosen) if own is None]
    for task in sorted(homeless, key=lambda task: (-weights[task], task)):
        _, id = heapq.heappop(queue)
        chosen[task] = id
        load[id] += weights[task]
        heapq.heappush(queue, (load[id] / cores[id], id))

    placed = [own for own in chosen if own is not None]
    _even_out(placed, weights, load, cores)
    return placed


def _even_out(
    chosen: list[str], weights: Sequence[int], load: dict[str, int], cores: Mapping[str, int]
) -> None:
    """Move tasks from executors with far more than their share to those with the least."""
    share = sum(weights) / sum(cores.values())
    for _ in chosen:
        fullest = max(cores, key=lambda id: (load[id] / cores[id], id))
        emptiest = min(cores, key=lambda id: (load[id] / cores[id], id))
        if load[fullest] <= _UNEVEN * share * cores[fullest]:
            return
        own = [task for task, id in enumerate(chosen) if id == fullest]
        gap = load[fullest] / cores[fullest] - load[emptiest] / cores[emptiest]
        # A task as heavy as the gap would only swap the two.
        fitting = [task for task in own if weights[task] / cores[emptiest] < gap]
        if not fitting:
            return
        task = max(fitting, key=lambda task: (weights[task], -task))
        chosen[task] = emptiest
        load[fullest] -= weights[task]
        load[emptiest] += weights[task]


class ExecutorCopy(NamedTuple):
    """A copy on the disk of an executor.

    Parameters:
        executor: its id.
        operator: the operator of the shard.
        groups: the key groups of the shard.
    """

    executor: str
    operator: str
    groups: tuple[int, int]


@dataclass(frozen=True)
class _ListCopies:
    """Lists the copies below a directory, in a task of Spark.

    Parameters:
        directory: with working copies.
        checkpoint_id: whose copies.
    """

    directory: str
    checkpoint_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        marks = Path(self.directory, self.checkpoint_id).glob("*/*/clean")
        places = [mark.parts[-3:-1] for mark in marks]
        ranges = [tuple(map(int, groups.split("-"))) for _, groups in places]
        columns = {
            "executor": pa.array([executor_id()] * len(places), pa.string()),
            "operator": pa.array([operator for operator, _ in places], pa.string()),
            "first": pa.array([first for first, _ in ranges], pa.int32()),
            "last": pa.array([last for _, last in ranges], pa.int32()),
        }
        yield pa.record_batch(columns)


def found_copies(
    frames: PlacedFrames, places: Sequence[str], directory: str, checkpoint_id: str
) -> list[ExecutorCopy]:
    """Return the working copies on executors. An executor is missing if its task ran elsewhere.

    Parameters:
        frames: builds the frame that has a task per executor.
        places: the location of each executor.
        directory: where copies are on each host.
        checkpoint_id: whose copies.
    """
    listed = frames.frame(places).mapInArrow(_ListCopies(directory, checkpoint_id), _COLUMNS)
    rows = listed.collect()
    return [ExecutorCopy(row.executor, row.operator, (row.first, row.last)) for row in rows]


def owners(copies: Iterable[ExecutorCopy]) -> dict[Shard, str]:
    """Return one executor per shard: if several have a copy, the one with the fewest shards.

    Executors of one host share its copies.

    >>> shared = [ExecutorCopy(id, "bank", groups) for groups in [(0, 1), (2, 3)] for id in "ab"]
    >>> owners(shared)
    {('bank', (0, 1)): 'a', ('bank', (2, 3)): 'b'}
    """
    having: dict[Shard, set[str]] = {}
    for copy in copies:
        having.setdefault((copy.operator, copy.groups), set()).add(copy.executor)
    shards = Counter[str]()
    chosen = {}
    for shard, executors in sorted(having.items()):
        chosen[shard] = min(executors, key=lambda id: (shards[id], id))
        shards[chosen[shard]] += 1
    return chosen


@dataclass
class _Tasks:
    """The tasks of an operator.

    Parameters:
        executors: the id of the executor of each; None if it has none yet.
        placed: their locations, and the frame that has them.
    """

    executors: list[str | None]
    placed: tuple[tuple[str, ...], DataFrame] | None = None


class Placement:
    """Chooses executors for the tasks of each pass of operators, epoch after epoch.

    Parameters:
        context: Spark's, with a cluster.
        parallelism: the number of shards.
        directory: with working copies on each host that outlive a run; None if there are none.
        checkpoint_id: whose copies.
    """

    def __init__(
        self, context: SparkContext, parallelism: int, directory: str | None, checkpoint_id: str
    ) -> None:
        self._context = context
        self._parallelism = parallelism
        self._directory = directory
        self._checkpoint_id = checkpoint_id
        self._tasks: dict[str, _Tasks] = {}
        self._ran_on: dict[Shard, str] = {}
        self._has_looked_for_copies = False
        self._frames: PlacedFrames | None = None
        self._is_possible = True
        self._ids = ""
        self._executors: tuple[Executor, ...] = ()

    def tasks(self, operator: str, wanted: int) -> int:
        """Return the number of tasks for the shards of an operator.

        It stays the same while it can: each task has the shards of one range, and another number
        would give shards other neighbours. It is doubled, so that ranges are halved, when the
        cluster has grown.

        Parameters:
            wanted: the number that suits the cluster as it is.
        """
        tasks = self._tasks.setdefault(operator, _Tasks([None] * wanted))
        while 2 * len(tasks.executors) <= wanted:
            tasks.executors = [own for own in tasks.executors for _ in range(2)]
        return len(tasks.executors)

    def frame(
        self, session: SparkSession, each: Pass, last: EpochManifest | None
    ) -> DataFrame | None:
        """Return the frame that places the tasks of a pass; None while no executor is known.

        Parameters:
            last: the epoch before.
        """
        executors = self._alive()
        if not executors or not self._is_possible:
            return None
        if self._frames is None:
            self._frames = PlacedFrames(session)
        try:
            return self._placed(self._frames, each, executors, last)
        except StorageError as error:
            self._is_possible = False
            _logger.warning("%s", error)
            return None

    def _placed(
        self,
        frames: PlacedFrames,
        each: Pass,
        executors: Sequence[Executor],
        last: EpochManifest | None,
    ) -> DataFrame:
        if last is not None and not self._has_looked_for_copies:
            self._look_for_copies(frames, executors)
        tasks = self._tasks[each.first.name]
        if last is not None and tasks.placed is None:
            self._return_to_copies(each, tasks, last)
        weights = self._weights(each, len(tasks.executors), last)
        chosen = assigned(weights, executors, tasks.executors)
        tasks.executors = [*chosen]
        locations = {executor.id: executor.location for executor in executors}
        places = tuple(locations[id] for id in chosen)
        if tasks.placed is None or tasks.placed[0] != places:
            tasks.placed = places, frames.frame(places)
        return tasks.placed[1]

    def _look_for_copies(self, frames: PlacedFrames, executors: Sequence[Executor]) -> None:
        """Find the working copies on executors from an earlier run."""
        self._has_looked_for_copies = True
        if self._directory is not None:
            places = [executor.location for executor in executors]
            copies = found_copies(frames, places, self._directory, self._checkpoint_id)
            self._ran_on = owners(copies) | self._ran_on

    def _return_to_copies(self, each: Pass, tasks: _Tasks, last: EpochManifest) -> None:
        """Prefer the executors that have the copies of most shards of a task."""
        counts = [Counter[str]() for _ in tasks.executors]
        for task, shard in self._shards_by_task(each.first.name, len(counts), last):
            if (executor := self._ran_on.get((each.first.name, shard.groups))) is not None:
                counts[task][executor] += 1
        tasks.executors = [count.most_common(1)[0][0] if count else None for count in counts]

    def _shards_by_task(
        self, operator: str, tasks: int, last: EpochManifest
    ) -> Iterator[tuple[int, ShardState]]:
        """Yield the shards of an operator with their tasks; nothing before the first epoch of the
        operator.
        """
        epoch = last.operators.get(operator)
        if epoch is not None and len(epoch.shards) == self._parallelism:
            for number, shard in enumerate(epoch.shards):
                yield number * tasks // self._parallelism, shard

    def _weights(self, each: Pass, tasks: int, last: EpochManifest | None) -> list[int]:
        weights = [_TASK_ROWS] * tasks
        if last is None:
            return weights
        for operator in each.operators:
            for task, shard in self._shards_by_task(operator.name, tasks, last):
                weights[task] += max(0, sum(shard.rows.values()))
        return weights

    def noted(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports of an epoch, marked if their shard has moved. Record the executor of
        each shard.
        """
        noted: list[Report] = []
        for report in reports:
            if isinstance(report, IdleShards) or not report.executor:
                noted.append(report)
                continue
            shard = report.operator, report.shard.groups
            before = self._ran_on.get(shard)
            self._ran_on[shard] = report.executor
            has_moved = before is not None and before != report.executor
            noted.append(report.model_copy(update={"has_moved": has_moved}))
        return noted

    def _alive(self) -> tuple[Executor, ...]:
        """Return the running executors. Spark is asked for details only when they change."""
        spark = self._context._jsc.sc()
        ids = spark.getExecutorIds().mkString(",")
        if ids != self._ids:
            self._executors = _executors(spark, set(ids.split(",")) if ids else set())
            self._ids = ids if len(self._executors) == len(ids.split(",")) else ""
        return self._executors


def _executors(spark: Any, ids: set[str]) -> tuple[Executor, ...]:
    """Return the executors with these ids that Spark's status store knows."""
    found = spark.statusStore().executorList(True)
    every = (found.apply(number) for number in range(found.size()))
    known = [
        Executor(each.id(), each.hostPort().rpartition(":")[0], each.totalCores())
        for each in every
        if each.id() in ids
    ]
    return tuple(sorted(known))
