"""The input of a shard in one epoch: keyed batches, and their construction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.keygroup import key_group
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
        yield from self._broadcast
        self._is_exhausted = True

    def batches(self) -> Iterator[KeyedBatch]:
        """Return the keyed batches. Call it after all broadcast records were read."""
        assert self._is_exhausted, "broadcast records come before keyed batches"
        return self._batches

    def close(self) -> None:
        """Release the input. Called when the shard has run, or has failed."""


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
        self,
        keys: Sequence[Any],
        groups: Sequence[int],
        records: Sequence[Any],
        inputs: Sequence[int] = (),
    ) -> KeyedBatch:
        """Return a batch of records with known keys and key groups.

        Parameters:
            inputs: the number of the input of each record, if there are several.
        """
        process = self._process
        times: Sequence[int] = ()
        if process.event_time is not None:
            times = list(map(process.time_of_input(), records))
        return KeyedBatch(keys, groups, keys, records, times, inputs)
