"""Epochs without input: those that were begun before a crash, that settle a job, or drain it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from statekit.runtime.coordinator import Coordinator


@dataclass
class IdleEpochs:
    """Runs epochs without input, of any runtime.

    Parameters:
        coordinator: of the run.
        run_epoch: runs one of this kind, as for `Coordinator.begin`, and commits it.
        stop: ends a series of them.
    """

    coordinator: Coordinator
    run_epoch: Callable[[str], None]
    stop: threading.Event

    def finish(self) -> None:
        """Complete an idle epoch that began before a crash."""
        note = self.coordinator.note
        if note is not None and note.what == "idle":
            self.run_epoch("idle")

    def settle(self) -> None:
        """Run all due epochs, after all input was read."""
        self.finish()
        while self.coordinator.would_advance and not self.stop.is_set():
            self.run_epoch("idle")

    def drain(self) -> None:
        """Advance event time to its end. This takes one epoch per operator of the longest chain."""
        self.finish()
        while not (self.coordinator.is_drained or self.stop.is_set()):
            self.run_epoch("drain")
