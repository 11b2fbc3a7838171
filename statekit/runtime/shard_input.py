"""The records of one shard in one epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from statekit.records.keyed_batch import BroadcastRecords, KeyedBatch


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
        """Return whether there are any records. Reads the first ones."""
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
        """Return the keyed batches, after all broadcast records were read."""
        assert self._is_exhausted, "broadcast records come before keyed batches"
        return self._batches
