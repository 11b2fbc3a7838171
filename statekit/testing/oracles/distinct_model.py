"""`DistinctModel`: the operator of `Stream.distinct` over plain Python, with all kept records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statekit.functions.process import Process
from statekit.job.per_key.distinct import DistinctRecords
from statekit.testing.oracles.aggregate_model import unexpired


class DistinctModel:
    """Model of an operator that emits the first record of each value of some fields.

    Parameters:
        process: the operator.
    """

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        made_of: DistinctRecords = process.traits.made_of
        self._within_us = made_of.within_us
        self._key_of = process.key_of_record()
        self._time_of = None if process.event_time is None else process.time_of()
        self._ttl = process.states[0].ttl
        self._kept: dict[Any, list[tuple[Any, int]]] = {}

    def run(self, records: Sequence[Any], now_us: int) -> list[Any]:
        """Run one epoch, and return the records that are no duplicates.

        Parameters:
            records: those that are not late.
            now_us: the processing time.
        """
        # A TTL is compared with the write times before the epoch, and all records of an epoch have
        # one processing time.
        found = []
        for record in records:
            key = self._key_of(record)
            kept = unexpired(self._kept.get(key, []), self._ttl, now_us)
            if not any(self._is_same(record, other) for other, _ in kept):
                kept.append((record, now_us))
                found.append(record)
            elif self._ttl is not None and self._ttl.refresh == "read":
                kept = [(other, now_us) for other, _ in kept]
            self._kept[key] = kept
        return found

    def _is_same(self, record: Any, kept: Any) -> bool:
        """Return whether a kept record of the key makes another one a duplicate."""
        if self._time_of is None or self._within_us is None:
            return True
        return abs(self._time_of(record) - self._time_of(kept)) <= self._within_us
