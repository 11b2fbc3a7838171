"""Recorded input: the records of a shard, recorded immediately before the function receives
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.store import Store
from statekit.functions.process import Process
from statekit.recording.recorder import Recorder
from statekit.recording.recording import Recording
from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch
from statekit.runtime.shard_input import ShardInput


class RecordedInput(ShardInput):
    """The input of a shard. It is recorded while it is read.

    Parameters:
        given: the input.
        recording: takes the records.
    """

    def __init__(self, given: ShardInput, recording: Recording) -> None:
        super().__init__(given._broadcast, given._batches)
        self._recording = recording
        self._is_read = False

    def broadcast(self) -> Iterator[BroadcastRecords]:
        for records in super().broadcast():
            self._recording.add_broadcast(records)
            yield records

    def batches(self) -> Iterator[KeyedBatch]:
        for batch in super().batches():
            self._recording.add(batch)
            yield batch
        self._is_read = True

    def close(self) -> None:
        self._recording.close(is_whole=self._is_read)


def recorded_input(
    recorder: Recorder | None,
    process: Process[Any, Any, Any],
    plan: ShardPlan,
    shards: int,
    given: ShardInput,
) -> ShardInput:
    """Return the input of a shard; recorded, if the recorder keeps this shard.

    Parameters:
        shards: how many there are.
    """
    if recorder is None or not recorder.keeps(plan.operator, plan.epoch, plan.shard):
        return given
    limit_bytes = max(1, recorder.limit_bytes // shards)
    store = _store(str(recorder.path))
    return RecordedInput(given, Recording(store, process, plan, shards, limit_bytes))


@lru_cache(maxsize=8)
def _store(path: str) -> Store:
    return Store(path)
