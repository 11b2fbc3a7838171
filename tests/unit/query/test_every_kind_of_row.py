"""Feed and replica of states of every kind, with TTL and timers, against `CheckpointReader`."""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.functions.process import Process
from statekit.query.replica.state_view import StateView
from statekit.query.replica.view import View
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.all_row_kinds import KEYS, PROCESSES, START, Step, epochs, keep, reopened, run
from tests.support.effort import SOAK
from tests.support.feed_tables import FeedTable
from tests.support.killed_replicas import kill

SHAPES = {"seen": "list", "by_n": "map"}


def values_in(repository: Repository, operator: str, state: str, epoch: int) -> dict[str, Any]:
    """What each key has, by the reader that replays the key group from the checkpoint."""
    reader = CheckpointReader(repository, epoch=epoch)
    found = {key: reader.get(operator, state, key) for key in KEYS}
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def tables_of(
    repository: Repository, process: Process[Any, Any, Any], *, resolved: bool
) -> dict[str, FeedTable]:
    """A consumer of the feed of each state."""
    return {
        spec.name: FeedTable(
            sk.feed(repository, process.name, spec.name, before=resolved),
            SHAPES.get(spec.name, "value"),
            None if spec.ttl is None else spec.ttl.clock,
            resolved=resolved,
        )
        for spec in process.states
    }


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
@settings(max_examples=12 if SOAK else 6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=epochs(),
    parallelism=st.integers(1, 3),
    rescaled=st.integers(1, 3),
    resolved=st.booleans(),
)
def test_feed_and_replica_equal_the_reader_in_every_epoch(
    process: Process[Any, Any, Any],
    steps: list[list[Step]],
    parallelism: int,
    rescaled: int,
    resolved: bool,
) -> None:
    harness = Harness(process, parallelism=parallelism)
    run(harness, 0, steps[0])
    repository = harness._repository
    tables = tables_of(repository, process, resolved=resolved)
    with sk.Replica(repository, follow=False) as replica, contextlib.ExitStack() as closing:
        for table in tables.values():
            closing.callback(table.close)
        for number, records in enumerate(steps[1:], 1):
            if number == 2:
                harness.rescale(rescaled)
            run(harness, 3 * number, records)  # a minute: lists expire two epochs later
            replica.refresh()
            check_states(replica, tables, repository, process)
            check_timers(replica, harness)


def check_states(
    replica: sk.Replica,
    tables: Mapping[str, FeedTable],
    repository: Repository,
    process: Process[Any, Any, Any],
) -> None:
    for spec in process.states:
        tables[spec.name].follow()
        for epoch in replica.status().views:
            expected = values_in(repository, process.name, spec.name, epoch)
            with replica.at(epoch) as view:
                state = view.state(process.name, spec.name)
                assert dict(state.items()) == expected
                assert [(key, state.get(key)) for key, _ in state.scan()] == sorted(
                    expected.items()
                )
        assert tables[spec.name].values() == expected


def check_timers(replica: sk.Replica, harness: Harness) -> None:
    with replica.at() as view:
        for key in KEYS:
            timers = [timer for _, timer in view.timers(harness.process.name, key)]
            assert sorted(timers, key=repr) == sorted(harness.timers(key), key=repr)


class Histories(RuleBasedStateMachine):
    """A job with TTLs and timers that is rescaled, rolled back and collected, and a replica of it
    that is behind, is killed, and is opened again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.minutes = 0
        self.left = 0
        self.expected: dict[tuple[int, str], dict[str, Any]] = {}
        self.held: list[tuple[View, list[StateView[Any, Any]]]] = []

    @initialize(process=st.sampled_from(PROCESSES), parallelism=st.integers(1, 3))
    def start(self, process: Process[Any, Any, Any], parallelism: int) -> None:
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.harness = Harness(process, parallelism=parallelism)
        self.repository = self.harness._repository
        self.commit([])
        self.replica = self.opened("replica")

    def opened(self, name: str) -> sk.Replica:
        place = Path(self.home.name) / name
        return sk.Replica(self.repository, directory=place, follow=False, views=3)

    @rule(records=epochs(most=1))
    def commit(self, records: list[list[Step]]) -> None:
        """An epoch, a minute after the one before: lists expire two epochs later."""
        late = dt.timedelta(minutes=self.minutes)
        steps = [step._replace(at=step.at + late) for own in records for step in own]
        run(self.harness, 3 * self.minutes, steps)
        self.minutes += 1
        self.remember()

    def remember(self) -> None:
        """Read the new epochs, while they are kept."""
        process = self.harness.process
        for epoch in self.repository.epochs():
            for spec in process.states:
                if (epoch, spec.name) not in self.expected:
                    own = values_in(self.repository, process.name, spec.name, epoch)
                    self.expected[epoch, spec.name] = own

    @rule(parallelism=st.integers(1, 3))
    def rescale(self, parallelism: int) -> None:
        self.harness.rescale(parallelism)

    @rule(back=st.integers(1, 3))
    def roll_back(self, back: int) -> None:
        kept = self.repository.epochs()
        if back < len(kept):
            plan(self.repository, kept[-1 - back]).carry_out()
            self.harness = reopened(self.harness, None)
            self.remember()

    @rule(kept=st.integers(1, 3))
    def collect(self, kept: int) -> None:
        retention = sk.Retention(epochs=kept)
        Collector(self.repository, retention, grace=dt.timedelta()).collect(sweep=True)

    @rule(writes=st.integers(0, 3))
    def kill(self, writes: int) -> None:
        """The replica is killed after so many writes to its databases."""
        self.left += 1
        self.held.clear()
        kill(self.replica, writes, Path(self.home.name) / f"left-{self.left}")
        self.replica = self.opened(f"left-{self.left}")
        self.check()

    @rule()
    def hold_a_view(self) -> None:
        view, process = self.replica.at(), self.harness.process
        states = [view.state(process.name, spec.name) for spec in process.states]
        self.held = [*self.held[-1:], (view, states)]

    @rule()
    def follow(self) -> None:
        self.replica.refresh()
        assert self.replica.epoch == self.repository.latest_epoch()
        self.check()
        check_timers(self.replica, self.harness)

    def check(self) -> None:
        """All views, and those that are held, have the rows of their epochs."""
        process = self.harness.process
        for epoch in self.replica.status().views:
            with self.replica.at(epoch) as view:
                self.check_states([view.state(process.name, own.name) for own in process.states])
        for _, states in self.held:
            self.check_states(states)

    def check_states(self, states: list[StateView[Any, Any]]) -> None:
        for state, spec in zip(states, self.harness.process.states, strict=True):
            expected = self.expected[state.epoch, spec.name]
            assert dict(state.items()) == expected
            assert list(state.scan()) == sorted(expected.items())
            assert state.get_many(list(expected)) == list(expected.values())
            is_single = spec.kind.name not in ("list", "map")
            rows = (1 if is_single else len(own) for own in expected.values())
            assert state.count() == sum(rows)

    def teardown(self) -> None:
        if hasattr(self, "replica"):
            self.replica.close()
            self.home.cleanup()


TestHistories = pytest.mark.slow(Histories.TestCase)
TestHistories.settings = settings(
    max_examples=2_000 if SOAK else 30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_replica_with_the_function_returns_values_of_its_classes() -> None:
    harness, step = Harness(keep), Step("a", 3, START)
    harness.send(step)
    with sk.Replica(harness._repository, functions=[keep], follow=False) as replica:
        assert replica.get("keep", "last", "a") == (step, harness.epoch)
        assert replica.get("keep", "last", "b").value is None


def test_the_time_at_which_a_row_expires_is_that_of_the_feed_and_of_the_table() -> None:
    harness = Harness(keep)
    harness.advance_processing_time(START)
    harness.send(Step("a", 3, START))
    harness.advance_processing_time(START + dt.timedelta(seconds=1))
    harness.send(Step("a", 4, START + dt.timedelta(seconds=1)))
    checkpoint = harness._repository
    with sk.Replica(checkpoint, follow=False) as replica, replica.at() as view:
        seen, by_n = view.state("keep", "seen"), view.state("keep", "by_n")
        brief, last = view.state("keep", "brief"), view.state("keep", "last")
        assert brief.expires("a") == START + dt.timedelta(seconds=61)
        assert [seen.expires("a", place) for place in range(3)] == [
            START + dt.timedelta(minutes=2),
            START + dt.timedelta(minutes=2, seconds=1),
            None,
        ]
        assert by_n.expires("a", 1) == START + dt.timedelta(minutes=3, seconds=1)
        assert (by_n.expires("a", 2), brief.expires("b"), last.expires("a")) == (None, None, None)
        changes = [change for epoch in sk.feed(checkpoint, "keep", "seen") for change in epoch]
        rows = sk.read(checkpoint, "keep", "seen").read_all().to_pylist()
        for times in ([c.expires for c in changes], [row["expires"] for row in rows]):
            assert times == [seen.expires("a", place) for place in range(2)]
        for state, place in ((seen, None), (seen, -1), (seen, "0"), (brief, 0)):
            with pytest.raises(sk.QueryError, match="place="):
                state.expires("a", place)
