"""Balances: a key-value store of accounts, which transfers change on both sides at once.

    python examples/balances.py                                       in this process
    statekit run examples.balances:job --checkpoint results/balances/checkpoint --spark 'local[2]'
    pytest examples/balances.py                                       check the job

Both sides of a transfer are in one epoch, so no reader ever sees money that is on its way. The
changes of the store are a stream of the job, here written as an audit log.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import statekit as sk

DATA = Path(__file__).parent / "data"
RESULTS = Path("results/balances")


class Transfer(NamedTuple):
    source: str
    target: str
    cents: int


class Entry(NamedTuple):
    account: str
    cents: int


class Question(NamedTuple):
    account: str


def entries(transfer: Transfer) -> Iterator[Entry]:
    yield Entry(transfer.source, -transfer.cents)
    yield Entry(transfer.target, transfer.cents)


job = sk.Job("balances")
transfers = job.source("transfers", Transfer, sk.sources.files(DATA / "transfers.jsonl"))
store = job.add(sk.KVStore("accounts", key=str, value=int))
store.increment(transfers.flat_map(entries), key="account", by="cents")
store.changes().sink("audit", sk.sinks.json_lines(RESULTS / "audit"))


def test_the_sum_of_all_balances_stays_zero() -> None:
    from statekit.testing import check

    check(job, depth="quick", holds=["restarts", "replays", "parallelism", "rescaling"])


if __name__ == "__main__":
    job.run(checkpoint=RESULTS / "checkpoint")
    table = sk.read(RESULTS / "checkpoint", "accounts", "value").read_all()
    for row in table.sort_by("key").to_pylist():
        print(f"{row['key']:8} {row['value']:8}")
    assert sum(table["value"].to_pylist()) == 0
