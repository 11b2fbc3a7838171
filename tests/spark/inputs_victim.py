"""A Spark driver that tests kill: streams the sources of the billing job through it to their end.

    python inputs_victim.py HOME MASTER POINT EPOCH

It kills its own process group, the JVM with it, when EPOCH gets to POINT, as `spark_victim` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.input_jobs import SCHEMAS, billing_job
from tests.spark.spark_runs import drive
from tests.spark.spark_victim import arm


def main() -> None:
    home, master, point, epoch = sys.argv[1:]
    arm(point, int(epoch))
    drive(Path(home), master, billing_job(), "bills", schemas=SCHEMAS)


if __name__ == "__main__":
    main()
