"""Runs of the tally job in this process: on a checkpoint and working copies, epoch by epoch.

What lives here: what tests of working copies, of bases and of disks do with such runs. What does
not: the job and its rows (`tally`), and processes that are killed (`children`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies, WorkingCopy
from statekit.working_copy.uploader import uploader
from tests.support.counting_job import (
    STATES,
    Entry,
    committed_rows,
    comparable,
    copied_rows,
    entries,
    tally_job,
)
from tests.support.timeouts import PATIENCE_S

__all__ = [
    "EAGER",
    "GROUPS",
    "SMALL_BUFFER",
    "advance",
    "check_rows",
    "homes",
    "last_of",
    "obtain",
    "records_of",
    "rows_after",
    "runner",
    "uploaded",
]

GROUPS = 8
COUNT, KEYS = 60, 150
"""Records of an epoch, and how many keys they are of."""

EAGER = BaseOptions(replay_seconds=0, uploaded_per_changed=100)
"""A base as soon as one was uploaded."""

SMALL_BUFFER = RocksOptions(write_buffer_bytes=64 * 1024)


def runner(
    root: Path, copies: WorkingCopies, parallelism: int | None = None, **options: Any
) -> LocalRunner:
    """The job, as a driver that starts now has it."""
    job, repository = tally_job(GROUPS), Repository(root)
    return LocalRunner(job.plan, repository, copies, RunOptions(parallelism=parallelism, **options))


def records_of(epoch: int, count: int = COUNT, keys: int = KEYS) -> list[Entry]:
    return entries(epoch, count, keys)


def advance(made: LocalRunner, epochs: int = 1, count: int = COUNT, keys: int = KEYS) -> None:
    for _ in range(epochs):
        made.epoch({"records": records_of(made.coordinator.epoch, count, keys)})


def uploaded() -> None:
    """Let all uploads come to their end."""
    assert uploader().drain(PATIENCE_S), "uploads of this or an earlier test do not end"


def last_of(root: Path) -> EpochManifest:
    repository = Repository(root)
    epoch = repository.latest_epoch()
    assert epoch is not None
    return repository.manifest(epoch)


# ------------------------------------------------------------------------------------ their rows


class _Undisturbed:
    """A run in memory that nothing happens to, as far as anybody asked for it."""

    def __init__(self, count: int, keys: int) -> None:
        self._count, self._keys = count, keys
        self._made = LocalRunner(tally_job(GROUPS).plan, Repository.in_memory(), MemoryCopies())
        self._rows: list[dict[str, Any]] = [comparable({state: {} for state in STATES})]

    def after(self, epochs: int) -> dict[str, Any]:
        while len(self._rows) <= epochs:
            advance(self._made, 1, self._count, self._keys)
            rows = committed_rows(self._made.coordinator.repository, GROUPS)
            self._rows.append(comparable(rows))
        return self._rows[epochs]


@cache
def _undisturbed(count: int, keys: int) -> _Undisturbed:
    return _Undisturbed(count, keys)


def rows_after(epochs: int, count: int = COUNT, keys: int = KEYS) -> dict[str, Any]:
    """What has to be committed after so many epochs."""
    return _undisturbed(count, keys).after(epochs)


def check_rows(made: LocalRunner) -> None:
    """The copies hold what is committed."""
    expected = committed_rows(made.coordinator.repository, GROUPS)
    assert copied_rows(made.coordinator, made.copies) == expected


# ---------------------------------------------------------------------------------- their copies


def homes(copies: DiskCopies) -> list[Path]:
    """Where copies are, private ones too."""
    return sorted(path.parent for path in copies.root.rglob("lock"))


def obtain(made: LocalRunner, shard: int = 0, states: Sequence[str] = STATES) -> WorkingCopy:
    """The copy of a shard, for whoever wants to hold it."""
    coordinator = made.coordinator
    return made.copies.obtain(coordinator.plans("tally")[shard], states, coordinator.repository)
