"""Features for a model: the same definition for training, as of the past, and for serving.

    python examples/features.py                                       in this process
    statekit run examples.features:job --checkpoint results/features/checkpoint --spark 'local[2]'
    pytest examples/features.py                                       check the job

The store keeps the balance of each customer with its history. For training, `sk.read(as_of=…)` has
the balance that each labelled customer had at the time of the label, and none that came later. For
serving, `get` has the balance of now.
"""

import datetime as dt
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/features")


class Balance(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


job = sk.Job("features")
balances = job.source("balances", Balance, sk.sources.files(DATA / "balances.jsonl"))
store = job.add(
    sk.KVStore(
        "balance", key=str, value=int, event_time="at", lateness="1 minute", history="30 days"
    )
)
store.put(balances, key="customer", value="cents")


def training_table(checkpoint: Path) -> pa.Table:
    """Return labels with the balance that each customer had then."""
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    labels = pa.table(
        {
            "key": ["ann", "ann", "bob", "bob"],
            "at": [day + dt.timedelta(hours=hours) for hours in (2, 9, 2, 9)],
            "has_churned": [False, True, False, False],
        }
    )
    return sk.read(checkpoint, "balance", "value", as_of=labels).read_all()


def test_the_store_depends_on_no_crash_and_no_order() -> None:
    from statekit.testing import check

    check(job, depth="quick", holds=["restarts", "replays", "arrival order", "parallelism"])


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint", epoch_size=10)
    for row in training_table(RESULTS / "checkpoint").to_pylist():
        print(row["key"], f"{row['at']:%H:%M}", row["value"], row["status"], row["has_churned"])
