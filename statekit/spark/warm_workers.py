"""Warm workers: local Python workers with all imports done before the first epoch."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekit.spark.epoch import compute, runs_here

_DAEMON = "spark.python.daemon.module"
_OWN_DAEMON = "statekit.spark.worker_daemon"


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
