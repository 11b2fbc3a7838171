"""Operator state in savepoints, rewrites, migrations, rollbacks and differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.cli.diff import source_of
from statekit.maintenance.diff.compare import compare
from statekit.maintenance.migrate import Migration
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.command_line import statekit


class Event(NamedTuple):
    user: str
    value: int


class Users:
    """A plain object."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def snapshot_state(self) -> frozenset[str]:
        return frozenset(self.names)

    def restore_state(self, state: frozenset[str]) -> None:
        self.names = set(state)

    @staticmethod
    def split_state(state: frozenset[str], n: int) -> list[frozenset[str]]:
        return [frozenset(sorted(state)[part::n]) for part in range(n)]

    @staticmethod
    def merge_states(states: list[frozenset[str]]) -> frozenset[str]:
        return frozenset().union(*states)


def share(count: int, n: int) -> list[int]:
    return [count // n + (part < count % n) for part in range(n)]


Counted = Annotated[sk.OperatorState[int], sk.Redistribute(split=share, merge=sum)]
Listed = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]


@sk.process(key="user")
def follow(
    event: Event, total: sk.ValueState[int], count: Counted, values: Listed, users: Users
) -> Iterator[int]:
    total.update((total.get() or 0) + event.value)
    count.update((count.get() or 0) + 1)
    values.append(event.value)
    users.names.add(event.user)
    yield total.get() or 0


EVENTS = [Event(f"u{n % 9}", n) for n in range(30)]
SPECS = {"follow": follow.states}


def job() -> sk.Job:
    """The job of a harness, by name for command lines."""
    made = sk.Job("follow")
    made.source("records", Event).process(follow).sink("outputs")
    return made


def held(checkpoint: Path) -> dict[str, list[Any]]:
    reader = CheckpointReader(checkpoint)
    return {name: reader.operator_state("follow", name) for name in ("count", "values", "users")}


def made(checkpoint: Path, parallelism: int = 3) -> dict[str, list[Any]]:
    """A checkpoint with state of all kinds; what its shards hold."""
    harness = Harness(follow, parallelism=parallelism, key_groups=16, checkpoint=checkpoint)
    harness.send(*EVENTS[:20])
    harness.send(*EVENTS[20:])
    return held(checkpoint)


def check(checkpoint: Path, before: dict[str, list[Any]], parallelism: int) -> None:
    """Nothing was lost, every shard has its part, and the job goes on."""
    now = held(checkpoint)
    assert sum(n or 0 for n in now["count"]) == sum(n or 0 for n in before["count"])
    assert [v for values in now["values"] for v in values] == [
        v for values in before["values"] for v in values
    ]
    assert {u for users in now["users"] for u in users or ()} == {e.user for e in EVENTS}
    assert {len(states) for states in now.values()} == {parallelism}
    if len(before["count"]) == parallelism:
        assert now == before
    harness = Harness(follow, checkpoint=checkpoint)
    assert harness.operator_state("values") == now["values"]
    harness.send(*EVENTS[:5])
    after = held(checkpoint)
    assert sum(n or 0 for n in after["count"]) == len(EVENTS) + 5
    counted = Repository(checkpoint).manifest(harness.epoch or 0).operators["follow"].rows
    assert counted["values"] == len(EVENTS) + 5
    with pytest.raises(sk.QueryError, match="belongs to shards"):
        CheckpointReader(checkpoint).get("follow", "count", "u1")


@pytest.mark.parametrize(("parallelism", "key_groups"), [(3, 16), (5, 16), (2, 7), (3, 64)])
def test_it_goes_along_into_a_savepoint_and_out_again(
    tmp_path: Path, parallelism: int, key_groups: int
) -> None:
    before = made(tmp_path / "a")
    repository = Repository(tmp_path / "a")
    write_savepoint(repository, "s")
    saved = tmp_path / "a/savepoints/s"
    assert compare(source_of(f"{tmp_path}/a"), source_of(str(saved))).is_same
    renewed = sk.Job("follow", key_groups=key_groups)
    renewed.source("records", Event).process(follow).sink("outputs")
    renewed.run(
        {"records": []},
        checkpoint=tmp_path / "b",
        from_savepoint=saved,
        parallelism=parallelism,
        drain=False,
    )
    check(tmp_path / "b", before, parallelism)


def test_tools_see_it_by_shard(tmp_path: Path) -> None:
    before = made(tmp_path)
    write_savepoint(Repository(tmp_path), "s")
    (part,) = (tmp_path / "savepoints/s").glob("state.*/follow/values/*.parquet")
    table = pq.read_table(part).to_pydict()
    assert table["value"] == [v for values in before["values"] for v in values]
    assert table["shard"] == [n for n, values in enumerate(before["values"]) for _ in values]
    assert table["position"] == [at for values in before["values"] for at in range(len(values))]
    (part,) = (tmp_path / "savepoints/s").glob("state.*/follow/count/*.parquet")
    assert pq.read_table(part).to_pydict()["value"] == [n for n in before["count"] if n]


@pytest.mark.parametrize(("parallelism", "key_groups"), [(3, 7), (5, 16), (2, 64)])
def test_operator_state_is_kept_when_all_state_is_rewritten(
    tmp_path: Path, parallelism: int, key_groups: int
) -> None:
    before = made(tmp_path)
    rewrite_checkpoint(
        Repository(tmp_path), parallelism=parallelism, key_groups=key_groups, specs=SPECS
    )
    check(tmp_path, before, parallelism)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_it_goes_along_when_the_checkpoint_is_rescaled_at_rest(
    tmp_path: Path, parallelism: int
) -> None:
    before = made(tmp_path)
    rescale_offline(Repository(tmp_path), parallelism, job=job())
    check(tmp_path, before, parallelism)


def test_rescaling_at_rest_needs_the_functions_of_the_job(tmp_path: Path) -> None:
    before = made(tmp_path / "a")
    with pytest.raises(sk.RescaleError, match="--app module:job"):
        rescale_offline(Repository(tmp_path / "a"), 2)
    assert held(tmp_path / "a") == before
    words = ["rescale", str(tmp_path / "a"), "--to", "2"]
    done = statekit(*words)
    assert done.returncode == 1
    assert "--app module:job" in done.stderr
    done = statekit(*words, "--app", "tests.unit.maintenance.test_operator_state_kept:job")
    assert done.returncode == 0, done.stderr
    assert "parallelism 3 → 2, committed as epoch 2" in done.stdout
    check(tmp_path / "a", before, 2)


def test_a_rollback_takes_it_back(tmp_path: Path) -> None:
    harness = Harness(follow, parallelism=2, checkpoint=tmp_path)
    harness.send(*EVENTS[:10])
    before = held(tmp_path)
    rescale_offline(Repository(tmp_path), 4, job=job())
    Harness(follow, checkpoint=tmp_path).send(*EVENTS[10:])
    assert held(tmp_path) != before
    again = job().run(
        {"records": []}, checkpoint=tmp_path, from_epoch=0, parallelism=2, drain=False
    )
    assert again.epochs == 0
    assert held(tmp_path) == before


@sk.process(key="user")
def texts(
    event: Event,
    total: sk.ValueState[int],
    count: Annotated[sk.OperatorState[str], sk.Redistribute("broadcast")],
    values: Annotated[sk.OperatorListState[str], sk.Redistribute("even")],
    users: Users,
) -> Iterator[int]:
    count.update(f"{int(count.get() or '0') + 1}")
    values.append(f"{event.value}")
    yield 0


def migrating(name: str) -> sk.Job:
    hooks = {"count": _text, "values": _text}
    made = sk.process(key="user", migrate=hooks)(texts.fn)
    made.name = name
    job = sk.Job("follow")
    job.source("records", Event).process(made).sink("outputs")
    return job


def _text(number: int) -> str:
    return str(number)


@pytest.mark.parametrize("at_once", [False, True])
def test_its_type_changes_with_a_hook_lazily_or_at_once(tmp_path: Path, at_once: bool) -> None:
    before = made(tmp_path)
    if at_once:
        told = Migration(migrating("follow"), tmp_path)
        assert told.run(lambda *_: None) is not None
        now = held(tmp_path)
        assert now["values"] == [[str(v) for v in values] for values in before["values"]]
        assert now["count"] == [None if n is None else str(n) for n in before["count"]]
        assert now["users"] == before["users"]
    run = migrating("follow").run(
        {"records": EVENTS}, checkpoint=tmp_path, parallelism=4, drain=False
    )
    assert run.epochs == 1
    now = held(tmp_path)
    assert sorted(int(v) for values in now["values"] for v in values) == sorted(
        [event.value for event in EVENTS] * 2
    )
    assert sum(int(n) for n in now["count"]) >= len(EVENTS)


def test_a_difference_names_the_shard(tmp_path: Path) -> None:
    made(tmp_path)
    found = compare(source_of(f"{tmp_path}@0"), source_of(f"{tmp_path}@1"), examples=50)
    by_state = {state.state: state for state in found.states}
    assert by_state["values"].added == 10
    assert by_state["count"].changed + by_state["count"].added >= 1
    assert all(
        str(row.key).startswith("shard from key group") for row in by_state["count"].examples
    )


def test_a_difference_shows_redistributed_state_in_unchanged_shards(tmp_path: Path) -> None:
    Harness(follow, parallelism=2, key_groups=3, checkpoint=tmp_path).send(*EVENTS)
    rescale_offline(Repository(tmp_path), 3, job=job())  # the last key group is a shard before, too
    found = compare(source_of(f"{tmp_path}@0"), source_of(f"{tmp_path}@1"))
    values = next(state for state in found.states if state.state == "values")
    assert (values.rows_a, values.rows_b) == (len(EVENTS), len(EVENTS))
    assert values.added == values.removed > 0


class Unruled:
    """A plain object without a rule."""

    def snapshot_state(self) -> int:
        return 1

    def restore_state(self, state: int) -> None: ...


@sk.process()
def unruled(event: Event, held: Unruled) -> None: ...


def test_the_error_for_an_object_without_a_rule_names_the_missing_methods() -> None:
    harness = Harness(unruled, parallelism=2)
    harness.send(*EVENTS)
    with pytest.raises(sk.RescaleError, match="give its class split_state and merge_states"):
        harness.rescale(3)


def test_other_key_groups_are_planned_written_and_verified_by_the_command(tmp_path: Path) -> None:
    before = made(tmp_path)
    words = ["rescale", str(tmp_path), "--to", "2", "--key-groups", "32"]
    planned = statekit(*words, "--plan")
    assert planned.returncode == 0, planned.stderr
    for told in (
        "3 shards of 16 key groups → 2 of 32: all rows are written again",
        "operator follow: 3 → 2 shards",
        "16–31",
        "fullest key groups:",
        "operator state values, 30 rows: divided evenly",
    ):
        assert told in planned.stdout
    assert held(tmp_path) == before
    assert statekit(*words, "--plan", "--fast").returncode == 2
    done = statekit(*words, "--app", "tests.unit.maintenance.test_operator_state_kept:job")
    assert done.returncode == 0, done.stderr
    assert "follow.total: 9 rows with checksum" in done.stdout
    assert "committed as epoch 2" in done.stdout
    check(tmp_path, before, 2)
