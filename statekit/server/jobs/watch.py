"""Watching: the changes of a state as server-sent events.

event: reset     the rows of an epoch follow: drop all rows first
event: row       one of these rows
event: change    a change of a row
event: epoch     an epoch is complete, with or without changes
event: end       the server ends the stream, with the reason: connect again
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from starlette.concurrency import run_in_threadpool

from statekit.clock import stopwatch_s
from statekit.errors import StatekitError
from statekit.query.replica.state_view import StateView
from statekit.query.replica.view import View
from statekit.server.admission.queues import Admission
from statekit.server.answers.problems import Problem, bad_request, closing, problem_of
from statekit.server.answers.values import encode
from statekit.server.jobs.live import EpochEvents, LiveChanges, Place, event_text
from statekit.server.jobs.served_job import ServedJob

_HEARTBEAT_S = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection."""

_ROWS_AT_ONCE = 500

_VIEW_S, _LOOKED_EVERY_S = 60.0, 0.05
"""Longest wait for the replica to have an epoch, and the time between two checks, in seconds."""

Matches = Callable[[Any], bool]
"""Returns whether a watcher wants the rows of a key."""


EVENT_STREAM = "text/event-stream"


def starts_with(prefix: Any) -> Matches:
    """Return a function that checks the prefix of a key: a text, or the first parts of a key.

    >>> starts_with("ro")("rome"), starts_with(["UA"])(("UA", 1545)), starts_with("ro")("oslo")
    (True, True, False)
    """
    if not isinstance(prefix, str | list):
        raise bad_request(
            f"prefix={prefix!r:.100}: give a text, or a list with the first parts of a key"
        )
    if isinstance(prefix, list):
        parts = tuple(prefix)
        return lambda key: isinstance(key, tuple) and key[: len(parts)] == parts
    return lambda key: isinstance(key, str) and key.startswith(prefix)


class Watch:
    """A request that watches a state, or some of its keys.

    Parameters:
        live: all states with watchers.
        admission: of the server.
        job, operator, state: the watched state.
        key: the only watched key, in a list; None for several.
        matches: returns whether a key is watched; None for all keys.
        after: the last event that the watcher has; None for a new watcher.
        rows: send all present rows first, and not only changes.

    Attributes:
        matches: the same.
    """

    def __init__(
        self,
        live: LiveChanges,
        admission: Admission,
        job: ServedJob,
        operator: str,
        state: str,
        *,
        key: list[Any] | None,
        matches: Matches | None,
        after: Place | None,
        rows: bool,
    ) -> None:
        self._leave = admission.enter("watchers")
        self._live, self._job, self._operator, self._state = live, job, operator, state
        self._key = key
        self.matches = matches
        self._wants_rows = rows
        self._changes = live.state(job, operator, state)
        self._watcher, self._missed = self._changes.watch(after)

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the events, until the watcher leaves or must leave."""
        try:
            yield b"retry: 1000\n\n"
            if self._missed is None:
                async for text in self.reset():
                    yield text
            for epoch in self._missed or ():
                yield self.text(epoch)
            async for text in self._following():
                yield text
            yield event_text("end", encode({"kind": self._watcher.why}))
        except StatekitError as error:
            yield event_text("end", problem_of(error).body)
        except Problem as problem:
            yield event_text("end", problem.body)
        finally:
            self._live.leave(self._job, self._operator, self._state, self._watcher)
            self._leave()

    async def _following(self) -> AsyncIterator[bytes]:
        while True:
            try:
                epoch = await asyncio.wait_for(self._watcher.queue.get(), _HEARTBEAT_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if epoch is None:
                return
            if epoch.events is None:
                async for text in self.reset():
                    yield text
            else:
                yield self.text(epoch)

    def text(self, epoch: EpochEvents) -> bytes:
        """Return the events of an epoch."""
        return epoch.text(self._key, self.matches)

    async def reset(self) -> AsyncIterator[bytes]:
        """Yield a reset and all rows, as of the last published epoch."""
        view = await self.view_of_position()
        yield event_text("reset", encode({"epoch": view.epoch}))
        state = view.state(self._operator, self._state)
        rows = self._rows(state) if self._wants_rows else iter(())
        while some := await run_in_threadpool(lambda: list(islice(rows, _ROWS_AT_ONCE))):
            yield b"".join(some)
        yield event_text("epoch", encode({"epoch": view.epoch}), Place(view.id, None))

    async def view_of_position(self) -> View:
        """Wait until the replica has the last published epoch, and return a view of it. The watcher
        gets only the changes after it.

        Raises:
            Problem: the replica does not have it in time, or the watcher must leave.
        """
        until_s = stopwatch_s() + _VIEW_S
        while (view := self._job.view_of(self._changes.position)) is None:
            if self._watcher.why:
                raise closing()
            if stopwatch_s() > until_s:
                detail = "the replica does not have the last changes yet: connect again"
                raise Problem(503, "not_ready", detail)
            await asyncio.sleep(_LOOKED_EVERY_S)
        self._watcher.forget()  # the view has the changes of the epochs that wait
        return view

    def _rows(self, state: StateView[Any, Any]) -> Iterator[bytes]:
        found = state.rows() if self._key is None else state.rows_of(self._key[0])
        for key, place, value in found:
            if self.matches is None or self.matches(key):
                row = {"key": key, "value": value}
                if place is not None:
                    row["place"] = place
                yield event_text("row", encode(row))
