"""Feed and replica of states of every kind, with TTL and timers, against `CheckpointReader`."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.functions.process import Process
from statekit.query.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.all_row_kinds import KEYS, PROCESSES, START, Step, epochs, keep, run
from tests.support.feed_tables import FeedTable

SHAPES = {"seen": "list", "by_n": "pairs"}


def values_in(repository: Repository, operator: str, state: str, epoch: int) -> dict[str, Any]:
    """What each key has, by the reader that replays the key group from the checkpoint."""
    reader = CheckpointReader(repository, epoch=epoch)
    found = {key: reader.get(operator, state, key) for key in KEYS}
    if SHAPES.get(state) == "pairs":
        found = {
            key: [[at, value] for at, value in entries.items()] for key, entries in found.items()
        }
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
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
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
