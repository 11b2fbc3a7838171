"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from statekit.server.live import LiveChanges
from statekit.server.served_job import ServedJob

MEDIA_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests, and reports what served jobs are doing.

    Parameters:
        jobs: by alias.
        live: the states that are watched.
    """

    def __init__(self, jobs: Mapping[str, ServedJob], live: LiveChanges) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "statekit_requests",
            "Requests that were answered, by their kind and the status of the answer.",
            ["request", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "statekit_request_seconds",
            "How long it took to answer, without streams of events.",
            ["request"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_JobsCollector(jobs, live))

    def answered(self, request: str, status: int, seconds: float) -> None:
        """Count an answer.

        Parameters:
            request: its kind: the name of its route.
        """
        self._requests.labels(request, str(status)).inc()
        self._seconds.labels(request).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self._registry)


class _JobsCollector(Collector):
    """Reads the state of served jobs when it is asked for."""

    def __init__(self, jobs: Mapping[str, ServedJob], live: LiveChanges) -> None:
        self._jobs = jobs
        self._live = live

    def collect(self) -> Iterable[GaugeMetricFamily]:
        epoch = GaugeMetricFamily(
            "statekit_epoch", "The last epoch that can be read.", labels=["job"]
        )
        lag = GaugeMetricFamily(
            "statekit_lag_seconds", "The time since that epoch began.", labels=["job"]
        )
        behind = GaugeMetricFamily(
            "statekit_epochs_behind", "Committed epochs that cannot be read yet.", labels=["job"]
        )
        failing = GaugeMetricFamily(
            "statekit_follow_failing",
            "1 while the checkpoint cannot be followed, or copies are being restored.",
            labels=["job"],
        )
        for alias, job in self._jobs.items():
            status = job.replica.status()
            failing.add_metric([alias], float(status.error is not None or status.is_rebuilding))
            if status.epoch is None:
                continue
            epoch.add_metric([alias], status.epoch)
            lag.add_metric([alias], job.facts(job.last())["lag_ms"] / 1000)
            behind.add_metric([alias], max(0, (status.latest or 0) - status.epoch))
        watchers = GaugeMetricFamily("statekit_watchers", "Open streams of events.")
        watchers.add_metric([], self._live.watchers)
        return [epoch, lag, behind, failing, watchers]
