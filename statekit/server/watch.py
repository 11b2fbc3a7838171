"""Watching: the changes of a state as server-sent events.

event: reset     the rows of an epoch follow: forget what you have
event: row       one of them
event: change    a change of a row
event: epoch     an epoch is complete, with or without changes
event: end       the server ends the stream, and says why: connect again
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from starlette.concurrency import run_in_threadpool

from statekit.query.state_view import StateView
from statekit.server.answers import encode
from statekit.server.live import EpochEvents, LiveChanges, Place
from statekit.server.problems import Problem, bad_request
from statekit.server.served_job import ServedJob, Wanted

_HEARTBEAT_S = 15.0
"""A connection on which nothing happens is used as often, so that proxies keep it."""

_ROWS_AT_ONCE = 500

Matches = Callable[[Any], bool]
"""Whether a watcher wants the rows of a key."""


EVENT_STREAM = "text/event-stream"


def asks_to_watch(accept: str | None) -> bool:
    """Return whether a request asks for events, by its header.

    >>> asks_to_watch("text/event-stream"), asks_to_watch("*/*"), asks_to_watch(None)
    (True, False, False)
    """
    return accept is not None and EVENT_STREAM in accept


def prefix_of(prefix: Any) -> Matches:
    """Return whether a key begins with a text, or with the first parts of a key of several.

    >>> prefix_of("ro")("rome"), prefix_of(["UA"])(("UA", 1545)), prefix_of("ro")("oslo")
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
    """One request that watches a state, or some of its keys.

    Parameters:
        live: all watched states.
        job, operator, state: what is watched.
        key: the one key that is watched, in a list; None for several.
        matches: which keys are watched; None for all.
        after: the last event that the watcher has; None at the first time.
    """

    def __init__(
        self,
        live: LiveChanges,
        job: ServedJob,
        operator: str,
        state: str,
        *,
        key: list[Any] | None,
        matches: Matches | None,
        after: Place | None,
    ) -> None:
        if live.is_full:
            raise Problem(
                503, "too_many", "too many watch already: try again later", {"Retry-After": "10"}
            )
        self._live, self._job, self._operator, self._state = live, job, operator, state
        self._key = key
        self._matches = matches if key is None else lambda own: own == key[0]
        self._after = after
        self._changes = live.state(job, operator, state)
        self._watcher, self._missed = self._changes.watch(after)
        self._reset_at = -1
        """The epoch of the last reset: the rows that were given have its changes already."""

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events, until the watcher leaves or has to."""
        try:
            yield b"retry: 1000\n\n"
            if self._missed is None:
                async for text in self._reset():
                    yield text
            for epoch in self._missed or ():
                yield self._text(epoch)
            async for text in self._following():
                yield text
            yield _event("end", encode({"kind": self._watcher.why}))
        except Problem as problem:
            yield _event("end", problem.body)
        finally:
            self._live.leave(self._job, self._operator, self._state, self._watcher)

    async def _following(self) -> AsyncIterator[bytes]:
        """Yield the events of new epochs."""
        while True:
            try:
                epoch = await asyncio.wait_for(self._watcher.queue.get(), _HEARTBEAT_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if epoch is None:
                return
            if epoch.events is None:
                async for text in self._reset():
                    yield text
            elif epoch.epoch > self._reset_at:
                yield self._text(epoch)

    async def _reset(self) -> AsyncIterator[bytes]:
        """Yield all rows after the last epoch that was published."""
        view = await self._job.view(Wanted(min_epoch=self._changes.position, wait_s=60))
        self._reset_at = view.epoch
        yield _event("reset", encode({"epoch": view.epoch}))
        rows = self._rows(view.state(self._operator, self._state))
        while some := await run_in_threadpool(lambda: list(islice(rows, _ROWS_AT_ONCE))):
            yield b"".join(some)
        yield _event("epoch", encode({"epoch": view.epoch}), Place(view.epoch, None))

    def _rows(self, state: StateView[Any, Any]) -> Iterator[bytes]:
        found = state.rows() if self._key is None else state.rows_of(self._key[0])
        for key, place, value in found:
            if self._matches is None or self._matches(key):
                row = {"key": key, "value": value}
                if place is not None:
                    row["place"] = place
                yield _event("row", encode(row))

    def _text(self, epoch: EpochEvents) -> bytes:
        """Return the events of an epoch."""
        matches, events = self._matches, epoch.events or []
        first = self._first_number(epoch)
        own = [
            _event("change", event.data, Place(epoch.epoch, number))
            for number, event in enumerate(events, start=first)
            if matches is None or matches(event.key)
        ]
        own.append(_event("epoch", epoch.data, Place(epoch.epoch, None)))
        return b"".join(own)

    def _first_number(self, epoch: EpochEvents) -> int:
        after = self._after
        if after is None or after.number is None or after.epoch != epoch.epoch:
            return 1
        return after.number + 1


def _event(name: str, data: bytes, place: Place | None = None) -> bytes:
    """Return an event as text. JSON has no line breaks.

    >>> _event("epoch", b"{}", Place(7, None))
    b'id: 7-end\\nevent: epoch\\ndata: {}\\n\\n'
    """
    identity = b"" if place is None else f"id: {place}\n".encode()
    return identity + b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
