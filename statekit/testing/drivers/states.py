"""`states`: the states of a process function in memory, to call it as an ordinary function."""

from __future__ import annotations

import datetime as dt
from typing import Any

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.functions.process import Process
from statekit.job.stream import Stream
from statekit.keygroup import pack_group
from statekit.runtime.task import ShardTask
from statekit.testing.drivers.driver import row_key_prefix
from statekit.testing.drivers.harness import process_of
from statekit.timestamp import datetime_to_micros

_GROUPS = 128


def states(
    process: Process[Any, Any, Any] | Stream[Any], key: Any = None, *, at: dt.datetime | None = None
) -> dict[str, Any]:
    """Return empty states of a process function, and its context, to call it directly.

    The states are those of one key, in memory. Pass them with `**`. Operator state is that of one
    empty shard; broadcast state may be written too.

    Parameters:
        process: the decorated function.
        key: the value of `ctx.key`; the states do not depend on it.
        at: the event time and the processing time of the context; None for 1970-01-01 UTC.

    Raises:
        StateTypeError: this is no process function, or it has no such key.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[int]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield seen.get() or 0
    >>> given = states(count)
    >>> given["seen"].update(5)
    >>> list(count({"word": "a"}, **given)), list(count({"word": "a"}, **given))
    ([6], [7])
    """
    declared = process_of(process, "states() takes")
    backend = MemoryBackend(declared.families)
    shard = ShardState(first_group=0, last_group=_GROUPS - 1)
    task = ShardTask(
        declared, ShardPlan("", declared.name, 0, 0, shard, None), backend, backend.write
    )
    task.scope.enter(pack_group(0) if key is None else row_key_prefix(declared, key, _GROUPS), key)
    clocks, now_us = task.scope.clocks, 0 if at is None else datetime_to_micros(at)
    clocks.processing_time_us = now_us
    clocks.event_us = None if declared.event_time is None else now_us
    task.shard_scope.broadcasting = True
    found = {name: state.handle for name, state in task.states.items()}
    if declared.signature.context_parameter is not None:
        found[declared.signature.context_parameter] = task.context
    return found
