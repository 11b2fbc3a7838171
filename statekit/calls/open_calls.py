"""Open calls: as many as are allowed, with results in order or as they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from statekit.calls.event_loops import event_loop

In = TypeVar("In")
Out = TypeVar("Out")

_CANCELLED_S = 5.0
"""How long cancelled calls may take to end."""


class OpenCalls(Generic[In, Out]):
    """Calls of an `async` function for many inputs.

    Parameters:
        call: the function. If it raises an error, all other calls are cancelled.
        concurrency: the largest number of open calls. As many inputs again are read ahead, so that
            a call that ends makes room for the next one at once.
        ordered: yield the results in the order of the inputs. So many results wait for those
            before them that four times as many inputs as `concurrency` are held.

    >>> async def doubled(number: int) -> int:
    ...     await asyncio.sleep(0.001 * (3 - number))
    ...     return 2 * number
    >>> list(OpenCalls(doubled, concurrency=2, ordered=True).results([0, 1, 2]))
    [0, 2, 4]
    """

    def __init__(
        self, call: Callable[[In], Awaitable[Out]], *, concurrency: int, ordered: bool
    ) -> None:
        self._call = call
        self._concurrency = concurrency
        self._ordered = ordered
        self._waiting: deque[_Slot[In, Out]] = deque()
        self._pending: deque[_Slot[In, Out]] = deque()  # in order, until their results are yielded
        self._answered: list[_Slot[In, Out]] = []  # as they arrive
        self._workers: set[asyncio.Task[None]] = set()
        self._open = 0
        self._held = 0
        self._is_last = False
        self._error: BaseException | None = None
        self._turned: asyncio.Future[None] | None = None

    def results(self, inputs: Iterable[In]) -> Iterator[Out]:
        """Call the function for each input, and yield the results. Inputs are read on demand.

        If the iterator is closed early, all open calls are cancelled.
        """
        following, loop = iter(inputs), event_loop()
        try:
            while self._held or not self._is_last:
                room = self._room
                new = list(islice(following, room))
                self._is_last = len(new) < room
                yield from loop.run(self._turn(new))
        finally:
            if self._workers:
                loop.run(self._cancel())

    @property
    def _room(self) -> int:
        """The number of inputs that may be read."""
        if self._is_last:
            return 0
        ahead = 2 * self._concurrency - len(self._waiting) - self._open
        return min(ahead, 4 * self._concurrency - self._held)

    async def _turn(self, new: list[In]) -> list[Out]:
        """Take inputs, and return the next results once there is room for more inputs."""
        slots = [_Slot[In, Out](one) for one in new]
        self._held += len(slots)
        self._waiting += slots
        if self._ordered:
            self._pending += slots
        self._start_workers()
        if not self._is_turn:
            self._turned = asyncio.get_running_loop().create_future()
            try:
                await self._turned
            finally:
                self._turned = None
        if self._error is not None:
            raise self._error
        return self._yielded()

    def _start_workers(self) -> None:
        wanted = min(self._concurrency, self._open + len(self._waiting))
        while len(self._workers) < wanted:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        """Call the function for inputs that wait, one after the other."""
        while self._waiting and self._error is None:
            slot = self._waiting.popleft()
            self._open += 1
            try:
                slot.result = await self._call(slot.input)
            except BaseException as error:  # noqa: BLE001 - it is raised where results are taken
                if not _is_cancelled():
                    self._error = error
            finally:
                self._open -= 1
            slot.is_answered = True
            if not self._ordered:
                self._answered.append(slot)
            if self._turned is not None and self._is_turn and not self._turned.done():
                self._turned.set_result(None)
            if _is_cancelled():
                return

    @property
    def _is_turn(self) -> bool:
        """True if the code that is not async has something to do: results to take, and inputs to
        read.
        """
        if self._error is not None:
            return True
        if self._is_last:
            return not (self._waiting or self._open)
        if len(self._waiting) > self._concurrency // 2:
            return False
        return self._room > 0 or self._pending[0].is_answered

    def _yielded(self) -> list[Out]:
        """Return the results to yield now."""
        if self._ordered:
            answered = []
            while self._pending and self._pending[0].is_answered:
                answered.append(self._pending.popleft())
        else:
            answered, self._answered = self._answered, []
        self._held -= len(answered)
        return [slot.result for slot in answered]

    async def _cancel(self) -> None:
        """Cancel all open calls, and wait for their end, unless they do not end."""
        workers = [*self._workers]
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=_CANCELLED_S)


class _Slot(Generic[In, Out]):
    """An input, and the result of its call."""

    __slots__ = ("input", "is_answered", "result")

    def __init__(self, given: In) -> None:
        self.input = given
        self.result: Any = None
        self.is_answered = False


def _is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
