"""Definitions of all metrics of a job and of the server: name, kind, labels and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Metric:
    """A metric of Prometheus.

    Parameters:
        name: with the unit; a counter ends in `_total`.
        kind: the type.
        help: the meaning, in a sentence.
        labels: the names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """The value of a histogram.

    Parameters:
        bounds: the upper bounds of the buckets, in order; one more bucket has no bound.
        counts: the number of values in each bucket.
        total: the sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Distribution:
        """Return the distribution of no values."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def with_value(self, value: float) -> Distribution:
        """Return the distribution with one more value.

        >>> Distribution.empty((0.1, 1.0)).with_value(0.1).with_value(3.0)
        Distribution(bounds=(0.1, 1.0), counts=(1, 0, 1), total=3.1)
        """
        place = sum(bound < value for bound in self.bounds)
        counts = tuple(count + (number == place) for number, count in enumerate(self.counts))
        return Distribution(self.bounds, counts, self.total + value)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


class Sample(NamedTuple):
    """A value of a metric.

    Parameters:
        metric: the metric.
        labels: the values of its labels, in order.
        value: a `Distribution` for a histogram.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


def _counter(name: str, help_: str, labels: str = "") -> Metric:
    return Metric(name, "counter", help_, tuple(labels.split()))


def _gauge(name: str, help_: str, labels: str = "") -> Metric:
    return Metric(name, "gauge", help_, tuple(labels.split()))


def _histogram(name: str, help_: str, labels: str = "") -> Metric:
    return Metric(name, "histogram", help_, tuple(labels.split()))


# ---------------------------------------------------------------------- of an epoch, on both sides

EPOCH = _gauge("statekit_epoch", "The last committed epoch that can be read.", "job")
LAG = _gauge(
    "statekit_lag_seconds",
    "The time since that epoch began. It grows while the job commits nothing.",
    "job",
)
WATERMARK = _gauge(
    "statekit_watermark_timestamp_seconds",
    "The watermark, as seconds since 1970 UTC. Absent before the first record and after event "
    "time has ended.",
    "job operator",
)
EVENT_TIME_LAG = _gauge(
    "statekit_event_time_lag_seconds",
    "The time between the watermark and the clock.",
    "job operator",
)
INPUT_WAIT = _gauge(
    "statekit_input_wait_seconds",
    "Time that the event time of an operator has waited for a source that is behind its other "
    "inputs, and makes no progress. Absent for operators that wait for none.",
    "job operator source",
)
STATE_ROWS = _gauge("statekit_state_rows", "Rows.", "job operator state")
STATE_BYTES = _gauge(
    "statekit_state_bytes", "Bytes of keys and values as they are stored.", "job operator state"
)

# ------------------------------------------------------------------------------------ of a job

EPOCHS = _counter("statekit_epochs_total", "Epochs that this run committed.", "job")
EPOCH_SECONDS = _histogram(
    "statekit_epoch_seconds",
    "The time from the start of an epoch to its commit, retries included.",
    "job",
)
SOURCE_RECORDS = _counter(
    "statekit_source_records_total",
    "Records that were read from a source, before any condition or function, without bad ones. Of "
    "streams and frames of Spark: the records that arrive at operators.",
    "job source",
)
BAD_RECORDS = _counter(
    "statekit_bad_records_total",
    "Records of a source that do not fit their type, and that it drops or collects.",
    "job source",
)
SOURCE_LAG = _gauge(
    "statekit_source_lag_records",
    "Records of a source behind the last committed epoch, where the source knows their number.",
    "job source",
)
RECORDS_IN = _counter(
    "statekit_records_in_total",
    "Records that an operator processed, without broadcast records.",
    "job operator",
)
RECORDS_OUT = _counter(
    "statekit_records_out_total", "Records that an operator emitted.", "job operator"
)
LATE_RECORDS = _counter(
    "statekit_late_records_total", "Records that arrived behind the watermark.", "job operator"
)
FAILED_RECORDS = _counter(
    "statekit_failed_records_total",
    "Records and timers for which the function failed, and that it drops or collects.",
    "job operator",
)
CHANGE_FILE_BYTES = _counter(
    "statekit_change_file_bytes_total",
    "Bytes of the change files that were committed.",
    "job operator",
)
UPLOADED_BYTES = _counter(
    "statekit_uploaded_bytes_total",
    "Bytes of change files and base snapshots that were committed.",
    "job operator",
)
LAST_FAILURE = _gauge(
    "statekit_last_failure_timestamp_seconds",
    "When the job failed last, as seconds since 1970 UTC. Absent if it never did.",
    "job error",
)
SUBMITTED_WANTED = _gauge(
    "statekit_submitted_wanted",
    "Whether a submitted job is to run: 1, or 0 if it was stopped.",
    "job",
)
SUBMITTED_RUNNING = _gauge(
    "statekit_submitted_running",
    "Whether a submitted job has a process: 1, or 0 if it has none.",
    "job",
)
SUBMITTED_LATE = _gauge(
    "statekit_submitted_late",
    "Whether the last epoch of a submitted job that is to run is older than it may be: 1 or 0.",
    "job",
)
SUBMITTED_LAST_EPOCH = _gauge(
    "statekit_submitted_last_epoch_timestamp_seconds",
    "When a submitted job committed last, as seconds since 1970 UTC. Absent before it did.",
    "job",
)
SUBMITTED_FAILURES = _gauge(
    "statekit_submitted_failures", "How often the process of a submitted job has failed.", "job"
)
SUBMITTED_LAG = _gauge(
    "statekit_submitted_lag_records",
    "Records behind the last epoch of a submitted job, of sources that know it.",
    "job source",
)
MIRROR_RUNNING = _gauge(
    "statekit_mirror_running",
    "Whether the process of a mirror beside the job runs: 1, or 0 after it has ended.",
    "job mirror",
)
MIRROR_EPOCHS_BEHIND = _gauge(
    "statekit_mirror_epochs_behind",
    "Committed epochs that the tables of a mirror do not have, also after the mirror has ended.",
    "job mirror",
)
LEASE_EPOCHS_BEHIND = _gauge(
    "statekit_lease_epochs_behind",
    "Committed epochs that a named reader has not committed.",
    "job reader",
)
LEASE_HEADROOM = _gauge(
    "statekit_lease_headroom_seconds",
    "The time until the epoch of the lease is older than the bound for readers. 0: the lease is "
    "given up.",
    "job reader",
)
LEASE_HEADROOM_EPOCHS = _gauge(
    "statekit_lease_headroom_epochs",
    "Epochs that the job commits in that time, at the rate of the kept epochs.",
    "job reader",
)
LEASE_EXPIRY = _gauge(
    "statekit_lease_expiry_seconds",
    "The time until the lease expires, if its reader does not renew it.",
    "job reader",
)

# --------------------------------------------------------------------------------- of the server

REQUESTS = _counter(
    "statekit_requests_total",
    "Requests that were answered, by their kind and the status of the answer.",
    "request status",
)
REQUEST_SECONDS = _histogram(
    "statekit_request_seconds", "Time of answers, without streams of events.", "request"
)
OPEN_REQUESTS = _gauge(
    "statekit_open_requests", "Requests that are being answered, and streams of events."
)
EPOCHS_BEHIND = _gauge("statekit_epochs_behind", "Committed epochs that cannot be read yet.", "job")
FOLLOW_FAILING = _gauge(
    "statekit_follow_failing",
    "1 while the checkpoint cannot be followed, or copies are being restored.",
    "job",
)
REPLICA_HEADROOM = _gauge(
    "statekit_replica_headroom_epochs",
    "Kept epochs before the next one that the replica needs. At 0, garbage collection may delete "
    "that one, and the replica restores its copies.",
    "job",
)
WATCHERS = _gauge("statekit_watchers", "Open streams of events.")
DISK = _gauge("statekit_disk_bytes", "Disk space of copies of the state and of files of requests.")
DISK_LIMIT = _gauge("statekit_disk_limit_bytes", "The limit of that disk space (--disk).")
