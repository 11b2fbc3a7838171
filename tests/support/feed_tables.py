"""Tables of consumers that apply the change feed of a state."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any

import statekit as sk


class FeedTable:
    """What a consumer of the feed of one state keeps: rows by key and place.

    Parameters:
        source: the feed.
        shape: "value", "list" or "map".
        clock: of the TTL of the state; None if it has none.
        resolved: whether the feed has values before the changes, and deletes what expires.
    """

    def __init__(
        self, source: sk.Feed, shape: str, clock: str | None = None, *, resolved: bool = False
    ) -> None:
        self._source = source
        self._resolved = resolved
        self._shape = shape
        self._clock = clock
        self._rows: dict[Any, dict[Any, sk.Change]] = defaultdict(dict)
        self._now: dt.datetime | None = None

    def follow(self) -> None:
        """Apply all epochs that the feed has."""
        for epoch in self._source:
            if epoch.kind == "snapshot":
                self._rows.clear()
            self._now = epoch.watermark if self._clock == "event" else epoch.processing_time
            for change in epoch:
                self._apply(change)

    def _apply(self, change: sk.Change) -> None:
        if self._resolved:
            row = self._rows[change.key].get(change.place)
            assert change.before == (None if row is None else row.value)
            assert change.op == "upsert" or (change.op == "delete" and row is not None)
        if change.op == "upsert":
            self._rows[change.key][change.place] = change
        elif change.op == "delete":
            self._rows[change.key].pop(change.place, None)
        elif change.key is None:
            self._rows.clear()
        else:
            self._rows.pop(change.key, None)

    def close(self) -> None:
        """Close the feed."""
        self._source.close()

    def values(self) -> dict[Any, Any]:
        """Return what the state has for each key, without what has expired."""
        found = {}
        for key, places in self._rows.items():
            kept = {place: row.value for place, row in places.items() if not self._is_over(row)}
            if kept:
                found[key] = self._whole(kept)
        return found

    def _is_over(self, row: sk.Change) -> bool:
        if self._resolved:
            return False
        return row.expires is not None and self._now is not None and row.expires <= self._now

    def _whole(self, places: dict[Any, Any]) -> Any:
        if self._shape == "list":
            return [places[place] for place in sorted(places)]
        return places if self._shape == "map" else places[None]
