"""Epochs of a run, with its emitted records and its stored values."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from statekit.checkpoint.job_file import Clock
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.job_harness import JobHarness

INSTANT = dt.timedelta(microseconds=1)

FAR_FUTURE = dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
"""The watermark with which values expire in event time."""


@dataclass(frozen=True)
class Step:
    """One epoch of a run.

    Parameters:
        what: "records" for an epoch over the records, which may be none; without records,
            "watermark" for a later event time, "end" for the end of event time, or "after" for a
            later processing time after that end.
        at: the processing time.
        records: the records by source.
        watermark: the watermark of a "watermark" epoch.
    """

    what: Literal["records", "watermark", "end", "after"]
    at: dt.datetime
    records: dict[str, list[Any]] = field(default_factory=dict)
    watermark: dt.datetime = FAR_FUTURE

    def has_nothing_to_do(self, harness: JobHarness) -> bool:
        """Return whether the epoch is left out, because event time has ended in all operators."""
        return self.what == "end" and harness.is_drained

    def run(
        self, harness: JobHarness, published: dict[str, list[Any]] | None = None
    ) -> dict[str, list[Any]]:
        """Run the epoch, and return the records of each sink.

        Parameters:
            published: gets the records of each sink before the commit.
        """
        harness.set_clock(self.at)
        watermark = self.reached(harness) if self.what == "watermark" else None
        records = self.records if self.what == "records" else None
        return harness.publish(records, {} if published is None else published, watermark=watermark)

    def reached(self, harness: JobHarness) -> dt.datetime:
        """Return the watermark that the epoch will have. It is later than the watermark that
        earlier records have reached.
        """
        before = harness.watermark
        if before is None or self.watermark > before:
            return self.watermark
        return before + INSTANT


@dataclass
class Observed:
    """Result of a run over a history.

    Parameters:
        epochs: the records of each sink, epoch by epoch. The last epochs are those in which event
            time ends.
        contents: the stored contents after each epoch.
        is_endless: whether timers of event time set each other without end.
    """

    epochs: list[dict[str, list[Any]]] = field(default_factory=list)
    contents: list[EpochContents] = field(default_factory=list)
    is_endless: bool = False

    def add(self, emitted: dict[str, list[Any]], harness: JobHarness) -> None:
        """Add an epoch. If its stored contents cannot be read, nothing is added."""
        contents = harness.contents()
        self.epochs.append(emitted)
        self.contents.append(contents)

    def next_timer(self, clock: Clock) -> dt.datetime | None:
        """Return the time of the soonest timer by a clock; None if there is none."""
        if not self.contents:
            return None
        of_keys = (timers for keys in self.contents[-1].timers.values() for timers in keys.values())
        return min((each.at for each in chain(*of_keys) if each.clock == clock), default=None)

    @property
    def has_come_to_rest(self) -> bool:
        """True if no timer was left to fire, so that time advanced until all values had expired."""
        return not self.is_endless and self.next_timer("processing") is None

    @property
    def late(self) -> int:
        """Number of late records."""
        return self.contents[-1].late if self.contents else 0
