"""Inputs that hold operators back, and the duration of each wait.

The watermark of an operator follows its slowest input. An input without records, or one whose
records are older than those of the others, holds back the timers, the windows and the buffered
records. It may be the input of an operator further up. So the input that is named is a source.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from statekit.checkpoint.manifest import EpochManifest, HeldBack, OperatorEpoch
from statekit.job.plan import Operator, Plan
from statekit.stored_types import held_back_text
from statekit.watermark import BEGINNING, END

WARNED_AFTER_US = 5 * 60 * 1_000_000
"""The processing time for which an operator waits for an input without progress before a
warning.
"""

_logger = logging.getLogger("statekit.watermark")


class _Reached(NamedTuple):
    """The event time that an input has reached.

    Parameters:
        time_us: the event time.
        source: the source that decides it.
        at_us: the largest event time of its records; None without records.
        input: the name of the input.
        is_idle: whether it does not count.
    """

    time_us: int
    source: str
    at_us: int | None
    input: str
    is_idle: bool


class HeldBackOperators:
    """The operators of a job that an input holds back.

    Parameters:
        job: the job.
    """

    def __init__(self, job: Plan) -> None:
        self._job = job
        self._by_name = {operator.name: operator for operator in job.operators}
        self._warned: set[tuple[str, HeldBack]] = set()

    def noted(
        self,
        operators: Mapping[str, OperatorEpoch],
        before: EpochManifest | None,
        processing_time_us: int,
    ) -> dict[str, OperatorEpoch]:
        """Return operators after an epoch, with the input that each of them waits for.

        Parameters:
            before: the epoch before.
            processing_time_us: of the epoch.
        """
        found = _Epoch(self._job, self._by_name, operators, processing_time_us)
        noted = {}
        for name, operator in operators.items():
            held = found.held_back(name)
            last = None if before is None else before.operators.get(name)
            if held is not None and last is not None and last.held_back is not None:
                was = last.held_back
                if (was.source, was.at_us) == (held.source, held.at_us):
                    held = held.model_copy(update={"since_us": was.since_us})
            noted[name] = operator.model_copy(update={"held_back": held})
        return noted

    def warn(self, manifest: EpochManifest) -> None:
        """Log a warning for each operator that has waited for several minutes, once per wait."""
        for name, operator in manifest.operators.items():
            held = operator.held_back
            if held is None or (name, held) in self._warned:
                continue
            waited_us = manifest.processing_time_us - held.since_us
            if waited_us >= WARNED_AFTER_US:
                self._warned.add((name, held))
                _logger.warning(
                    "job %r: operator %r has not advanced for %s: it %s. Its timers, windows and "
                    "buffered records wait too. Send records to this source, or declare that it "
                    "may be quiet, as in job.source(%r, ..., idle_after='5 minutes')",
                    manifest.job,
                    name,
                    dt.timedelta(microseconds=waited_us),
                    held_back_text(held),
                    held.source,
                )


class _Epoch:
    """The progress of the inputs of all operators after an epoch."""

    def __init__(
        self,
        job: Plan,
        by_name: Mapping[str, Operator],
        operators: Mapping[str, OperatorEpoch],
        processing_time_us: int,
    ) -> None:
        self._job = job
        self._by_name = by_name
        self._operators = operators
        self._now_us = processing_time_us

    def held_back(self, name: str) -> HeldBack | None:
        """Return the input that an operator waits for; None if it does not wait."""
        epoch = self._operators[name]
        if epoch.watermark_us in (None, END):
            return None
        reached = list(self._reached_by(name))
        active = [each for each in reached if not each.is_idle]
        if not active:
            return None
        slowest = min(active, key=lambda each: each.time_us)
        others = [each.time_us for each in reached if each.source != slowest.source]
        if slowest.time_us >= max(others, default=BEGINNING):
            above = self._above(slowest.input)
            waits = None if above is None else self.held_back(above.name)
            return None if waits is None else waits.model_copy(update={"input": slowest.input})
        return HeldBack(
            input=slowest.input, source=slowest.source, at_us=slowest.at_us, since_us=self._now_us
        )

    def _reached_by(self, name: str) -> Iterator[_Reached]:
        for stream in self._by_name[name].inputs:
            yield self._reached(name, stream)

    def _reached(self, name: str, stream: str) -> _Reached:
        epoch, above = self._operators[name], self._above(stream)
        is_idle = has_been_idle(self._job, epoch, stream, self._now_us)
        if above is None:
            at_us = epoch.largest_of(stream)
            time_us = BEGINNING if at_us is None else at_us
            return _Reached(time_us, self._job.origin_of(stream), at_us, stream, is_idle)
        slowest = min(self._reached_by(above.name), key=lambda each: (each.is_idle, each.time_us))
        if above.declared.event_time is None:
            at_us = epoch.largest_of(stream)
            time_us = BEGINNING if at_us is None else at_us
            return _Reached(time_us, slowest.source, at_us, stream, is_idle)
        watermark_us = self._operators[above.name].watermark_us
        time_us = BEGINNING if watermark_us is None else watermark_us
        return _Reached(time_us, slowest.source, slowest.at_us, stream, is_idle)

    def _above(self, stream: str) -> Operator | None:
        """Return the operator that feeds a stream; None for a source."""
        return self._job.emitter_of(self._job.origin_of(stream))


def has_been_idle(job: Plan, epoch: OperatorEpoch | None, stream: str, now_us: int) -> bool:
    """Return whether an input of an operator had no records for the declared time.

    Parameters:
        epoch: the operator in its last epoch.
        now_us: the processing time.
    """
    idle_after_us = job.idle_after_us(stream)
    active_us = None if epoch is None else epoch.active_us.get(stream)
    if idle_after_us is None or active_us is None:
        return False
    return now_us - active_us >= idle_after_us
