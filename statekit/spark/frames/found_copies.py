"""Working copies on executors from an earlier run. Shards return to these executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from statekit.spark.frames.placed_frame import PlacedFrames
from statekit.spark.worker.shards import executor_id

_COLUMNS = "executor string, operator string, first int, last int"


Shard = tuple[str, tuple[int, int]]
"""An operator and the key groups of one shard."""


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
