"""Tables of Delta Lake and Iceberg: each epoch exactly once, whatever came before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sinks import Attempt, Outputs, Receipt, Sink
from statekit.testing import check_sink
from tests.support.lake_tables import LAKES, LakeTable, in_class, lake, spent
from tests.support.sinks import ORDERS, Order, Spent, spending_job, sums


@pytest.fixture(params=LAKES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return lake(request.param, tmp_path / "ta ble")


def run(root: Path, sink: Sink, orders: list[Order] = ORDERS, **options: Any) -> None:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    spending_job(sink).run({"orders": orders}, **given)


def forget(root: Path, epoch: int) -> None:
    """As if the process had been killed between the sink and the manifest of an epoch."""
    (root / "epochs" / f"{epoch:020d}.json").unlink()


def test_each_epoch_is_one_commit(root: Path, table: LakeTable) -> None:
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)
    assert table.commits() == 3


def test_a_compaction_gives_way_to_another_writer_and_is_made_later(
    root: Path, table: LakeTable
) -> None:
    run(root, table.sink())
    newest = Repository(root).newest_job_file()
    assert newest is not None
    sink: Any = table.sink()
    outputs = Outputs(newest[0].id, "spent", pa.schema([]))

    class Raced(type(sink)):  # type: ignore[misc]
        def log(self, outputs: Outputs) -> Any:
            found = super().log(outputs)
            table.append(spent(("eve", 1)))
            return found

    assert not in_class(Raced, sink).compact(outputs, 2)
    expected = sorted([*sums(ORDERS), Spent("eve", 1)])
    assert table.rows() == expected
    assert [sink.compact(outputs, 2) for _ in range(2)] == [True, False]
    assert table.rows() == expected
    run(root, table.sink(), [*ORDERS, Order("eve", 5)])
    assert table.rows() == sorted([*expected, Spent("eve", 5)])


def test_a_run_that_continues_adds_its_epochs(root: Path, table: LakeTable) -> None:
    run(root, table.sink(), ORDERS[:5])
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_an_epoch_that_was_not_committed_is_replaced(root: Path, table: LakeTable) -> None:
    run(root, table.sink())
    forget(root, 2)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_an_epoch_that_runs_again_with_fewer_records_leaves_those_only(
    root: Path, table: LakeTable
) -> None:
    run(root, table.sink())
    forget(root, 2)
    forget(root, 1)
    with pytest.raises(sk.FencedError, match="has epoch 2 of this sink and checkpoint"):
        run(root, table.sink(), epoch_size=2)
    run(root.with_name("other"), table.sink(), epoch_size=5)  # another checkpoint is another writer
    assert table.rows() == sorted(2 * sums(ORDERS))


def test_the_last_epoch_may_run_again_with_other_records(root: Path, table: LakeTable) -> None:
    run(root, table.sink(), ORDERS[:10])
    forget(root, 1)
    run(root, table.sink(), epoch_size=2)
    assert table.rows() == sums(ORDERS)


def test_rows_of_epochs_that_were_rolled_back_are_removed(root: Path, table: LakeTable) -> None:
    run(root, table.sink())
    table.append(spent(("other", 5)))
    run(root, table.sink(), ORDERS[:7], from_epoch=0)
    assert table.rows() == sorted([*sums(ORDERS[:7]), Spent("other", 5)])
    run(root, table.sink())
    assert table.rows() == sorted([*sums(ORDERS), Spent("other", 5)])


def test_others_may_write_the_table_at_the_same_time(root: Path, table: LakeTable) -> None:
    class Between(type(table.sink())):  # type: ignore[misc]
        """Others append after the sink has looked at the table, and before it commits."""

        def publish(self, attempt: Attempt, receipts: list[Receipt]) -> None:
            table.append(spent(("other", attempt.epoch)))
            super().publish(attempt, receipts)
            table.append(spent(("other", attempt.epoch)))

    sink = table.sink()
    run(root, in_class(Between, sink))
    forget(root, 2)
    run(root, sink)
    others = [Spent("other", epoch) for epoch in range(3) for _ in range(2)]
    assert table.rows() == sorted([*sums(ORDERS), *others])


def test_a_run_that_another_one_has_overtaken_commits_nothing(root: Path, table: LakeTable) -> None:
    run(root, table.sink(), ORDERS[:5])
    sink = table.sink()
    inner: Callable[..., Any] = type(sink).write

    class Slow(type(sink)):  # type: ignore[misc]
        def write(self, part: Any, batches: Any) -> Any:
            run(root, table.sink(), ORDERS[:10])
            return inner(self, part, batches)

    orders = [*ORDERS[:5], *(Order("late", 1) for _ in range(5))]
    with pytest.raises(sk.FencedError):
        run(root, in_class(Slow, sink), orders)
    assert table.rows() == sums(ORDERS[:10])


def test_a_run_is_fenced_by_the_table_alone(root: Path, table: LakeTable) -> None:
    """The other run commits after this one has checked the checkpoint."""
    run(root, table.sink(), ORDERS[:5])
    sink = table.sink()

    class Late(type(sink)):  # type: ignore[misc]
        def publish(self, attempt: Attempt, receipts: list[Receipt]) -> None:
            run(root, table.sink(), ORDERS)
            super().publish(attempt, receipts)

    orders = [*ORDERS[:5], *(Order("late", 1) for _ in range(5))]
    with pytest.raises(sk.FencedError, match="Another run writes to this table"):
        run(root, in_class(Late, sink), orders)
    assert table.rows() == sums(ORDERS)


def test_a_run_that_was_rolled_back_meanwhile_is_fenced(root: Path, table: LakeTable) -> None:
    run(root, table.sink(), ORDERS[:10])
    sink = table.sink()

    class Late(type(sink)):  # type: ignore[misc]
        def publish(self, attempt: Attempt, receipts: list[Receipt]) -> None:
            run(root, table.sink(), ORDERS, from_epoch=0)
            super().publish(attempt, receipts)

    with pytest.raises(sk.FencedError):
        run(root, in_class(Late, sink))
    assert table.rows() == sums(ORDERS)


class Trip(NamedTuple):
    place: tuple[str, int]
    took: dt.timedelta
    fee: Annotated[Decimal, sk.Decimals(10, 2)]
    raw: bytes
    counts: dict[int, dt.timedelta]
    day: dt.date
    tags: list[str]
    rate: float
    at: dt.datetime | None = None


AT = dt.datetime(2026, 1, 31, 8, 0, 0, 5, tzinfo=dt.UTC)
TRIP = Trip(
    ("oslo", 5),
    dt.timedelta(hours=2),
    Decimal("1.50"),
    b"\xff",
    {5: dt.timedelta(seconds=1)},
    AT.date(),
    ["a", "b"],
    1.5,
    AT,
)


@sk.process(key="raw")
def visited(trip: Trip, seen: sk.ValueState[int]) -> Iterator[Trip]:
    seen.update(1)
    yield trip


def test_values_of_all_types_are_read_back(table: LakeTable) -> None:
    job = sk.Job("trips")
    job.source("trips", Trip).process(visited).sink("visited", table.sink())
    job.run({"trips": [TRIP, TRIP._replace(at=None, rate=float("nan"))]})
    first, second = sorted(table.read().to_pylist(), key=lambda row: row["at"] is None)
    assert first == TRIP._asdict() | {
        "place": {"_1": "oslo", "_2": 5},
        "took": 7_200_000_000,
        "counts": [(5, 1_000_000)],
    }
    assert second["at"] is None


class SpentMore(NamedTuple):
    customer: str
    cents: int
    note: str | None = None


class SpentText(NamedTuple):
    customer: str
    cents: str


@sk.process(key="customer")
def noted(order: Order, seen: sk.ValueState[int]) -> Iterator[SpentMore]:
    seen.update(1)
    yield SpentMore(order.customer, order.cents, "new")


@sk.process(key="customer")
def texts(order: Order, seen: sk.ValueState[int]) -> Iterator[SpentText]:
    seen.update(1)
    yield SpentText(order.customer, str(order.cents))


def passing_job(process: Any, sink: Sink) -> sk.Job:
    job = sk.Job("more")
    job.source("orders", Order).process(process).sink("spent", sink)
    return job


def test_a_new_optional_field_becomes_a_column(root: Path, table: LakeTable) -> None:
    run(root, table.sink(), ORDERS[:2])
    passing_job(noted, table.sink()).run({"orders": [Order("ada", 5)]})
    rows = table.read().to_pylist()
    assert sorted(row["note"] or "" for row in rows) == ["", "", "new"]
    run(root, table.sink(), ORDERS[:4])
    assert len(table.read()) == 5


def test_a_table_that_does_not_fit_is_refused_before_the_first_record(
    root: Path, table: LakeTable
) -> None:
    run(root, table.sink(), ORDERS[:2])
    read = iter([Order("ada", 5)])
    with pytest.raises(sk.StateSchemaError, match="'cents' is int64, and the field is string"):
        passing_job(texts, table.sink()).run({"orders": read})
    assert next(read) == Order("ada", 5)
    assert table.rows() == sums(ORDERS[:2])


class Account(NamedTuple):
    customer: str
    cents: int
    closed: bool = False


@sk.process(key="customer")
def account(order: Order, total: sk.ValueState[int]) -> Iterator[Account]:
    total.update((total.get() or 0) + order.cents)
    yield Account(order.customer, total.get() or 0, order.cents < 0)


def accounts(table: LakeTable) -> sk.Job:
    job = sk.Job("accounts")
    sink = table.sink(mode="upsert", key="customer", delete="closed")
    job.source("orders", Order).process(account).sink("accounts", sink)
    return job


def test_an_upsert_keeps_the_last_row_of_each_key_and_deletes(root: Path, table: LakeTable) -> None:
    orders = [*ORDERS, Order("c1", -100), Order("c9", -1), Order("c9", 5), Order("c2", 0)]
    for given in (orders[:7], orders, orders):
        accounts(table).run({"orders": given}, checkpoint=root, epoch_size=3, drain=False)
    assert table.read().column_names == ["customer", "cents"]
    assert table.rows() == [Spent("c0", 18), Spent("c2", 26), Spent("c9", 4)]


def test_an_upsert_leaves_the_values_of_other_rows_as_they_were(table: LakeTable) -> None:
    def started(key: bytes, took: dt.timedelta) -> None:
        job, trip = sk.Job("trips"), TRIP._replace(raw=key, took=took)
        sink = table.sink(mode="upsert", key="raw")
        job.source("trips", Trip).process(visited).sink("visited", sink)
        job.run({"trips": [trip, trip._replace(raw=b"both")]})

    for number, key in enumerate([b"one", b"two", b"three"]):
        started(key, dt.timedelta(microseconds=number))
    rows = {row["raw"]: row for row in table.read().to_pylist()}
    assert {key: row["took"] for key, row in rows.items()} == {
        b"one": 0,
        b"two": 1,
        b"three": 2,
        b"both": 2,
    }
    assert len(table.read()) == 4
    for row in rows.values():
        assert (row["tags"], row["counts"]) == (["a", "b"], [(5, 1_000_000)])
        assert row["place"] == {"_1": "oslo", "_2": 5}


def test_an_upsert_that_runs_again_changes_nothing(root: Path, table: LakeTable) -> None:
    accounts(table).run({"orders": ORDERS}, checkpoint=root, epoch_size=5, drain=False)
    before = table.rows()
    forget(root, 2)
    table.append(spent(("other", 5)))
    accounts(table).run({"orders": ORDERS}, checkpoint=root, epoch_size=5, drain=False)
    assert table.rows() == sorted([*before, Spent("other", 5)])


def test_an_upsert_is_undone_by_a_rollback_if_nobody_else_has_written(
    root: Path, table: LakeTable
) -> None:
    orders = [*ORDERS[:5], Order("new", 5), Order("c1", -500)]
    accounts(table).run({"orders": orders}, checkpoint=root, epoch_size=5, drain=False)
    assert "new" in dict(table.rows())
    accounts(table).run({"orders": ORDERS[:6]}, checkpoint=root, drain=False, from_epoch=0)
    assert table.rows() == [Spent("c0", 3), Spent("c1", 5), Spent("c2", 7)]


def test_rows_of_an_upsert_stay_after_a_rollback_if_others_have_written(
    root: Path, table: LakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = [*ORDERS[:5], Order("new", 5)]
    accounts(table).run({"orders": orders}, checkpoint=root, epoch_size=5, drain=False)
    table.append(spent(("other", 5)))
    accounts(table).run({"orders": ORDERS[:6]}, checkpoint=root, drain=False, from_epoch=0)
    assert dict(table.rows()) == {"c0": 3, "c1": 5, "c2": 7, "new": 5, "other": 5}
    assert "others have changed the table since" in caplog.text


def test_an_overwrite_has_the_rows_of_the_last_epoch_that_has_any(
    root: Path, table: LakeTable
) -> None:
    run(root, table.sink(mode="overwrite"))
    last = table.rows()
    assert last == [row for row in sums(ORDERS) if row not in sums(ORDERS[:10])]
    forget(root, 2)
    run(root, table.sink(mode="overwrite"))
    assert table.rows() == last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "merge"}, "give 'append', 'upsert' or 'overwrite'"),
        ({"mode": "upsert"}, "give key= the fields of the key with mode='upsert'"),
        ({"key": "customer"}, "and no key with another mode"),
        ({"delete": "closed"}, "is a boolean field of outputs with mode='upsert'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    table: LakeTable, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        table.sink(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "nobody"}, "names the field 'nobody', and its outputs have customer, cents"),
        ({"key": "customer", "delete": "cents"}, "is of type int64: choose a boolean field"),
    ],
)
def test_fields_that_the_outputs_do_not_have_are_refused_before_the_first_record(
    table: LakeTable, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        spending_job(table.sink(mode="upsert", **options)).run({"orders": ORDERS})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.soak)])
def test_the_sink_leaves_each_record_once_whenever_its_process_is_killed(kind: str) -> None:
    def make(place: Path) -> tuple[Any, Callable[[], list[Spent]]]:
        return lake(kind, place).sink(), lambda: lake(kind, place).rows()

    check_sink(make, [Spent(f"c{number}", number) for number in range(4)], depth="quick")
