"""Operator state that a command has redistributed, and that no run has taken up yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.cli.diff import source_of
from statekit.maintenance.diff.compare import compare
from statekit.maintenance.migrate import Migration
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.effort import SOAK
from tests.unit.maintenance.test_operator_state_kept import (
    EVENTS,
    SPECS,
    Event,
    Listed,
    Users,
    follow,
    held,
    job,
    made,
    migrating,
    share,
)


def counted(checkpoint: Path) -> dict[str, int]:
    """Rows per state by counting them all."""
    sizes = counted_sizes(CheckpointReader(checkpoint), "follow").states
    return {name: size.rows for name, size in sizes.items()}


@settings(
    max_examples=7 if SOAK else 3,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    steps=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5),
    key_groups=st.sampled_from([None, 7, 32]),
)
def test_it_is_all_there_however_often_it_was_redistributed(
    steps: list[tuple[int, bool]], key_groups: int | None
) -> None:
    with tempfile.TemporaryDirectory() as place:
        checkpoint = Path(place) / "c"
        made(checkpoint, 4)
        repository, runs = Repository(checkpoint), 0
        for parallelism, takes_up in steps:
            rescale_offline(repository, parallelism, job=job())
            if takes_up:
                Harness(follow, checkpoint=checkpoint).send(*EVENTS)
                runs += 1
            now = held(checkpoint)
            assert sum(map(len, now["values"])) == len(EVENTS) * (1 + runs)
            rows = CheckpointReader(checkpoint).manifest.operators["follow"].rows
            assert counted(checkpoint) == {name: rows.get(name, 0) for name in counted(checkpoint)}
            assert counted(checkpoint)["values"] == len(EVENTS) * (1 + runs)
        write_savepoint(repository, "s")
        assert compare(source_of(str(checkpoint)), source_of(f"{checkpoint}/savepoints/s")).is_same
        before = repository.latest_epoch()
        if key_groups is not None:
            shards = repository.manifest(before or 0).parallelism
            rewrite_checkpoint(repository, key_groups=key_groups, parallelism=shards, specs=SPECS)
            assert held(checkpoint) == now
            sides = (source_of(f"{checkpoint}@{before}"), source_of(str(checkpoint)))
            assert compare(*sides).is_same


def test_rows_of_shards_that_never_ran_are_migrated_too(tmp_path: Path) -> None:
    """Keys of one user lie in one shard: the others have nothing but what was redistributed."""
    harness = Harness(follow, parallelism=2, key_groups=16, checkpoint=tmp_path)
    harness.send(*(Event("u", n) for n in range(5)))
    rescale_offline(Repository(tmp_path), 4, job=job())
    shards = Repository(tmp_path).manifest(1).operators["follow"].shards
    assert any(shard.attempt is None and shard.redistributed for shard in shards)
    Migration(migrating("follow"), tmp_path).run(lambda *_: None)
    assert [v for values in held(tmp_path)["values"] for v in values] == ["0", "1", "2", "3", "4"]
    migrating("follow").run({"records": EVENTS}, checkpoint=tmp_path)
    assert sum(map(len, held(tmp_path)["values"])) == 5 + len(EVENTS)


def test_a_difference_sees_that_state_was_merged(tmp_path: Path) -> None:
    made(tmp_path, 4)
    rescale_offline(Repository(tmp_path), 2, job=job())
    found = compare(source_of(f"{tmp_path}@1"), source_of(f"{tmp_path}@2"), examples=9)
    by_state = {state.state: state for state in found.states}
    assert by_state["total"].is_same
    assert by_state["count"].rows_a > by_state["count"].rows_b
    assert not by_state["count"].is_same


def test_of_other_key_groups_a_difference_names_the_shard_by_number(tmp_path: Path) -> None:
    made(tmp_path)
    rewrite_checkpoint(Repository(tmp_path), key_groups=32, specs=SPECS)
    Harness(follow, checkpoint=tmp_path).send(Event("u1", 1))
    found = compare(source_of(f"{tmp_path}@1"), source_of(str(tmp_path)), examples=9)
    (row,) = next(state for state in found.states if state.state == "values").examples
    shard = next(n for n, values in enumerate(held(tmp_path)["values"]) if values[-1] == 1)
    assert (row.change, row.key, row.new) == ("added", f"shard {shard}", 1)


def text_shares(count: str, n: int) -> list[str]:
    return [str(part) for part in share(int(count), n)]


def text_sum(counts: list[str]) -> str:
    return str(sum(map(int, counts)))


CountedText = Annotated[sk.OperatorState[str], sk.Redistribute(split=text_shares, merge=text_sum)]


@sk.process(key="user", migrate={"count": lambda count: str(count)})
def retyped(
    event: Event, total: sk.ValueState[int], count: CountedText, values: Listed, users: Users
) -> Iterator[int]:
    count.update(str(int(count.get() or "0") + 1))
    yield 0


def retyped_job() -> sk.Job:
    changed = sk.Job("follow")
    changed.source("records", Event).process(retyped, name="follow").sink("outputs")
    return changed


def test_functions_for_another_type_than_the_stored_one_are_not_called_by_a_command(
    tmp_path: Path,
) -> None:
    """They would return what nobody could tell from rows of the stored type."""
    before = made(tmp_path / "a")
    repository = Repository(tmp_path / "a")
    write_savepoint(repository, "s")
    specs = {"follow": retyped.states}
    for refused in (
        lambda: rescale_offline(repository, 2, job=retyped_job()),
        lambda: rewrite_checkpoint(repository, parallelism=2, key_groups=7, specs=specs),
        lambda: retyped_job().run(
            {"records": []},
            checkpoint=tmp_path / "b",
            from_savepoint=tmp_path / "a/savepoints/s",
            parallelism=2,
        ),
    ):
        with pytest.raises(sk.RescaleError, match=r"stored type int, and the job.* declares str"):
            refused()
        assert not (tmp_path / "b/data").exists(), "nothing was written in vain"
    assert held(tmp_path / "a") == before
    for checkpoint, origin in (
        (tmp_path / "a", {}),
        (tmp_path / "b", {"from_savepoint": tmp_path / "a/savepoints/s"}),
    ):
        retyped_job().run({"records": EVENTS[:0]}, checkpoint=checkpoint, **origin)  # type: ignore[arg-type]
        retyped_job().run({"records": EVENTS}, checkpoint=checkpoint, parallelism=2)
        counts = held(checkpoint)["count"]
        assert sum(int(n) for n in counts) == 2 * len(EVENTS)


def test_a_harness_is_restored_with_the_functions_of_its_process(tmp_path: Path) -> None:
    before = made(tmp_path)
    write_savepoint(Repository(tmp_path), "s")
    harness = Harness.restore(follow, tmp_path / "savepoints/s", parallelism=2)
    assert sum(harness.operator_state("count")) == sum(n or 0 for n in before["count"])
