"""A transform makes the state of a new job from a checkpoint of an old one."""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import EpochNote
from statekit.checkpoint.object_store import LocalObjects
from statekit.checkpoint.repository import Repository
from statekit.errors import (
    CorruptCheckpointError,
    ProcessError,
    QueryError,
    RescaleError,
    RestoreError,
    StateSchemaError,
    StateTypeError,
)
from statekit.job.options import RunOptions
from statekit.job.progress import Run
from statekit.maintenance.diff.compare import Difference, EpochSource, compare
from statekit.maintenance.verify.verify import verify
from statekit.runtime.local import LocalRunner
from statekit.timestamp import datetime_to_micros, instant
from statekit.working_copy.copies import MemoryCopies
from tests.support import full_checkpoint
from tests.support.all_row_kinds import START, Step, epochs
from tests.support.invoked import invoked

# ---------------------------------------------------------------------------- the jobs of a shop


class Order(NamedTuple):
    order: str
    customer: str
    cents: int
    at: dt.datetime


Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]


@sk.process(key="order", event_time="at", lateness="10 seconds")
def per_order(
    order: Order, ctx: sk.Context, last: sk.ValueState[Order], paid: sk.MapState[str, int]
) -> Iterator[tuple[str, int]]:
    before = last.get()
    last.update(order)
    paid[order.customer] = paid.get(order.customer, 0) + order.cents
    ctx.timers.set(order.at + dt.timedelta(minutes=1), "forget")
    yield order.order, 0 if before is None else before.cents


@per_order.on_timer("forget")
def forget(timer: sk.Timer, last: sk.ValueState[Order]) -> None:
    pass


@sk.process(key="customer", event_time="at", lateness="10 seconds")
def per_customer(
    order: Order, ctx: sk.Context, total: Total, orders: sk.ListState[str]
) -> Iterator[tuple[str, int]]:
    total.add(order.cents)
    orders.append(order.order)
    ctx.timers.set(order.at + dt.timedelta(minutes=1), "tell")
    yield order.customer, total.get() or 0


@per_customer.on_timer("tell")
def tell(timer: sk.Timer, ctx: sk.Context[str], total: Total) -> Iterator[tuple[str, int]]:
    yield f"{ctx.key} at {timer.at:%M:%S}", total.get() or 0


def shop(*processes: Any, name: str = "shop") -> sk.Job:
    job = sk.Job(name, key_groups=16)
    orders = job.source("orders", Order)
    for process in processes:
        orders.process(process).sink(f"{process.name}-out")
    return job


def order(number: int, customer: str, cents: int, second: int) -> Order:
    return Order(f"o{number}", customer, cents, START + dt.timedelta(seconds=second))


def orders_from(second: int) -> st.SearchStrategy[list[Order]]:
    """Orders in the order of event time, so that none is late."""
    drawn = st.tuples(st.integers(0, 9), st.sampled_from("abcü"), st.integers(-5, 50))
    return st.lists(drawn, max_size=20).map(
        lambda given: [order(*each, second + after) for after, each in enumerate(given)]
    )


ORDERS, MORE = orders_from(0), orders_from(100)


def run(at: Path, job: sk.Job, orders: list[Order], size: int = 5, shards: int | None = 2) -> Run:
    return job.run(
        {"orders": orders}, checkpoint=at, epoch_size=size, parallelism=shards, drain=False
    )


def entries(at: Path, operator: str, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sk.read(at, operator, state).read_all().to_pylist()
    return sorted(found, key=str)


def difference(old: Path, new: Path) -> Difference:
    return compare(EpochSource(old), EpochSource(new))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    orders = [order(n % 7, "abc"[n % 3], n, 3 * n) for n in range(20)]
    run(tmp_path / "old", shop(per_order), orders)
    return tmp_path / "old"


def in_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="statekit-test-")


# ------------------------------------------------------------------------------------- identity


def all_kinds(at: Path, records: list[list[Step]]) -> sk.Job:
    """A checkpoint with rows of every kind."""
    job = full_checkpoint.job()
    runner = LocalRunner(job.plan, Repository(at), MemoryCopies(), RunOptions(parallelism=2))
    for number, steps in enumerate(records):
        time = START + dt.timedelta(seconds=20 * number + 20)
        runner.epoch({"steps": steps}, at_us=datetime_to_micros(time))
    return job


Way = Literal["copied", "by columns", "by records"]


def unchanged(job: sk.Job, way: Way) -> sk.CheckpointTransform:
    @sk.transform(job)
    def same(old: sk.Transformation) -> None:
        for operator, states in old.operators.items():
            if way == "copied":
                old.copy(operator)
                continue
            for state in states:
                if state == "_waiting":
                    old.copy(operator, state)
                elif way == "by columns":
                    old.write(operator, state, old.read(operator, state))
                else:
                    old.write(operator, state, old.rows(operator, state))

    return same


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copied", "by columns", "by records"])
@given(records=epochs(), shards=st.sampled_from([2, 2, 3]))
@settings(max_examples=12)
def test_a_transform_that_changes_nothing_is_no_difference(
    way: Way, records: list[list[Step]], shards: int
) -> None:
    with in_folder() as folder:
        at = Path(folder)
        job = all_kinds(at / "old", records)
        result = unchanged(job, way).run(at / "old", at / "new", parallelism=shards)
        assert verify(Repository(at / "new")).findings == []
        assert result.manifest.epoch == len(records) - 1
        if way == "copied":
            found = difference(at / "old", at / "new").states
            same_layout = [state for state in found if state.operator != "share" or shards == 2]
            assert [state for state in same_layout if not state.is_same] == []
        for operator, states in ALL_STATES.items():
            for state in states if operator != "share" or shards == 2 else ():
                assert entries(at / "old", operator, state) == entries(at / "new", operator, state)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copied", "by columns", "by records"])
def test_a_checkpoint_with_a_rollback_and_shards_of_slices_is_transformed(
    tmp_path: Path, way: Way
) -> None:
    full_checkpoint.make(Repository(tmp_path / "old"))
    job, new = full_checkpoint.job(), tmp_path / "new"
    for epoch in (3, 4, 5):
        result = unchanged(job, way).run(tmp_path / "old", new / f"{epoch}", epoch=epoch)
        assert verify(Repository(new / f"{epoch}")).findings == []
        found = compare(EpochSource(tmp_path / "old", epoch), EpochSource(new / f"{epoch}"))
        if way == "copied":
            assert found.is_same
        assert [state for state in found.states if state.added] == []
        assert (
            result.manifest.parallelism == Repository(tmp_path / "old").manifest(epoch).parallelism
        )


ALL_STATES = {
    "keep": ["last", "brief", "seen", "by_n", "total", "_timers"],
    "keep_in_order": ["seen", "_timers", "_waiting"],
    "share": ["shared", "names"],
}


# ------------------------------------------------------------------------------- other keys, model


def model_of(orders: list[Order]) -> dict[str, tuple[int, list[str]]]:
    """The last order of each number, by customer."""
    last = {each.order: each for each in orders}
    found: dict[str, tuple[int, list[str]]] = {}
    for each in last.values():
        total, names = found.get(each.customer, (0, []))
        found[each.customer] = total + each.cents, sorted([*names, each.order])
    return found


def by_columns(old: sk.Transformation) -> None:
    for batch in old.read("per_order", "last"):
        customers = batch.column("customer")
        total = pa.record_batch({"customer": customers, "value": batch.column("cents")})
        orders = pa.record_batch({"customer": customers, "value": batch.column("order")})
        old.write("per_customer", "total", total)
        old.write("per_customer", "orders", orders)
    old.drop("per_order", "paid", "_timers")


def by_records(old: sk.Transformation) -> None:
    rows = list(old.rows("per_order", "last", of=per_order))
    old.write("per_customer", "total", [sk.StateRow(r.value.customer, r.value.cents) for r in rows])
    old.write("per_customer", "orders", (sk.StateRow(r.value.customer, r.key) for r in rows))
    old.drop("per_order", "paid", "_timers")


@pytest.mark.slow
@pytest.mark.parametrize("function", [by_columns, by_records])
@given(orders=ORDERS, more=MORE, shards=st.sampled_from([1, 2, 5]))
@settings(max_examples=12)
def test_state_by_other_keys_is_that_of_a_model_and_the_job_continues_where_the_old_one_ended(
    function: Any, orders: list[Order], more: list[Order], shards: int
) -> None:
    with in_folder() as folder:
        at = Path(folder)
        if not orders:
            return
        run(at / "old", shop(per_order), orders)
        epochs = Repository(at / "old").epochs()
        job = shop(per_customer)
        sk.transform(job)(function).run(at / "old", into=at / "new", parallelism=shards)
        expected = model_of(orders)
        totals = entries(at / "new", "per_customer", "total")
        assert {row["customer"]: row["value"] for row in totals} == {
            customer: total for customer, (total, _) in expected.items()
        }
        run(at / "new", job, [*orders, *more], shards=None)
        for each in more:
            total, names = expected.get(each.customer, (0, []))
            expected[each.customer] = total + each.cents, [*names, each.order]
        lists = defaultdict[str, list[str]](list)
        for row in sk.read(at / "new", "per_customer", "orders").read_all().to_pylist():
            lists[row["customer"]].append(row["value"])
        totals = entries(at / "new", "per_customer", "total")
        assert {row["customer"]: row["value"] for row in totals} == {
            customer: total for customer, (total, _) in expected.items()
        }
        assert {name: sorted(names) for name, names in lists.items()} == {
            name: sorted(names) for name, (_, names) in expected.items()
        }
        added = -(-len(more) // 5)
        assert Repository(at / "new").epochs()[-1] == epochs[-1] + added


def test_watermarks_and_timers_go_on_so_that_the_outputs_are_those_of_the_whole_input(
    tmp_path: Path,
) -> None:
    orders = [order(n, "abc"[n % 3], n, 7 * n) for n in range(50)]
    first, job = orders[:25], shop(per_customer)
    run(tmp_path / "old", shop(per_order), first)

    @sk.transform(job)
    def with_timers(old: sk.Transformation) -> None:
        for row in old.rows("per_order", "last", of=per_order):
            old.write("per_customer", "total", [sk.StateRow(row.value.customer, row.value.cents)])
            old.write("per_customer", "orders", [sk.StateRow(row.value.customer, row.key)])
        for key in old.keys("per_order", "last", "_timers", of=per_order):
            for timer in key["_timers"]:
                moved = sk.Timer(timer.at, "tell")
                old.write("per_customer", "_timers", [sk.StateRow(key["last"].customer, moved)])
        old.drop("per_order", "paid")

    with_timers.run(tmp_path / "old", into=tmp_path / "new")
    old, new = (Repository(tmp_path / name) for name in ("old", "new"))
    before = old.manifest(4).operators["per_order"]
    after = new.manifest(4).operators["per_customer"]
    assert after.watermark_us == before.watermark_us
    assert after.largest_by_input == before.largest_by_input
    assert new.manifest(4).offsets == old.manifest(4).offsets == {"orders": 25}
    continued = run(tmp_path / "new", job, orders)
    run(tmp_path / "plain", shop(per_customer), first)
    told = run(tmp_path / "plain", job, orders)["per_customer-out"]
    assert sorted(continued["per_customer-out"], key=str) == sorted(told, key=str)
    assert entries(tmp_path / "new", "per_customer", "_timers") == entries(
        tmp_path / "plain", "per_customer", "_timers"
    )


# ------------------------------------------------------------------------------ split and join


@sk.process(key="order")
def split(order: Order, cents: sk.ValueState[int], customer: sk.ValueState[str]) -> None:
    cents.update(order.cents)
    customer.update(order.customer)


class Joined(NamedTuple):
    cents: int
    customer: str
    paid: dict[str, int]


@sk.process(key="order")
def joined(order: Order, all: sk.ValueState[Joined]) -> None:
    all.update(Joined(order.cents, order.customer, {}))


@pytest.mark.slow
@given(orders=ORDERS)
@settings(max_examples=12)
def test_one_state_becomes_two_and_two_become_one(orders: list[Order]) -> None:
    with in_folder() as folder:
        at = Path(folder)
        run(at / "old", shop(per_order), orders or [order(1, "a", 1, 1)])

        @sk.transform(shop(split, joined))
        def reshaped(old: sk.Transformation) -> None:
            for batch in old.read("per_order", "last"):
                for name in ("cents", "customer"):
                    columns = batch.select(["order", name])
                    old.write("split", name, columns.rename_columns(["order", "value"]))
            for key in old.keys("per_order", "last", "paid", of=per_order):
                last = key["last"]
                row = sk.StateRow(key.key, Joined(last.cents, last.customer, key["paid"]))
                old.write("joined", "all", [row])
            old.drop("per_order", "_timers")

        reshaped.run(at / "old", into=at / "new")
        last = {each.order: each for each in orders or [order(1, "a", 1, 1)]}
        for name in ("cents", "customer"):
            found = {row["order"]: row["value"] for row in entries(at / "new", "split", name)}
            assert found == {number: getattr(each, name) for number, each in last.items()}
        paid = defaultdict[str, dict[str, int]](dict)
        for row in entries(at / "old", "per_order", "paid"):
            paid[row["order"]][row["map_key"]] = row["value"]
        found = {
            row["order"]: (row["cents"], dict(row["paid"]))
            for row in entries(at / "new", "joined", "all")
        }
        assert found == {number: (each.cents, paid[number]) for number, each in last.items()}


def test_states_get_other_names_and_operators_without_being_decoded(old: Path) -> None:
    @sk.process(key="order", event_time="at")
    def orders_2(order: Order, newest: sk.ValueState[Order], paid: sk.MapState[str, int]) -> None:
        pass

    @orders_2.on_timer
    def fires(timer: sk.Timer) -> None:
        pass

    @sk.transform(shop(orders_2))
    def renamed(old: sk.Transformation) -> None:
        old.copy("per_order", to="orders_2", renamed={"last": "newest"})

    new = old.parent / "new"
    renamed.run(old, new, parallelism=3)
    for before, after in (("last", "newest"), ("paid", "paid"), ("_timers", "_timers")):
        assert entries(old, "per_order", before) == entries(new, "orders_2", after) != []


# -------------------------------------------------------------------------------------- refused


def failing(old: Path, function: Any, job: sk.Job | None = None, **options: Any) -> str:
    """The message of a transform that fails, and leaves nothing that a job or a reader takes."""
    job, new = job or shop(per_customer), old.parent / "new"
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    errors = (StateTypeError, StateSchemaError, QueryError, ProcessError, RestoreError)
    with pytest.raises((*errors, RescaleError, CorruptCheckpointError)) as caught:
        sk.transform(job)(function).run(old, into=new, **options)
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before
    if new.exists():
        assert [*Repository(new).tree("data")] == []
        with pytest.raises(RestoreError, match="not complete: run the command again"):
            run(new, job, [])
        with pytest.raises(RestoreError, match="not complete"):
            sk.read(new, "per_customer", "total")
    return str(caught.value)


def drops_a_source_that_is_read(old: sk.Transformation) -> None:
    by_columns(old)
    old.drop_source("orders")


def writes(state: str, rows: Any, operator: str = "per_customer") -> Any:
    def function(old: sk.Transformation) -> None:
        old.drop("per_order")
        old.write(operator, state, rows)

    return function


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (writes("total", [sk.StateRow("a", "5")]), "row 0, .*'5'.* expected int, got str '5'"),
        (writes("total", [sk.StateRow(5, 5)]), "row 0, .* is refused: .*5"),
        (writes("total", [5]), "5 of type int is no row"),
        (writes("total", 5), "5 of type int is no row"),
        (writes("totals", []), r"operator 'per_customer' has total, orders, _timers"),
        (writes("total", [], "customers"), "the new job has per_customer"),
        (writes("_waiting", []), "buffered records are copied, and not written"),
        (writes("orders", [sk.StateRow("a", "x", -1)]), "the position is an int from 0"),
        (writes("total", [sk.StateRow("a", 1, 1)]), "only maps and lists have a place"),
        (writes("_timers", [sk.StateRow("a", sk.Timer(START, "x"))]), "no callback handles"),
        (writes("_timers", [sk.StateRow("a", START)]), "the value is a statekit.Timer"),
        (
            writes("total", pa.record_batch({"customer": ["a"], "cents": [1]})),
            "there is no column cents in customer, value",
        ),
        (
            writes(
                "_timers",
                pa.record_batch(
                    {"customer": ["a"], "at": pa.array([1 << 40], pa.timestamp("s", "UTC"))}
                ),
            ),
            "row 0, .* is refused: .*out of range",
        ),
        (
            writes("total", pa.record_batch({"customer": ["a"]})),
            "column value of type int64 is missing",
        ),
        (
            writes("total", pa.record_batch({"customer": ["a"], "value": ["x"]})),
            "column value is of type string, and must be int64",
        ),
        (
            writes("total", pa.record_batch({"customer": ["a", "b"], "value": [1, None]})),
            "row 1, .* is refused",
        ),
        (
            writes(
                "orders", pa.table({"customer": ["a"] * 2, "value": ["x"] * 2, "position": [1, 1]})
            ),
            "2 rows have the key 'a' and the same place",
        ),
        (lambda old: None, r"neither reads nor copies per_order.last \(7 rows\), per_order.paid"),
        (lambda old: 1 / 0, "failed with ZeroDivisionError"),
        (lambda old: old.read("orders", "last"), "has no operator 'orders'"),
        (lambda old: old.read("per_order", "first"), "has no state 'first'"),
        (lambda old: old.copy("per_order", "first"), "it has no state 'first'"),
        (lambda old: old.drop("per_order", "first"), "it has no state 'first'"),
        (lambda old: old.copy("per_order"), "the new job has per_customer"),
        (lambda old: old.copy("per_order", to="per_customer"), "does not declare"),
        (lambda old: old.keys("per_order", "first"), "no keyed state 'first'"),
        (lambda old: old.rename_source("orders", "other"), "the new job has the sources orders"),
        (lambda old: old.rename_source("order", "orders"), "the old job has the sources orders"),
        (lambda old: old.drop_source("order"), "the old job has the sources orders"),
        (drops_a_source_that_is_read, "source 'orders' is dropped, and the new job reads it"),
    ],
)
def test_a_wrong_transform_is_refused_with_the_reason_and_nothing_is_written(
    old: Path, function: Any, text: str
) -> None:
    message = failing(old, function)
    assert re.search(text, message, re.DOTALL), message


def test_keys_that_a_copy_would_misread_are_refused(old: Path) -> None:
    @sk.process(key="cents")
    def by_cents(order: Order, last: sk.ValueState[Order]) -> None:
        pass

    message = failing(old, lambda o: o.copy("per_order", "last", to="by_cents"), shop(by_cents))
    assert "keyed by order: str in the checkpoint and by cents: int in the code" in message


def test_a_source_that_the_new_job_lacks_has_to_be_renamed_or_dropped(old: Path) -> None:
    job = sk.Job("shop", key_groups=16)
    job.source("orders_2", Order).process(per_customer).sink("out")
    with pytest.raises(StateSchemaError, match="no source orders, of which"):
        sk.transform(job)(by_columns).run(old, into=old.parent / "new")

    def renames(old: sk.Transformation) -> None:
        by_columns(old)
        old.rename_source("orders", "orders_2")

    sk.transform(job)(renames).run(old, into=old.parent / "renamed")
    manifest = Repository(old.parent / "renamed").manifest(3)
    assert manifest.offsets == {"orders_2": 20}
    assert manifest.operators["per_customer"].largest_by_input.keys() == {"orders_2"}


def test_a_source_continues_one_source_of_the_old_job(tmp_path: Path) -> None:
    before = sk.Job("shop", key_groups=16)
    for name, process in (("a", per_order), ("b", per_customer)):
        before.source(name, Order).process(process)
    orders = [order(n, "ab"[n % 2], n, n) for n in range(4)]
    before.run({"a": orders, "b": orders[:1]}, checkpoint=tmp_path / "old", drain=False)
    after = sk.Job("shop", key_groups=16)
    after.source("b", Order).process(per_order)

    def moved(old: sk.Transformation) -> None:
        old.copy("per_order")
        old.drop("per_customer")
        old.rename_source("a", "b")

    def with_b_dropped(old: sk.Transformation) -> None:
        moved(old)
        old.drop_source("b")

    with pytest.raises(StateSchemaError, match="'b' of the new job would continue a and b of the"):
        sk.transform(after)(moved).run(tmp_path / "old", into=tmp_path / "refused")
    result = sk.transform(after)(with_b_dropped).run(tmp_path / "old", into=tmp_path / "new")
    assert result.manifest.offsets == {"b": 4}


def test_no_checkpoint_is_written_into_the_other(old: Path) -> None:
    transform = sk.transform(shop(per_customer))(by_columns)
    (old.parent / "link").symlink_to(old)
    places = old / "new", old / "data" / "new", old.parent, old.parent / "link" / "new"
    for into in (*places, old.as_uri() + "/new"):
        with pytest.raises(RestoreError, match="one inside of the other"):
            transform.run(old, into=into)
    assert not (old / "new").exists()
    transform.run(old, into=old.parent / f"{old.name}-2")


def test_a_directory_with_anything_else_is_no_target(old: Path) -> None:
    new, other = old.parent / "new", old.parent / "other"
    sk.transform(shop(per_customer))(by_columns).run(old, into=new)
    with pytest.raises(RestoreError, match="has epochs up to 3: a transform writes a new"):
        sk.transform(shop(per_customer))(by_columns).run(old, into=new)
    with pytest.raises(RestoreError, match="has epochs up to 3"):
        sk.transform(shop(per_customer))(by_columns).run(old, into=old)
    other.mkdir()
    (other / "notes.txt").write_text("of the user")
    with pytest.raises(RestoreError, match="has files: a transform writes a new"):
        sk.transform(shop(per_customer))(by_columns).run(old, into=other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    (other / "tmp").mkdir()
    (other / "notes.txt").rename(other / "tmp/notes.txt")
    with pytest.raises(RestoreError, match="has files"):
        sk.transform(shop(per_customer))(by_columns).run(old, into=other)


def test_the_draft_of_a_mark_of_a_killed_transform_is_no_file_of_others(old: Path) -> None:
    draft = old.parent / f"new/tmp/{'0a' * 16}"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"{")
    sk.transform(shop(per_customer))(by_columns).run(old, into=old.parent / "new")
    assert verify(Repository(old.parent / "new")).findings == []


def test_wrong_options_are_refused_before_anything_is_written(old: Path) -> None:
    assert "no epoch 9" in failing(old, by_columns, epoch=9)
    assert "parallelism=0" in failing(old, by_columns, parallelism=0)
    more = sk.Job("shop", key_groups=32)
    more.source("orders", Order).process(per_customer).sink("out")
    assert "16 key groups, the job asks for 32" in failing(old, by_columns, more)
    assert not (old.parent / "new").exists()
    with pytest.raises(StateTypeError, match="give the new job, or a function"):
        sk.transform("shop")  # type: ignore[arg-type]


def test_an_epoch_that_was_begun_has_to_be_completed_first(old: Path) -> None:
    repository = Repository(old)
    repository.write_note(EpochNote(epoch=4, what="records", processing_time_us=0))
    assert failing(old, by_columns).endswith("let it complete that epoch, then stop it")
    sk.transform(shop(per_customer))(by_columns).run(old, into=old.parent / "new", epoch=2)
    assert Repository(old.parent / "new").epochs() == [2]


@pytest.mark.parametrize("way", ["read", "copied"])
def test_a_damaged_old_checkpoint_is_refused(old: Path, way: str) -> None:
    path = next(iter((old / "data").rglob("*.arrow")))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    function, job = by_columns, shop(per_customer)
    if way == "copied":
        function, job = (lambda old: old.copy("per_order")), shop(per_order)
    message = failing(old, function, job)
    assert "altered" in message


def test_a_checkpoint_with_a_fault_is_not_committed(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = LocalObjects.put

    def on_a_failing_disk(self: LocalObjects, path: str, data: bytes | IO[bytes]) -> None:
        whole = bytearray(data if isinstance(data, bytes) else data.read())
        whole[len(whole) // 2] ^= 0xFF
        stored(self, path, bytes(whole))

    monkeypatch.setattr(LocalObjects, "put", on_a_failing_disk)
    message = failing(old, by_columns)
    assert "differ from the read ones" in message
    monkeypatch.undo()
    sk.transform(shop(per_customer))(by_columns).run(old, into=old.parent / "new")
    assert verify(Repository(old.parent / "new")).findings == []


# ------------------------------------------------------------------------------- kinds of state


@sk.process(key="order", event_time="at")
def kinds(
    order: Order,
    pickled: Annotated[sk.ValueState[Order], sk.PickleCodec()],
    brief: Annotated[sk.ValueState[int], sk.TTL("1 minute")],
    largest: Annotated[sk.ReducingState[int], sk.Reduce(max)],
    count: Annotated[sk.ReducingState[int], sk.Reduce("count")],
    rates: sk.BroadcastState[str, int],
) -> None:
    pass


def test_values_that_are_pickled_state_of_shards_and_lifetimes_are_written_as_typed_rows(
    old: Path,
) -> None:
    now = Repository(old).manifest(3).processing_time_us

    @sk.transform(shop(kinds))
    def every(old: sk.Transformation) -> None:
        old.drop("per_order")
        one = order(1, "a", 5, 1)
        later = instant(now) + dt.timedelta(days=1)
        old.write("kinds", "pickled", [sk.StateRow("o1", one)])
        old.write("kinds", "brief", [sk.StateRow("o1", 1), sk.StateRow("o2", 2, written=later)])
        old.write("kinds", "brief", pa.table({"order": ["o3"], "value": [3]}))
        for state, values in (("largest", [3, 9, 4]), ("count", [1, 2, 4])):
            old.write("kinds", state, [sk.StateRow("o1", value) for value in values])
        for shard in (0, 1):
            old.write("kinds", "rates", [sk.StateRow(shard, 7, "eur")])

    every.run(old, into=old.parent / "new")
    new = old.parent / "new"
    assert "cents=5" in sk.read(new, "kinds", "pickled", allow_pickle=True).read_all()[1][0].as_py()
    times = {row["order"]: row["written"] for row in entries(new, "kinds", "brief")}
    later = instant(now) + dt.timedelta(days=1)
    assert times == {"o1": instant(now), "o2": later, "o3": instant(now)}
    assert [row["value"] for row in entries(new, "kinds", "largest")] == [9]
    assert [row["value"] for row in entries(new, "kinds", "count")] == [7]
    assert [row["shard"] for row in entries(new, "kinds", "rates")] == [0, 1]


RATES = {"shard": [1, 0, 1], "map_key": ["eur", "eur", "usd"], "value": [7, 7, 9]}


def test_operator_state_is_written_by_columns(old: Path) -> None:
    @sk.transform(shop(kinds))
    def rates(old: sk.Transformation) -> None:
        old.drop("per_order")
        old.write("kinds", "rates", pa.table(RATES))

    rates.run(old, into=old.parent / "new")
    found = entries(old.parent / "new", "kinds", "rates")
    assert found == sorted(pa.table(RATES).to_pylist(), key=str)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            pa.table(RATES | {"shard": [0, 2, 0]}),
            "row 1, .* is refused: the shard is an int from 0",
        ),
        (pa.table(RATES | {"shard": [0, -1, 0]}), "row 1, .* is refused: its shard is not from 0"),
        (pa.table(RATES | {"map_key": ["eur"] * 3}), "several rows of shard 1 have the same place"),
        ([sk.StateRow(1, n, "eur") for n in range(2)], "several rows of shard 1 have the same"),
        (pa.table({"shard": [0], "value": [1]}), "column map_key of type string is missing"),
        (pa.table(RATES)[:0].drop_columns("value"), "column value of type int64 is missing"),
    ],
)
def test_rows_of_operator_state_that_no_shard_can_have_are_refused(
    old: Path, rows: Any, text: str
) -> None:
    message = failing(old, writes("rates", rows, "kinds"), shop(kinds))
    assert re.search(text, message, re.DOTALL), message


def test_rows_are_given_as_for_a_bootstrap(old: Path, tmp_path: Path) -> None:
    table = pa.table({"customer": ["a", "b"], "value": [1, 2]})
    pq.write_table(table, tmp_path / "totals.parquet")
    batches = table.to_batches(max_chunksize=1)
    given = [table, table.to_reader(), batches, iter(batches), table.to_pandas(), batches[0]]
    expected = [table.to_pylist()] * 5 + [table.to_pylist()[:1]]
    for number, rows in enumerate(
        [*given, tmp_path / "totals.parquet", table.schema.empty_table()]
    ):
        new = tmp_path / f"new-{number}"
        sk.transform(shop(per_customer))(writes("total", rows)).run(old, into=new)
        assert entries(new, "per_customer", "total") == [*expected, table.to_pylist(), []][number]


class Large(NamedTuple):
    order: str
    size: int


@sk.process(key="order")
def sizes(large: Large, size: sk.ValueState[int]) -> None:
    size.update(large.size)


def test_ints_of_64_bits_without_a_sign_are_read_and_written(tmp_path: Path) -> None:
    job = sk.Job("sizes")
    job.source("large", Large).process(sizes)
    records = [Large("a", 2**64 - 1), Large("b", 1)]
    job.run({"large": records}, checkpoint=tmp_path / "old", drain=False)

    @sk.transform(job)
    def wide(old: sk.Transformation) -> None:
        old.write("sizes", "size", old.read("sizes", "size", wide_ints=True))

    wide.run(tmp_path / "old", into=tmp_path / "new")
    assert difference(tmp_path / "old", tmp_path / "new").is_same


def test_timers_are_columns_too(old: Path) -> None:
    @sk.transform(shop(per_customer))
    def timers(old: sk.Transformation) -> None:
        old.drop("per_order", "last", "paid")
        for batch in old.read("per_order", "_timers", columns=["order", "at"]):
            batch = batch.rename_columns(["customer", "at"])
            named = batch.append_column("timer", pa.array(["tell"] * batch.num_rows))
            old.write("per_customer", "_timers", named)

    timers.run(old, into=old.parent / "new")
    before = [(row["order"], row["at"]) for row in entries(old, "per_order", "_timers")]
    after = [
        (row["customer"], row["at"])
        for row in entries(old.parent / "new", "per_customer", "_timers")
    ]
    assert sorted(before) == sorted(after) != []


# ---------------------------------------------------------------------------------- the command


def test_the_command_writes_a_new_checkpoint_or_says_why_not(old: Path) -> None:
    module, new = __name__, old.parent / "new"
    words = "transform", old, "--into", new
    refused = invoked(*words, "--app", f"{module}:by_columns")
    assert "decorate it with @statekit.transform(job), or pass --job" in str(refused.exception)
    refused = invoked(*words, "--app", f"{module}:START", "--job", f"{module}:new_shop")
    assert "and no function: name one" in str(refused.exception)
    assert not new.exists()
    done = invoked(*words, "--app", f"{module}:by_columns", "--job", f"{module}:new_shop")
    assert done.exit_code == 0, done.exception
    assert "per_customer.total" in done.output
    assert "as epoch 3 of job 'shop'" in done.output
    assert verify(Repository(new)).findings == []


def new_shop() -> sk.Job:
    return shop(per_customer)
