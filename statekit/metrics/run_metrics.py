"""Metrics of a run: counts of its commits since it started, and the values of its last epoch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from statekit.checkpoint.gc.readers import LeaseHeadroom
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.clock import stopwatch_s
from statekit.metrics.definitions import (
    BAD_RECORDS,
    CHANGE_FILE_BYTES,
    EPOCH_SECONDS,
    EPOCHS,
    FAILED_RECORDS,
    LATE_RECORDS,
    LEASE_EPOCHS_BEHIND,
    LEASE_EXPIRY,
    LEASE_HEADROOM,
    LEASE_HEADROOM_EPOCHS,
    MIRROR_EPOCHS_BEHIND,
    MIRROR_RUNNING,
    RECORDS_IN,
    RECORDS_OUT,
    SOURCE_LAG,
    SOURCE_RECORDS,
    UPLOADED_BYTES,
    Distribution,
    Metric,
    Sample,
)
from statekit.metrics.epoch_metrics import EpochMetrics

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_LEASES_MAX = 50
"""Limit of the reported leases: readers choose their names, so their number has no bound."""


class RunMetrics:
    """Counts the commits of a run. One thread commits, any thread may read.

    Labels are the names of operators, sources, states and readers: their number does not depend on
    keys, shards and epochs.

    Parameters:
        job: the name of the job.
        last: the epoch that the run follows; None for a new checkpoint.
        now_us: the clock of the run.
        leases: returns the leases that the last garbage collection has read.
    """

    def __init__(
        self,
        job: str,
        last: EpochManifest | None,
        now_us: Callable[[], int],
        leases: Callable[[], Sequence[LeaseHeadroom]],
    ) -> None:
        self._job = job
        self._now_us = now_us
        self._leases = leases
        self._lock = threading.Lock()
        self._counts = Counter[tuple[Metric, str]]()
        self._epochs = 0
        self._seconds = Distribution.empty(_SECONDS)
        self._last = None if last is None else EpochMetrics(job, last)
        self._begun_s: float | None = None
        self.source_lags: dict[str, int] = {}
        """Records behind the last epoch, by source. The thread that commits sets it."""
        self.mirrors: Callable[[], Iterable[tuple[str, bool, int | None]]] = tuple
        """Returns the name of each mirror beside the job, whether it runs, and its epoch. The start
        of the run sets it.
        """

    def begun(self) -> None:
        """Note that an epoch has begun. Further attempts at it count from the first one."""
        if self._begun_s is None:
            self._begun_s = stopwatch_s()

    @property
    def epoch_seconds(self) -> float:
        """The time since the present epoch began; 0 between epochs."""
        begun_s = self._begun_s
        return 0.0 if begun_s is None else stopwatch_s() - begun_s

    def committed(self, manifest: EpochManifest, seconds: float) -> None:
        """Count a committed epoch.

        Parameters:
            manifest: of the epoch.
            seconds: the time from its start to its commit.
        """
        before = None if self._last is None else self._last.manifest
        counts = Counter[tuple[Metric, str]]()
        for name, operator in manifest.operators.items():
            counts[RECORDS_IN, name] = operator.records_in
            counts[RECORDS_OUT, name] = operator.records_out
            counts[LATE_RECORDS, name] = operator.late
            counts[FAILED_RECORDS, name] = operator.failed
            counts[CHANGE_FILE_BYTES, name] = operator.bytes_written
            last = None if before is None else before.operators.get(name)
            counts[UPLOADED_BYTES, name] = _uploaded(last, operator)
        for source, read in manifest.records_by_source.items():
            counts[SOURCE_RECORDS, source] = read
        bad_before = {} if before is None else before.bad_records
        for source, bad in manifest.bad_records.items():
            counts[BAD_RECORDS, source] = bad - bad_before.get(source, 0)
        with self._lock:
            for place, count in counts.items():  # unlike `update`, this keeps zeros
                self._counts[place] += count
            self._epochs += 1
            self._seconds = self._seconds.with_value(seconds)
            self._last = EpochMetrics(self._job, manifest)
            self._begun_s = None

    def samples(self) -> list[Sample]:
        """Return all values."""
        job = self._job
        with self._lock:
            last = self._last
            counts = [*self._counts.items()]
            samples = [
                Sample(EPOCHS, (job,), self._epochs),
                Sample(EPOCH_SECONDS, (job,), self._seconds),
            ]
        samples += (Sample(metric, (job, name), count) for (metric, name), count in counts)
        samples += (Sample(SOURCE_LAG, (job, name), lag) for name, lag in self.source_lags.items())
        for name, is_running, epoch in self.mirrors():
            samples.append(Sample(MIRROR_RUNNING, (job, name), int(is_running)))
            if last is not None and epoch is not None:
                behind = max(0, last.manifest.epoch - epoch)
                samples.append(Sample(MIRROR_EPOCHS_BEHIND, (job, name), behind))
        if last is not None:
            samples += last.samples(self._now_us())
            samples += self._of_leases(last.manifest.epoch)
        return samples

    def _of_leases(self, epoch: int) -> Iterator[Sample]:
        leases = sorted(self._leases(), key=lambda lease: lease.seconds)
        for lease in leases[:_LEASES_MAX]:
            labels = self._job, lease.reader
            yield Sample(LEASE_EPOCHS_BEHIND, labels, epoch - lease.epoch)
            yield Sample(LEASE_HEADROOM, labels, lease.seconds)
            if lease.epochs is not None:
                yield Sample(LEASE_HEADROOM_EPOCHS, labels, lease.epochs)
            yield Sample(LEASE_EXPIRY, labels, lease.expires_in_s)

    def values(self) -> dict[str, float]:
        """Return all values by name and labels in Prometheus notation, without the label `job`.

        A histogram has its sum and the number of its values.
        """
        values: dict[str, float] = {}
        for metric, labels, value in self.samples():
            named = zip(metric.labels, labels, strict=True)
            own = ",".join(f'{name}="{label}"' for name, label in named if name != "job")
            suffix = f"{{{own}}}" if own else ""
            if isinstance(value, Distribution):
                values[f"{metric.name}_sum{suffix}"] = value.total
                values[f"{metric.name}_count{suffix}"] = value.count
            else:
                values[f"{metric.name}{suffix}"] = value
        return values


def _uploaded(before: OperatorEpoch | None, after: OperatorEpoch) -> int:
    """Return the bytes that the shards of an operator uploaded for an epoch.

    After a change of the parallelism, the new shards count from 0.
    """
    so_far = sum(shard.chain.uploaded for shard in after.shards)
    if before is not None:
        so_far -= sum(shard.chain.uploaded for shard in before.shards)
    return max(so_far, after.bytes_written)
