"""Pass outputs of one operator to the next within the same task."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from statekit.checkpoint.manifest import ShardPlan, ShardReport
from statekit.errors import StrayKeyError
from statekit.functions.process import Process
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.batch_builder import KeyedBatchBuilder


class Outputs:
    """The outputs of a shard, list by list.

    Parameters:
        process: the process function.
        running: its run of the shard, as of `run_shard`.
    """

    def __init__(
        self, process: Process[Any, Any, Any], running: Generator[list[Any], None, ShardReport]
    ) -> None:
        self._process = process
        self._running = running
        self._report: ShardReport | None = None

    @property
    def report(self) -> ShardReport:
        """The report of the run, after it has ended."""
        assert self._report is not None, "all outputs were taken"
        return self._report

    def __iter__(self) -> Iterator[list[Any]]:
        self._report = yield from self._running

    def close(self) -> None:
        """End the run, if it has not ended yet, without any effect."""
        self._running.close()

    def batches_for(
        self, next_process: Process[Any, Any, Any], plan: ShardPlan, key_groups: int
    ) -> Iterator[KeyedBatch]:
        """Yield the outputs as records of the next operator's shard.

        Raises:
            StrayKeyError: a record belongs to another shard.
            ProcessError: an output does not fit the declared type.
        """
        builder, (start, end) = KeyedBatchBuilder(next_process, key_groups), plan.base.groups
        for outputs in self:
            output_type = self._process.output_type
            if output_type is not None:  # otherwise no operator reads them
                outputs = output_type.received(output_type.stored(outputs))
            records = next_process.combined(outputs, plan)
            keys = builder.keys(records)
            groups: list[int] = []
            for key, group, size in builder.key_runs(keys, records):
                if not start <= group <= end:
                    raise StrayKeyError(
                        f"{self._process.name} emits a record of key {key!r}, which does not "
                        f"belong to shard {plan.shard} of {plan.operator}",
                        plan.operator,
                    )
                groups += [group] * size
            yield builder.batch(keys, groups, records)
