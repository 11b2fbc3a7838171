"""A bank as a store: the sum of all balances stays 0, and each transfer is applied exactly once.

Processes are killed with SIGKILL at random instants, and started again with another parallelism.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.instants import at
from tests.support.killable_processes import pipe, start
from tests.support.timeouts import PATIENCE_S

ACCOUNTS = [f"account {number}" for number in range(9)]
TRANSFERS = 300
EPOCH_SIZE = 6
LATENESS_S = 20
KILLS = 8


class Transfer(NamedTuple):
    number: int
    payer: str
    payee: str
    cents: int
    at: dt.datetime


class Posting(NamedTuple):
    """One side of a transfer."""

    account: str
    cents: int
    number: int
    at: dt.datetime


class Audit(NamedTuple):
    """Asks for all balances."""

    number: int
    accounts: list[str]
    at: dt.datetime


def postings(transfer: Transfer) -> Iterator[Posting]:
    yield Posting(transfer.payer, -transfer.cents, transfer.number, transfer.at)
    yield Posting(transfer.payee, transfer.cents, transfer.number, transfer.at)


def posted(balance: int | None, posting: Posting) -> int:
    return (balance or 0) + posting.cents


def bank(*, ordered: bool) -> sk.Job:
    job = sk.Job("bank", key_groups=8)
    options: dict[str, Any] = {"event_time": "at", "lateness": f"{LATENESS_S} seconds"}
    balances = job.add(sk.KVStore("balances", key=str, value=int, **(options if ordered else {})))
    posting = job.source("transfers", Transfer).flat_map(postings)
    balances.update(posting, posted, key="account").sink("posted")
    balances.multi_get(job.source("audits", Audit), keys="accounts").sink("audited")
    return job


def given() -> tuple[list[Transfer], list[Audit]]:
    """Transfers that arrive out of order, and an audit at the time of each."""
    chosen = random.Random(5)
    transfers = []
    for number in range(TRANSFERS):
        payer, payee = chosen.sample(ACCOUNTS, 2)
        transfers.append(Transfer(number, payer, payee, chosen.randint(1, 900), at(number)))
    audits = [Audit(number, ACCOUNTS, at(number)) for number in range(TRANSFERS)]
    transfers.sort(key=lambda transfer: transfer.number + chosen.uniform(0, LATENESS_S / 2))
    return transfers, audits


def after(transfers: Iterable[Transfer]) -> list[int]:
    """The balances after some transfers, in plain Python."""
    found = dict.fromkeys(ACCOUNTS, 0)
    for transfer in transfers:
        found[transfer.payer] -= transfer.cents
        found[transfer.payee] += transfer.cents
    return list(found.values())


def run(home: Path, parallelism: int, ordered: bool, drain: bool, ready: Connection) -> None:
    """Run the bank to the end of its input."""
    transfers, audits = given()

    def paced() -> Iterator[Transfer]:
        ready.send(None)
        for number, transfer in enumerate(transfers):
            if number % EPOCH_SIZE == 0:
                time.sleep(0.002)
            yield transfer

    def write(sink: str) -> Any:
        def epoch(records: list[Any], number: int) -> None:
            draft = home / f".{sink}.{os.getpid()}"
            draft.write_text(json.dumps([_row(record) for record in records]))
            draft.rename(home / f"{sink}-{number:05d}.json")

        return epoch

    bank(ordered=ordered).run(
        {"transfers": paced(), "audits": audits},
        outputs={sink: write(sink) for sink in ("posted", "audited")},
        checkpoint=home / "checkpoint",
        parallelism=parallelism,
        epoch_size=EPOCH_SIZE,
        backend="rocksdb",
        working_directory=home / "copies",
        bases=sk.BaseOptions(replay_seconds=0),
        retention=None,
        drain=drain,
    )


def _row(answer: Any) -> list[Any]:
    values = [answer.value] if hasattr(answer, "value") else answer.values
    return [answer.record.number, *values]


def rows(home: Path, sink: str) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of each record with the values of its answer."""
    for path in sorted(home.glob(f"{sink}-*.json")):
        for number, *values in json.loads(path.read_text()):
            yield number, values


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True], ids=["eager", "ordered"])
def test_no_cent_is_lost_or_made_whatever_is_killed(tmp_path: Path, ordered: bool) -> None:
    chosen = random.Random(11)
    killed = 0
    for _ in range(KILLS):
        ready, sent = pipe()
        process = start(run, tmp_path, chosen.randint(1, 4), ordered, False, sent)
        assert ready.poll(PATIENCE_S), "it never began"
        time.sleep(chosen.uniform(0.0, 0.35))
        process.kill()
        process.join(PATIENCE_S)
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        check_balances(tmp_path)
    assert killed > KILLS / 2

    _, sent = pipe()
    process = start(run, tmp_path, 3, ordered, True, sent)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    check_balances(tmp_path)
    check_answers(tmp_path, ordered=ordered)


def check_balances(home: Path) -> None:
    """Compare the sum of all balances with 0, in the last epoch that was committed."""
    if not list((home / "checkpoint" / "epochs").glob("*.json")):
        return
    table = sk.read(home / "checkpoint", "balances", "value").read_all()
    assert sum(table["value"].to_pylist()) == 0


def check_answers(home: Path, *, ordered: bool) -> None:
    transfers, _ = given()
    table = sk.read(home / "checkpoint", "balances", "value").read_all().to_pylist()
    expected = dict(zip(ACCOUNTS, after(transfers), strict=True))
    assert {row["key"]: row["value"] for row in table} == expected
    numbers = sorted(number for number, _ in rows(home, "posted"))
    assert numbers == sorted(2 * list(range(TRANSFERS))), "each transfer is two postings, once"

    audits = list(rows(home, "audited"))
    assert sorted(number for number, _ in audits) == list(range(TRANSFERS))
    for number, values in audits:
        held = [value or 0 for value in values]
        assert sum(held) == 0, f"audit {number} saw half a transfer"
        if ordered:
            seen = [transfer for transfer in transfers if transfer.number <= number]
        else:
            seen = transfers[: (number // EPOCH_SIZE + 1) * EPOCH_SIZE]
        assert held == after(seen), f"audit {number}"
