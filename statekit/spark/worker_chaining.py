"""Pass outputs of one operator to the next within the same task."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import groupby
from typing import Any

from statekit.checkpoint.manifest import ShardPlan, ShardReport
from statekit.errors import ProcessError, StateTypeError, StrayKeyError
from statekit.functions.process import Process
from statekit.keygroup import key_group
from statekit.records.keyed_batch import KeyedBatch


class Outputs:
    """What a shard puts out, list by list.

    Parameters:
        declared: the process function that runs.
        running: its run of the shard, as of `run_shard`.
    """

    def __init__(
        self, declared: Process[Any, Any, Any], running: Generator[list[Any], None, ShardReport]
    ) -> None:
        self._declared = declared
        self._running = running
        self._report: ShardReport | None = None

    @property
    def report(self) -> ShardReport:
        """Of the run, which has ended."""
        assert self._report is not None, "all outputs were taken"
        return self._report

    def __iter__(self) -> Iterator[list[Any]]:
        self._report = yield from self._running

    def close(self) -> None:
        """End the run, if it has not ended yet. It is as if it had never begun."""
        self._running.close()

    def chunks_for(
        self, taking: Process[Any, Any, Any], plan: ShardPlan, key_groups: int
    ) -> Iterator[KeyedBatch]:
        """The outputs as records of another operator's shard.

        Raises:
            StrayKeyError: one of them is not of this shard.
            ProcessError: one of them does not fit the declared type.
        """
        key_of, (start, end) = taking.key_of(), plan.base.groups
        time_of = None if taking.event_time is None else taking.time_of_taken()
        for outputs in self:
            output_type = self._declared.output_type
            if output_type is not None:  # else nobody takes them
                outputs = output_type.received(output_type.stored(outputs))
            records = taking.combined(outputs, plan)
            keys = list(map(key_of, records))
            groups: list[int] = []
            for key, run in groupby(keys):
                group = self._group(key, taking, key_groups)
                if not start <= group <= end:
                    raise StrayKeyError(
                        f"{plan.operator}: {self._declared.name} puts out a record of key {key!r}, "
                        f"which is not of shard {plan.shard}"
                    )
                groups += [group] * sum(1 for _ in run)
            times = () if time_of is None else list(map(time_of, records))
            yield KeyedBatch(keys, groups, keys, records, times)

    def _group(self, key: Any, taking: Process[Any, Any, Any], key_groups: int) -> int:
        try:
            return key_group(key, key_groups)
        except StateTypeError as error:
            raise ProcessError(
                f"operator {taking.name!r}: {key!r} cannot be a key: {error}"
            ) from error
