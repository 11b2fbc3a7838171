"""`ProcessModel`: a process function over plain Python, to compare with real runs."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from statekit.calls.event_loops import VirtualTimeLoop, with_event_loop
from statekit.errors import CALL_FAILURES, StateTypeError, is_of_call
from statekit.functions.context import Context
from statekit.functions.process import Process
from statekit.functions.signature import Bound
from statekit.records.value_order import order_of_value
from statekit.state.base import State
from statekit.state.timers import Timer
from statekit.testing.models import ModelClocks, StateModel, TimersModel, models_of
from statekit.timestamp import micros_to_datetime

_BEFORE_ALL = dt.datetime.min.replace(tzinfo=dt.UTC)
"""The watermark that a function reads before event time begins."""


@dataclass
class ContextModel:
    """Attributes of a `Context` that a function reads."""

    operator: str
    key: Any
    timers: TimersModel
    epoch: int = 0
    shard: int = 0
    input: str | None = None
    watermark: dt.datetime = _BEFORE_ALL
    processing_time: dt.datetime = ModelClocks.processing_time
    event_time: dt.datetime | None = None


class ProcessModel:
    """Model of a process function: it runs record by record, with a model of each state per key.

    It knows which records are late, when timers fire and when state expires, and nothing of rows,
    shards and commits. A call is an epoch and returns the records of each sink, as with a
    `JobHarness` of the function. The records of one key are in order; keys are in any order. A
    function that drops or collects failed records does so here, but there is no sink of them.

    Parameters:
        process: the decorated function. It has a key, and no operator state.
        of_key: the class of its keys; by default, the function with models of its states.

    Raises:
        StateTypeError: the process is not such a function.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> model = ProcessModel(count)
    >>> model.send(records=[{"word": "a"}, {"word": "b"}, {"word": "a"}])
    {'outputs': [('a', 1), ('b', 1), ('a', 2)]}
    >>> model.state("seen", "a")
    2
    """

    def __init__(
        self, process: Process[Any, Any, Any], of_key: type[KeyModel] | None = None
    ) -> None:
        if not process.key or process.local_states or process.traits.combiner is not None:
            raise StateTypeError(
                f"a ProcessModel runs functions that have a key and no operator state, not "
                f"{process!r}: write a model of your own"
            )
        self.process = process
        self.watermark: dt.datetime | None = None
        self.processing_time = ModelClocks.processing_time
        self._key_of = process.key_of()
        self._epoch = -1
        self._largest: dt.datetime | None = None
        self._of_key = of_key or KeyModel
        self._keys: dict[Any, KeyModel] = {}

    def send(self, **records: Iterable[Any]) -> dict[str, list[Any]]:
        """Run one epoch over the records of the source, and return the records of each sink."""
        before = self.watermark
        if self._largest is not None:
            lateness = dt.timedelta(microseconds=self.process.lateness_us)
            reached = self._largest - lateness
            self.watermark = reached if before is None else max(before, reached)
        return self._run([(record, 0) for some in records.values() for record in some], before)

    def run(
        self,
        records: Sequence[tuple[Any, int]],
        watermark: dt.datetime | None,
        processing_time: dt.datetime,
    ) -> dict[str, list[Any]]:
        """Run one epoch with these clocks, and return the records of each sink.

        Parameters:
            records: each with the number of its input.
            watermark: None before event time begins.
        """
        before, self.watermark = self.watermark, watermark
        self.processing_time = processing_time
        return self._run(records, before)

    def advance_watermark(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Run an epoch without records whose watermark is `to`, and return the records of each
        sink.
        """
        before, self.watermark = self.watermark, to
        return self._run([], before)

    def advance_processing_time(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Run an epoch without records at `to`, and return the records of each sink."""
        self.processing_time = to
        return self.send()

    def state(self, name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python."""
        return self._entered(key).states[name].plain()

    def has_state(self, name: str) -> bool:
        """Return whether there is a model of a state."""
        return all(name in key.states for key in self._keys.values())

    @property
    def keys(self) -> list[Any]:
        """The keys that had records."""
        return list(self._keys)

    def timers(self, key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first."""
        return self._entered(key).context.timers.list()

    def _run(
        self, records: Sequence[tuple[Any, int]], before: dt.datetime | None
    ) -> dict[str, list[Any]]:
        """Run one epoch. Pauses of `async` functions take no time.

        Parameters:
            records: each with the number of its input.
            before: the watermark of the epoch before, by which state expires until a timer fires.
        """
        with with_event_loop(VirtualTimeLoop()):
            return self._run_in_time(records, before)

    def _run_in_time(
        self, records: Sequence[tuple[Any, int]], before: dt.datetime | None
    ) -> dict[str, list[Any]]:
        self._epoch += 1
        emitted: dict[str, list[Any]] = {"outputs": []}
        if self.process.event_time is not None:
            emitted["late"] = []
        runs: dict[Any, list[tuple[dt.datetime | None, Any]]] = {}
        for record, number in records:
            at = self._time_of(record)
            if at is not None and self.watermark is not None and at <= self.watermark:
                emitted["late"].append(record)
                continue
            if at is not None:
                self._largest = at if self._largest is None else max(self._largest, at)
            key = self._entered(self._key_of(record))
            if self.process.ordered is not None:
                arrived = self._epoch, number
                key.buffered.append((cast("dt.datetime", at), arrived, record))
            elif self.process.takes_runs:
                runs.setdefault(self._key_of(record), []).append((at, record))
            else:
                emitted["outputs"] += key.handle(record, at)
        for of_key, run in runs.items():
            emitted["outputs"] += self._entered(of_key).handle_run(run)
        for key in map(self._entered, list(self._keys)):
            if self.process.ordered is not None:
                emitted["outputs"] += key.handle_in_order(self.watermark, self._ties)
            emitted["outputs"] += key.fire(before, self.watermark, self.processing_time)
        return emitted

    def _entered(self, key: Any) -> KeyModel:
        """Return a key with the clocks of the epoch."""
        if key not in self._keys:
            self._keys[key] = self._of_key(self.process, key)
        entered = self._keys[key]
        entered.context.epoch = self._epoch
        entered.context.watermark = self.watermark or _BEFORE_ALL
        entered.context.processing_time = self.processing_time
        entered.clocks.processing_time = self.processing_time
        entered.set_clocks(self.watermark, None)
        return entered

    def _time_of(self, record: Any) -> dt.datetime | None:
        if self.process.event_time is None:
            return None
        return micros_to_datetime(self.process.time_of()(record))

    def _ties(self, record: Any, arrived: tuple[int, int]) -> Any:
        """Return the sort key of buffered records of the same key and time.

        Parameters:
            arrived: the epoch in which it arrived, and the number of the input.
        """
        if self.process.traits.ties == "arrival":
            return arrived
        number = arrived[1]
        types = [member.cls for member in self.process.record_type.members]
        order_by = self.process.order_by
        fields = (
            order_of_value(self.process.record_type.getter(order_by)(record)) if order_by else ()
        )
        rank = types.index(type(record)) if type(record) in types else 0
        return fields, number, rank, order_of_value(record)


class KeyModel:
    """A key of a process function: its models, and the function bound to them.

    Attributes:
        states: the models of its states, by name.
        function: the function, and its arguments after the record.
        buffered: buffered records of an ordered function, with their times, and the epochs and the
            numbers of the inputs in which they arrived.
    """

    def __init__(self, process: Process[Any, Any, Any], key: Any) -> None:
        self.clocks = ModelClocks()
        self.context = ContextModel(process.name, key, TimersModel())
        self.states: dict[str, StateModel] = models_of(process, self.clocks)
        self._goes_on = process.errors.goes_on
        self.buffered: list[tuple[dt.datetime, tuple[int, int], Any]] = []
        states, context = cast("dict[str, State]", self.states), cast("Context", self.context)
        self.function: Bound = process.signature.bind(states, context)
        self._callback_of = process.bind_callbacks(states, context)

    def set_clocks(self, expires_by: dt.datetime | None, event_time: dt.datetime | None) -> None:
        """Set event time.

        Parameters:
            expires_by: the time up to which state expires.
            event_time: of a record or timer.
        """
        self.clocks.watermark = expires_by
        self.clocks.event_time = self.context.event_time = event_time

    def handle(self, record: Any, at: dt.datetime | None) -> Iterator[Any]:
        """Call the function with a record."""
        self.set_clocks(self.clocks.watermark, at)
        return self._called(self.function, record)

    def handle_run(self, run: Sequence[tuple[dt.datetime | None, Any]]) -> Iterator[Any]:
        """Call the function with all records of an epoch, each with its event time."""

        def records() -> Iterator[Any]:
            for at, record in run:
                self.set_clocks(self.clocks.watermark, at)
                yield record

        return self._called(self.function, records())

    def handle_in_order(self, watermark: dt.datetime | None, ties: Any) -> Iterator[Any]:
        """Call the function with buffered records up to the watermark, and the callbacks of the
        timers between them, in order of time. Timers come before records of the same time.
        """
        if watermark is None:
            return
        due = [each for each in self.buffered if each[0] <= watermark]
        self.buffered = [each for each in self.buffered if each[0] > watermark]
        self.clocks.watermark = None
        for at, _, record in sorted(due, key=lambda each: (each[0], ties(each[2], each[1]))):
            yield from self._fire_in_order(at)
            self._advance_in_order(at)
            yield from self._called(self.function, record)
        yield from self._fire_in_order(watermark)
        self.context.watermark = watermark

    def _fire_in_order(self, until: dt.datetime) -> Iterator[Any]:
        while (timer := self.context.timers.take_due(until, None)) is not None:
            self._advance_in_order(timer.at)
            yield from self._called(self._callback_of(timer.name), timer)

    def _advance_in_order(self, at: dt.datetime) -> None:
        """Advance event time to a record or timer. A timer in the past does not set it back."""
        reached = _later(self.clocks.watermark, at)
        self.set_clocks(reached, at)
        self.context.watermark = cast("dt.datetime", reached)

    def _called(self, bound: Bound, argument: Any) -> Iterator[Any]:
        """Call a bound function, and yield copies of its outputs, which it may change later."""
        function, arguments = bound
        if self._goes_on:
            return self._guarded(function, argument, *arguments)
        return _copies(function(argument, *arguments))

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Return the outputs of a call. If it fails, return none, and take back its changes."""
        parts: list[StateModel | TimersModel] = [*self.states.values(), self.context.timers]
        saved = [part.saved() for part in parts]
        try:
            return iter(list(_copies(function(*arguments))))
        except CALL_FAILURES as error:
            if not is_of_call(error):
                raise
            for part, before in zip(parts, saved, strict=True):
                part.restore(before)
            return iter(())

    def fire(
        self, before: dt.datetime | None, watermark: dt.datetime | None, processing: dt.datetime
    ) -> Iterator[Any]:
        """Call the callbacks of due timers in order of time.

        Parameters:
            before: the watermark of the epoch before: state expires as if time advanced in steps.
        """
        self.clocks.watermark = before
        while (timer := self.context.timers.take_due(watermark, processing)) is not None:
            by_event = timer.clock == "event"
            reached = _later(self.clocks.watermark, timer.at if by_event else watermark)
            self.set_clocks(reached, timer.at if by_event else None)
            yield from self._called(self._callback_of(timer.name), timer)


class WritingKey(KeyModel):
    """A key at which changes of a value that was read are written after a call, unless the call
    wrote to that state.
    """

    def _called(self, bound: Bound, argument: Any) -> Iterator[Any]:
        for state in self.states.values():
            state.lend()
        yield from super()._called(bound, argument)
        for state in self.states.values():
            state.write_changes()


def _copies(emitted: Iterable[Any] | None) -> Iterator[Any]:
    return iter(()) if emitted is None else map(copy.deepcopy, emitted)


def _later(one: dt.datetime | None, other: dt.datetime | None) -> dt.datetime | None:
    """Return the later of two times; None is before all times."""
    return max((at for at in (one, other) if at is not None), default=None)
