"""Mirrors step by step: what a step writes, and how a mirror continues."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.testing import Harness
from tests.support.killable_processes import die, exit_code
from tests.support.mirrors import (
    Dying,
    DyingDelta,
    Killed,
    Sale,
    delta_rows,
    file_rows,
    sales,
    shown,
    state_rows,
)


@pytest.fixture
def job(tmp_path: Path) -> Harness:
    return Harness(sales, checkpoint=tmp_path / "job", parallelism=2)


def mirrored(tmp_path: Path, state: str = "total", **options: object) -> sk.Mirror:
    table = DyingDelta.at(tmp_path / f"table-{state}")
    return sk.mirror(tmp_path / "job", f"sales.{state}", table, **options)  # type: ignore[arg-type]


def totals(tmp_path: Path) -> dict[str, int]:
    rows = delta_rows(tmp_path / "table-total").to_pylist()
    return {row["user"]: row["value"] for row in rows}


def check(tmp_path: Path, state: str = "total") -> None:
    """Compare a table with the state that it equals."""
    expected = state_rows(tmp_path / "job", "sales", state, None)
    assert shown(delta_rows(tmp_path / f"table-{state}"), expected) == shown(expected, expected)


def lease_epoch(tmp_path: Path) -> int:
    stored = lease_of(Repository(tmp_path / "job"), "mirror-sales.total")
    assert stored is not None
    return stored.lease.epoch


def commits(tmp_path: Path, state: str = "total") -> list[str]:
    from deltalake import DeltaTable

    history = DeltaTable(str(tmp_path / f"table-{state}")).history()
    return [commit["operation"] for commit in reversed(history)][1:]


def test_several_epochs_are_caught_up_with_in_one_commit(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5), Sale("bob", 7))
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() == 0
        for cents in (1, 2, 3):
            job.send(Sale("ada", cents))
        assert mirror.lag == 3
        assert lease_epoch(tmp_path) == 0
        assert mirror.catch_up() == 3
        assert mirror.lag == 0
        assert lease_epoch(tmp_path) == 3
    assert totals(tmp_path) == {"ada": 11, "bob": 7}
    assert commits(tmp_path) == ["WRITE", "MERGE"]


def test_the_lag_before_the_first_step_counts_from_the_run_before(
    tmp_path: Path, job: Harness
) -> None:
    job.send(Sale("ada", 5))
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as mirror:
        assert mirror.lag == 2
        mirror.catch_up()
    job.send(Sale("ada", 1))
    with mirrored(tmp_path) as mirror:
        assert mirror.lag == 1


def test_a_mirror_waits_for_the_first_epoch(tmp_path: Path, job: Harness) -> None:
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() is None
        job.send(Sale("ada", 5))
        assert next(mirror.follow()) == 0
    assert totals(tmp_path) == {"ada": 5}


@pytest.mark.parametrize("state", ["total", "by_cents", "last"])
def test_a_table_equals_its_state_after_clears_rescales_and_a_rollback(
    tmp_path: Path, job: Harness, state: str
) -> None:
    def follow() -> None:
        with mirrored(tmp_path, state) as mirror:
            mirror.catch_up()
        check(tmp_path, state)

    job.send(Sale("ada", 5), Sale("bob", 7), Sale("eve", 9))
    follow()
    job.send(Sale("ada", 0), Sale("bob", 8))
    follow()
    job.rescale(3)
    job.send(Sale("ada", 1))
    follow()
    plan(Repository(tmp_path / "job"), 0).carry_out()
    follow()


def test_a_table_equals_the_state_after_a_rollback_of_epochs_that_were_collected_since(
    tmp_path: Path, job: Harness
) -> None:
    job.send(Sale("ada", 5), Sale("bob", 7))
    job.send(Sale("ada", 1))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    repository = Repository(tmp_path / "job")
    plan(repository, 0).carry_out()
    Collector(repository, sk.Retention(epochs=1, readers=None)).collect(sweep=False)
    assert repository.epochs() == [2]
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() == 2
    assert totals(tmp_path) == {"ada": 5, "bob": 7}
    assert commits(tmp_path) == ["WRITE", "WRITE"]


def test_the_lease_of_a_mirror_keeps_the_epochs_that_it_needs(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
        for _ in range(3):
            job.send(Sale("ada", 1))
        repository = Repository(tmp_path / "job")
        Collector(repository, sk.Retention(epochs=1)).collect(sweep=False)
        assert repository.epochs() == [0, 1, 2, 3]
        mirror.catch_up()
    assert commits(tmp_path) == ["WRITE", "MERGE"]


def test_the_lease_of_a_mirror_with_a_name_is_one_of_a_mirror(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path, name="nightly") as mirror:
        mirror.catch_up()
    leases = [path.stem for path in (tmp_path / "job" / "readers").glob("*.json")]
    assert leases == ["mirror-nightly"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", ["table", "changes"])
def test_a_step_is_taken_once_if_the_process_dies_at_its_commit(
    tmp_path: Path, job: Harness, mode: str, *, after: bool
) -> None:
    job.send(Sale("ada", 5))
    job.send(Sale("bob", 7))
    with mirrored(tmp_path, mode=mode) as mirror:
        mirror.catch_up()
    job.send(Sale("ada", 1))
    job.send(Sale("bob", 0))
    Dying.dies = 0, after
    with mirrored(tmp_path, mode=mode) as mirror, pytest.raises(Killed):
        mirror.catch_up()
    Dying.dies = None
    job.send(Sale("eve", 2))
    with mirrored(tmp_path, mode=mode) as mirror:
        assert mirror.catch_up() == 4
    rows = delta_rows(tmp_path / "table-total").to_pylist()
    if mode == "table":
        assert totals(tmp_path) == {"ada": 6, "eve": 2}
    else:
        changes = [(row["op"], row["user"], row["value"]) for row in rows]
        assert sorted(changes, key=str) == [
            ("clear", None, None),
            ("delete", "bob", None),
            ("upsert", "ada", 5),
            ("upsert", "ada", 6),
            ("upsert", "bob", 7),
            ("upsert", "eve", 2),
        ]


def test_a_table_that_was_dropped_is_written_again(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5), Sale("bob", 7))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    shutil.rmtree(tmp_path / "table-total")
    job.send(Sale("ada", 1))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    assert totals(tmp_path) == {"ada": 6, "bob": 7}


@pytest.mark.parametrize("has_position", [False, True])
def test_a_table_follows_a_checkpoint_that_was_replaced_by_a_backup(
    tmp_path: Path, job: Harness, *, has_position: bool
) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    shutil.copytree(tmp_path / "job", tmp_path / "backup")
    for _ in range(3):
        job.send(Sale("ada", 1))
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() == 3
        left_out = () if has_position else ("readers", "mirrors")
        shutil.rmtree(tmp_path / "job")
        shutil.copytree(
            tmp_path / "backup", tmp_path / "job", ignore=shutil.ignore_patterns(*left_out)
        )
        if not has_position:
            assert mirror.catch_up() == 0
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() == 0
    assert totals(tmp_path) == {"ada": 5}
    Harness(sales, checkpoint=tmp_path / "job", parallelism=2).send(Sale("bob", 7))
    with mirrored(tmp_path) as mirror:
        assert mirror.catch_up() == 1
    check(tmp_path)


def test_a_wider_type_replaces_the_column(tmp_path: Path, job: Harness) -> None:
    @sk.process(key="user")
    def wider(
        sale: Sale,
        total: sk.ValueState[float],
        by_cents: sk.MapState[int, str],
        last: Annotated[sk.ListState[int], sk.TTL("1 hour")],
    ) -> None:
        total.update((total.get() or 0) + sale.cents / 2)

    job.send(Sale("ada", 5), Sale("bob", 7))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
        wider.name = "sales"
        Harness(wider, checkpoint=tmp_path / "job", parallelism=2).send(Sale("ada", 1))
        mirror.catch_up()
    assert totals(tmp_path) == {"ada": 5.5, "bob": 7.0}


def test_files_are_replaced_by_those_of_the_state(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5), Sale("bob", 7))
    with sk.mirror(tmp_path / "job", "sales.total", sk.sinks.parquet(tmp_path / "f")) as mirror:
        mirror.catch_up()
        job.send(Sale("ada", 0))
        mirror.catch_up()
    assert file_rows(tmp_path / "f").to_pylist() == [{"user": "bob", "value": 7}]


def test_another_run_of_a_mirror_fences_the_one_before(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as first, mirrored(tmp_path) as second:
        first.catch_up()
        second.catch_up()
        job.send(Sale("ada", 1))
        with pytest.raises(sk.FencedError, match="was taken over"):
            first.catch_up()
        second.catch_up()
    assert totals(tmp_path) == {"ada": 6}


def test_a_table_with_rows_of_others_is_replaced_only_on_demand(
    tmp_path: Path, job: Harness
) -> None:
    job.send(Sale("ada", 5))
    write_deltalake(tmp_path / "table-total", pa.table({"user": ["others"], "value": [1]}))
    with mirrored(tmp_path) as mirror, pytest.raises(sk.StateSchemaError, match="--replace"):
        mirror.catch_up()
    assert totals(tmp_path) == {"others": 1}
    with mirrored(tmp_path, replace=True) as mirror:
        mirror.catch_up()
    assert totals(tmp_path) == {"ada": 5}


def test_another_mode_needs_another_name(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
    with (
        mirrored(tmp_path, mode="changes") as mirror,
        pytest.raises(sk.StateTypeError, match="give another name="),
    ):
        mirror.catch_up()


def test_arguments_that_cannot_be_are_refused(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    table, place = sk.sinks.delta(tmp_path / "t"), tmp_path / "job"
    with pytest.raises(sk.StateTypeError, match="one state and to= its sink"):
        sk.mirror(place, "sales.total")
    with pytest.raises(sk.StateTypeError, match=r"such as 'totals\.sum'"):
        sk.mirror(place, "total", table)
    with pytest.raises(sk.StateTypeError, match="is no sink of a table"):
        sk.mirror(place, "sales.total", sk.sinks.console())  # type: ignore[arg-type]
    for files in (sk.sinks.csv(tmp_path / "t"), sk.sinks.json_lines(tmp_path / "t")):
        with pytest.raises(sk.StateTypeError, match="is no sink of a table"):
            sk.mirror(place, "sales.total", files)
    with pytest.raises(sk.StateTypeError, match="mode='log'"):
        sk.mirror(place, "sales.total", table, mode="log")  # type: ignore[arg-type]
    with pytest.raises(sk.QueryError, match="no state 'lost'"):
        sk.mirror(place, "sales.lost", table)
    assert not (tmp_path / "t").exists()


def test_the_error_of_a_sink_names_the_mirror(tmp_path: Path, job: Harness) -> None:
    job.send(Sale("ada", 5))
    with mirrored(tmp_path) as mirror:
        mirror.catch_up()
        job.send(Sale("ada", 5))
        log = tmp_path / "table-total" / "_delta_log"
        for file in log.iterdir():
            file.write_bytes(b"damaged")
        with pytest.raises(
            sk.ConnectorError, match=r"^the sink of sales\.total in mirror .*, then start again$"
        ):
            mirror.catch_up()


def leave_a_copy(tmp_path: Path) -> None:
    with mirrored(tmp_path, "last", directory=tmp_path / "scratch") as mirror:
        mirror.catch_up()
        die()


def test_the_local_copy_of_a_mirror_that_was_killed_is_removed_by_the_next_one(
    tmp_path: Path, job: Harness
) -> None:
    job.send(Sale("ada", 5))
    (scratch := tmp_path / "scratch").mkdir()
    assert exit_code(leave_a_copy, tmp_path) == -signal.SIGKILL
    (left,) = scratch.iterdir()
    job.send(Sale("ada", 6))
    assert exit_code(catch_up_in, tmp_path) == 0
    assert not list(scratch.iterdir()), left


def catch_up_in(tmp_path: Path) -> None:
    with mirrored(tmp_path, "last", directory=tmp_path / "scratch") as mirror:
        mirror.catch_up()
