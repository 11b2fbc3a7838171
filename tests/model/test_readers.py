"""Readers of random histories: the change feed and replicas, compared with the model of the state.

The histories are those of the protocol fuzz: runs with any parallelism, rollbacks, collection,
backups that are put back, rescales, rewrites and changes of types. After each step the feed is
applied to tables, and replicas advance: one that lives on, and one that is opened on what a killed
process has left on the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import statekit as sk
from statekit.query.replica.replica import Replica
from tests.model.test_protocol_fuzz import Branch, Protocol
from tests.support.change_rows import rows_of_feed, rows_of_tables
from tests.support.effort import SOAK
from tests.support.feed_tables import FeedTable
from tests.support.inventory_job import Held
from tests.support.killed_replicas import kill

KEYED = ("note", "places", "log", "total", "weight")
LOCAL = ("handled", "numbers")
RESOLVED = ("log", "weight", "numbers")
IN_COLUMNS = ("places", "weight", "numbers")


SHAPES = {"places": "map", "log": "list", "numbers": "list"}


class Readers(Protocol):
    """Histories of checkpoints, each with readers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[Path, dict[str, FeedTable]] = {}
        self.replicas: dict[Path, Replica] = {}
        self.resolving: list[sk.Feed] = []
        self.compared: dict[Path, int] = {}
        self.copied = 0
        self.writes_before_kill: int | None = None

    def check(self, branch: Branch) -> None:
        super().check(branch)
        self.check_tables(branch)
        self.check_replica(branch)

    # ---------------------------------------------------------------------------------- the feed

    def check_tables(self, branch: Branch) -> None:
        tables = self.tables.get(branch.root)
        try:
            if tables is None:
                raise sk.QueryError("none yet")
            for table in tables.values():
                table.follow()
        except sk.QueryError:  # epochs were collected, or the checkpoint was replaced
            tables = {
                name: FeedTable(sk.feed(branch.root, "inventory", name), SHAPES.get(name, "value"))
                for name in KEYED + LOCAL
            }
            for name in RESOLVED:
                source = sk.feed(branch.root, "inventory", name, before=True)
                self.resolving.append(source)
                tables[f"resolved {name}"] = FeedTable(
                    source, SHAPES.get(name, "value"), resolved=True
                )
            for table in tables.values():
                table.follow()
        self.check_change_tables(branch, fresh=tables is not self.tables.get(branch.root))
        self.tables[branch.root] = tables
        expected = branch.now.held
        for name in KEYED:
            assert tables[name].values() == values_of(expected, name), name
        for name in RESOLVED:
            values = tables[f"resolved {name}"].values()
            assert values == (tables[name].values() if name in LOCAL else values_of(expected, name))
        shards = tables["numbers"].values()
        assert sorted(n for numbers in shards.values() for n in numbers) == sorted(expected.numbers)
        counts = tables["handled"].values()
        assert sum(counts.values()) == len(expected.numbers)

    def check_change_tables(self, branch: Branch, *, fresh: bool) -> None:
        """Compare the changes as columns with the feed, since the last comparison."""
        after = None if fresh else self.compared.get(branch.root)
        for name in IN_COLUMNS:
            place = (branch.root, "inventory", name, after)
            assert rows_of_tables(*place) == rows_of_feed(*place), name
        self.compared[branch.root] = branch.last

    # --------------------------------------------------------------------------------- a replica

    def replica(self, branch: Branch, directory: Path | None = None) -> Replica:
        return Replica(
            branch.root, directory=directory or self.directory(branch), follow=False, views=2
        )

    def directory(self, branch: Branch) -> Path:
        return self.home / f"replica-of-{branch.root.name}"

    def check_replica(self, branch: Branch) -> None:
        replica = self.replicas.get(branch.root)
        if replica is None:
            replica = self.replicas[branch.root] = self.replica(branch)
        writes, self.writes_before_kill = self.writes_before_kill, None
        if writes is not None:
            self.copied += 1
            left = self.home / f"left-{self.copied}"
            kill(replica, writes, left)
            replica = self.replicas[branch.root] = self.replica(branch, left)
        replica.refresh()
        self.check_views(replica, branch)

    def check_views(self, replica: Replica, branch: Branch) -> None:
        assert replica.epoch == branch.last
        for epoch in replica.status().views:
            if epoch not in branch.epochs:
                continue  # abandoned since
            expected = branch.epochs[epoch].held
            with replica.at(epoch) as view:
                for name in KEYED:
                    state = view.state("inventory", name)
                    found = dict(state.items())
                    assert found == values_of(expected, name), (epoch, name)
                    assert sorted(found) == [key for key, _ in state.scan()]
                    assert list(found.values()) == state.get_many(list(found))
                    rows = sum(len(v) if isinstance(v, list | dict) else 1 for v in found.values())
                    assert state.count() == rows
                shards = view.operator_state("inventory", "numbers")
                assert sorted(n for own in shards.values() for n in own) == sorted(expected.numbers)

    @rule(writes=st.integers(0, 3))
    def kill_the_next_replica(self, writes: int) -> None:
        """The next replica that follows is killed after so many writes to its databases."""
        self.writes_before_kill = writes

    def teardown(self) -> None:
        for replica in self.replicas.values():
            replica.close()
        for source in self.resolving:
            source.close()
        super().teardown()


def values_of(held: Held, name: str) -> dict[int, Any]:
    """What a state has for each item that has anything, according to the model."""
    values = {number: getattr(item, name) for number, item in held.items.items()}
    return {number: value for number, value in values.items() if value not in (None, [], {})}


TestReaders = pytest.mark.slow(Readers.TestCase)
TestReaders.settings = settings(
    max_examples=5_000 if SOAK else 4,
    stateful_step_count=6,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=list(HealthCheck),
)
