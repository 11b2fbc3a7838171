"""Metrics of the server, for Prometheus."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from statekit.clock import now_us
from statekit.metrics.definitions import (
    DISK,
    DISK_LIMIT,
    EPOCHS_BEHIND,
    FOLLOW_FAILING,
    LAST_FAILURE,
    MIRROR_EPOCHS_BEHIND,
    OPEN_REQUESTS,
    REPLICA_HEADROOM,
    REQUEST_SECONDS,
    REQUESTS,
    SUBMITTED_FAILURES,
    SUBMITTED_LAG,
    SUBMITTED_LAST_EPOCH,
    SUBMITTED_LATE,
    SUBMITTED_RUNNING,
    SUBMITTED_WANTED,
    WATCHERS,
    Sample,
)
from statekit.metrics.epoch_metrics import EpochMetrics
from statekit.metrics.families import SampleCollector
from statekit.server.admission.queues import Admission
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.served_job import ServedJob
from statekit.service.job_service import JobService

MEDIA_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests, and reports the status of served jobs.

    Parameters:
        jobs: by alias.
        admission: of the server.
        disk: of the server.
        service: runs submitted jobs; None if this server runs none.

    Attributes:
        open_requests: number of requests that are being answered. `MeasuredApp` counts them.
    """

    def __init__(
        self,
        jobs: Mapping[str, ServedJob],
        admission: Admission,
        disk: Disk,
        service: JobService | None = None,
    ) -> None:
        self.open_requests = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=self._registry
        )
        self._seconds = Histogram(
            REQUEST_SECONDS.name,
            REQUEST_SECONDS.help,
            REQUEST_SECONDS.labels,
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._registry.register(SampleCollector(self._samples))
        self._jobs, self._admission, self._disk = jobs, admission, disk
        self._service = service
        self._epochs: dict[str, EpochMetrics] = {}

    def answered(self, request: str, status: int, seconds: float) -> None:
        """Count an answer.

        Parameters:
            request: its kind: the name of its route.
        """
        own = self._children.get((request, status))
        if own is None:
            own = self._requests.labels(request, str(status)), self._seconds.labels(request)
            self._children[request, status] = own
        own[0].inc()
        own[1].observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _samples(self) -> Iterator[Sample]:
        """Yield all values when Prometheus scrapes. This sends no request to a store."""
        yield Sample(OPEN_REQUESTS, (), self.open_requests)
        for alias, job in self._jobs.items():
            status = job.replica.status()
            is_failing = status.error is not None or status.is_rebuilding
            yield Sample(FOLLOW_FAILING, (alias,), float(is_failing))
            if status.epoch is None:
                continue
            yield from self._epoch(alias, job).samples(now_us())
            behind = max(0, (status.latest or 0) - status.epoch)
            yield Sample(EPOCHS_BEHIND, (alias,), behind)
            for mirror in job.mirrors:
                lag = mirror.lag(status.latest or status.epoch)
                yield Sample(MIRROR_EPOCHS_BEHIND, (alias, mirror.name), lag)
            if (failure := job.last_failure) is not None:
                yield Sample(LAST_FAILURE, (alias, failure.error), failure.at_us / 1e6)
            if status.headroom is not None:
                yield Sample(REPLICA_HEADROOM, (alias,), status.headroom)
        if self._service is not None:
            yield from self._submitted(self._service)
        yield Sample(WATCHERS, (), self._admission.taken("watchers"))
        yield Sample(DISK, (), self._disk.measured()[0])
        if self._disk.limit_bytes is not None:
            yield Sample(DISK_LIMIT, (), self._disk.limit_bytes)

    def _submitted(self, service: JobService) -> Iterator[Sample]:
        """Yield the values of submitted jobs, on the leader alone: others would repeat them."""
        if not service.supervisor.is_leader:
            return
        for name, job in service.known_jobs().items():
            yield Sample(SUBMITTED_WANTED, (name,), float(job["desired"] == "running"))
            yield Sample(SUBMITTED_RUNNING, (name,), float(job["process"] is not None))
            yield Sample(SUBMITTED_LATE, (name,), float(job["is_late"]))
            yield Sample(SUBMITTED_FAILURES, (name,), job["failures"])
            if (at := job["last_epoch_at"]) is not None:
                at_s = dt.datetime.fromisoformat(at).timestamp()
                yield Sample(SUBMITTED_LAST_EPOCH, (name,), at_s)
            for source, lag in job["lag"].items():
                if lag is not None:
                    yield Sample(SUBMITTED_LAG, (name, source), lag)

    def _epoch(self, alias: str, job: ServedJob) -> EpochMetrics:
        """Return the cached metrics of the last epoch that can be read."""
        manifest = job.last().manifest
        epoch = self._epochs.get(alias)
        if epoch is None or epoch.manifest is not manifest:
            epoch = self._epochs[alias] = EpochMetrics(alias, manifest)
        return epoch
