"""Event loops that run coroutines for code that is not async.

A loop runs in a thread of its own, so that open calls make progress while a task reads records or
writes outputs. It lives from epoch to epoch, and so do the clients that it has opened.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, TypeVarTuple, Unpack

from statekit.clock import stopwatch_s
from statekit.closing import Closing

T = TypeVar("T")
Given = TypeVarTuple("Given")

Client = Callable[[], AbstractAsyncContextManager[Any]]
"""Returns a client, such as a session of HTTP, that is open within `async with`."""

_CLOSING_S = 5.0
"""How long a loop waits for cancelled calls and for clients that close."""


class Clients:
    """The open clients of an event loop. Use it in coroutines of this loop.

    Each client is opened and closed in one task, as some clients need.
    """

    def __init__(self) -> None:
        # By the id of the function, which is kept, so that no other one gets its id.
        self._open: dict[int, tuple[Client, asyncio.Future[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def opened(self, client: Client) -> Any:
        """Return the client that a function returns. The first call opens it.

        Raises:
            BaseException: the client cannot be opened. The next call tries again.
        """
        known = self._open.get(id(client))
        if known is None:
            opening = asyncio.get_running_loop().create_future()
            known = self._open[id(client)] = client, opening
            task = asyncio.create_task(self._hold(client, opening))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(known[1])

    async def _hold(self, client: Client, opening: asyncio.Future[Any]) -> None:
        """Keep a client open until the loop closes."""
        try:
            async with client() as opened:
                opening.set_result(opened)
                await self._closing.wait()
        except BaseException as error:
            if opening.done():
                raise
            del self._open[id(client)]
            opening.set_exception(error)
            opening.exception()  # it is read here, as the calls that wait may be cancelled

    async def close(self) -> None:
        """Close all clients."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING_S)


class EventLoop(Closing):
    """An event loop that starts when it is first used."""

    def __init__(self) -> None:
        self._clients: Clients | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result."""
        raise NotImplementedError

    async def client(self, client: Client) -> Any:
        """Return an open client of this loop, as for `Clients.opened`."""
        if self._clients is None:
            self._clients = Clients()
        return await self._clients.opened(client)

    async def _close_clients(self) -> None:
        if self._clients is not None:
            await self._clients.close()


class ThreadLoop(EventLoop):
    """An event loop in a thread of its own, which runs until `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            run = _run_forever, (self._loop,)
            threading.Thread(target=run[0], args=run[1], name="statekit-calls", daemon=True).start()
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()  # if this thread was interrupted
            raise

    def close(self) -> None:
        """Close the clients, and end the thread. Later calls do nothing."""
        if self._loop is not None:
            self.run(self._close_clients())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until `stop`, whatever a task of the user raises."""
    has_failed = True
    while has_failed:
        try:
            loop.run_forever()
            has_failed = False
        except (KeyboardInterrupt, SystemExit):  # a task has failed with it, and has noted it
            continue
    loop.close()


class VirtualTimeLoop(EventLoop):
    """An event loop for tests, in which pauses and timeouts take no time.

    Coroutines only run within `run`. If all of them wait for a time, the clock of the loop jumps to
    the first of these times. It does not jump while a coroutine waits for a socket or a thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop: _JumpingLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = _JumpingLoop()
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        """Close the clients and the loop. Later calls do nothing."""
        if self._loop is not None:
            self.run(self._close_clients())
            self._loop.close()
            self._loop = None


class _JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps over times in which nothing can happen."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._in_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._now_s += seconds

    @property
    def has_threads(self) -> bool:
        """True if a coroutine waits for a thread."""
        return self._in_threads > 0

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Given]], T], *args: *Given
    ) -> asyncio.Future[T]:
        self._in_threads += 1
        running = super().run_in_executor(executor, func, *args)
        running.add_done_callback(self._left_thread)
        return running

    def _left_thread(self, running: asyncio.Future[Any]) -> None:
        self._in_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that waits only for sockets and threads."""

    def __init__(self, loop: _JumpingLoop) -> None:
        super().__init__()
        self._of = weakref.ref(loop)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready, loop = super().select(0), self._of()
        if ready or timeout == 0 or loop is None:
            return ready
        # The loop itself has one socket, by which threads wake it.
        if timeout is not None and len(self.get_map()) == 1 and not loop.has_threads:
            loop.advance(timeout)
            return ready
        began_s = stopwatch_s()
        ready = super().select(timeout)
        loop.advance(stopwatch_s() - began_s)
        return ready


_own: ContextVar[EventLoop | None] = ContextVar("_own", default=None)
_of_processes: dict[int, ThreadLoop] = {}


def event_loop() -> EventLoop:
    """Return the event loop of this context; by default, of this process."""
    own = _own.get()
    if own is not None:
        return own
    process = os.getpid()  # the thread of a loop does not survive a fork
    if process not in _of_processes:
        _of_processes[process] = ThreadLoop()
    return _of_processes[process]


@contextmanager
def with_event_loop(loop: EventLoop) -> Iterator[None]:
    """Use an event loop in the context, and close it at the end."""
    before = _own.set(loop)
    try:
        with loop:
            yield
    finally:
        _own.reset(before)
