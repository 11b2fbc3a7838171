"""Mirrors of random histories: tables compared with the state that they report.

The histories are those of the protocol fuzz: runs with any parallelism, rollbacks, collection,
backups that are put back, rescales, rewrites and changes of types. After each step mirrors follow,
and some of them are killed at an operation of the checkpoint, or before or after a table commits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.testing.faults import Fault, Faults, faulty
from tests.model.test_protocol_fuzz import Branch, Protocol
from tests.support.effort import SOAK
from tests.support.mirrors import (
    Dying,
    DyingDelta,
    Killed,
    delta_rows,
    file_rows,
    logged_rows,
    shown,
    state_rows,
)

STATES = ("note", "places", "log", "weight", "handled", "numbers")


class Mirrors(Protocol):
    """Histories of checkpoints, each with mirrors."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.dies: tuple[int, bool] | None = None

    def check(self, branch: Branch) -> None:
        super().check(branch)
        home = self.home / f"mirrors-of-{branch.root.name}"
        faults, self.faults = Faults(*self.faults, lasting=True), []
        Dying.dies, self.dies = self.dies, None
        repository: Any = faulty(Repository(branch.root, create=False), faults)
        try:
            self.follow(repository, home)
        except Killed:
            pass
        except sk.StatekitError:
            assert faults.done, "nothing else may fail"
        Dying.dies = None
        self.compare(branch, home, self.follow(branch.root, home))

    def follow(self, checkpoint: Any, home: Path) -> int | None:
        """Bring the mirrors to the last epoch, and return it."""
        tables = {f"inventory.{name}": DyingDelta.at(home / name) for name in STATES}
        places = DyingDelta.at(home / "log-of-places")
        files = sk.sinks.parquet(home / "files")
        with (
            sk.mirror(checkpoint, tables, name="tables") as tables_of_states,
            sk.mirror(checkpoint, "inventory.places", places, mode="changes") as log,
            sk.mirror(checkpoint, "inventory.weight", files, name="files") as weights,
        ):
            (epoch,) = {each.catch_up() for each in (tables_of_states, log, weights)}
        return epoch

    def compare(self, branch: Branch, home: Path, epoch: int | None) -> None:
        assert epoch == branch.last
        for name in STATES:
            expected = state_rows(branch.root, "inventory", name, epoch)
            assert shown(delta_rows(home / name), expected) == shown(expected, expected), name
        weights = state_rows(branch.root, "inventory", "weight", epoch)
        assert shown(file_rows(home / "files"), weights) == shown(weights, weights)
        places = state_rows(branch.root, "inventory", "places", epoch)
        replayed = replay(logged_rows(home / "log-of-places"))
        assert replayed == {
            (row["item"], row["map_key"]): row["value"] for row in places.to_pylist()
        }

    @rule(number=st.integers(0, 60), after=st.booleans())
    def fail_at_an_operation(self, number: int, after: bool) -> None:
        """The mirrors fail at an operation of the checkpoint the next time that they follow."""
        self.faults = [Fault("fail after" if after else "fail before", at=number)]

    @rule(number=st.integers(0, 8), after=st.booleans())
    def die_at_a_commit(self, number: int, after: bool) -> None:
        """A mirror dies before or after a commit of a table the next time that it follows."""
        self.dies = number, after


def replay(log: pa.Table) -> dict[Any, Any]:
    """The rows that a log of changes leads to."""
    found: dict[Any, Any] = {}
    changes = log.to_pylist()
    for change in changes:
        key = change["item"], change["map_key"]
        if change["op"] == "clear":
            found.clear()
        elif change["op"] == "delete":
            found.pop(key, None)
        else:
            found[key] = change["value"]
    return found


TestMirrors = pytest.mark.slow(Mirrors.TestCase)
TestMirrors.settings = settings(
    max_examples=5_000 if SOAK else 3,
    stateful_step_count=6,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=list(HealthCheck),
)
