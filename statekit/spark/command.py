"""A run of a job on Spark until it ends or is stopped, as the command line makes it."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import Any

from pyspark.sql import SparkSession

from statekit.errors import StatekitError
from statekit.job.job import Job
from statekit.job.options import StartOptions
from statekit.spark.session import session
from statekit.spark.start import start_query

_LOOK_S = 1.0
"""How often a run looks whether it is to stop, in seconds."""


def run_on_spark(
    job: Job,
    master: str,
    settings: Mapping[str, str],
    checkpoint: str,
    options: StartOptions,
    stop: Event,
) -> None:
    """Run a job on Spark.

    Parameters:
        master: the URL of Spark's master, such as "local[2]" or "yarn".
        settings: of Spark, by name.
        options: of the run, with `restart`.
        stop: ends the run.

    Raises:
        StatekitError: the job failed, and is not started again.
    """
    spark = _session(job, master, settings)
    try:
        query = start_query(job, spark, {}, None, checkpoint, options)
        while not query.await_termination(_LOOK_S):
            if stop.is_set():
                query.stop()
                return
    finally:
        spark.stop()


def _session(job: Job, master: str, settings: Mapping[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder.master(master).appName(f"statekit {job.name}")
    quiet = {"spark.ui.showConsoleProgress": "false"}  # the command shows its own
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(name, value)
    try:
        return session(builder)
    except Exception as error:
        raise StatekitError(
            f"Spark did not start with master {master}: {error}. Check that Java 17 or newer is "
            "installed, and that the master can be reached"
        ) from error
