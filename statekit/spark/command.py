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
        master: the URL of Spark's master, such as "local[2]" or "yarn", or of a server of Spark
            Connect, such as "sc://host:15002".
        settings: of Spark, by name.
        options: of the run, with `restart`.
        stop: ends the run.

    Raises:
        StatekitError: the job failed, and is not started again.
    """
    spark = _session(job, master, settings)
    try:
        query = start_query(job.plan, spark, {}, None, checkpoint, options)
        while not query.await_termination(_LOOK_S):
            if stop.is_set():
                query.stop()
                return
    finally:
        spark.stop()


def _session(job: Job, master: str, settings: Mapping[str, str]) -> SparkSession:
    is_server = master.startswith("sc://")
    builder: Any = SparkSession.builder.appName(f"statekit {job.name}")
    builder = builder.remote(master) if is_server else builder.master(master)
    quiet = {} if is_server else {"spark.ui.showConsoleProgress": "false"}  # it shows its own
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate() if is_server else session(builder)
    except Exception as error:
        needs = (
            "Check that pyspark[connect] is installed, and that the server can be reached"
            if is_server
            else "Check that Java 17 or newer is installed, and that the master can be reached"
        )
        raise StatekitError(f"Spark did not start with {master}: {error}. {needs}") from error
