"""Sessions with the settings for jobs on a cluster, and the check of other sessions."""

from __future__ import annotations

import logging

from pyspark import SparkContext
from pyspark.sql import SparkSession

_logger = logging.getLogger("statekit.placement")

SETTINGS = {"spark.shuffle.reduceLocality.enabled": "false"}
"""By default, Spark prefers the host of a task's input to the executor with its working copies."""

_WAIT = "spark.locality.wait"
_LOCAL_WAITS = (_WAIT, f"{_WAIT}.process")


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Return a classic session in which shards stay on their executors.

    It sets `spark.shuffle.reduceLocality.enabled=false`, which a running session cannot change.
    Other settings are those of the builder and of Spark.

    Parameters:
        builder: with the master, the name and further settings; None for Spark's own settings, such
            as those of spark-submit.

    >>> builder = SparkSession.builder.master("spark://host:7077").appName("bank")
    >>> session(builder)  # doctest: +SKIP
    <pyspark.sql.session.SparkSession object at ...>
    """
    chosen = SparkSession.builder if builder is None else builder
    for name, value in SETTINGS.items():
        chosen = chosen.config(name, value)
    return chosen.getOrCreate()


def warn_of_settings(context: SparkContext) -> None:
    """Log one warning if the settings of a session let shards move between executors."""
    configured = context.getConf()
    wrong = [name for name, value in SETTINGS.items() if configured.get(name, "true") != value]
    wrong += [name for name in _LOCAL_WAITS if _is_zero(configured.get(name, "3s"))]
    if wrong:
        _logger.warning(
            "shards may move between executors, and each executor may come to have a copy of each "
            "shard: create the session with statekit.spark.session(), or set %s, and %s above 0",
            ", ".join(f"{name}={value}" for name, value in SETTINGS.items()),
            _WAIT,
        )


def _is_zero(duration: str | None) -> bool:
    """Return whether a Spark duration is zero.

    >>> _is_zero("0s"), _is_zero("0"), _is_zero("3s"), _is_zero(None)
    (True, True, False, False)
    """
    return duration is not None and duration.strip("0") in ("", "s", "ms", "m")
