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


# ---------------------------------------------------------------------- of an epoch, on both sides

EPOCH = Metric("statekit_epoch", "gauge", "The last committed epoch that can be read.", ("job",))
LAG = Metric(
    "statekit_lag_seconds",
    "gauge",
    "The time since that epoch began. It grows while the job commits nothing.",
    ("job",),
)
WATERMARK = Metric(
    "statekit_watermark_timestamp_seconds",
    "gauge",
    "The watermark, as seconds since 1970 UTC. Absent before the first record and after event time "
    "has ended.",
    ("job", "operator"),
)
EVENT_TIME_LAG = Metric(
    "statekit_event_time_lag_seconds",
    "gauge",
    "The time between the watermark and the clock.",
    ("job", "operator"),
)
INPUT_WAIT = Metric(
    "statekit_input_wait_seconds",
    "gauge",
    "How long the event time of an operator has waited for a source that is behind its other "
    "inputs, and makes no progress. Absent for operators that wait for none.",
    ("job", "operator", "source"),
)
STATE_ROWS = Metric("statekit_state_rows", "gauge", "Rows.", ("job", "operator", "state"))
STATE_BYTES = Metric(
    "statekit_state_bytes",
    "gauge",
    "Bytes of keys and values as they are stored.",
    ("job", "operator", "state"),
)

EPOCH_METRICS = (EPOCH, LAG, WATERMARK, EVENT_TIME_LAG, INPUT_WAIT, STATE_ROWS, STATE_BYTES)
"""Metrics of the last epoch. A job and the server report them."""

# ------------------------------------------------------------------------------------ of a job

EPOCHS = Metric("statekit_epochs_total", "counter", "Epochs that this run committed.", ("job",))
EPOCH_SECONDS = Metric(
    "statekit_epoch_seconds",
    "histogram",
    "The time from the start of an epoch to its commit, retries included.",
    ("job",),
)
SOURCE_RECORDS = Metric(
    "statekit_source_records_total",
    "counter",
    "Records of a source that operators read. Records that pass a function first, such as a "
    "filter, are not counted.",
    ("job", "source"),
)
RECORDS_IN = Metric(
    "statekit_records_in_total",
    "counter",
    "Records that an operator processed, without broadcast records.",
    ("job", "operator"),
)
RECORDS_OUT = Metric(
    "statekit_records_out_total",
    "counter",
    "Records that an operator emitted.",
    ("job", "operator"),
)
LATE_RECORDS = Metric(
    "statekit_late_records_total",
    "counter",
    "Records that arrived behind the watermark.",
    ("job", "operator"),
)
CHANGE_FILE_BYTES = Metric(
    "statekit_change_file_bytes_total",
    "counter",
    "Bytes of the change files that were committed.",
    ("job", "operator"),
)
UPLOADED_BYTES = Metric(
    "statekit_uploaded_bytes_total",
    "counter",
    "Bytes of change files and base snapshots that were committed.",
    ("job", "operator"),
)
LEASE_EPOCHS_BEHIND = Metric(
    "statekit_lease_epochs_behind",
    "gauge",
    "Committed epochs that a named reader has not committed.",
    ("job", "reader"),
)
LEASE_HEADROOM = Metric(
    "statekit_lease_headroom_seconds",
    "gauge",
    "The time until the epoch of the lease is older than the bound for readers. 0: the lease is "
    "given up.",
    ("job", "reader"),
)
LEASE_HEADROOM_EPOCHS = Metric(
    "statekit_lease_headroom_epochs",
    "gauge",
    "Epochs that the job commits in that time, at the rate of the kept epochs.",
    ("job", "reader"),
)
LEASE_EXPIRY = Metric(
    "statekit_lease_expiry_seconds",
    "gauge",
    "The time until the lease expires, if its reader does not renew it.",
    ("job", "reader"),
)

LEASE_METRICS = (LEASE_EPOCHS_BEHIND, LEASE_HEADROOM, LEASE_HEADROOM_EPOCHS, LEASE_EXPIRY)
JOB_METRICS = (
    *EPOCH_METRICS,
    EPOCHS,
    EPOCH_SECONDS,
    SOURCE_RECORDS,
    RECORDS_IN,
    RECORDS_OUT,
    LATE_RECORDS,
    CHANGE_FILE_BYTES,
    UPLOADED_BYTES,
    *LEASE_METRICS,
)

# --------------------------------------------------------------------------------- of the server

REQUESTS = Metric(
    "statekit_requests_total",
    "counter",
    "Requests that were answered, by their kind and the status of the answer.",
    ("request", "status"),
)
REQUEST_SECONDS = Metric(
    "statekit_request_seconds",
    "histogram",
    "How long it took to answer, without streams of events.",
    ("request",),
)
OPEN_REQUESTS = Metric(
    "statekit_open_requests", "gauge", "Requests that are being answered, and streams of events."
)
EPOCHS_BEHIND = Metric(
    "statekit_epochs_behind", "gauge", "Committed epochs that cannot be read yet.", ("job",)
)
FOLLOW_FAILING = Metric(
    "statekit_follow_failing",
    "gauge",
    "1 while the checkpoint cannot be followed, or copies are being restored.",
    ("job",),
)
REPLICA_HEADROOM = Metric(
    "statekit_replica_headroom_epochs",
    "gauge",
    "Kept epochs before the next one that the replica needs. At 0, garbage collection may delete "
    "that one, and the replica restores its copies.",
    ("job",),
)
WATCHERS = Metric("statekit_watchers", "gauge", "Open streams of events.")
DISK = Metric(
    "statekit_disk_bytes", "gauge", "Disk space of copies of the state and of files of requests."
)
DISK_LIMIT = Metric("statekit_disk_limit_bytes", "gauge", "The limit of that disk space (--disk).")

SERVER_METRICS = (
    REQUESTS,
    OPEN_REQUESTS,
    REQUEST_SECONDS,
    *EPOCH_METRICS,
    EPOCHS_BEHIND,
    FOLLOW_FAILING,
    REPLICA_HEADROOM,
    WATCHERS,
    DISK,
    DISK_LIMIT,
)
