"""Run the job of orders.py in a driver that spark-submit starts: on YARN, standalone or locally.

spark-submit --master yarn --deploy-mode cluster --py-files orders.py submit.py s3://acme-state/orders
"""

from __future__ import annotations

import argparse

import orders

from statekit.spark import session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--once", action="store_true", help="read what is there, then end")
    given = parser.parse_args()
    spark = session()  # with the settings of spark-submit
    query = orders.job().start(
        spark,
        checkpoint=given.checkpoint,
        trigger={"availableNow": True} if given.once else None,
        restart="5 in 10 minutes",
    )
    query.await_termination()
    spark.stop()


if __name__ == "__main__":
    main()
