"""Key scope: the current key of a shard, and the data that all states of an operator share at this
key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from statekit.backend.interface import NextKeys
from statekit.backend.mutation import Batch
from statekit.checkpoint.era import Era
from statekit.checkpoint.job_file import StateRecord
from statekit.checkpoint.manifest import ShardPlan
from statekit.keygroup import pack_group
from statekit.shown import shown
from statekit.state.undo_log import UndoLog
from statekit.watermark import BEGINNING, END

Spill = Callable[[], None]
"""Applies the batch of a scope immediately. This makes its rows readable and frees the memory."""


@dataclass(slots=True)
class Clocks:
    """The times for the states and functions of one shard.

    Parameters:
        watermark_us, processing_time_us: what `Context` shows.
        expiry_us: rows with an event-time TTL expire by this time. For a record it is the
            watermark. For a timer it is the timer's own time, so that a callback reads the same
            state whether the watermark advanced in one step or in several.
        event_us: event time of the current record or timer; None if it has none.
        expiring: called when event time advances, to drop expired rows from memory.
    """

    watermark_us: int = BEGINNING
    processing_time_us: int = BEGINNING
    expiry_us: int = BEGINNING
    event_us: int | None = None
    expiring: list[Callable[[], None]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: ShardPlan) -> Clocks:
        """Return the clocks of a shard at the beginning of an epoch."""
        watermark = plan.watermark_us
        expiry = plan.reached_us if watermark == END else watermark
        return cls(watermark, plan.processing_time_us, expiry)

    def advance(self, event_us: int | None, *, in_order: bool) -> None:
        """Advance event time to the next record or timer of the key.

        A timer that was set for a past time does not move event time back.

        Parameters:
            event_us: None for a timer of another clock.
            in_order: whether records and timers are handled in event-time order, so that the
                watermark of the function advances with them.
        """
        self.event_us = event_us
        if event_us is None:
            if self.watermark_us != END:
                self.expiry_us = max(self.expiry_us, self.watermark_us)
        else:
            self.expiry_us = max(self.expiry_us, event_us)
            if in_order:
                self.watermark_us = self.expiry_us
        for drop_expired in self.expiring:
            drop_expired()

    def start_key(self, expiry_us: int) -> None:
        """Reset the expiry time for the first record or timer of another key."""
        self.expiry_us = expiry_us

    def end_records(self, watermark_us: int) -> None:
        """Restore the watermark of the epoch, after records in event-time order."""
        self.watermark_us = watermark_us

    def end_timers(self, watermark_us: int) -> None:
        """Use the watermark of the epoch for expiry, after all timers have fired."""
        self.expiry_us, self.event_us = watermark_us, None


@dataclass(slots=True)
class KeyScope:
    """The current key of a shard, and the batch for its changes.

    Only the key iteration moves the scope, by `enter` and `flush`. States read `prefix` and `key`
    and register in `touched` or `gathered` when they hold changes.

    Parameters:
        operator: name of the operator, for messages.
        epoch: number of the epoch; positions of list elements start with it.
        batch: takes the changes when states are flushed.
        spill: applies the batch before the end of the epoch.
        prefix: key group and encoded key, the start of every row of the key.
        key: the key as the user sees it.
        clocks: of the shard.
        eras: era of each state with a TTL; stamps of other eras do not count (`state.ttl`).
        migrated: states whose rows are marked with a generation (`state.row_versions`).
        shard: number of the shard if this is the scope of operator state; None for keyed state.
        touched: flush changes to the batch when the key is left, and forget the key.
        gathered: the same after some hundred keys.
        next_keys: predicts the prefixes of the keys after a given one.
        broadcasting: whether a record of a broadcast input is being handled.
        input: the name of the input of the current record; None if there is none.
        undo: takes back the changes of a failed call; None if a failed call ends the epoch.
    """

    operator: str
    epoch: int
    batch: Batch
    spill: Spill
    prefix: bytes = b""
    key: Any = None
    clocks: Clocks = field(default_factory=Clocks)
    eras: Mapping[str, Era] = field(default_factory=dict)
    migrated: Mapping[str, StateRecord] = field(default_factory=dict)
    shard: int | None = None
    touched: list[Callable[[], None]] = field(default_factory=list)
    gathered: list[Callable[[], None]] = field(default_factory=list)
    next_keys: NextKeys = lambda key: ()
    broadcasting: bool = False
    input: str | None = None
    undo: UndoLog | None = None

    @classmethod
    def of_keys(cls, plan: ShardPlan, batch: Batch, spill: Spill) -> KeyScope:
        """Return the scope of keyed state before the first key."""
        return cls(
            plan.operator,
            plan.epoch,
            batch,
            spill,
            clocks=Clocks.of(plan),
            eras=plan.eras,
            migrated=plan.migrated,
        )

    @classmethod
    def of_shard(cls, plan: ShardPlan, batch: Batch, spill: Spill) -> KeyScope:
        """Return the scope of operator state. Its rows are in the shard's first key group."""
        return cls(
            plan.operator,
            plan.epoch,
            batch,
            spill,
            pack_group(plan.base.first_group),
            clocks=Clocks(processing_time_us=plan.processing_time_us),
            migrated=plan.migrated,
            shard=plan.shard,
        )

    def take_undo_log(self, undo: UndoLog) -> None:
        """Have changes of failed calls taken back. Call it before a state is bound."""
        self.undo = undo
        undo.note_batch(self.batch)
        undo.note_list(self.gathered)

    def at_key(self, prefix: bytes, key: Any) -> None:
        """Set the key for an error message."""
        self.prefix, self.key = prefix, key

    @property
    def place(self) -> str:
        """The current key or shard, as text for messages."""
        return self.place_of(self.key)

    def place_of(self, key: Any) -> str:
        """Return a key, or the shard, as text for messages."""
        return f"at key {shown(key)}" if self.shard is None else f"in shard {self.shard}"

    def enter(self, prefix: bytes, key: Any) -> None:
        """Change the current key. The states of the previous key must have been flushed."""
        self.prefix = prefix
        self.key = key

    @contextmanager
    def broadcast(self) -> Iterator[None]:
        """Allow changes of broadcast state in the context."""
        self.broadcasting = True
        try:
            yield
        finally:
            self.broadcasting = False

    def flush(self) -> None:
        """Write the changes of all keys so far to the batch."""
        self.flush_key()
        for flush in self.gathered:
            flush()
        self.gathered.clear()

    def flush_key(self) -> None:
        """Write the changes of states that only hold rows of the current key to the batch."""
        for flush in self.touched:
            flush()
        self.touched.clear()
