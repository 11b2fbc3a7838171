"""Sessions for jobs: classic ones and those of Spark Connect, settings, local Python workers."""

from __future__ import annotations

import logging
import os
import re
import site
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statekit.spark.concurrent_actions import compute

_logger = logging.getLogger("statekit.placement")

SETTINGS = {"spark.shuffle.reduceLocality.enabled": "false"}
"""By default, Spark prefers the host of a task's input to the executor with its working copies."""

_WAIT = "spark.locality.wait"
_LOCAL_WAITS = (_WAIT, f"{_WAIT}.process")
_LOCAL_MASTER = re.compile(r"local(\[|$)")  # and not local-cluster[…], which has executors

_DAEMON = "spark.python.daemon.module"
_OWN_DAEMON = "statekit.spark.worker_daemon"

_MANY = 100_000
"""More rows than a cluster has cores."""


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


def is_remote(given: object) -> bool:
    """Return whether a session or a frame is of Spark Connect."""
    return any(cls.__module__.startswith("pyspark.sql.connect") for cls in type(given).__mro__)


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session; None for Spark Connect, whose driver is on the server."""
    return None if is_remote(spark) else spark.sparkContext


def cores_of(spark: SparkSession) -> int:
    """Return the number of tasks that run at a time. On Spark Connect a small action counts the
    partitions of a frame that says nothing about them.
    """
    context = context_of(spark)
    if context is not None:
        return context.defaultParallelism
    parts = spark.range(_MANY).select(F.spark_partition_id().alias("part"))
    return int(parts.agg(F.max("part").alias("last")).collect()[0].last) + 1


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


def use_this_python(spark: SparkSession) -> None:
    """Use this interpreter for local workers. By default, Spark starts the first `python3` in PATH.

    The user's configuration has precedence. Only spark-submit reads `spark.pyspark.python`; this
    function applies it to a session that a script created, too.
    """
    if os.environ.get("PYSPARK_PYTHON"):
        return
    context = spark.sparkContext
    configured = context.getConf().get("spark.pyspark.python")
    if configured or str(context.master).startswith("local"):
        context.pythonExec = configured or sys.executable


def warm_workers(spark: SparkSession) -> None:
    """Start the workers of a local session in the background, with statekit imported.

    The user's configuration has precedence. Without effect on a cluster, and where a new
    interpreter might not find statekit: then each worker imports by itself.
    """
    context = spark.sparkContext
    if not runs_here(context) or not _finds_statekit(context.pythonExec):
        return
    settings = context._jsc.sc().conf()
    if settings.contains(_DAEMON):
        return
    settings.set(_DAEMON, _OWN_DAEMON)
    cores = context.defaultParallelism
    rows = spark.range(0, cores, 1, cores).mapInArrow(_unchanged, "id long")
    InheritableThread(target=_computed, args=(rows,), daemon=True).start()


def _computed(rows: DataFrame) -> None:
    """Make Spark start a worker for each row."""
    # This saves time and nothing else: it ends with a session that is stopped meanwhile.
    with suppress(PySparkException, Py4JError, ConnectionError):
        compute(rows)


def _unchanged(batches: Iterator[object]) -> Iterator[object]:
    return batches


def _finds_statekit(python: str | None) -> bool:
    """Return whether the workers' interpreter can import statekit in a new process."""
    if not python or os.path.abspath(python) != os.path.abspath(sys.executable):
        return False
    root = Path(__file__).resolve().parents[2]
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    listed = [
        line.strip()
        for folder in folders
        for file in Path(folder).glob("*.pth")
        for line in file.read_text(errors="replace").splitlines()
    ]
    return root in {Path(each).resolve() for each in (*folders, *given, *listed) if each}


def runs_here(context: SparkContext | None) -> bool:
    """Return whether all of Spark's workers run on this host. With Spark Connect it is unknown."""
    return context is not None and _LOCAL_MASTER.match(str(context.master)) is not None
