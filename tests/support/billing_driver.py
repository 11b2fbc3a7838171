"""A Spark driver that tests kill: streams the sources of the billing job through it to their end.

    python billing_driver.py HOME MASTER POINT EPOCH

It kills its own process group, the JVM with it, when EPOCH gets to POINT, as `spark_driver` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.billing_job import SCHEMAS, billing_job
from tests.support.spark_driver import arm
from tests.support.spark_runs import drive


def main() -> None:
    home, master, point, epoch = sys.argv[1:]
    arm(point, int(epoch))
    drive([Path(home)], master, billing_job(), "bills", schemas=SCHEMAS)


if __name__ == "__main__":
    main()
