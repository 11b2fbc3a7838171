"""A local Spark session for tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

# A JVM that lives for seconds on two cores ends before its second compiler pays off.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quiet_session(directory: Path, *, is_short: bool = False) -> SparkSession:
    """Return a session with two cores that logs errors only.

    Parameters:
        directory: of its temporary files and its tables.
        is_short: whether it ends after some seconds.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    if is_short:
        settings["spark.driver.extraJavaOptions"] = _SHORT_LIVED
    builder = SparkSession.builder.master("local[2]").appName("tests").config(map=settings)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
