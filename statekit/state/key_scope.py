"""Key scope: what all states of an operator share while one key is processed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from statekit.backend.interface import Coming
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import StateRecord
from statekit.watermark import BEGINNING, END


class Spill(Protocol):
    """Applies the batch of the scope now, so that it can be read and memory is free again."""

    def __call__(self) -> None: ...


class Aging(Protocol):
    """Something whose values expire when event time goes on."""

    def _age(self) -> None:
        """Forget what has expired."""


class Touched(Protocol):
    """Something that holds changes of keys."""

    def _leave(self) -> None:
        """Flush changes to the batch and forget the keys."""


@dataclass(slots=True)
class KeyScope:
    """What all states of a shard share while a function runs for one key.

    Parameters:
        operator: for messages.
        epoch: list positions start with it.
        batch: where changes go when the key is left.
        spill: applies the batch before the end of the epoch.
        prefix: key group and encoded key, the start of every row of the key.
        key: the key as the user knows it.
        watermark_us, processing_time_us: what the clocks show.
        expiry_us: by what time of the event clock state has expired. For a record, the watermark;
            for a timer its own time, so that a callback finds what it would have found had the
            watermark come by in small steps, and not in one.
        event_us: the event time of what is being handled; None without event time.
        eras: per state, which stamps on its rows count; see `expiry`.
        migrated: per state whose rows are marked with a generation, its record; see `generations`.
        touched: states that hold rows of this key alone, and flush them when it is left.
        gathered: states that hold rows of this key and of keys before it.
        aging: states whose values may expire while a key is processed.
        coming: predicts `prefix` at the keys that follow one.
        shard: the shard whose own state this is about; None at a key.
        broadcasting: a record of a broadcast input is being handled.
    """

    operator: str
    epoch: int
    batch: Batch
    spill: Spill
    prefix: bytes = b""
    key: Any = None
    watermark_us: int = BEGINNING
    processing_time_us: int = BEGINNING
    expiry_us: int = BEGINNING
    event_us: int | None = None
    eras: dict[str, int] = field(default_factory=dict)
    migrated: dict[str, StateRecord] = field(default_factory=dict)
    touched: list[Touched] = field(default_factory=list)
    gathered: list[Touched] = field(default_factory=list)
    aging: list[Aging] = field(default_factory=list)
    coming: Coming = lambda key: ()
    shard: int | None = None
    broadcasting: bool = False

    @property
    def place(self) -> str:
        """Where this is, for messages."""
        return self.place_of(self.key)

    def place_of(self, key: Any) -> str:
        """The same for something that is about a key."""
        return f"at key {key!r}" if self.shard is None else f"in shard {self.shard}"

    def go_on_to(self, event_us: int | None, *, in_order: bool) -> None:
        """Let event time go on to that of the next record or timer of the key.

        Time does not go back for a timer that was set for a time that had passed.

        Parameters:
            event_us: None for a timer of another clock.
            in_order: everything is handled in order of time, so nothing before it can follow.
        """
        self.event_us = event_us
        if event_us is None:
            if self.watermark_us != END:
                self.expiry_us = max(self.expiry_us, self.watermark_us)
        else:
            self.expiry_us = max(self.expiry_us, event_us)
            if in_order:
                self.watermark_us = self.expiry_us
        for state in self.aging:
            state._age()

    def leave(self) -> None:
        """Flush all changes of this key, and of those before it, to the batch."""
        self.leave_key()
        for state in self.gathered:
            state._leave()
        self.gathered.clear()

    def leave_key(self) -> None:
        """Flush states that hold rows of this key alone."""
        for state in self.touched:
            state._leave()
        self.touched.clear()
