"""`WatermarkModel`: the watermarks of all operators of a job, from the records that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.watermark import BEGINNING, END


class WatermarkModel:
    """Model of event time in a job, epoch by epoch.

    The watermark of an epoch depends on earlier epochs only. It is the largest event time of the
    records that an operator has read from a source, or the watermark of the operator before it,
    less its lateness.

    Parameters:
        job: the job whose watermarks they are.

    Attributes:
        reached: the watermark of each operator with event time, in microseconds.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._operators = {operator.name: operator for operator in job.operators}
        self.reached: dict[str, int] = {
            operator.name: BEGINNING
            for operator in job.operators
            if operator.declared.event_time is not None
        }
        self._before = self.reached
        self._largest: dict[tuple[str, str], int] = {}
        self._active: dict[tuple[str, str], int] = {}

    def begin(
        self, now_us: int, *, drains: bool = False, to: Mapping[str, int] | None = None
    ) -> Mapping[str, int]:
        """Return the watermarks of a new epoch.

        Parameters:
            now_us: the processing time.
            drains: whether event time ends.
            to: the least watermarks of operators.
        """
        self._before = self.reached
        following = {}
        for name, before in self._before.items():
            operator = self._operators[name]
            times = [
                self._time_at(self._job.origin_of(stream), (name, stream), drains=drains)
                for stream in operator.inputs
                if drains or not self._is_idle((name, stream), now_us)
            ]
            seen = min(times, default=BEGINNING)
            if seen not in (BEGINNING, END):
                seen -= operator.declared.lateness_us
            following[name] = max(before, seen, (to or {}).get(name, BEGINNING))
        self.reached = following
        return following

    def read(
        self, operator: Operator, now_us: int, of_inputs: Mapping[str, Sequence[int]]
    ) -> Mapping[str, list[int]]:
        """Add the records that an operator has read in an epoch, and return the event times of each
        input that are not late.

        Parameters:
            now_us: the processing time.
            of_inputs: the event times of the records, by input.
        """
        in_time: dict[str, list[int]] = {}
        for stream, times in of_inputs.items():
            place = operator.name, stream
            if times or place not in self._active:
                self._active[place] = now_us
            in_time[stream] = [at for at in times if at > self.reached[operator.name]]
            if in_time[stream]:
                latest = self._largest.get(place, BEGINNING)
                self._largest[place] = max(latest, *in_time[stream])
        return in_time

    def _time_at(self, origin: str, place: tuple[str, str], *, drains: bool) -> int:
        """Return the event time that an input has reached, in microseconds.

        Parameters:
            origin: a source, an operator or a stream of late records.
            place: an operator and its input.
        """
        above = self._operators.get(origin)
        if above is None:
            late_for = origin.removesuffix(".late")
            has_ended = origin == late_for or self._before.get(late_for) == END
            return END if drains and has_ended else self._largest.get(place, BEGINNING)
        if above.declared.event_time is not None:
            return self._before[origin]
        origins = map(self._job.origin_of, above.inputs)
        return min(self._time_at(each, place, drains=drains) for each in origins)

    def _is_idle(self, place: tuple[str, str], now_us: int) -> bool:
        """Return whether an input has had no records for so long that the watermark does not wait
        for it.
        """
        idle_after_us = self._job.idle_after_us(place[1])
        if idle_after_us is None or place not in self._active:
            return False
        return now_us - self._active[place] >= idle_after_us
