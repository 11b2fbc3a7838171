"""Copies of shards that ran elsewhere are removed after a while, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statekit.backend.mutation import Batch
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardPlans, ShardState
from statekit.checkpoint.repository import Repository
from statekit.clock import now_us
from statekit.working_copy.copies import DiskCopies

CHECKPOINT = "0" * 32
LONG_AGO_US = 3_600_000_000


def plan(attempt: str | None) -> ShardPlan:
    shard = ShardState(
        first_group=0, last_group=3, attempt=attempt, changed=None if attempt is None else 1
    )
    return ShardPlan(CHECKPOINT, "count", 0, 2, shard, 1)


def plans(attempt: str) -> ShardPlans:
    return ShardPlans.of(plan(attempt), [plan(attempt).base])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with one copy, at the attempt "a", which nobody has used for an hour."""
    root = tmp_path / "copies"
    repository = Repository(tmp_path / "checkpoint")
    copy = DiskCopies(root, RocksOptions()).obtain(plan(None), ["seen"], repository)
    batch = Batch()
    batch.put("seen", b"\x00\x00k", b"v")
    copy.write(batch)
    copy.close_at(plan("a").base)
    lock = root / CHECKPOINT / "count" / "0-3" / "lock"
    past_ns = (now_us() - LONG_AGO_US) * 1000
    os.utime(lock, ns=(past_ns, past_ns))
    return root


def is_there(root: Path) -> bool:
    return (root / CHECKPOINT / "count" / "0-3" / "clean").exists()


@pytest.mark.parametrize(
    ("attempt", "began_us_ago", "stays"),
    [("b", LONG_AGO_US, False), ("b", 0, True), ("b", None, True), ("a", LONG_AGO_US, True)],
    ids=["left", "the run has just begun", "no shard can leave", "the shard has not changed"],
)
def test_a_copy_goes_if_its_shard_has_changed_elsewhere(
    root: Path, attempt: str, began_us_ago: int | None, stays: bool
) -> None:
    started_us = None if began_us_ago is None else now_us() - began_us_ago
    DiskCopies(root, RocksOptions(), started_us=started_us).tidy(plans(attempt))
    assert is_there(root) is stays


def test_a_copy_that_was_used_lately_stays(root: Path) -> None:
    (root / CHECKPOINT / "count" / "0-3" / "lock").touch()
    DiskCopies(root, RocksOptions(), started_us=now_us() - LONG_AGO_US).tidy(plans("b"))
    assert is_there(root)
