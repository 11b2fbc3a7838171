"""State of a million rows by other keys: by columns and by records, against a rewrite of the same
rows for other key groups. CPU seconds: `python -m tests.bench.transform columns|records|rewrite
DIRECTORY` is one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.rewrite import rewrite_checkpoint
from tests.bench.report import STATEKIT_DURABLE, Arm, Row

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "1_000_000"))
SHARDS, ROUNDS = 4, 3


class Order(NamedTuple):
    order: int
    customer: int
    cents: int


@sk.process(key="order")
def per_order(order: Order, last: sk.ValueState[Order]) -> None:
    last.update(order)


@sk.process(key="customer")
def per_customer(order: Order, total: Annotated[sk.ReducingState[int], sk.Reduce(sum)]) -> None:
    total.add(order.cents)


old_job, new_job = sk.Job("shop", key_groups=128), sk.Job("shop", key_groups=128)
old_job.source("orders", Order).process(per_order)
new_job.source("orders", Order).process(per_customer)


@sk.transform(new_job)
def columns(old: sk.Transformation) -> None:
    for batch in old.read("per_order", "last", columns=["customer", "cents"]):
        old.write("per_customer", "total", batch.rename_columns(["customer", "value"]))


@sk.transform(new_job)
def records(old: sk.Transformation) -> None:
    rows = old.rows("per_order", "last", of=per_order)
    new = (sk.StateRow(row.value.customer, row.value.cents) for row in rows)
    old.write("per_customer", "total", new)


def _made(home: Path) -> None:
    numbers = np.arange(ROWS)
    columns_of_read = {
        "key_order": numbers,
        "order": numbers,
        "customer": numbers * 7919,
        "cents": numbers % 1000,
    }
    table = pa.table(columns_of_read)
    old_job.bootstrap("per_order.last", table, checkpoint=home / "old", parallelism=SHARDS)


def _main(way: str, home: Path) -> None:
    """Do the work, and print its CPU seconds."""
    began = time.process_time()
    if way == "rewrite":
        rewrite_checkpoint(Repository(home / "old"), key_groups=256)
    else:
        {"columns": columns, "records": records}[way].run(home / "old", into=home / "new")
    print(time.process_time() - began, flush=True)


def _measured(way: str, made: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(made, home)
        words = [sys.executable, "-m", "tests.bench.transform", way, str(home)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        return float(done.stdout)


def rekeying() -> list[Row]:
    """CPU seconds of each, in the best of some rounds, which take turns."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        _made(made)
        ways = ("columns", "records", "rewrite")
        turns = [{way: _measured(way, made) for way in ways} for _ in range(ROUNDS)]
    best = {way: min(turn[way] for turn in turns) for way in ways}
    arms = {way: Arm(f"transform by {way}", best[way], STATEKIT_DURABLE, ROWS) for way in ways}
    rewrite = Arm("rewrite for other key groups", best["rewrite"], STATEKIT_DURABLE, ROWS)
    return [
        Row(
            f"{ROWS:,} rows by other keys, by {way}",
            f"{ROWS / best[way]:,.0f} rows per CPU second",
            "",
            (arms[way], rewrite),
            note="read, encoded, sorted, written and verified; the rewrite neither decodes values "
            "nor sorts",
        )
        for way in ("columns", "records")
    ]


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
