"""The task: calls the user's function for the records of one shard and collects mutations."""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat
from operator import length_hint
from typing import Any

from statekit.backend.interface import Backend, StateSize
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import TIMERS, WAITING, Clock
from statekit.checkpoint.manifest import ShardPlan
from statekit.errors import ProcessError, StatekitError, StateTypeError
from statekit.functions.context import Context
from statekit.functions.process import Process
from statekit.functions.signature import Bound
from statekit.keygroup import pack_group
from statekit.records.keyed_batch import KeyColumns, KeyedBatch
from statekit.runtime.key_iteration import Handled, KeyIteration, shown
from statekit.state.event_time_buffer import Waiting
from statekit.state.key_scope import KeyScope, Spill
from statekit.state.timers import CLOCKS, Agenda, DueKeys, Timers
from statekit.watermark import BEGINNING, END, is_late


class ShardTask:
    """One shard of one operator in one epoch.

    Parameters:
        declared: the process function.
        plan: which shard, and what the clocks show.
        backend: holds the shard's rows as they were before the epoch.
        spill: takes a batch that has grown full; must apply it to the backend.
        spill_local: the same for state of the shard; None if that makes no difference.
    """

    def __init__(
        self,
        declared: Process[Any, Any, Any],
        plan: ShardPlan,
        backend: Backend,
        spill: Callable[[Batch], None],
        spill_local: Callable[[Batch], None] | None = None,
    ) -> None:
        self._declared = declared
        # Outputs are handed on in lists of this length; one call that yields more is cut up, so
        # that a function may stream a state of any size.
        self._at_once = declared.traits.outputs_at_once
        # Outputs that can change are copied when they are emitted: a function may emit one object
        # again and again, or keep it and change it.
        self._copy = None if declared.output_type is None else declared.output_type.copy
        self._plan = plan
        self._backend = backend
        self._spill_batch = spill
        self.batch = Batch()
        self.scope = KeyScope(plan.operator, plan.epoch, self.batch, self._spill)
        self.scope.watermark_us = plan.watermark_us
        self.scope.processing_time_us = plan.processing_time_us
        self.scope.expiry_us = plan.reached_us if plan.watermark_us == END else plan.watermark_us
        self.scope.eras, self.scope.migrated = plan.eras, plan.migrated
        self._walk = KeyIteration(self.scope, declared.key_codec, declared.key)
        self._spill_local_batch = spill_local or spill
        self.local_batch = Batch()
        self._stay = stay_in_shard(plan, self.local_batch, self._spill_local)
        self._states = {
            spec.name: spec.bind(self._stay if spec.kind.is_local else self.scope, backend)
            for spec in declared.states
        }
        self._timers = declared.bind_timers(self.scope, backend, plan)
        self._late_us = declared.late_us(plan)
        self._waiting = self._bind_waiting()
        self._context = Context(self.scope, plan.shard, self._timers)
        self._call, self._arguments = declared.signature.bind(self._states, self._context)
        self._callbacks = declared.bind_callbacks(self._states, self._context)
        self._handlers = declared.handlers.bind(self._states, self._context)
        self.records_by_input: Counter[int] = Counter()
        self.largest_by_input: dict[int, int] = {}
        self.records_out = 0
        self.late = 0
        self._expiring = [state for state in self._states.values() if state.expiry is not None]
        has_time = self._timers is not None or self._waiting is not None or self._expiring
        self.wake_us = dict(plan.base.wake_us) if has_time else {}

    def broadcast(self, number: int, records: Sequence[Any]) -> None:
        """Handle records that every shard is given, and in the same order. Call it before `run`.

        Parameters:
            number: of the input that they came from.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        self.records_by_input[number] += len(records)
        outputs: list[Any] = []
        self._stay.broadcasting = True
        try:
            for record in records:
                for more in self._handle("record", record, self._handlers(record), outputs):
                    outputs += more
                if outputs:
                    raise ProcessError(
                        f"operator {self.scope.operator!r} yielded {shown(outputs[0])} for the "
                        f"broadcast record {shown(record)}: what handles it must return None"
                    )
        finally:
            self._stay.broadcasting = False

    def run(self, chunk: KeyedBatch) -> Iterator[list[Any]]:
        """Handle a chunk; outputs come in lists.

        A key may go on in the next chunk. Call `finish` after the last one.

        Raises:
            ProcessError: the user's function, or a key, failed.
            StateTypeError: a state was given what it cannot hold.
        """
        self.records_by_input.update(chunk.inputs or {0: self._declared.count_of(chunk.records)})
        if self._waiting is not None:
            self._let_wait(self._waiting, self._in_time(chunk))
            return
        if self._declared.event_time is not None:
            chunk = self._in_time(chunk)
        following = iter(chunk.records)
        records = self._walk.records(chunk, following)
        if self._declared.event_time is not None:
            records = self._walk.at_times(records, chunk.times)

        def current() -> Handled:
            taken = len(chunk.records) - length_hint(following)
            return "record", chunk.records[max(taken - 1, 0)]

        yield from self._called(records, current)

    def run_all(self, chunks: Iterator[KeyedBatch]) -> Iterator[list[Any]]:
        """Handle chunks, one after the other, as the function takes what is in them.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        if self._declared.traits.takes_columns:
            yield from self._together(chunks)
            return
        if not self._declared.takes_runs:
            for chunk in chunks:
                yield from self.run(chunk)
            return
        yield from self._called(self._walk.runs(self._taken(chunks)), self._walk.handled)

    def _called(self, given: Iterator[Any], current: Callable[[], Handled]) -> Iterator[list[Any]]:
        """Call the user's function with one after the other.

        Parameters:
            given: what it is called with; the key scope is at its key when it is taken.
            current: says what was taken last.
        """
        # From here on, no line of Python of ours runs for a record.
        emitted = self._copied(chain.from_iterable(_calls(self._call, self._arguments, given)))
        try:
            while outputs := list(islice(emitted, self._at_once)):
                self.records_out += len(outputs)
                yield outputs
        except Exception as error:
            if (unread := self._walk.unread) is not None:
                raise unread  # noqa: B904 - it is why, whatever the function raised for it
            kind, handled = current()
            if not isinstance(error, StatekitError):
                raise self._failed(error, f"the {kind} was {shown(handled)}") from error
            if not self._walk.is_between:
                what = "" if kind == "record" else f"a key, and the {kind} was "
                told = f"while operator {self.scope.operator!r} handled {what}{shown(handled)}"
                error.add_note(told)
            raise

    def _together(self, chunks: Iterator[KeyedBatch]) -> Iterator[list[Any]]:
        """Call a function that takes many keys at a time."""
        for keys in self._walk.together(self._taken(chunks)):
            outputs = self._outputs(keys)
            self.records_out += len(outputs)
            yield outputs

    def _outputs(self, keys: KeyColumns) -> list[Any]:
        """What a function puts out for many keys.

        If it fails it is called with each by itself, so that the error is about the right one.
        Nothing of that counts, as the epoch has failed.
        """
        try:
            outputs: list[Any] = self._call(keys, *self._arguments)
            return outputs
        except Exception as error:  # noqa: BLE001 - told with its key
            failed = error
        each = self._walk.apart(keys)
        deque(self._called(each, lambda: ("key", self.scope.key)), maxlen=0)
        if isinstance(failed, StatekitError):
            raise failed
        what = f"it was called with the keys {shown(keys.keys)}, and fails for none of them alone"
        raise self._failed(failed, what) from failed

    def _taken(self, chunks: Iterator[KeyedBatch]) -> Iterator[KeyedBatch]:
        """Chunks, counted, without what is late."""
        for chunk in chunks:
            count = self._declared.count_of
            self.records_by_input.update(chunk.inputs or {0: count(chunk.records)})
            yield chunk if self._declared.event_time is None else self._in_time(chunk)

    def fire(self) -> Iterator[list[Any]]:
        """Handle what is due: timers, and records that waited; outputs come in lists.

        Call it after the last chunk and before `finish`.

        Raises:
            ProcessError, StateTypeError: as for `run`.
        """
        clocks: Sequence[Clock] = CLOCKS
        for clock in self._plan.due_clocks:
            self.wake_us.pop(clock, None)  # whatever waits on says so again
        if self._waiting is not None:
            yield from self._in_order(self._waiting)
            clocks = ("processing",)
        if self._timers is not None:
            yield from self._fire(self._timers, clocks)
        if self._expiring and self._plan.is_due:
            self._sweep()

    def _fire(self, timers: Timers, clocks: Sequence[Clock]) -> Iterator[list[Any]]:
        """Call back for what is due by some clocks."""
        plan = self._plan
        if due := [c for c in clocks if c in plan.due_clocks or c in timers.set_due]:
            self._walk.settle()
            self.scope.watermark_us = plan.watermark_us
            codec = self._declared.key_codec
            keys = DueKeys(self._backend, plan.base.groups, plan.now_us, codec, due)
            outputs: list[Any] = []
            for piece in keys:
                for group, key in piece:
                    self._walk.enter(self._walk.prefix(group, key, None), key)
                    self.scope.expiry_us = plan.reached_us
                    yield from self._ring(timers.agenda(CLOCKS, due), END, outputs)
            if outputs:
                self.records_out += len(outputs)
                yield outputs
            self._wakes_at(keys.wake_us)
        self._wakes_at(timers.wake_us)

    def _sweep(self) -> None:
        """Remove some of what has expired."""
        self._walk.settle()
        self.scope.expiry_us, self.scope.event_us = self._plan.watermark_us, None
        for state in self._expiring:
            state.sweep(self._plan.base.groups)

    def _wakes_at(self, times: dict[Clock, int]) -> None:
        for clock, at in times.items():
            self.wake_us[clock] = min(at, self.wake_us.get(clock, at))

    def _ring(self, agenda: Agenda, until_us: int, outputs: list[Any]) -> Iterator[list[Any]]:
        """Call back the current key for its due timers, up to a time, in order.

        What is not handed on stays in `outputs`.
        """
        scope = self.scope
        while (timer := agenda.take(until_us)) is not None:
            time = agenda.at_us if timer.clock == "event" else None
            scope.go_on_to(time, in_order=self._waiting is not None)
            yield from self._handle("timer", timer, self._callbacks(timer.name), outputs)

    def _handle(
        self, kind: str, given: Any, bound: Bound, outputs: list[Any]
    ) -> Iterator[list[Any]]:
        """Call the user's function once. What is not handed on stays in `outputs`.

        `_called` does the same for many.
        """
        call, arguments = bound
        try:
            emitted = call(given, *arguments)
            if emitted is not None:
                outputs.extend(self._copied(islice(emitted, self._at_once)))
                if len(outputs) >= self._at_once:
                    yield from self._more(outputs, emitted)
        except StatekitError as error:
            error.add_note(f"while operator {self.scope.operator!r} handled {shown(given)}")
            raise
        except Exception as error:
            raise self._failed(error, f"the {kind} was {shown(given)}") from error

    def _copied(self, emitted: Iterator[Any]) -> Iterator[Any]:
        """Outputs as they are when they are emitted."""
        return emitted if self._copy is None else map(self._copy, emitted)

    def _bind_waiting(self) -> Waiting | None:
        declared = self._declared
        if declared.ordered is None:
            return None
        return Waiting(
            self._plan,
            self.batch,
            self._backend,
            declared.ordered,
            declared.key_codec,
            has_timers=declared.handles_timers,
        )

    def _let_wait(self, waiting: Waiting, chunk: KeyedBatch) -> None:
        for group, key, record, time in zip(*chunk[1:5], strict=True):
            if self.batch.full:
                self._spill()
            prefix = self._walk.prefix(group, key, record)
            try:
                waiting.add(prefix, time, record)
            except StateTypeError as error:
                raise ProcessError(
                    f"operator {self.scope.operator!r}: record {shown(record)} cannot wait in "
                    f"state: {error}"
                ) from error

    def _in_order(self, waiting: Waiting) -> Iterator[list[Any]]:
        """Handle what is due by the watermark, each key's records and timers in order of time."""
        outputs: list[Any] = []
        if self._plan.is_due:
            self._walk.settle()
            for due in waiting.slices(self._walk.settle):
                for key, records in due.keys:
                    self._walk.enter(self._walk.prefix(due.group, key, None), key)
                    self.scope.expiry_us = BEGINNING
                    yield from self._in_order_of_time(records, due.until_us, outputs)
        if outputs:
            self.records_out += len(outputs)
            yield outputs
        if waiting.wake_us is not None:
            self._wakes_at({"event": waiting.wake_us})

    def _in_order_of_time(
        self, records: list[tuple[int, Any]], until_us: int, outputs: list[Any]
    ) -> Iterator[list[Any]]:
        """Records of the current key and timers between them; at the same time, timers first."""
        scope, timers = self.scope, self._timers
        agenda = None if timers is None else timers.agenda(("event",), ("event",))
        for time, record in records:
            if agenda is not None:
                yield from self._ring(agenda, time, outputs)
            scope.go_on_to(time, in_order=True)
            yield from self._handle("record", record, (self._call, self._arguments), outputs)
        if agenda is not None:
            yield from self._ring(agenda, until_us, outputs)

    def _in_time(self, chunk: KeyedBatch) -> KeyedBatch:
        """The records that are not late; the others are counted."""
        watermark, times = self._late_us, chunk.times
        if not times:
            return chunk
        try:
            has_late = min(times) <= watermark
        except TypeError:
            chunk = chunk._replace(times=_just_in_time(times, watermark))
            return self._in_time(chunk)
        if has_late:
            in_time = [not is_late(time, watermark) for time in times]
            came = self._declared.count_of(chunk.records)
            chunk = KeyedBatch(*(tuple(compress(column, in_time)) for column in chunk))
            self.late += came - self._declared.count_of(chunk.records)
        self._note_times(chunk)
        return chunk

    def _note_times(self, chunk: KeyedBatch) -> None:
        """Keep the largest event time of each input."""
        largest = self.largest_by_input
        if chunk.inputs:
            found = zip(chunk.inputs, chunk.times, strict=True)
        else:
            found = zip((0,), (max(chunk.times, default=BEGINNING),), strict=True)
        for number, time in found:
            if time > largest.get(number, BEGINNING):
                largest[number] = time

    def _more(self, outputs: list[Any], emitted: Any) -> Iterator[list[Any]]:
        """Hand on full lists, and what one call emits beyond them. The rest stays in `outputs`."""
        more = iter(emitted)
        if more is not emitted:  # a list, say, which starts again
            more = islice(more, self._at_once, None)
        while len(outputs) >= self._at_once:
            self.records_out += len(outputs)
            yield outputs[:]
            outputs.clear()
            outputs.extend(self._copied(islice(more, self._at_once)))

    def finish(self) -> dict[str, StateSize]:
        """Leave the last key. What remains to be applied is then in `batch` and `local_batch`.

        Returns by how much each state grew or shrank.
        """
        self._declared.ended(self._context)
        self._walk.finish()
        self._stay.leave()
        for state in self._expiring:
            expiry = state.expiry
            if expiry is not None and expiry.wake_us is not None:
                self._wakes_at({expiry.clock: expiry.wake_us})
        added = {n: StateSize(s.rows_added, s.bytes_added) for n, s in self._states.items()}
        if self._timers is not None:
            added[TIMERS] = self._timers.added
        if self._waiting is not None:
            added[WAITING] = self._waiting.added
        return added

    def _spill(self) -> None:
        if len(self.batch):
            self._spill_batch(self.batch)
            self.batch.clear()

    def _spill_local(self) -> None:
        if len(self.local_batch):
            self._spill_local_batch(self.local_batch)
            self.local_batch.clear()

    def _failed(self, error: Exception, handled: str) -> ProcessError:
        at_key = self._declared.key and not self._stay.broadcasting
        scope = self.scope if at_key else self._stay
        return ProcessError(
            f"operator {scope.operator!r} failed {scope.place} in epoch {scope.epoch} with "
            f"{type(error).__name__}: {error}; {handled}.{self._declared.hint(error)} "
            "Nothing of this epoch is committed: "
            "correct the function or the record, then start the job again"
        )


def _just_in_time(times: Sequence[int | None], watermark: int) -> list[int]:
    """With a time for those rows that have none, as rows of Spark's processors may: never late."""
    return [watermark + 1 if time is None else time for time in times]


def stay_in_shard(plan: ShardPlan, batch: Batch, spill: Spill) -> KeyScope:
    """The scope of state that belongs to a shard. Its rows lie with the shard's first key group."""
    stay = KeyScope(plan.operator, plan.epoch, batch, spill, pack_group(plan.base.first_group))
    stay.shard, stay.migrated = plan.shard, plan.migrated
    stay.processing_time_us = plan.processing_time_us
    return stay


def _calls(
    call: Callable[..., Any], arguments: tuple[Any, ...], given: Iterator[Any]
) -> Iterator[Iterable[Any]]:
    """What a function returns for one after the other, but for None."""
    if inspect.isgeneratorfunction(call):  # it neither returns None, nor fails before it is asked
        return map(call, given, *map(repeat, arguments))
    return _some(call, arguments, given)


def _some(
    call: Callable[..., Any], arguments: tuple[Any, ...], given: Iterator[Any]
) -> Iterator[Iterable[Any]]:
    # A generator, as `map` would take a StopIteration of the function for the end.
    for one in given:
        emitted = call(one, *arguments)
        if emitted is not None:
            yield emitted
