"""Starts from a history or from tables, killed with SIGKILL at any change of the store, and at
random times.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

import statekit as sk
from statekit.backend import divided_rows
from statekit.checkpoint.repository import Repository
from statekit.maintenance import new_shards, seen_keys
from statekit.maintenance.verify.verify import verify
from tests.support.effort import SOAK
from tests.support.history_job import HISTORY, append, check_once, history_job, write_history
from tests.support.killable_processes import RandomKills, die_before, kills

pytestmark = pytest.mark.slow

CHANGES = tuple((Repository, name) for name in ("put_file", "create", "remove"))
TOTALS = pa.table({"key": range(1000), "value": range(1000)})
KILLS = 100 if SOAK else 3
ROWS = 20_000


def runs(home: Path, change: int | None = None) -> None:
    if change is not None:
        die_before(change, *CHANGES)
    history_job(home).run(checkpoint=home / "checkpoint", epoch_size=25, parallelism=2)


def test_a_history_and_the_stream_after_it_are_read_once(tmp_path: Path) -> None:
    write_history(tmp_path)
    total = HISTORY
    append(tmp_path, total, 5)  # a new stream of files begins with its first file
    total += 5
    for _ in kills(runs, tmp_path):
        append(tmp_path, total, 7)
        total += 7
    history_job(tmp_path).run(checkpoint=tmp_path / "checkpoint")
    check_once(tmp_path, total)


def test_a_history_and_the_stream_after_it_are_read_once_wherever_runs_are_killed(
    tmp_path: Path,
) -> None:
    random_kills = RandomKills(KILLS)
    for number in itertools.count():
        home, total = tmp_path / f"{number}", HISTORY
        write_history(home)
        append(home, total, 5)
        total += 5
        while not random_kills.survives(runs, home):
            append(home, total, 7)
            total += 7
        check_once(home, total)
        if not random_kills.left:
            return


def bootstraps(home: Path, change: int) -> None:
    die_before(change, *CHANGES)
    history_job(home).bootstrap("counted.count", TOTALS, checkpoint=home / "new", parallelism=2)


def test_a_bootstrap_is_complete_or_absent(tmp_path: Path) -> None:
    for _ in kills(bootstraps, tmp_path):
        checkpoint = Repository(tmp_path / "new")
        if checkpoint.latest_epoch() is not None:
            table = sk.read(checkpoint, "counted", "count").read_all()
            assert sorted(table["value"].to_pylist()) == list(range(1000))
            return
    raise AssertionError("it was never committed")


def bootstraps_in_pieces(home: Path) -> None:
    """Fill a state through files on the local disk and several files of the checkpoint."""
    divided_rows._GATHERED_BYTES = new_shards.FILE_BYTES_MAX = 100_000
    seen_keys._KEYS_IN_MEMORY = 4_000
    table = pa.table({"key": range(ROWS), "value": range(ROWS)})
    batches = table.to_batches(max_chunksize=1_000)
    history_job(home).bootstrap("counted.count", batches, checkpoint=home / "new", parallelism=2)


def is_filled(home: Path) -> bool:
    """Whether the state has all rows. If not, it has none."""
    checkpoint = Repository(home / "new")
    if checkpoint.latest_epoch() is None:
        return False
    table = sk.read(checkpoint, "counted", "count").read_all()
    assert sorted(table["value"].to_pylist()) == list(range(ROWS))
    assert verify(checkpoint).findings == []
    return True


def test_bootstraps_that_are_killed_at_random_times_are_complete_or_absent(tmp_path: Path) -> None:
    random_kills = RandomKills(KILLS)
    for number in itertools.count():
        home = tmp_path / f"{number}"
        while not random_kills.survives(bootstraps_in_pieces, home):
            if is_filled(home):  # it was killed after its commit
                break
        assert is_filled(home)
        if not random_kills.left:
            return
