"""A Spark driver one of whose workers dies: with four attempts per task, the query goes on.

python retry_driver.py HOME MASTER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.test_kills import _dying_job
from tests.support.spark_runs import drive


def main() -> None:
    home, master = Path(sys.argv[1]), sys.argv[2]
    drive([home], master, _dying_job(home / "marker"), "out")


if __name__ == "__main__":
    main()
