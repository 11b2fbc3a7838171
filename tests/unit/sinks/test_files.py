"""Files of a sink: each epoch exactly once, whatever came before."""

from __future__ import annotations

import csv
import datetime as dt
import json
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sinks import Sink
from statekit.testing import check_sink
from tests.support.sinks import ORDERS, Order, Spent, rows_of, spending_job, sums


def run(root: Path, out: Path, orders: list[Order] = ORDERS, **options: Any) -> None:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    spending_job(sk.sinks.parquet(out)).run({"orders": orders}, **given)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*.parquet"))


def test_there_is_a_file_per_epoch_and_nothing_else_that_readers_see(
    root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out put"
    run(root, out)
    assert names(out) == [f"epoch-{epoch:020d}-00000.parquet" for epoch in range(3)]
    assert {path.name for path in out.iterdir()} == {*names(out), "_statekit"}
    assert list((out / "_statekit").iterdir()) == []
    assert rows_of(out) == sums(ORDERS)


def test_a_run_that_continues_adds_its_epochs(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "out", ORDERS[:5])
    run(root, tmp_path / "out")
    assert rows_of(tmp_path / "out") == sums(ORDERS)


def test_files_of_an_epoch_that_was_not_committed_are_replaced(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(root, out)
    (root / "epochs" / f"{2:020d}.json").unlink()
    second = out / f"epoch-{2:020d}-00001.parquet"  # of an attempt with more tasks
    shutil.copy(out / f"epoch-{2:020d}-00000.parquet", second)
    run(root, out)
    assert not second.exists()
    assert rows_of(out) == sums(ORDERS)


def test_files_of_epochs_that_were_rolled_back_are_removed(root: Path, tmp_path: Path) -> None:
    run(root, tmp_path / "out")
    run(root, tmp_path / "out", from_epoch=0)
    assert rows_of(tmp_path / "out") == sums(ORDERS)
    assert names(tmp_path / "out")[1] > f"epoch-{2:020d}", "abandoned numbers are not used again"


def test_a_directory_of_a_later_job_is_refused_and_left_alone(root: Path, tmp_path: Path) -> None:
    run(tmp_path / "other", tmp_path / "out")
    with pytest.raises(sk.RestoreError, match="contains files of epoch 2, which is later than"):
        run(root, tmp_path / "out")
    assert rows_of(tmp_path / "out") == sums(ORDERS)


def test_staged_files_of_killed_runs_are_removed(root: Path, tmp_path: Path) -> None:
    staged = tmp_path / "out" / "_statekit"
    staged.mkdir(parents=True)
    for name in (f"epoch-{0:020d}-killed-0-1", "3f29", f"epoch-{1:020d}-killed-0-1"):
        (staged / name).write_bytes(b"PAR1")
    run(root, tmp_path / "out", ORDERS[:5])
    assert {path.name for path in staged.iterdir()} == {f"epoch-{0:020d}-killed-0-1"}
    run(root, tmp_path / "out")
    assert list(staged.iterdir()) == []


def test_a_run_that_another_one_has_overtaken_moves_nothing(root: Path, tmp_path: Path) -> None:
    """The other one commits while this one writes its second epoch."""
    run(root, tmp_path / "out", ORDERS[:5])
    sink = sk.sinks.parquet(tmp_path / "out")
    inner: Callable[..., Any] = type(sink).write

    class Slow(type(sink)):  # type: ignore[misc]
        def write(self, part: Any, batches: Any) -> Any:
            run(root, tmp_path / "out", ORDERS[:10])
            return inner(self, part, batches)

    orders = [*ORDERS[:5], *(Order("late", 1) for _ in range(5))]
    with pytest.raises(sk.FencedError):
        spending_job(Slow(str(tmp_path / "out"))).run(
            {"orders": orders}, checkpoint=root, epoch_size=5
        )
    assert rows_of(tmp_path / "out") == sums(ORDERS[:10])


def test_two_sinks_in_one_directory_are_refused(tmp_path: Path) -> None:
    job = spending_job(sk.sinks.parquet(tmp_path / "out"))
    job.source("more", Order).sink("more", sk.sinks.parquet(f"{tmp_path / 'out'}/"))
    with pytest.raises(sk.StateTypeError, match="two sinks in one directory"):
        job.run({"orders": ORDERS, "more": []})


def test_a_directory_that_cannot_be_written_is_an_error_that_commits_nothing(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(sk.StorageError, match="Nothing committed is lost"):
        run(root, tmp_path / "out")
    assert Repository(root).latest_epoch() is None
    (tmp_path / "out").unlink()
    run(root, tmp_path / "out")
    assert rows_of(tmp_path / "out") == sums(ORDERS)


def test_rows_come_in_groups_that_compress_well(root: Path, tmp_path: Path) -> None:
    orders = [Order("ann", 1) for _ in range(30_000)]
    run(root, tmp_path / "out", orders, epoch_size=30_000)
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 1


class Trip(NamedTuple):
    place: tuple[str, int]
    took: dt.timedelta
    fee: Annotated[Decimal, sk.Decimals(10, 2)]
    raw: bytes
    counts: dict[int, int]
    at: dt.datetime | None = None


TRIP = Trip(("oslo", 5), dt.timedelta(hours=2), Decimal("1.50"), b"\xff", {5: 1})


@sk.process(key="raw")
def visited(trip: Trip, seen: sk.ValueState[int]) -> Iterator[Trip]:
    seen.update(1)
    yield trip


def _written(sink: Sink) -> None:
    job = sk.Job("trips")
    job.source("trips", Trip).process(visited).sink("visited", sink)
    job.run({"trips": [TRIP, TRIP]})


def test_lines_of_json_have_the_form_of_all_answers(tmp_path: Path) -> None:
    _written(sk.sinks.json_lines(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    form = {"took": "PT2H", "fee": "1.50", "raw": "ff", "counts": {"5": 1}, "at": None}
    assert lines == [{"place": ["oslo", 5], **form}] * 2


def test_files_of_csv_have_a_header_and_nested_values_as_json(tmp_path: Path) -> None:
    _written(sk.sinks.csv(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.csv")
    header, *rows = csv.reader(file.read_text().splitlines())
    assert header == ["place", "took", "fee", "raw", "counts", "at"]
    assert rows == [['["oslo",5]', "PT2H", "1.50", "ff", '{"5":1}', ""]] * 2


def test_the_sink_leaves_each_record_once_whenever_its_process_is_killed() -> None:
    def make(place: Path) -> tuple[Any, Callable[[], list[Spent]]]:
        return sk.sinks.parquet(place), lambda: rows_of(place)

    check_sink(make, [Spent(f"c{number}", number) for number in range(4)], depth="quick")
