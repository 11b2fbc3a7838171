"""A job that moves amounts between accounts in every epoch, and a process that sums them.

Both are started as processes that tests kill.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple

import statekit as sk

ACCOUNTS = 40
TRANSFERS_PER_EPOCH = 10


class Entry(NamedTuple):
    """One side of a transfer."""

    account: int
    cents: int


Balance = Annotated[sk.ReducingState[int], sk.Reduce(sum)]
Count = Annotated[sk.ReducingState[int], sk.Reduce("count")]


@sk.process(key="account")
def book(entry: Entry, balance: Balance, entries: Count, last: sk.MapState[int, int]) -> None:
    balance.add(entry.cents)
    entries.add(entry.cents)
    last[entry.cents % 3] = entry.cents


@sk.process(key="cents")
def audit(entry: Entry, seen: Count) -> None:
    """The same entries by another key: the counts of both operators agree in each epoch."""
    seen.add(entry.cents)


def entries() -> Iterator[Entry]:
    """Both sides of each transfer, one after the other, without end."""
    for number in itertools.count():
        cents = 1 + number * 37 % 19
        yield Entry(number * 7 % ACCOUNTS, cents)
        yield Entry(number * 11 % ACCOUNTS, -cents)


def transfer(home: Path, parallelism: int, ready: Connection) -> None:
    """Run the job until the process is killed."""
    job = sk.Job("bank", key_groups=8)
    source = job.source("entries", Entry)
    source.process(book)
    source.process(audit)

    def paced() -> Iterator[Entry]:
        for number, entry in enumerate(entries()):
            if number % (2 * TRANSFERS_PER_EPOCH) == 0:
                time.sleep(0.002)
            yield entry

    ready.send(None)
    job.run(
        {"entries": paced()},
        checkpoint=home / "checkpoint",
        parallelism=parallelism,
        epoch_size=2 * TRANSFERS_PER_EPOCH,
        backend="rocksdb",
        working_directory=home / "copies",
        bases=sk.BaseOptions(replay_seconds=0),
        retention=sk.Retention(epochs=5),
    )


def sum_up(home: Path, ready: Connection) -> None:
    """Follow the job, and check each view, until the process is killed.

    After each check, the number of the epoch is appended to `checked`. A wrong sum is appended to
    `wrong`.
    """
    ready.send(None)
    with sk.Replica(home / "checkpoint", directory=home / "replica", views=3) as replica:
        while True:
            for epoch in replica.status().views[-2:]:
                try:
                    check(replica, epoch, home)
                except sk.QueryError:
                    continue  # the replica has newer ones


def check(replica: sk.Replica, epoch: int, home: Path) -> None:
    """Compare all that has to agree in one view."""
    with replica.at(epoch) as view:
        balances = dict(view.state("book", "balance").items())
        counts = dict(view.state("book", "entries").items())
        seen = dict(view.state("audit", "seen").items())
        again = view.state("book", "balance").get_many(list(balances))
        facts = {
            "the balances are 0 together": sum(balances.values()) == 0,
            "single reads and scans agree": again == list(balances.values()),
            "both operators have counted the same": sum(counts.values()) == sum(seen.values()),
            "transfers are complete": sum(counts.values()) % (2 * TRANSFERS_PER_EPOCH) == 0,
        }
    wrong = [fact for fact, holds in facts.items() if not holds]
    with open(home / ("wrong" if wrong else "checked"), "a", encoding="utf-8") as file:
        file.write(f"{epoch} {wrong} {sorted(balances.items())}\n" if wrong else f"{epoch}\n")
