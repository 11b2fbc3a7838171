"""A run in this process calls sinks as the protocol says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.object_store import Objects, RequestError
from statekit.checkpoint.repository import Repository
from statekit.job.progress import Run
from statekit.sinks import Attempt, Outputs, Part
from tests.support.sinks import ORDERS, Noted, Order, Spent, spending, spending_job, sums


def run(root: Path | None, target: Any, orders: list[Order] = ORDERS, **options: Any) -> Run:
    options = {"checkpoint": root, "epoch_size": 5, "outputs": {"spent": target}} | options
    return spending_job().run({"orders": orders}, **options)


def spent_in(noted: Noted) -> list[Spent]:
    return sorted(Spent(**row) for rows in noted.rows.values() for row in rows)


def test_each_epoch_is_opened_written_and_published_and_the_sink_closed_at_the_end(
    root: Path,
) -> None:
    noted = Noted()
    run(root, noted)
    assert noted.calls == [
        "begin spent customer, cents",
        "open 0 first",
        "write 0 part 0",
        "publish 0",
        "open 1",
        "write 1 part 0",
        "publish 1",
        "open 2",
        "write 2 part 0",
        "publish 2",
        "close",
    ]
    assert spent_in(noted) == sums(ORDERS)


def test_an_epoch_without_outputs_is_published_without_parts(root: Path) -> None:
    job, noted = sk.Job("shop"), Noted()
    orders = job.source("orders", Order)
    orders.process(spending).filter(lambda spent: spent.cents > 5, name="large").sink(
        "spent", noted
    )
    job.run({"orders": ORDERS[:4]}, checkpoint=root, epoch_size=2)
    assert [call for call in noted.calls if call.startswith(("write", "publish"))] == [
        "publish 0",
        "publish 1",
    ]
    assert noted.rows == {0: [], 1: []}


def test_a_target_in_the_job_is_used_unless_the_run_has_another_one() -> None:
    declared, given = Noted(), Noted()
    job = spending_job(declared)
    ended = job.run({"orders": ORDERS})
    assert spent_in(declared) == sums(ORDERS)
    assert ended.outputs == {}, "what goes to a sink is not collected, too"
    declared.calls.clear()
    job.run({"orders": ORDERS}, outputs={"spent": given})
    assert declared.calls == []
    assert spent_in(given) == sums(ORDERS)


def test_a_run_that_follows_a_rollback_abandons_its_epochs_before_it_publishes(root: Path) -> None:
    noted = Noted()
    run(root, noted, drain=False)
    noted.calls.clear()
    run(root, noted, from_epoch=0)
    later = [call for call in noted.calls if not call.startswith(("begin", "open"))]
    assert later[0].startswith("write")
    assert later[1].startswith("abandon ((1, ")
    assert later[2].startswith("publish")
    assert spent_in(noted) == sums(ORDERS)


def test_an_epoch_that_was_published_and_not_committed_is_published_again(root: Path) -> None:
    class Dies(Exception):
        """The process ends here, as far as the checkpoint is concerned."""

    class Dying(Noted):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            super().publish(attempt, receipts)
            if attempt.epoch == 1:
                raise Dies

    noted = Dying()
    with pytest.raises(sk.ProcessError, match="sink 'spent' failed in epoch 1 with Dies"):
        run(root, noted)
    again = Noted()
    again.rows = noted.rows
    run(root, again)
    assert again.calls[1] == "open 1 first"
    assert spent_in(again) == sums(ORDERS)


class LostStore:
    """The disk of a checkpoint, which cannot be read from some time on."""

    def __init__(self, inner: Objects) -> None:
        self.inner, self.is_lost = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def head(self, path: str) -> Any:
        if self.is_lost:
            raise RequestError("the disk is gone", may_pass=False)
        return self.inner.head(path)


def test_an_error_of_the_checkpoint_while_a_sink_writes_is_not_called_one_of_the_sink(
    root: Path,
) -> None:
    stores: list[LostStore] = []

    def lost(inner: Objects) -> Objects:
        stores.append(LostStore(inner))
        return cast("Objects", stores[-1])

    class Losing(Noted):
        def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Any:
            stores[0].is_lost = True
            return super().write(part, batches)

    repository = Repository(root).through(lost)
    with pytest.raises(sk.StorageError, match=r"^cannot read .*: the disk is gone") as raised:
        run(None, Losing(), checkpoint=repository)
    assert "spent" not in str(raised.value)


def test_an_error_of_a_sink_names_it_and_commits_nothing(root: Path) -> None:
    class Failing(Noted):
        def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Any:
            raise OSError("no route to host")

    failing = Failing()
    with pytest.raises(sk.ProcessError, match="sink 'spent' failed in epoch 0 with OSError"):
        run(root, failing)
    assert failing.calls[1:] == ["open 0 first", "close"]
    assert not list((root / "epochs").glob("*"))


class Visit(NamedTuple):
    user: str
    at: dt.datetime
    length: dt.timedelta
    tags: list[str]
    page: str | None = None


def test_batches_have_the_columns_that_they_have_on_spark() -> None:
    job, noted = sk.Job("visits"), Noted()

    @sk.process(key="user")
    def seen(visit: Visit, last: sk.ValueState[str]) -> Iterator[Visit]:
        last.update(visit.page or "")
        yield visit

    job.source("visits", Visit).process(seen).sink("seen", noted)
    at = dt.datetime(2026, 1, 31, 8, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    job.run({"visits": [Visit("ann", at, dt.timedelta(minutes=2), ["a"])]})
    (schema,) = noted.schemas
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "user": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "length": pa.duration("us"),
        "tags": pa.list_(pa.field("element", pa.string())),
        "page": pa.string(),
    }
    assert all(field.nullable for field in schema)
    assert noted.rows[0][0]["at"] == at


def test_a_source_and_the_late_records_of_an_operator_can_go_to_sinks() -> None:
    class Click(NamedTuple):
        user: str
        at: dt.datetime

    @sk.process(key="user", event_time="at", lateness="1 second")
    def last(click: Click, seen: sk.ValueState[int]) -> None:
        seen.update(1)

    job, whole, late = sk.Job("clicks"), Noted(), Noted()
    clicks = job.source("clicks", Click)
    clicks.sink("whole", whole)
    clicks.process(last).late.sink("late", late)
    given = [Click("ann", dt.datetime.fromtimestamp(at, dt.UTC)) for at in (10, 20, 5)]
    job.run({"clicks": given}, epoch_size=1)
    assert [row for rows in whole.rows.values() for row in rows] == [c._asdict() for c in given]
    assert [row for rows in late.rows.values() for row in rows] == [given[2]._asdict()]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (sk.sinks.writer("noop"), "writes frames of Spark: in this process give a sink such as"),
        ("out", r"the target of sink 'spent' is 'out': give a sink such as sinks.parquet\(path\)"),
    ],
)
def test_what_is_no_target_in_this_process_is_refused(target: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        run(None, target)


def test_what_is_no_target_of_a_job_is_refused_where_it_is_declared() -> None:
    with pytest.raises(sk.StateTypeError, match="sink 'spent' goes to 'out': give a sink such as"):
        spending_job("out")


def test_records_without_columns_are_refused_before_the_first_epoch(root: Path) -> None:
    job, noted = sk.Job("shop"), Noted()

    @sk.process(key="customer")
    def anything(order: Order, total: sk.ValueState[int]) -> Iterator[object]:
        total.update(1)
        yield object()

    job.source("orders", Order).process(anything).sink("things", noted)
    with pytest.raises(sk.StateTypeError, match="a sink, and Spark, need a schema"):
        job.run({"orders": ORDERS}, checkpoint=root)
    assert noted.calls == []
    assert not root.exists()


class _Refusing(Noted):
    """A sink whose target does not fit the outputs."""

    def begin(self, outputs: Outputs) -> None:
        raise sk.StateSchemaError(f"the table has no column for {outputs.schema.names[1]!r}")


def test_a_target_that_does_not_fit_is_found_before_the_first_record_is_read(root: Path) -> None:
    refusing, read = _Refusing(), iter(ORDERS)
    with pytest.raises(sk.ProcessError, match="has no column"):
        spending_job(refusing).run({"orders": read}, checkpoint=root)
    assert refusing.calls == ["close"]
    assert next(read) == ORDERS[0]
