"""A driver that imports from Spark and is killed when all is written but the manifest.

    python tws_import_process.py HOME

It takes `HOME/stopped`, the checkpoint of a query over `HOME/in`, and makes `HOME/checkpoint`.
Before the manifest it prints `written`, and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from statekit.spark.tws.checkpoint import TwsCheckpoint
from statekit.spark.tws.transform import transform_with_state
from tests.support.spark_runs import new_session, stream_of
from tests.support.tws_import_jobs import KEYS, OUTPUTS, PROVIDER, ROCKS, ROWS, Keeps

_LONG_S = 600


def wait(_: TwsCheckpoint) -> None:
    print("written", flush=True)
    time.sleep(_LONG_S)


def main() -> None:
    home = Path(sys.argv[1])
    (home / "tmp").mkdir(exist_ok=True)
    spark = new_session(home / "tmp", options={PROVIDER: ROCKS})
    rows = stream_of(spark, home / "in", ROWS).withWatermark("at", "3 seconds")
    TwsCheckpoint.check_has_not_moved = wait  # type: ignore[method-assign, assignment]
    stream = transform_with_state(rows, KEYS, Keeps(), OUTPUTS, time_mode="eventTime")
    found = stream.importing(home / "stopped", home / "checkpoint", parallelism=2)
    found.carry_out(working_directory=home / "working")


if __name__ == "__main__":
    main()
