"""Metrics as Prometheus reads them."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from statekit.metrics import definitions
from statekit.metrics.definitions import Metric

METRICS = [own for own in vars(definitions).values() if isinstance(own, Metric)]
"""The metrics of a job and of the server."""


def scraped(address: str) -> dict[str, float]:
    """The values at an address, by name and labels without the label `job`."""
    with urlopen(address, timeout=20) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[str, float]:
    """The values in a text, as `scraped` returns them."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sorted((name, of) for name, of in sample.labels.items() if name != "job")
            series = ",".join(f"{name}={of}" for name, of in labels)
            values[f"{sample.name}{{{series}}}"] = sample.value
    return values
