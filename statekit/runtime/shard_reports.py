"""Reports of an operator's shards: checked and combined."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import InitVar, dataclass
from operator import attrgetter
from typing import Any

from statekit.checkpoint.manifest import (
    IdleShards,
    OperatorEpoch,
    Placed,
    Report,
    ShardReport,
    ShardState,
)
from statekit.checkpoint.sealed_json import COUNT_MAX
from statekit.errors import IncompleteEpochError
from statekit.job.plan import Operator
from statekit.shown import shown

_first_group = attrgetter("first_group")


@dataclass(eq=False, repr=False)
class OperatorReports:
    """The reports of all shards of an operator, one per shard.

    The work follows the number of shards that had something to do.

    Parameters:
        operator: the operator.
        epoch: the number of the epoch.
        bases: each shard before the epoch, in order.
        reports: in any order, of any attempts.

    Raises:
        IncompleteEpochError: a shard is missing, or attempts at it had different effects.
    """

    operator: Operator
    epoch: int
    bases: Sequence[ShardState]
    reports: InitVar[Sequence[Report]]

    def __post_init__(self, reports: Sequence[Report]) -> None:
        idle_reports = [report for report in reports if isinstance(report, IdleShards)]
        idle = {shard for report in idle_reports for shard in report.shards}
        by_shard: dict[int, list[ShardReport]] = defaultdict(list)
        strange: list[tuple[int, int]] = []
        for report in reports:
            if isinstance(report, ShardReport):
                shard = self._number(report.shard)
                if shard is None:
                    strange.append(report.shard.groups)
                else:
                    by_shard[shard].append(report)
        for shard in idle & by_shard.keys():  # attempts that had nothing to do, and others
            by_shard[shard].append(unchanged(self.operator.name, self.bases[shard]))
        shards = range(len(self.bases))
        unknown = sorted(idle.difference(shards))
        missing = [shard for shard in shards if shard not in idle and shard not in by_shard]
        repeated = [
            shard
            for shard, attempts in sorted(by_shard.items())
            if len(attempts) > 1 and not _are_one(attempts, self.bases[shard])
        ]
        if missing or repeated or strange or unknown:
            self._refuse(missing, repeated, strange, unknown)
        self._by_shard = {shard: attempts[0] for shard, attempts in sorted(by_shard.items())}
        self._idle_cpu_us = sum(report.cpu_us for report in idle_reports)

    def _number(self, reported: ShardState) -> int | None:
        """Return the number of a shard; None if no shard of this run has these key groups."""
        shard = bisect_left(self.bases, reported.first_group, key=_first_group)
        is_known = shard < len(self.bases) and self.bases[shard].groups == reported.groups
        return shard if is_known else None

    def _refuse(
        self,
        missing: list[int],
        repeated: list[int],
        strange: list[tuple[int, int]],
        unknown: list[int],
    ) -> None:
        faults = [f"shards {missing} did not report"] if missing else []
        faults += [f"shards {repeated} ran more than once, and differ"] if repeated else []
        faults += [f"key groups {sorted(strange)} are of no shard of this run"] if strange else []
        faults += [f"shards {unknown} are none of this run"] if unknown else []
        raise IncompleteEpochError(
            f"epoch {self.epoch}, operator {self.operator.name!r}: {' and '.join(faults)}. The "
            "sink must read the whole output exactly once; use a callback sink if it may not. "
            "Nothing of this epoch is committed: correct the sink, then start the job again"
        )

    def combined(
        self, before: OperatorEpoch | None, holds: Container[str], watermark_us: int | None
    ) -> OperatorEpoch:
        """Return the operator after the epoch.

        Parameters:
            before: the operator before the epoch.
            holds: the names of its states; dropped states are not counted.
            watermark_us: of the operator in this epoch.

        Raises:
            IncompleteEpochError: shards got different broadcast records.
        """
        reports, operator = [*self._by_shard.values()], self.operator
        read = {stream: self._read(number) for number, stream in enumerate(operator.streams)}
        largest = {}
        for number, stream in enumerate(operator.streams):
            times = [report.largest_by_input.get(number) for report in reports]
            times += [before.largest_of(stream)] if before and stream in operator.inputs else []
            if times_known := [time for time in times if time is not None]:
                largest[stream] = max(times_known)
        times = [*largest.values(), *([before.largest_event_us] if before else [])]
        late = sum(report.late for report in reports)
        undivided: dict[str, Any] = {}
        for field in ("undivided_rows", "undivided_bytes"):
            counted = [getattr(report, field) for report in reports]
            remaining = {
                name: count - sum(part.get(name, 0) for part in counted)
                for name, count in getattr(before, field, {}).items()
                if name in holds
            }
            # Within their bounds: if the counts of an older manifest are wrong, `verify` reports
            # that, and no epoch fails.
            undivided[field] = {
                name: min(count, COUNT_MAX) for name, count in remaining.items() if count > 0
            }
        return OperatorEpoch(
            shards=self._shards(),
            records_in=sum(read[stream] for stream in operator.inputs),
            records_out=sum(report.records_out for report in reports),
            bytes_written=sum(report.bytes_written for report in reports),
            late=late,
            late_so_far=late + (before.late_so_far if before else 0),
            failed=self.failed,
            failed_so_far=self.failed + (before.failed_so_far if before else 0),
            watermark_us=watermark_us,
            largest_event_us=max((time for time in times if time is not None), default=None),
            records_by_input=read,
            largest_by_input=largest,
            placed=_placed(reports),
            cpu_us=self._idle_cpu_us + sum(report.cpu_us for report in reports),
            **undivided,
        )

    @property
    def failed(self) -> int:
        """The number of failed calls of the operator's function in the epoch."""
        return sum(report.failed for report in self._by_shard.values())

    @property
    def last_failure(self) -> str:
        """A failed call of the epoch, as text for messages; empty without any."""
        return next((r.last_failure for r in self._by_shard.values() if r.last_failure), "")

    def _shards(self) -> tuple[ShardState, ...]:
        """Return all shards after the epoch. Shards without a report stay the same objects."""
        shards = [*self.bases]
        for shard, report in self._by_shard.items():
            shards[shard] = report.shard
        return tuple(shards)

    def _read(self, number: int) -> int:
        """Return the number of records of a stream. A broadcast stream counts once, because every
        shard receives all of its records.
        """
        counts = [report.records_by_input.get(number, 0) for report in self._by_shard.values()]
        if number < len(self.operator.inputs):
            return sum(counts)
        if len(counts) < len(self.bases):
            counts.append(0)  # of idle shards
        if len(set(counts)) > 1:
            raise IncompleteEpochError(
                f"epoch {self.epoch}, operator {self.operator.name!r}: its shards were given "
                f"{sorted(set(counts))} records of the broadcast stream "
                f"{shown(self.operator.streams[number])}, and each must be given all: the input "
                "changed while it was read. Nothing of this epoch is committed: give an input "
                "that reads the same again, then start the job"
            )
        return counts[0]


def _placed(reports: Sequence[ShardReport]) -> Placed:
    executors = Counter(report.executor for report in reports if report.executor)
    return Placed(
        shards=dict(sorted(executors.items())),
        moved=sum(report.has_moved for report in reports),
        restored_bytes=sum(report.restored_bytes for report in reports),
        caught_up_bytes=sum(report.caught_up_bytes for report in reports),
    )


def unchanged(operator: str, shard: ShardState) -> ShardReport:
    """Return the report of an unchanged shard."""
    return ShardReport(operator=operator, shard=shard)


def _are_one(reports: list[ShardReport], base: ShardState) -> bool:
    """Return whether attempts at a shard are equivalent, so that any of them can be committed.

    If an executor dies with its output, a shard runs again in the same action. Both attempts are
    then reported, and a reader of the output may have seen either. That makes no difference if they
    had the same effect. An attempt that is reported twice is refused, because none reports twice.
    """
    attempts = [report.shard.attempt for report in reports if report.shard.attempt != base.attempt]
    effects = [_effect(report) for report in reports]
    return len(attempts) == len(set(attempts)) and all(effect == effects[0] for effect in effects)


def _effect(report: ShardReport) -> tuple[object, ...]:
    """Return the effect of an attempt, independent of its files and its base."""
    shard = report.shard
    first = len(shard.files) - report.files_written
    changes = [file.checksum for file in shard.files[first:]]
    read = report.late, report.failed, report.records_by_input, report.largest_by_input
    effect = report.records_out, report.bytes_written, shard.rows, shard.bytes, shard.wake_us
    return *read, *effect, changes
