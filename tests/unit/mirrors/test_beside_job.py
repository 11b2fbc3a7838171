"""Mirrors beside a job: started and ended with it, and no failure of theirs is one of the job."""

from __future__ import annotations

import datetime as dt
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import statekit as sk
from statekit.checkpoint.leases.lease_files import lease_of
from statekit.checkpoint.repository import Repository
from statekit.clock import sleep_s, stopwatch_s
from statekit.job.progress import Run
from tests.support.killable_processes import exit_code
from tests.support.mirrors import Sale, delta_rows, sales, shown, state_rows
from tests.support.timeouts import PATIENCE_S

STATES = ("total", "by_cents", "last")


def sales_job() -> sk.Job:
    job = sk.Job("shop")
    job.source("sold", Sale).process(sales)
    return job


def tables(home: Path) -> dict[str, Any]:
    return {f"sales.{name}": sk.sinks.delta(home / name) for name in STATES}


def patient(home: Path, **options: Any) -> sk.MirrorOptions:
    """Mirrors whose last step may take any time."""
    within = dt.timedelta(seconds=PATIENCE_S)
    return sk.MirrorOptions(tables(home), catch_up_within=within, **options)


def check(home: Path) -> None:
    """Compare the tables with the states after the last epoch."""
    for name in STATES:
        expected = state_rows(home / "job", "sales", name, None)
        assert shown(delta_rows(home / name), expected) == shown(expected, expected), name


def wait_until(done: Callable[[], object]) -> None:
    begun_s = stopwatch_s()
    while not done():
        assert stopwatch_s() - begun_s < PATIENCE_S
        sleep_s(0.02)


def epoch_of(home: Path) -> int:
    """The epoch of the mirror, by its lease."""
    stored = lease_of(Repository(home / "job"), "mirror-all")
    return -1 if stored is None else stored.lease.epoch


def process_of_mirror(home: Path) -> int:
    stored = lease_of(Repository(home / "job"), "mirror-all")
    assert stored is not None
    return stored.lease.holder.process


def kill_mirror(home: Path) -> None:
    os.kill(process_of_mirror(home), signal.SIGKILL)


def test_tables_equal_the_states_when_the_run_has_ended(tmp_path: Path) -> None:
    records = [Sale(f"u{number % 7}", number % 5) for number in range(40)]
    run = sales_job().run(
        {"sold": records}, checkpoint=tmp_path / "job", epoch_size=3, mirror=patient(tmp_path)
    )
    (mirror,) = run.mirrors
    assert (mirror.epoch, mirror.is_running, mirror.error) == (run.last_epoch, False, None)
    assert mirror.name == "sales.total-sales.by_cents-sales.last"
    check(tmp_path)


def test_several_mirrors_run_beside_one_job(tmp_path: Path) -> None:
    mirrors = [
        patient(tmp_path, name="all"),
        sk.MirrorOptions(
            {"sales.total": sk.sinks.parquet(tmp_path / "log")},
            mode="changes",
            catch_up_within=dt.timedelta(seconds=PATIENCE_S),
        ),
    ]
    job = sales_job()
    run = job.run({"sold": [Sale("ada", 1)]}, checkpoint=tmp_path / "job", mirror=mirrors)
    assert [mirror.epoch for mirror in run.mirrors] == [0, 0]
    check(tmp_path)


def test_a_mirror_that_is_killed_is_reported_and_continued_by_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = patient(tmp_path, name="all", every="0 s")

    def records() -> Iterator[Sale]:
        yield from (Sale(f"u{number}", 1) for number in range(4))
        wait_until(lambda: epoch_of(tmp_path) >= 0)
        kill_mirror(tmp_path)
        wait_until(lambda: caplog.records)
        yield from (Sale(f"u{number}", 2) for number in range(4))

    def run(given: Any) -> Run:
        return sales_job().run(
            {"sold": given}, checkpoint=tmp_path / "job", epoch_size=2, drain=False, mirror=mirror
        )

    with caplog.at_level(logging.WARNING, "statekit.mirrors"):
        (ended,) = run(records()).mirrors
    assert ended.error == "its process was ended by SIGKILL"
    assert "mirror 'all' has ended, at epoch" in caplog.text
    (continued,) = run([*records_of(8), Sale("u1", 7)]).mirrors
    assert (continued.epoch, continued.error) == (4, None)
    check(tmp_path)


def records_of(count: int) -> list[Sale]:
    return [Sale(f"u{number % 4}", 1 + number // 4) for number in range(count)]


def test_a_mirror_that_fails_leaves_the_job_alone(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "total"), pa.table({"user": ["eve"], "value": [1]}))
    run = sales_job().run(
        {"sold": records_of(8)}, checkpoint=tmp_path / "job", mirror=patient(tmp_path)
    )
    (mirror,) = run.mirrors
    assert run.last_epoch == 0
    assert mirror.epoch is None
    assert mirror.error is not None
    assert "has rows that this mirror has not written" in mirror.error


def test_a_job_does_not_wait_for_a_mirror_that_may_catch_up_alone(tmp_path: Path) -> None:
    mirror = sk.MirrorOptions(tables(tmp_path), name="all", catch_up_within="0 seconds")
    run = sales_job().run({"sold": records_of(8)}, checkpoint=tmp_path / "job", mirror=mirror)
    (left,) = run.mirrors
    assert left.error is None
    wait_until(lambda: epoch_of(tmp_path) >= 0)
    process = process_of_mirror(tmp_path)
    wait_until(lambda: not psutil.pid_exists(process))
    check(tmp_path)


def test_a_mirror_that_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    mirror = sk.MirrorOptions(tables(tmp_path), catch_up_within="1 ms")
    run = sales_job().run({"sold": records_of(8)}, checkpoint=tmp_path / "job", mirror=mirror)
    (ended,) = run.mirrors
    assert ended.error == "its process was ended by SIGKILL"


def test_the_process_of_a_mirror_has_a_lower_priority(tmp_path: Path) -> None:
    found: list[int] = []

    def records() -> Iterator[Sale]:
        yield from records_of(8)
        wait_until(lambda: epoch_of(tmp_path) >= 0)
        found.append(psutil.Process(process_of_mirror(tmp_path)).nice())

    mirror = patient(tmp_path, name="all", every="0 s")
    sales_job().run(
        {"sold": records()}, checkpoint=tmp_path / "job", epoch_size=2, drain=False, mirror=mirror
    )
    assert found == [min(psutil.Process().nice() + 15, 19)]


def run_until_killed(home: Path) -> None:
    def records() -> Iterator[Sale]:
        yield from records_of(8)
        wait_until(lambda: epoch_of(home) >= 0)
        os.kill(os.getpid(), signal.SIGKILL)

    mirror = patient(home, name="all", every="0 s")
    sales_job().run({"sold": records()}, checkpoint=home / "job", epoch_size=2, mirror=mirror)


def test_the_mirror_of_a_killed_job_ends_and_continues_with_the_next_start(tmp_path: Path) -> None:
    assert exit_code(run_until_killed, tmp_path) == -signal.SIGKILL
    mirror = patient(tmp_path, name="all", every="0 s")
    run = sales_job().run(
        {"sold": [*records_of(8), Sale("u9", 9)]},
        checkpoint=tmp_path / "job",
        epoch_size=2,
        mirror=mirror,
    )
    (continued,) = run.mirrors
    assert (continued.epoch, continued.error) == (run.last_epoch, None)
    check(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sale.total": "/tables"}, "is no sink of a table"),
        ({"sale.total": sk.sinks.parquet("/t")}, r"has no operator 'sale': it has sales"),
        ({"total": sk.sinks.parquet("/t")}, "give the operator and the state"),
        ("sales.total", "give a sink per state"),
        ({"sales.missing": sk.sinks.parquet("/t")}, r"has no state 'missing': it has total, by_c"),
        ({}, "give a sink for each state"),
    ],
)
def test_mirrors_that_are_none_of_the_job_are_refused(
    tmp_path: Path, given: Any, message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sales_job().run({"sold": []}, checkpoint=tmp_path / "job", mirror=given)
    assert not (tmp_path / "job").exists()


def test_two_mirrors_of_one_name_or_one_table_are_refused(tmp_path: Path) -> None:
    one = {"sales.total": sk.sinks.delta(tmp_path / "one")}
    for name, message in (("one", "two mirrors with the name 'one'"), ("two", "have one table")):
        with pytest.raises(sk.StateTypeError, match=message):
            sales_job().run(
                {"sold": []},
                checkpoint=tmp_path / "job",
                mirror=[sk.MirrorOptions(one, name="one"), sk.MirrorOptions(one, name=name)],
            )


def test_a_job_without_a_checkpoint_has_no_mirrors(tmp_path: Path) -> None:
    with pytest.raises(sk.StateTypeError, match="mirror= needs checkpoint="):
        sales_job().run({"sold": []}, mirror=tables(tmp_path))
