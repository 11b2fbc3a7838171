"""Live changes in a page: the events of a watch, with the changes of each epoch as table rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from statekit.server.answers import encode
from statekit.server.call import RouteCall
from statekit.server.dashboard.template import html
from statekit.server.dashboard.texts import count
from statekit.server.live import Place, event_text
from statekit.server.page_answers import Addresses
from statekit.server.watch import Watch, starts_with

_ROWS = 200
"""Changes of an epoch that are shown."""


def changes_as_html(
    request: RouteCall, place: tuple[str, str], prefix: str, after: str
) -> AsyncIterator[bytes]:
    """Return the events of a page: one for each epoch, with its changes as rows of a table.

    Parameters:
        place: operator and state.
        prefix: of the keys; empty for all.
        after: id of the last event that the page has.

    Raises:
        Problem: too many watch already.
    """
    last = Place.of_text(after)
    watch = Watch(
        request.served.live,
        request.served.admission,
        request.job,
        *place,
        key=None,
        matches=starts_with(prefix) if prefix else None,
        after=last,
        rows=False,
    )
    names = {"place": [request.job.alias, *place], "to": Addresses(request).to}
    return _events(watch, names, is_new=last is None)


async def _events(watch: Watch, names: dict[str, Any], *, is_new: bool) -> AsyncIterator[bytes]:
    changes: list[Any] = []
    is_gap, number = False, 0
    async with aclosing(watch.events()) as events:
        async for text in events:
            for block in text.split(b"\n\n"):
                event = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                kind = event.get(b"event")
                if kind is None:
                    yield block + b"\n\n" if block else b""
                elif kind == b"reset":
                    is_gap, is_new = not is_new, False
                elif kind == b"change":
                    number += 1
                    if number <= _ROWS:
                        changes.append(json.loads(event[b"data"]))
                elif kind == b"epoch":
                    epoch = json.loads(event[b"data"])["epoch"]
                    noun = "change" if number == 1 else "changes"
                    status = f"live, epoch {count(epoch)}: {count(number)} {noun}"
                    rows = html("changes", **names, epoch=epoch, is_gap=is_gap, changes=changes)
                    place = Place.of_text(event[b"id"].decode())
                    yield event_text("epoch", encode({"status": status, "rows": rows}), place)
                    changes, is_gap, number = [], False, 0
