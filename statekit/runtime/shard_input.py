"""The input of a shard in one epoch: keyed batches, their construction and their recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import Any

from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.store import Store
from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.keygroup import key_group
from statekit.recording.recorder import Recorder
from statekit.recording.recording import Recording
from statekit.records.combined_rows import CombinedRows
from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch
from statekit.runtime.key_iteration import not_a_key


class ShardInput:
    """Broadcast records and keyed batches of one shard, in this order.

    Both may be read lazily from one iterator, so the broadcast records have to be exhausted before
    the first batch is read.

    Parameters:
        broadcast: records that every shard gets.
        batches: records of the shard's keys.
    """

    def __init__(
        self, broadcast: Iterable[BroadcastRecords], batches: Iterable[KeyedBatch]
    ) -> None:
        self._broadcast = iter(broadcast)
        self._batches = iter(batches)
        self._is_exhausted = False
        self._recording: Recording | None = None
        self._is_read = False

    def record(
        self,
        recorder: Recorder | None,
        process: Process[Any, Any, Any],
        plan: ShardPlan,
        shards: int,
    ) -> None:
        """Record the input while it is read, if the recorder keeps this shard.

        Parameters:
            process: the function that receives the records.
            plan: the shard and the times of the epoch.
            shards: the number of shards.
        """
        if recorder is not None and recorder.keeps(plan.operator, plan.epoch, plan.shard):
            limit_bytes = max(1, recorder.limit_bytes // shards)
            store = _store(str(recorder.path))
            self._recording = Recording(store, process, plan, shards, limit_bytes)

    def has_records(self) -> bool:
        """Return whether there are any records. This reads the first ones."""
        first = next(self._broadcast, None)
        if first is not None:
            self._broadcast = chain((first,), self._broadcast)
            return True
        self._is_exhausted = True
        first_batch = next(self._batches, None)
        if first_batch is not None:
            self._batches = chain((first_batch,), self._batches)
        return first_batch is not None

    def broadcast(self) -> Iterator[BroadcastRecords]:
        """Yield the broadcast records."""
        for records in self._broadcast:
            if self._recording is not None:
                self._recording.add_broadcast(records)
            yield records
        self._is_exhausted = True

    def batches(self) -> Iterator[KeyedBatch]:
        """Return the keyed batches. Call it after all broadcast records were read."""
        assert self._is_exhausted, "broadcast records come before keyed batches"
        return self._batches if self._recording is None else self._recorded(self._recording)

    def _recorded(self, recording: Recording) -> Iterator[KeyedBatch]:
        for batch in self._batches:
            recording.add(batch)
            yield batch
        self._is_read = True

    def close(self) -> None:
        """Release the input. Called when the shard has run, or has failed."""
        if self._recording is not None:
            self._recording.close(is_whole=self._is_read)


@lru_cache(maxsize=8)
def _store(path: str) -> Store:
    return Store(path)


class KeyedBatchBuilder:
    """Builds the keyed batches of an operator.

    Parameters:
        process: the process function of the operator.
        key_groups: the number of key groups.
        operator: its name in messages; None for the name of the function.
    """

    def __init__(
        self, process: Process[Any, Any, Any], key_groups: int, operator: str | None = None
    ) -> None:
        self._process = process
        self._key_groups = key_groups
        self._operator = operator or process.name

    @cached_property
    def _key_of(self) -> Callable[[Any], Any]:
        # Created on first use: the keys of rows may only be in their columns.
        return self._process.key_of()

    def keys(self, records: Sequence[Any]) -> list[Any]:
        """Return the key of each record.

        Raises:
            ProcessError: a record has no such field.
        """
        if isinstance(records, CombinedRows):
            return list(records.keys())
        keys: list[Any] = []
        try:
            keys.extend(map(self._key_of, records))
        except KeyError as error:
            raise self._process.taken.missing(error, records[len(keys)]) from None
        return keys

    def key_group(self, key: Any, record: Any) -> int:
        """Return the key group of the key of a record.

        Raises:
            ProcessError: the value cannot be a key.
        """
        try:
            return key_group(key, self._key_groups)
        except StateTypeError as error:
            raise not_a_key(self._operator, self._process.key, key, record, error) from error

    def key_runs(
        self, keys: Sequence[Any], records: Sequence[Any]
    ) -> Iterator[tuple[Any, int, int]]:
        """Yield each run of equal keys: the key, its key group, and the number of its records."""
        start = 0
        for key, run in groupby(keys):
            group = self.key_group(key, records[start])
            size = sum(1 for _ in run)
            yield key, group, size
            start += size

    def batch(
        self, keys: Sequence[Any], groups: Sequence[int], records: Sequence[Any]
    ) -> KeyedBatch:
        """Return a batch of records with known keys and key groups."""
        return KeyedBatch(keys, groups, keys, records, self.times(records))

    def taken(self, batch: KeyedBatch) -> KeyedBatch:
        """Return a batch with its records as the process takes them: columns, or records."""
        if self._process.traits.takes_columns:
            return batch.in_columns()
        if isinstance(batch.records, CombinedRows):
            return batch._replace(records=list(batch.records))
        return batch

    def times(self, records: Sequence[Any]) -> Sequence[int]:
        """Return the event time of each record in microseconds; nothing without event time."""
        if self._process.event_time is None:
            return ()
        return self._process.times_of_input(records)
