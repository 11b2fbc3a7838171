"""Live changes: the changes of a state in each committed epoch, for all watchers.

One feed per state follows the job, in a thread, as long as the state has watchers. The id of an
event is the identity of its epoch and its number among the changes of that epoch. So a watcher that
connects again continues after it, as long as the changes are kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from statekit.checkpoint.epoch_id import EpochId
from statekit.errors import StatekitError
from statekit.query.changes.change import Change
from statekit.query.changes.feed import EpochChanges, feed
from statekit.server.answers.values import encode
from statekit.server.jobs.served_job import ServedJob

_logger = logging.getLogger("statekit.server")

_EPOCHS_KEPT, _CHANGES_KEPT = 100, 100_000
"""Limits of the epochs from which a watcher can continue, and of their changes."""

_EPOCHS_QUEUED = 64
"""Number of epochs that are queued for a watcher before it is disconnected."""

_POLL_S, _RETRY_S = 0.5, 1.0

_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)


class Event(NamedTuple):
    """A change of a row.

    Parameters:
        key: its key.
        data: the change as JSON.
    """

    key: Any
    data: bytes


class Place(NamedTuple):
    """The last event that a watcher has: the number of a change, or None for all of the epoch."""

    epoch: EpochId
    number: int | None

    def __str__(self) -> str:
        return f"{self.epoch}-{'end' if self.number is None else self.number}"

    @classmethod
    def of_text(cls, text: str) -> Place | None:
        """Return the place of an event id; None if the text is not an event id.

        >>> place = Place.of_text("12-99aa06d3014798d86001c324468d497f-3")
        >>> place.epoch.epoch, place.number, Place.of_text("12-3")
        (12, 3, None)
        """
        name, _, number = text.rpartition("-")
        epoch_id = EpochId.of_text(name)
        if epoch_id is None or not (number == "end" or _NUMBER.fullmatch(number)):
            return None
        return cls(epoch_id, None if number == "end" else int(number))


def event_text(name: str, data: bytes, place: Place | None = None) -> bytes:
    """Return the text of an event in a stream. The data has no line breaks, since it is JSON.

    >>> event_text("epoch", b"{}", Place(EpochId(7, "99"), None))
    b'id: 7-99-end\\nevent: epoch\\ndata: {}\\n\\n'
    """
    identity = b"" if place is None else f"id: {place}\n".encode()
    return identity + b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


@dataclass(frozen=True, eq=False)
class EpochEvents:
    """The changes of an epoch as events. Their text is built once for all watchers.

    Parameters:
        epoch: its identity.
        events: its changes, in order; None if they are too many to keep: watchers then begin again.
        data: the facts of the epoch, as JSON.
        first: the number of the first of these changes.
    """

    epoch: EpochId
    events: list[Event] | None
    data: bytes
    first: int = 1

    def after(self, number: int) -> EpochEvents:
        """Return the epoch without the first `number` changes."""
        assert self.events is not None
        return replace(self, events=self.events[number:], first=number + 1)

    def text(self, key: list[Any] | None, matches: Callable[[Any], bool] | None) -> bytes:
        """Return the events for a watcher.

        Parameters:
            key: the only key that it watches, in a list; None for several.
            matches: returns whether it watches a key; None for all keys.
        """
        if key is not None:
            own = [self._changes[place] for place in self._places.get(key[0], ())]
        elif matches is not None:
            events = self.events or ()
            own = [self._changes[n] for n, event in enumerate(events) if matches(event.key)]
        else:
            return self._text
        return b"".join((*own, self._end))

    @cached_property
    def _changes(self) -> list[bytes]:
        return [
            event_text("change", event.data, Place(self.epoch, number))
            for number, event in enumerate(self.events or (), start=self.first)
        ]

    @cached_property
    def _places(self) -> dict[Any, list[int]]:
        places: dict[Any, list[int]] = {}
        for place, event in enumerate(self.events or ()):
            places.setdefault(event.key, []).append(place)
        return places

    @cached_property
    def _end(self) -> bytes:
        return event_text("epoch", self.data, Place(self.epoch, None))

    @cached_property
    def _text(self) -> bytes:
        return b"".join((*self._changes, self._end))


@dataclass(eq=False)
class Watcher:
    """A client that watches a state.

    Parameters:
        queue: epochs that were not read yet; None tells the watcher to leave.
        why: the kind of the problem for which it must leave; empty if it need not.
    """

    queue: asyncio.Queue[EpochEvents | None] = field(default_factory=asyncio.Queue)
    why: str = ""

    def give(self, epoch: EpochEvents) -> None:
        """Queue an epoch. If the queue is full, make the watcher leave."""
        if self.queue.qsize() < _EPOCHS_QUEUED:
            self.queue.put_nowait(epoch)
        elif not self.why:
            self.leave("slow")

    def forget(self) -> None:
        """Remove the epochs that were not read yet, but not the request to leave."""
        while not self.queue.empty():
            self.queue.get_nowait()
        if self.why:
            self.queue.put_nowait(None)

    def leave(self, why: str) -> None:
        """Make the watcher leave, and drop the epochs that it did not read."""
        self.why = why
        self.forget()


class WatchedChanges:
    """The changes of one state, while it has watchers. All methods are called in the event loop.

    Parameters:
        job: the job.
        operator, state: their names.

    Attributes:
        position: the identity of the last epoch whose changes were queued for watchers.
    """

    def __init__(self, job: ServedJob, operator: str, state: str) -> None:
        self.position = job.last().id
        self.watchers: set[Watcher] = set()
        self._job, self._operator, self._state = job, operator, state
        self._loop = asyncio.get_running_loop()
        self._kept: deque[EpochEvents] = deque()
        self._before_kept = self.position
        self._ends = threading.Event()
        self._read_until = self.position  # of the thread
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def watch(self, after: Place | None) -> tuple[Watcher, list[EpochEvents] | None]:
        """Return a new watcher, and the epochs that it missed since its last event; None if it must
        begin again.
        """
        watcher = Watcher()
        self.watchers.add(watcher)
        return watcher, None if after is None else self._since(after)

    def _since(self, after: Place) -> list[EpochEvents] | None:
        kept = [epoch.epoch for epoch in self._kept]
        if after.epoch in kept:
            missed = list(self._kept)[kept.index(after.epoch) :]
        elif after == Place(self._before_kept, None):
            missed = list(self._kept)
        else:
            return None
        if any(epoch.events is None for epoch in missed):
            return None
        if after.epoch not in kept:
            return missed
        first, *later = missed
        return later if after.number is None else [first.after(after.number), *later]

    def close(self) -> None:
        """Stop following the job, and make all watchers leave."""
        self._ends.set()
        for watcher in self.watchers:
            watcher.leave("closing")

    def _publish(self, epoch: EpochEvents) -> None:
        self.position = epoch.epoch
        self._kept.append(epoch)
        while len(self._kept) > _EPOCHS_KEPT or self._changes_kept > _CHANGES_KEPT:
            self._before_kept = self._kept.popleft().epoch
        for watcher in self.watchers:
            watcher.give(epoch)

    @property
    def _changes_kept(self) -> int:
        return sum(len(epoch.events or ()) for epoch in self._kept)

    # ------------------------------------------------------------------ in the thread of the feed

    def _follow(self) -> None:
        """Read the changes of each epoch. If that fails, watchers begin again at the last epoch,
        unless they are at it already.
        """
        while not self._ends.is_set():
            try:
                self._read()
            except StatekitError as error:
                _logger.warning(
                    "the changes of %s.%s are read again: %s", self._operator, self._state, error
                )
            if self._ends.wait(_RETRY_S):
                return
            newest = self._job.replica.epoch_id
            if newest not in (None, self._read_until):
                self._read_until = newest
                data = encode({"epoch": newest.epoch, "cause": "restart"})
                self._call(self._publish, EpochEvents(newest, None, data))

    def _read(self) -> None:
        """Publish the changes of all later epochs, until the state has no watchers any more."""
        job = self._job
        with feed(
            job.checkpoint,
            self._operator,
            self._state,
            str(self._read_until),
            before=True,
            directory=job.scratch,
            rocksdb=job.rocksdb,
        ) as changes:
            while not self._ends.is_set():
                for epoch in changes:
                    events = events_of(epoch)
                    self._call(self._publish, events)
                    self._read_until = events.epoch
                job.replica.wait_for_other(self._read_until, _POLL_S)

    def _call(self, function: Callable[[EpochEvents], None], epoch: EpochEvents) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, epoch)


def events_of(epoch: EpochChanges) -> EpochEvents:
    """Return the changes of an epoch as events."""
    facts = {
        "epoch": epoch.epoch,
        "cause": epoch.cause,
        "watermark": None if epoch.watermark is None else epoch.watermark.isoformat(),
        "processing_time": epoch.processing_time.isoformat(),
    }
    changes = list(islice(epoch, _CHANGES_KEPT + 1))
    if len(changes) > _CHANGES_KEPT:
        return EpochEvents(epoch.id, None, encode(facts))
    events = [Event(change.key, encode(_plain(change))) for change in changes]
    return EpochEvents(epoch.id, events, encode(facts))


def _plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = {"op": change.op, "key": change.key, "before": change.before}
    if change.place is not None:
        plain["place"] = change.place
    if change.op == "upsert":
        plain["value"] = change.value
    return plain


class LiveChanges:
    """The states with watchers."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, str], WatchedChanges] = {}

    def state(self, job: ServedJob, operator: str, state: str) -> WatchedChanges:
        """Return the changes of a state, and start to follow them if nobody watches it yet.

        Raises:
            QueryError: there is no such state.
        """
        place = (job.alias, operator, state)
        if place not in self._states:
            job.last().state(operator, state)
            self._states[place] = WatchedChanges(job, operator, state)
        return self._states[place]

    def leave(self, job: ServedJob, operator: str, state: str, watcher: Watcher) -> None:
        """Remove a watcher. A state that nobody watches is no longer followed."""
        place = (job.alias, operator, state)
        changes = self._states.get(place)
        if changes is None:
            return
        changes.watchers.discard(watcher)
        if not changes.watchers:
            changes.close()
            del self._states[place]

    def close(self) -> None:
        """Make all watchers leave."""
        for changes in self._states.values():
            changes.close()
