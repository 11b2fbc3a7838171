"""Server-sent events, as a browser reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

EVENTS = {"Accept": "text/event-stream"}


class Event(NamedTuple):
    id: str | None
    name: str
    data: Any


def events_of(lines: Iterator[str]) -> Iterator[Event]:
    """The events of a stream, as a browser reads them."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "event" in fields:
                yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, of = line.partition(": ")
            fields[name] = of


@contextmanager
def watching(
    address: str, path: str, after: str | None = None, **params: str
) -> Iterator[Iterator[Event]]:
    headers = EVENTS | ({} if after is None else {"Last-Event-ID": after})
    with httpx.stream("GET", address + path, headers=headers, params=params, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events_of(answer.iter_lines())
