"""Pass outputs of one operator to the next within the same task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from statekit.checkpoint.manifest import ShardPlan
from statekit.errors import StrayKeyError
from statekit.functions.process import Process
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.batch_builder import KeyedBatchBuilder


def passed_batches(
    emitted: Iterable[list[Any]],
    process: Process[Any, Any, Any],
    next_process: Process[Any, Any, Any],
    plan: ShardPlan,
    key_groups: int,
) -> Iterator[KeyedBatch]:
    """Yield outputs of a shard as records of the next operator's shard.

    Parameters:
        emitted: the outputs, list by list.
        process: the process function that emits them.
        next_process, plan: the next process function, and the plan of its shard.
        key_groups: the number of key groups.

    Raises:
        StrayKeyError: a record belongs to another shard.
        ProcessError: an output does not fit the declared type.
    """
    builder, (start, end) = KeyedBatchBuilder(next_process, key_groups), plan.base.groups
    for outputs in emitted:
        output_type = process.output_type
        if output_type is not None:  # otherwise no operator reads them
            outputs = output_type.received(output_type.stored(outputs))
        records = next_process.combined(outputs, plan)
        keys = builder.keys(records)
        groups: list[int] = []
        for key, group, size in builder.key_runs(keys, records):
            if not start <= group <= end:
                raise StrayKeyError(
                    f"{process.name} emits a record of key {key!r}, which does not "
                    f"belong to shard {plan.shard} of {plan.operator}",
                    plan.operator,
                )
            groups += [group] * size
        yield builder.batch(keys, groups, records)
