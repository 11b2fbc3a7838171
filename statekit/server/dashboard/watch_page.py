"""Live changes in a page: one event for each epoch, with its changes as rows of a table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from statekit.checkpoint.epoch_id import EpochId
from statekit.server.answers.values import encode
from statekit.server.dashboard.page_answers import Addresses
from statekit.server.dashboard.template import html
from statekit.server.dashboard.texts import count
from statekit.server.jobs.live import EpochEvents, Event, Place, event_text
from statekit.server.jobs.watch import Watch, starts_with
from statekit.server.routes.call import RouteCall

_ROWS = 200
"""Limit of the changes of an epoch that are shown."""


class PageWatch(Watch):
    """A page that watches a state.

    Parameters:
        place: operator and state.
        prefix: of the keys; empty for all.
        after: id of the last event that the page has.

    Raises:
        Problem: too many watch already.
    """

    def __init__(self, call: RouteCall, place: tuple[str, str], prefix: str, after: str) -> None:
        last = Place.of_text(after)
        super().__init__(
            call.served.live,
            call.served.admission,
            call.job,
            *place,
            key=None,
            matches=starts_with(prefix) if prefix else None,
            after=last,
            rows=False,
        )
        self._names = {"place": [call.job.alias, *place], "to": Addresses(call).to}
        self._is_new = last is None

    def text(self, epoch: EpochEvents) -> bytes:
        matches = self.matches
        found = [own for own in epoch.events or () if matches is None or matches(own.key)]
        return self._event(epoch.epoch, found, is_gap=False)

    async def reset(self) -> AsyncIterator[bytes]:
        view = await self.view_of_position()
        yield self._event(view.id, [], is_gap=not self._is_new)
        self._is_new = False

    def _event(self, epoch: EpochId, changes: list[Event], *, is_gap: bool) -> bytes:
        noun = "change" if len(changes) == 1 else "changes"
        status = f"live, epoch {count(epoch.epoch)}: {count(len(changes))} {noun}"
        shown = [json.loads(own.data) for own in changes[:_ROWS]]
        rows = html("changes", **self._names, epoch=epoch.epoch, is_gap=is_gap, changes=shown)
        return event_text("epoch", encode({"status": status, "rows": rows}), Place(epoch, None))
