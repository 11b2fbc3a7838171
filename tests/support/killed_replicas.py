"""Replicas whose process is killed while it writes to its databases."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import statekit as sk
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend


class Killed(Exception):
    """Stands for the end of a process."""


def kill(replica: sk.Replica, writes: int, left: Path) -> None:
    """Let a replica follow, and kill it after a number of writes, if it makes so many.

    Parameters:
        left: where its files are then, as they were while it was open.
    """
    with contextlib.suppress(Killed), _killed_after(writes):
        replica.refresh()
    shutil.copytree(replica.directory, left)
    replica.close()


@contextlib.contextmanager
def _killed_after(writes: int) -> Iterator[None]:
    """Let a number of writes to databases succeed, and the next one fail."""
    write, done = RocksBackend.write, 0

    def failing(backend: RocksBackend, batch: Batch) -> None:
        nonlocal done
        if done == writes:
            raise Killed
        done += 1
        write(backend, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RocksBackend, "write", failing)
        yield
