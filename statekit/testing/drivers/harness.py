"""`Harness`: an operator under test, with real epochs and commits and no cluster; and `states`, to
call its function without a harness.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, cast, overload

from typing_extensions import TypeVar

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.repository import Repository
from statekit.errors import StateTypeError
from statekit.functions.failed_record import FailedRecord
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.job.stream import OperatorStream, Stream
from statekit.keygroup import pack_group
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.runtime.task import ShardTask
from statekit.shown import shown
from statekit.state.timers import Timer
from statekit.testing.drivers.driver import Backend, JobDriver, row_key_prefix, stored_epochs
from statekit.timestamp import datetime_to_micros
from statekit.working_copy.copies import WorkingCopies

_DRIVES = "a Harness drives"


U = TypeVar("U", default=Any)
T = TypeVar("T", default=Any)


class Harness(JobDriver, Generic[U, T]):
    """Test driver of one operator: it runs the real task, repository and commit protocol.

    Parameters:
        process: the decorated function; or the output stream of an operator, such as
            `stream.window(...).sum(...)`.
        parallelism: shards.
        key_groups: of the checkpoint.
        backend: where rows are kept between epochs: "memory" or "rocksdb"; or working copies, which
            stay after a crash, such as `FaultyCopies`.
        checkpoint: a directory or an open repository to commit to, and to continue from if it has
            epochs; None keeps everything in memory.
        allow_dropped_state: continue although the code no longer declares a stored state.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> harness = Harness(count, parallelism=3)
    >>> harness.send({"word": "a"}, {"word": "a"})
    [('a', 1), ('a', 2)]
    >>> harness.state("seen", "a"), harness.state("seen", "b")
    (2, None)
    """

    @overload
    def __init__(
        self: Harness[U, T],
        process: Process[Iterator[T], ..., U],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: Harness[U, T],
        process: Process[T, ..., U] | OperatorStream[U, T],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: Harness[U, Any],
        process: Process[Any, Any, U] | Stream[U],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
    ) -> None: ...
    def __init__(
        self,
        process: Process[Any, Any, U] | Stream[U],
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
    ) -> None:
        self.process = process = process_of(process, _DRIVES)
        self._late: list[T] = []
        self._errors: list[FailedRecord] = []
        job = job_of(process, key_groups)
        super().__init__(
            job, parallelism, backend, checkpoint, allow_dropped_state=allow_dropped_state
        )

    @property
    def _operator(self) -> Operator:
        (operator,) = self._job.plan.operators
        return operator

    def send(self, *records: T | Mapping[str, Any], broadcast: Sequence[Any] = ()) -> list[U]:
        """Run one epoch over these records, commit it, and return its outputs.

        An error restores the last committed epoch.

        Parameters:
            records: of the type of the function, or mappings of its fields.
            broadcast: records for the functions decorated with `@….on_broadcast`, in all shards.

        Raises:
            StateTypeError: there are broadcast records, and no such function.
        """
        if broadcast and self.process.handlers.record_type is None:
            raise StateTypeError(
                f"{self.process.name} handles no broadcast records: decorate a function with "
                f"@{self.process.name}.on_broadcast"
            )
        names = [source.name for source in self._job.plan.sources]
        given = dict(zip(names, (records, broadcast), strict=False))
        return self._outputs(self._epoch(given))

    def broadcast(self, *records: Any) -> list[U]:
        """Run one epoch with broadcast records only, and return its outputs.

        Raises:
            StateTypeError: no function handles broadcast records.
        """
        return self.send(broadcast=records)

    def advance_watermark(self, to: dt.datetime) -> list[U]:
        """Run an epoch without records whose watermark is `to`, and return its outputs.

        Parameters:
            to: later than the watermark of the last epoch. Records of that epoch may have advanced
                the watermark of the next one: `to` may equal that, and not be earlier.

        Raises:
            StateTypeError: the process has no event time, or `to` is too early.
        """
        if self.process.event_time is None:
            raise StateTypeError(
                f"{self.process.name} has no watermark: declare @process(event_time=...)"
            )
        return self._outputs(self._epoch_at_watermark(to, [self.process.name]))

    def advance_processing_time(self, to: dt.datetime) -> list[U]:
        """Run an epoch without records at `to`, and return its outputs.

        A harness starts at 1970-01-01 UTC, and only these calls advance its processing time.

        Raises:
            StateTypeError: `to` is not later than the processing time of the last epoch.
        """
        return self._outputs(self._epoch_at_time(to))

    def _outputs(self, emitted: dict[str, list[Any]]) -> list[U]:
        self._late += emitted.get("late", [])
        self._errors += emitted.get("errors", [])
        return emitted["outputs"]

    @property
    def late(self) -> list[T]:
        """The late records so far, in order."""
        return self._late[:]

    @property
    def errors(self) -> list[FailedRecord]:
        """The records and timers for which the function failed so far, in order; none unless it is
        declared with `on_error="collect"`.
        """
        return self._errors[:]

    def timers(self, key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first."""
        return self._timers_of(self._operator, key)

    def state(self, name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python: None, the value, a list
        or a dict.
        """
        return self._state_of(self._operator, name, key)

    def operator_state(self, name: str) -> list[Any]:
        """Return operator state after the last epoch: one plain Python value per shard.

        None, the value, a list or a dict; for a `Checkpointed` object, its snapshot.
        """
        return self._operator_state_of(self._operator, name)

    def shard_of(self, key: Any) -> int:
        """Return the shard that owns a key."""
        return self._shard_of(self._operator, key)

    @classmethod
    def restore(
        cls,
        process: Process[Any, Any, U] | Stream[U],
        path: str | Path,
        parallelism: int | None = None,
        key_groups: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        *,
        allow_dropped_state: bool = False,
    ) -> Harness[U, T]:
        """Return a harness that starts from a directory of `checkpoint`, or from a savepoint. The
        directory does not change.
        """
        repository = stored_epochs(path, parallelism, key_groups, [process_of(process, _DRIVES)])
        return cls(
            process,
            parallelism,
            key_groups,
            backend,
            repository,
            allow_dropped_state=allow_dropped_state,
        )


def job_of(process: Process[Any, Any, Any], key_groups: int | None = None) -> Job:
    """Return a job of one operator, with the sources `records` and perhaps `broadcast`, and the
    sinks `outputs` and perhaps `late` and `errors`.
    """
    job = Job(process.name, key_groups=key_groups)
    records = _source(job, process, "records", process.record_type)
    handled = process.handlers.record_type
    broadcast = []
    if handled is not None:
        broadcast.append(_source(job, process, "broadcast", handled))
    stream = records.process(process, broadcast=broadcast)
    stream.sink("outputs")
    if process.event_time is not None:
        stream.late.sink("late")
    if process.errors.on_error == "collect":
        stream.errors.sink("errors")
    return job


def _source(job: Job, process: Process[Any, Any, Any], name: str, records: Records) -> Stream[Any]:
    """Return one source, of one or several types. Records are processed in the order of `send`.

    So event time follows the largest one, of any type.
    """
    if process.name == name:
        name = f"{name}-in"
    if isinstance(records, RecordType):
        return job.source(name, cast(Any, records))
    return job.source(name, *(member.cls for member in records.members))


def process_of(given: Process[Any, Any, Any] | Stream[Any], who: str) -> Process[Any, Any, Any]:
    """Return the process function of an operator.

    Parameters:
        who: the begin of the error message, such as "a Harness drives".
    """
    declared = given.plan.process_of(given.name) if isinstance(given, Stream) else given
    if not isinstance(declared, Process):
        raise StateTypeError(
            f"{who} a function decorated with @process, or an operator, not {shown(given)}: "
            "give it the function, or the stream that .process() or .window() returned"
        )
    return declared


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
