"""`EpochLoop`: the epochs of a run, from its start until its inputs end or it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statekit.checkpoint.manifest import EpochOffsets
from statekit.clock import stopwatch_s
from statekit.job.options import Pace
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.idle_epochs import IdleEpochs
from statekit.runtime.inputs import RunInputs
from statekit.runtime.rare_collection import collect_between_epochs

RunEpoch = Callable[[str, EpochOffsets | None], None]
"""A function that runs an epoch and commits it: its kind, as for `Coordinator.begin`, and where it
ends in each input; None for an epoch without input.
"""

_LONGEST_WAIT_S = 0.1
"""How long a source may wait for a record: then the loop looks whether it is stopped."""

_LAGS_S = 1.0
"""How often sources are asked how many records are behind the last epoch."""

_RECORDS = 1_000
_RECORDS_OF_STREAMS = 50_000
"""Records per input and epoch, at most, if the user chose no number."""


@dataclass
class EpochLoop:
    """Runs epochs over the inputs of a run.

    Parameters:
        coordinator: of the run.
        inputs: of the run.
        run_epoch: runs one epoch.
        pace: when epochs begin, and when the run ends.
    """

    coordinator: Coordinator
    inputs: RunInputs
    run_epoch: RunEpoch
    pace: Pace

    def __post_init__(self) -> None:
        chosen = self.pace.epoch_size
        self._limit = chosen or (_RECORDS_OF_STREAMS if self.inputs.has_streams else _RECORDS)
        self._last_epoch_s = self._next_lags_s = stopwatch_s()
        self._follows = self.pace.follow and self.inputs.has_streams
        self._idle = IdleEpochs(self.coordinator, self._epoch, self.pace.stop)
        operators = self.coordinator.job.operators
        self._settles = self.inputs.has_streams and any(
            operator.declared.traits.settles for operator in operators
        )

    def run(self) -> None:
        """Run all epochs."""
        coordinator = self.coordinator
        if coordinator.was_draining:
            self._idle.drain()
        self._idle.finish()
        while not self.pace.stop.is_set():
            ends = self._next()
            if ends is not None:
                self._epoch("records", ends)
            elif not self._follows:
                break
        if self.pace.stop.is_set():
            return
        drains = self.pace.drain
        if drains or (drains is None and not self.inputs.has_streams):
            if coordinator.last is not None:
                self._idle.drain()
        elif self._settles:
            self._idle.settle()

    def _next(self) -> EpochOffsets | None:
        """Return where the next epoch ends, as soon as there is a record; None if there is none, or
        if the run is stopped.
        """
        note = self.coordinator.note
        if note is not None and note.offsets:
            return self.inputs.begun(note.offsets)
        wait_s = self._due_in_s(self.pace.trigger_s)
        if wait_s > 0 and self.coordinator.last is not None and self.pace.stop.wait(wait_s):
            return None
        epoch = self.coordinator.epoch
        ends = self.inputs.next(self._limit, 0.0, epoch)
        while ends is None and self._follows and not self.pace.stop.is_set():
            self._run_if_due()
            ends = self.inputs.next(self._limit, _LONGEST_WAIT_S, self.coordinator.epoch)
        return ends

    def _due_in_s(self, interval_s: float) -> float:
        """Return the seconds until an epoch is due that long after the begin of the last one."""
        return interval_s - (stopwatch_s() - self._last_epoch_s)

    def _run_if_due(self) -> None:
        """Run an epoch without input if a heartbeat is due, or event time has advanced."""
        coordinator, heartbeat_s = self.coordinator, self.pace.heartbeat_s
        if coordinator.last is None:
            return  # nothing is due before the first records
        is_due = heartbeat_s is not None and self._due_in_s(heartbeat_s) <= 0
        if is_due or coordinator.would_advance:
            self._epoch("idle")

    def _epoch(self, what: str, ends: EpochOffsets | None = None) -> None:
        self._last_epoch_s = stopwatch_s()
        self.run_epoch(what, ends)
        collect_between_epochs()
        if ends is not None:
            self.inputs.has_read(ends)
        if self.inputs.has_streams and stopwatch_s() >= self._next_lags_s:
            self.coordinator.metrics.source_lags = self.inputs.lags()
            self._next_lags_s = stopwatch_s() + _LAGS_S
