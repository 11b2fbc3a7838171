"""Metric families: conversion of samples to the objects of prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from statekit.metrics.definitions import Distribution, Metric, Sample

_FAMILIES: dict[str, Callable[..., Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class SampleCollector(Collector):
    """Collects the metrics when Prometheus reads them.

    Parameters:
        samples: returns the values of all metrics.
    """

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        families: dict[Metric, Family] = {}
        for metric, labels, value in self._samples():
            if metric not in families:
                families[metric] = _family(metric)
            _add(families[metric], labels, value)
        return families.values()


def _family(metric: Metric) -> Family:
    return _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)


def _add(family: Family, labels: tuple[str, ...], value: float | Distribution) -> None:
    if isinstance(value, Distribution):
        assert isinstance(family, HistogramMetricFamily)
        below = accumulate(value.counts)
        bounds = [*map(str, value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, below, strict=True)), value.total)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, value)
