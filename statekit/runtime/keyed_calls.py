"""Calls of an `async` process function: one after the other for a key, and many keys at a time.

The code of a function between two awaits is a section. No other code of the shard runs within it,
and its key is entered at its begin. So states and the context need not know of other open calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from itertools import repeat
from typing import Any

from statekit.calls.emitted import emitted
from statekit.calls.open_calls import OpenCalls
from statekit.errors import CALL_FAILURES, StateTypeError
from statekit.functions.signature import Bound
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.key_iteration import KeyIteration
from statekit.state.key_scope import KeyScope


class SectionScope(KeyScope):
    """The key scope of an `async` function. Within a section only its thread can use it, and nobody
    between sections, so that what the function starts beside itself does not see another key.
    """

    __slots__ = ("_thread",)

    def __init__(self, *args: Any, **options: Any) -> None:
        self.take()
        super().__init__(*args, **options)

    def take(self) -> None:
        """Allow this thread to use the scope, and no other one."""
        self._thread = threading.get_ident()

    def leave(self) -> None:
        """Allow no thread to use the scope."""
        self._thread = 0

    def check(self) -> None:
        """Check that this thread may use the scope.

        Raises:
            StateTypeError: it may not.
        """
        if self._thread != threading.get_ident():
            raise StateTypeError(
                "a state or the context is used in a task or thread that the function has started, "
                "where no key is entered. Use it in the function itself, and give the task what it "
                "has read"
            )


def _checked(name: str) -> property:
    """Return a property for a field of the scope that checks its user."""
    slot = getattr(KeyScope, name)

    def get(scope: SectionScope) -> Any:
        scope.check()
        return slot.__get__(scope)

    return property(get, slot.__set__)


for _field in ("prefix", "key", "input"):
    setattr(SectionScope, _field, _checked(_field))


class KeyCalls:
    """Calls an `async` process function for the records of a shard.

    Parameters:
        keys: the key iteration of the shard.
        scope: its key scope.
        bound: the function with its arguments.
        copy: copies an output; None for outputs that cannot change.
        failed: returns the error to raise for the error of a call.
    """

    def __init__(
        self,
        keys: KeyIteration,
        scope: SectionScope,
        bound: Bound,
        copy: Callable[[Any], Any] | None,
        failed: Callable[[BaseException, Any], BaseException],
    ) -> None:
        self._keys = keys
        self._scope = scope
        self._fn, self._arguments = bound
        self._copy = copy
        self._failed = failed
        self._entered: KeyCall | None = None

    def outputs(self, batches: Iterator[KeyedBatch], concurrency: int) -> Iterator[list[Any]]:
        """Yield the outputs of each key, in the order of the keys.

        Parameters:
            concurrency: the largest number of open calls.
        """
        calls = OpenCalls(self._called, concurrency=concurrency, ordered=True)
        self._scope.leave()
        try:
            yield from calls.results(self._calls(batches))
        finally:
            self._scope.take()

    def _calls(self, batches: Iterator[KeyedBatch]) -> Iterator[KeyCall]:
        """Yield the records of each key of each batch."""
        before: KeyCall | None = None
        for prefix, key, batch, is_continued in self._keys.parts(batches):
            before = KeyCall(prefix, key, batch, before if is_continued else None)
            yield before

    async def _called(self, call: KeyCall) -> list[Any]:
        """Call the function for the records of a key, one after the other."""
        try:
            if call.before is not None:
                await call.before.ended.wait()
            outputs: list[Any] = []
            for record, time, number in call.records:
                outputs += await _Sections(self, call, record, time, number)
            return outputs
        finally:
            call.ended.set()

    def enter(self, call: KeyCall, time: int | None, number: int) -> None:
        """Begin a section: enter its key, unless it is the last one that was entered."""
        self._scope.take()
        if self._entered is not call:
            # A copy, as for a key that arrives again: states compare the identity of prefixes.
            self._keys.enter_again(bytes(bytearray(call.prefix)), call.key)
            self._entered = call
        self._scope.clocks.event_us = time
        if self._keys.inputs:
            self._scope.input = self._keys.inputs[number]

    def leave(self) -> None:
        """End a section."""
        self._scope.leave()

    def coroutine(self, record: Any) -> Coroutine[Any, Any, list[Any]]:
        """Return the coroutine of one call of the function, which returns its outputs."""
        return emitted(self._fn(record, *self._arguments), self._copy)

    def failed(self, error: BaseException, record: Any) -> BaseException:
        """Return the error to raise for the error of a call, within its last section."""
        return self._failed(error, record)


class KeyCall:
    """The records of a key in a batch, for which a function is called one after the other.

    Attributes:
        before: the call for earlier records of the key that may still run.
        ended: set when all records have been handled.
    """

    def __init__(self, prefix: bytes, key: Any, batch: KeyedBatch, before: KeyCall | None) -> None:
        self.prefix = prefix
        self.key = key
        self._batch = batch
        self.before = before
        self.ended = asyncio.Event()

    @property
    def records(self) -> Iterator[tuple[Any, int | None, int]]:
        """The records, each with its event time and the number of its input."""
        batch = self._batch
        times, inputs = batch.times or repeat(None), batch.inputs or repeat(0)
        return zip(batch.records, times, inputs, strict=False)


class _Sections:
    """An awaitable that runs the coroutine of a call, section by section."""

    def __init__(
        self, calls: KeyCalls, call: KeyCall, record: Any, time: int | None, number: int
    ) -> None:
        self._calls = calls
        self._place = call, time, number
        self._record = record

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        calls, record = self._calls, self._record
        coroutine, given = calls.coroutine(record), None
        resume: Callable[[Any], Any] = coroutine.send
        while True:
            calls.enter(*self._place)
            try:
                waits_for = resume(given)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]
            except (asyncio.CancelledError, *CALL_FAILURES) as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise_as = calls.failed(error, record)
                if raise_as is error:
                    raise
                raise raise_as from error
            finally:
                calls.leave()
            try:
                given, resume = (yield waits_for), coroutine.send
            except BaseException as error:  # noqa: BLE001 - the function gets it
                given, resume = error, coroutine.throw
