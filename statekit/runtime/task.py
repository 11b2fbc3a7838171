"""The task: calls the user's function for the records of one shard, and collects the changes."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from operator import length_hint
from typing import Any

from statekit.backend.interface import Backend, StateSize
from statekit.backend.mutation import Batch
from statekit.calls.service_call import ServiceCall, ServiceError
from statekit.checkpoint.job_file import TIMERS, WAITING, Clock
from statekit.checkpoint.manifest import ShardPlan
from statekit.errors import (
    CALL_FAILURES,
    ProcessError,
    StatekitError,
    StateTypeError,
    is_close,
    is_users,
)
from statekit.functions.context import Context, Due
from statekit.functions.process import Process
from statekit.functions.signature import Bound
from statekit.records.keyed_batch import KeyColumns, KeyedBatch
from statekit.runtime.asked_services import answers, questions
from statekit.runtime.guarded_calls import Collect, GuardedCalls
from statekit.runtime.key_iteration import Handled, KeyIteration
from statekit.runtime.keyed_calls import KeyCalls, SectionScope
from statekit.shown import shown, shown_error, shown_text
from statekit.state.event_time_buffer import BufferedRecord, EventTimeBuffer
from statekit.state.key_scope import KeyScope
from statekit.state.timers import CLOCKS, DueTimers, Timers, due_keys
from statekit.state.undo_log import UndoLog
from statekit.watermark import BEGINNING, END, is_late


class ShardTask:
    """The execution of one shard of one operator in one epoch.

    Parameters:
        process: the process function.
        plan: the shard and the times of the epoch.
        backend: has the shard's rows as they were before the epoch.
        spill: applies a full batch to the backend.
        spill_local: the same for operator state; None if it is applied the same way.
        collect: takes failed records, if the function is declared to collect them; None to count
            them only.
    """

    def __init__(
        self,
        process: Process[Any, Any, Any],
        plan: ShardPlan,
        backend: Backend,
        spill: Callable[[Batch], None],
        spill_local: Callable[[Batch], None] | None = None,
        collect: Collect | None = None,
    ) -> None:
        self._process = process
        # Outputs are emitted in lists of this length. One call may yield any number of outputs, so
        # that a function can stream a state of any size.
        self._at_once = process.traits.outputs_at_once
        # Mutable outputs are copied when they are emitted: a function may emit one object several
        # times, or keep it and change it.
        self._copy = None if process.output_type is None else process.output_type.copy
        self._plan = plan
        self._backend = backend
        self.batch = Batch()
        kind = SectionScope if process.is_async else KeyScope
        self.scope = kind.of_keys(plan, self.batch, partial(_spill, self.batch, spill))
        self._keys = KeyIteration(self.scope, process.key_codec, process.key)
        if len(plan.inputs) == 1:
            self.scope.input = plan.inputs[0]
        elif process.reads_context or process.errors.goes_on:
            self._keys.inputs = plan.inputs
        self.local_batch = Batch()
        spill_now = partial(_spill, self.local_batch, spill_local or spill)
        self.shard_scope = KeyScope.of_shard(plan, self.local_batch, spill_now)
        self.states = {
            spec.name: spec.bind(self.shard_scope if spec.kind.is_local else self.scope, backend)
            for spec in process.states
        }
        self._timers = process.bind_timers(self.scope, backend, plan)
        self._guard = self._guarded(collect) if process.errors.goes_on else None
        self._late_us = process.late_us(plan)
        self._buffer = self._opened_buffer()
        self.context = Context(self.scope, plan.shard, self._timers)
        self._call, self._arguments = process.signature.bind(self.states, self.context)
        self._callbacks = process.bind_callbacks(self.states, self.context)
        self._handlers = process.handlers.bind(self.states, self.context)
        self.records_by_input: Counter[int] = Counter()
        self.largest_by_input: dict[int, int] = {}
        self.records_out = 0
        self.late = 0
        self._expiring = [state for state in self.states.values() if state.expiry is not None]
        has_time = self._timers is not None or self._buffer is not None or self._expiring
        # Those of due clocks are noted again if anything is left that is not due.
        waiting = plan.base.wake_us.items() if has_time else ()
        self.wake_us = {clock: at for clock, at in waiting if clock not in plan.due_clocks}

    def _guarded(self, collect: Collect | None) -> GuardedCalls:
        """Return the guard of a function whose failed calls do not end the epoch."""
        undo = UndoLog()
        for scope in (self.scope, self.shard_scope):
            scope.take_undo_log(undo)
        for state in self.states.values():
            state.take_undo_log(undo)
        if self._timers is not None:
            self._timers.take_undo_log(undo)
        place = self.scope if self._process.key else self.shard_scope
        before = self._plan.failed_before
        return GuardedCalls(self._process, self.scope, place, undo, before, collect)

    @property
    def failed(self) -> int:
        """The number of failed calls."""
        return 0 if self._guard is None else self._guard.failed

    @property
    def last_failure(self) -> str:
        """The last failed call, as text for messages; empty without any."""
        return "" if self._guard is None else self._guard.last

    def _opened_buffer(self) -> EventTimeBuffer | None:
        """Return the buffer of records that wait for their time; None if the order is that of
        arrival.
        """
        process, plan = self._process, self._plan
        if process.ordered is None:
            return None
        codec, given_up = process.codec_of_buffered(plan)
        return EventTimeBuffer(
            plan,
            self.batch,
            self._backend,
            codec,
            process.key_codec,
            self._wakes_at,
            process.handles_timers,
            process.tie_order(plan),
            given_up,
        )

    def broadcast(self, number: int, records: Sequence[Any]) -> None:
        """Handle broadcast records. Call it before `run`.

        A handler that fails ends the epoch, whatever the function declares for its records: all
        shards would report the same failure.

        Parameters:
            number: of the broadcast input.
            records: all of its records, which every shard gets in the same order.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        self.records_by_input[number] += len(records)
        with self.shard_scope.broadcast():
            for record in records:
                for output in self._handle("record", record, self._handlers(record)):
                    raise ProcessError(
                        f"operator {self.scope.operator!r} yielded {shown(output)} for the "
                        f"broadcast record {shown(record)}: its handler must return None"
                    )

    def run(self, batch: KeyedBatch) -> Iterator[list[Any]]:
        """Handle a batch and yield lists of outputs.

        The records of a key may continue in the next batch. Call `finish` after the last batch.

        Raises:
            ProcessError: the user's function failed, or a value cannot be a key.
            StateTypeError: the function wrote a value that the state's type does not allow.
        """
        batch = self._counted(batch)
        if self._buffer is not None:
            self._add_to_buffer(self._buffer, batch)
            return
        following = iter(batch.records)
        records = self._keys.records(batch, following)
        if self._process.event_time is not None:
            records = self._keys.at_times(records, batch.times)
        if self._keys.inputs and batch.inputs:
            records = self._keys.of_inputs(records, batch.inputs)

        def current() -> Handled:
            position = len(batch.records) - length_hint(following)
            return "record", batch.records[max(position - 1, 0)]

        yield from self._called(records, current)

    def run_all(self, batches: Iterator[KeyedBatch]) -> Iterator[list[Any]]:
        """Handle batches one after the other and yield lists of outputs.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        if self._process.traits.takes_columns:
            yield from self._run_columns(batches)
            return
        if self._process.traits.calls is not None:
            yield from self._lists(self._called_services(self._process.traits.calls, batches))
            return
        if isinstance(self.scope, SectionScope):
            yield from self._lists(self._called_at_once(self.scope, batches))
            return
        if self._process.traits.takes_many:
            yield from self._run_records(batches)
            return
        if not self._process.takes_runs:
            for batch in batches:
                yield from self.run(batch)
            return
        runs = self._keys.runs(map(self._counted, batches))
        yield from self._called(runs, self._keys.handled)

    def _called(self, inputs: Iterator[Any], current: Callable[[], Handled]) -> Iterator[list[Any]]:
        """Call the user's function with each input, and yield lists of outputs.

        Parameters:
            inputs: enters the key of an input when the input is taken.
            current: returns the input that was taken last, for messages.
        """
        bound = self._call, self._arguments
        if self._guard is None:
            # From here on, statekit runs no line of Python per record.
            emitted = self._copied(chain.from_iterable(_calls(*bound, inputs)))
        else:
            emitted = chain.from_iterable(self._guard.call_each(bound, inputs))
        try:
            yield from self._lists(emitted)
        except BaseException as error:
            if is_close(error):
                raise
            if (unread := self._keys.unread) is not None:
                raise unread  # noqa: B904 - the function's error only follows from it
            kind, handled = current()
            if is_users(error):
                raise self._failed(error, f"the {kind} was {shown(handled)}") from error
            if not self._keys.is_between:
                prefix = "" if kind == "record" else f"a key, and the {kind} was "
                self._note(error, f"{prefix}{shown(handled)}")
            raise

    def _called_at_once(self, scope: SectionScope, batches: Iterator[KeyedBatch]) -> Iterator[Any]:
        """Call an `async` function for many keys at a time, and yield the outputs."""
        bound = self._process.signature.bind_async(self.states, self.context)
        calls = KeyCalls(self._keys, scope, bound, self._copy, self._failure)
        counted = map(self._counted, batches)
        return chain.from_iterable(calls.outputs(counted, self._process.traits.concurrency))

    def _failure(self, error: BaseException, record: Any) -> BaseException:
        """Return the error to raise for an error of the function at the current key."""
        handled = shown(record)
        if isinstance(error, asyncio.CancelledError) or is_users(error):
            return self._failed(error, f"the record was {handled}")
        self._note(error, handled)
        return error

    def _called_services(self, call: ServiceCall, batches: Iterator[KeyedBatch]) -> Iterator[Any]:
        """Call a service for records, many at a time, and yield the outputs."""
        asked = questions(map(self._counted, batches), call.batch)
        try:
            for answered in answers(call, asked, goes_on=self._guard is not None):
                if self._guard is not None and answered.failed is not None:
                    failed = answered.failed
                    for record, number in zip(answered.records, answered.inputs, strict=True):
                        if len(self._plan.inputs) > 1:
                            self.scope.input = self._plan.inputs[number]
                        self._guard.note("record", record, failed.error, failed.times)
                yield from self._copied(chain.from_iterable(answered.outputs))
        except ServiceError as failed:
            handled = f"the record was {shown(failed.records[0])}"
            raise self._failed(failed.error, handled, failed.times) from failed.error

    def _lists(self, outputs: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield lists of outputs, and count the outputs.

        Raises:
            ProcessError: the function is declared to return None.
        """
        while some := list(islice(outputs, self._at_once)):
            if self._process.output_type is None:
                raise ProcessError(
                    f"operator {self.scope.operator!r} yielded {shown(some[0])} and is declared to "
                    "return None: declare Iterator[T]"
                )
            self.records_out += len(some)
            yield some

    def _run_columns(self, batches: Iterator[KeyedBatch]) -> Iterator[list[Any]]:
        """Call a function that takes many keys at a time."""
        together = self._process.traits.fires is not None
        for keys in self._keys.columns(map(self._counted, batches), together=together):
            outputs = self._outputs(keys)
            self.records_out += len(outputs)
            yield outputs

    def _run_records(self, batches: Iterator[KeyedBatch]) -> Iterator[list[Any]]:
        """Call a function that takes records of many keys at a time."""
        for records in self._keys.records_of_keys(map(self._counted, batches)):
            yield from self._all_fired(iter(self._call(records, *self._arguments)))

    def _outputs(self, keys: KeyColumns) -> list[Any]:
        """Return the outputs of the function for many keys.

        If it fails, it is called with each key alone, so that the error names the right key. These
        calls have no effect, as the epoch has failed.
        """
        try:
            outputs: list[Any] = self._call(keys, *self._arguments)
            return outputs
        except CALL_FAILURES as error:
            failed = error  # raised below with its key
        single_keys = self._keys.one_by_one(keys)
        deque(self._called(single_keys, lambda: ("key", self.scope.key)), maxlen=0)
        if not is_users(failed):
            raise failed
        handled = (
            f"it was called with the keys {shown(keys.keys)}, and fails for none of them alone"
        )
        raise self._failed(failed, handled) from failed

    def _counted(self, batch: KeyedBatch) -> KeyedBatch:
        """Return a batch without late records. Count all records and the late ones."""
        self.records_by_input.update(batch.inputs or {0: self._process.count_of(batch.records)})
        return batch if self._process.event_time is None else self._without_late(batch)

    def fire(self) -> Iterator[list[Any]]:
        """Fire due timers, handle due buffered records and yield lists of outputs.

        Call it after the last batch and before `finish`.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        clocks: Sequence[Clock] = CLOCKS
        if self._buffer is not None:
            yield from self._lists(self._handle_buffered(self._buffer))
            clocks = ("processing",)
        if (fires := self._process.traits.fires) is not None:
            for clock in filter(self._is_due, self._process.traits.fires_by):
                yield from self._fire_columns(fires, clock)
        if self._timers is not None:
            yield from self._lists(self._fire(self._timers, clocks))
        if self._expiring and self._plan.due_clocks:
            self._sweep()

    def _is_due(self, clock: Clock) -> bool:
        """Return whether anything is due by a clock, or was due already when it was set."""
        set_due = () if self._timers is None else self._timers.set_due
        return clock in self._plan.due_clocks or clock in set_due

    def _fire(self, timers: Timers, clocks: Sequence[Clock]) -> Iterator[Any]:
        """Fire the timers that are due by some clocks, and yield the outputs."""
        plan = self._plan
        if due := list(filter(self._is_due, clocks)):
            self._keys.apply_changes()
            self.scope.clocks.end_records(plan.watermark_us)
            codec = self._process.key_codec
            keys = due_keys(self._backend, plan, codec, due, self._wakes_at)
            for group, key in chain.from_iterable(keys):
                self._keys.enter(self._keys.prefix(group, key, None), key)
                self.scope.clocks.start_key(plan.reached_us)
                yield from self._call_back(timers.due_timers(CLOCKS, due), END)
        for clock, at_us in timers.wake_us.items():
            self._wakes_at(clock, at_us)

    def _fire_columns(
        self, fires: Callable[..., Iterator[list[Any]]], clock: Clock
    ) -> Iterator[list[Any]]:
        """Call a function that fires many keys at a time, for what is due by a clock."""
        self._keys.apply_changes()
        plan, codec = self._plan, self._process.key_codec
        wakes_at, at_key = partial(self._wakes_at, clock), self.scope.at_key
        due = Due(plan.base.groups, plan.now_us[clock], codec, wakes_at, at_key, clock)
        yield from self._all_fired(fires(due, *self._arguments))

    def _all_fired(self, fired: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the lists of outputs of a function that handles many keys."""
        while (outputs := self._fired(fired)) is not None:
            self.records_out += len(outputs)
            yield outputs

    def _fired(self, fired: Iterator[list[Any]]) -> list[Any] | None:
        """Return the next outputs of a function that handles many keys; None if there are no
        more.
        """
        try:
            return next(fired, None)
        except BaseException as error:
            if is_users(error):
                raise self._failed(error, "it computed results of many keys") from error
            raise

    def _sweep(self) -> None:
        """Remove expired rows, a bounded number of them."""
        self._keys.apply_changes()
        self.scope.clocks.end_timers(self._plan.watermark_us)
        groups = self._plan.base.groups
        for name, state in self.states.items():
            if name in self._plan.begun:
                state.begin_scan(groups)
                self._keys.apply_changes()
            if state.expiry is not None:
                state.sweep(groups)

    def _wakes_at(self, clock: Clock, at_us: int) -> None:
        """Record a time at which the shard has something to do, even without records."""
        self.wake_us[clock] = min(at_us, self.wake_us.get(clock, at_us))

    def _call_back(self, timers: DueTimers, until_us: int) -> Iterator[Any]:
        """Call the callbacks of the current key's due timers up to a time, in order of time, and
        yield the outputs.
        """
        clocks = self.scope.clocks
        while (timer := timers.take(until_us)) is not None:
            time = timers.at_us if timer.clock == "event" else None
            clocks.advance(time, in_order=self._buffer is not None)
            self.scope.input = None
            yield from self._handle("timer", timer, self._callbacks(timer.name))

    def _handle(self, kind: str, handled: Any, bound: Bound) -> Iterator[Any]:
        """Call a function of the user once, and yield its outputs. `_called` does the same for many
        records.
        """
        call, arguments = bound
        try:
            if self._guard is not None and not self.shard_scope.broadcasting:
                yield from self._guard.call(kind, handled, bound)
                return
            emitted = call(handled, *arguments)
            if emitted is not None:
                yield from self._copied(emitted)
        except BaseException as error:
            if is_close(error):
                raise
            if is_users(error):
                raise self._failed(error, f"the {kind} was {shown(handled)}") from error
            self._note(error, shown(handled))
            raise

    def _copied(self, emitted: Iterable[Any]) -> Iterator[Any]:
        """Copy mutable outputs when they are emitted."""
        return iter(emitted) if self._copy is None else map(self._copy, emitted)

    def _add_to_buffer(self, buffer: EventTimeBuffer, batch: KeyedBatch) -> None:
        names = self._plan.buffered_inputs
        places = [1 + names.index(name) for name in self._plan.inputs] or [0]
        inputs = batch.inputs or repeat(0, len(batch.records))
        of_records = map(places.__getitem__, inputs)
        columns = (batch.groups, batch.keys, batch.records, batch.times, of_records)
        for group, key, record, time, place in zip(*columns, strict=True):
            if self.batch.full:
                self.scope.spill()
            prefix = self._keys.prefix(group, key, record)
            try:
                buffer.add(prefix, time, record, place)
            except StateTypeError as error:
                raise ProcessError(
                    f"operator {self.scope.operator!r}: record {shown(record)} of epoch "
                    f"{self.scope.epoch} cannot be buffered in state: {shown_text(error)}. Nothing "
                    "of this epoch is committed: correct the record, or the types of its class"
                ) from error

    def _handle_buffered(self, buffer: EventTimeBuffer) -> Iterator[Any]:
        """Handle buffered records up to the watermark, with the timers between them, and yield the
        outputs.
        """
        if self._plan.due_clocks:
            self._keys.apply_changes()
            for due in buffer.due_groups(self._keys.apply_changes):
                for key, records in due.keys:
                    self._keys.enter(self._keys.prefix(due.group, key, None), key)
                    self.scope.clocks.start_key(BEGINNING)
                    yield from self._in_order_of_time(records, due.until_us)

    def _in_order_of_time(self, records: list[BufferedRecord], until_us: int) -> Iterator[Any]:
        """Handle records of the current key and the timers between them in order of time, and yield
        the outputs.

        Timers come before records of the same time.
        """
        timers = None
        if self._timers is not None:
            timers = self._timers.due_timers(("event",), ("event",))
        names = self._plan.buffered_inputs
        for time, record, place, *_ in records:
            if timers is not None:
                yield from self._call_back(timers, time)
            self.scope.clocks.advance(time, in_order=True)
            self.scope.input = names[place - 1] if place else None
            yield from self._handle("record", record, (self._call, self._arguments))
        if timers is not None:
            yield from self._call_back(timers, until_us)

    def _without_late(self, batch: KeyedBatch) -> KeyedBatch:
        """Return a batch without late records, and count them."""
        watermark, times = self._late_us, batch.times
        if not times:
            return batch
        try:
            has_late = min(times) <= watermark
        except TypeError:  # records without an event time, which Spark's processors accept
            maybe_times: Sequence[int | None] = times
            times = [watermark + 1 if time is None else time for time in maybe_times]
            return self._without_late(batch._replace(times=times))
        if has_late:
            in_time = [not is_late(time, watermark) for time in times]
            arrived = self._process.count_of(batch.records)
            batch = batch.chosen(in_time, of_columns=self._process.traits.takes_columns)
            self.late += arrived - self._process.count_of(batch.records)
        self._note_times(batch)
        return batch

    def _note_times(self, batch: KeyedBatch) -> None:
        """Record the largest event time of each input."""
        largest = self.largest_by_input
        if batch.inputs:
            times = zip(batch.inputs, batch.times, strict=True)
        else:
            times = zip((0,), (max(batch.times, default=BEGINNING),), strict=True)
        for number, time in times:
            if time > largest.get(number, BEGINNING):
                largest[number] = time

    def finish(self) -> dict[str, StateSize]:
        """Leave the last key. The remaining changes are then in `batch` and `local_batch`.

        Returns:
            By how many rows and bytes each state grew; negative if it shrank.
        """
        self._process.ended(self.context)
        self._keys.finish()
        self.shard_scope.flush()
        for state in self._expiring:
            expiry = state.expiry
            if expiry is not None and expiry.wake_us is not None:
                self._wakes_at(expiry.clock, expiry.wake_us)
        added = {n: StateSize(s.rows_added, s.bytes_added) for n, s in self.states.items()}
        if self._timers is not None:
            added[TIMERS] = self._timers.added
        if self._buffer is not None:
            added[WAITING] = self._buffer.added
        return added

    def _note(self, error: BaseException, handled: str) -> None:
        """Add a note about the handled input to an error that is raised unchanged."""
        note = f"while operator {self.scope.operator!r} handled {handled}"
        if not issubclass(type(error), StatekitError):  # as its own message has no place
            note += f", {self._scope_of_call().place} in epoch {self.scope.epoch}"
        error.add_note(note)

    def _scope_of_call(self) -> KeyScope:
        """Return the scope of the called function: the scope of a key, or of the shard."""
        at_key = self._process.key and not self.shard_scope.broadcasting
        return self.scope if at_key else self.shard_scope

    def _failed(self, error: BaseException, handled: str, attempts: str = "") -> ProcessError:
        scope, after = self._scope_of_call(), f" ({attempts})" if attempts else ""
        return ProcessError(
            f"operator {scope.operator!r} failed {scope.place} in epoch {scope.epoch} with "
            f"{shown_error(error)}{after}; {handled}.{self._process.hint(error)} "
            "Nothing of this epoch is committed: "
            "correct the function or the record, then start the job again"
        )


def _spill(batch: Batch, apply: Callable[[Batch], None]) -> None:
    """Apply a batch and clear it, unless it is empty."""
    if len(batch):
        apply(batch)
        batch.clear()


def _calls(
    call: Callable[..., Any], arguments: tuple[Any, ...], inputs: Iterator[Any]
) -> Iterator[Iterable[Any]]:
    """Yield the result of the function for each input, except None."""
    if inspect.isgeneratorfunction(call):  # never returns None, and fails only when it is iterated
        return map(call, inputs, *map(repeat, arguments))
    # A generator, as `map` would end silently if the function raised StopIteration.
    emitted = (call(one, *arguments) for one in inputs)
    return (outputs for outputs in emitted if outputs is not None)
