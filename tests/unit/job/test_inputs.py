"""Several inputs: which streams fit which functions, in which order they come, and their time."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import OperatorEpoch
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.watermark import BEGINNING
from statekit.working_copy.copies import MemoryCopies
from tests.support.instants import at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Order(NamedTuple):
    account: str
    at: dt.datetime
    number: int


class Payment(NamedTuple):
    account: str
    at: dt.datetime
    cents: int


class Settled(NamedTuple):
    account: str
    number: int
    cents: int


def order(account: str, seconds: float, number: int = 0) -> Order:
    return Order(account, at(seconds), number)


def payment(account: str, seconds: float, cents: int = 0) -> Payment:
    return Payment(account, at(seconds), cents)


@sk.process(key="account")
def join(
    event: Order | Payment, orders: sk.ListState[int], payments: sk.ListState[int]
) -> Iterator[Settled]:
    """Every order of an account with every payment of it."""
    if isinstance(event, Order):
        orders.append(event.number)
        yield from (Settled(event.account, event.number, cents) for cents in payments)
    else:
        payments.append(event.cents)
        yield from (Settled(event.account, number, event.cents) for number in orders)


@sk.process(key="account")
def trail(event: Order | Payment, seen: sk.ListState[str]) -> Iterator[tuple[str, str]]:
    value = event.number if isinstance(event, Order) else event.cents
    seen.append(f"{type(event).__name__[0]}{value}")
    yield event.account, " ".join(seen)


def shop(process: sk.Process[Order | Payment, ..., Any], **options: Any) -> sk.Job:
    job = sk.Job("shop", **options)
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    orders.union(payments).process(process).sink("out")
    return job


def watermark(job: Coordinator, operator: str) -> float | None:
    """In seconds; None before any."""
    micros = job.watermarks_us[operator]
    return None if micros == BEGINNING else micros / 1_000_000


class Epochs:
    """Epochs of a job, one by one."""

    def __init__(self, job: sk.Job, *, parallelism: int = 2) -> None:
        repository, copies = Repository.in_memory(), MemoryCopies()
        self.runner = LocalRunner(job.plan, repository, copies, RunOptions(parallelism=parallelism))

    def run(self, **records: list[Any]) -> dict[str, list[Any]]:
        return self.runner.epoch(records)

    def drain(self) -> dict[str, list[Any]]:
        return self.runner.epoch({}, what="drain")

    def watermark(self, operator: str) -> float | None:
        """Of the last epoch."""
        return watermark(self.runner.coordinator, operator)

    def last(self, operator: str) -> OperatorEpoch:
        manifest = self.runner.coordinator.last
        assert manifest is not None
        return manifest.operators[operator]


# ------------------------------------------------------------------------------- what fits what


def test_a_function_of_two_types_takes_the_union_of_two_streams() -> None:
    done = shop(join).run(
        {
            "orders": [order("ada", 1, 7), order("bob", 1, 8)],
            "payments": [payment("ada", 2, 500), payment("eve", 2, 100)],
        }
    )
    assert done.outputs["out"] == [Settled("ada", 7, 500)]


def test_streams_of_one_type_are_merged() -> None:
    @sk.process(key="account")
    def numbers(event: Order, seen: sk.ListState[int]) -> Iterator[list[int]]:
        seen.append(event.number)
        yield list(seen)

    job = sk.Job("shop")
    shops = [job.source(name, Order) for name in ("web", "desk", "phone")]
    shops[0].union(*shops[1:]).process(numbers).sink("out")
    done = job.run({name: [order("a", 1, n)] for n, name in enumerate(("phone", "desk", "web"))})
    assert done.outputs["out"][-1] == [2, 1, 0], "in the order of the union"


def test_outputs_and_late_records_of_operators_are_inputs_like_others() -> None:
    @sk.process(key="account", event_time="at")
    def pay(event: Order) -> Iterator[Payment]:
        yield Payment(event.account, event.at, event.number)

    job = sk.Job("shop")
    orders = job.source("orders", Order)
    paid = orders.process(pay)
    paid.late.union(paid).process(trail).sink("out")
    epochs = Epochs(job)
    assert epochs.run(orders=[order("a", 10, 1)])["out"] == [("a", "P1")]
    found = epochs.run(orders=[order("a", 5, 2), order("a", 11, 3)])["out"]
    assert found == [("a", "P1 O2"), ("a", "P1 O2 P3")]


def test_a_type_that_no_stream_has_is_refused_by_name() -> None:
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    with pytest.raises(sk.StateTypeError, match=r"join takes Order \| Payment, .* has Payment"):
        orders.process(join)  # type: ignore[arg-type]
    settled = orders.union(payments).process(join)
    union: sk.Stream[Any] = orders.union(payments, settled)
    with pytest.raises(sk.StateTypeError, match=r"stream 'join' has Settled: declare both"):
        union.process(trail)
    assert [operator.name for operator in job.plan.operators] == ["join"], "nothing was connected"


def test_a_union_has_each_stream_once_and_of_one_job() -> None:
    job, other = sk.Job("shop"), sk.Job("other")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    with pytest.raises(sk.StateTypeError, match="'orders' would be in it twice"):
        orders.union(payments).union(orders)
    with pytest.raises(sk.StateTypeError, match="takes streams of job 'shop'"):
        orders.union(other.source("payments", Payment))
    with pytest.raises(sk.StateTypeError, match="takes streams of job 'shop', not 5"):
        orders.union(5)  # type: ignore[call-overload]


def test_a_union_can_only_be_processed() -> None:
    job = sk.Job("shop")
    union = job.source("orders", Order).union(job.source("payments", Payment))
    assert union.name == "orders | payments"
    assert job.plan.process_of(union.name) is None
    with pytest.raises(sk.StateTypeError, match=r"is a union, .*use \.sink of each stream"):
        union.sink("out")
    with pytest.raises(sk.StateTypeError, match=r"is a union, .*use \.late of each stream"):
        _ = union.late
    with pytest.raises(sk.StateTypeError, match=r"Order \| Payment, and this needs records"):
        union.window(sk.tumbling("1 hour"), key="account", event_time="at")


def test_a_union_of_one_type_has_windows() -> None:
    job = sk.Job("shop")
    web, desk = job.source("web", Order), job.source("desk", Order)
    union = web.union(desk)
    union.window(sk.tumbling("10 seconds"), key="account", event_time="at").count().sink("out")
    done = job.run({"web": [order("a", 1), order("a", 11)], "desk": [order("a", 2)]})
    assert sorted((found.end.timestamp(), found.count) for found in done.outputs["out"]) == [
        (10, 2),
        (20, 1),
    ]


@dataclasses.dataclass
class Refund:
    account: str


class Closing(msgspec.Struct):
    account: str


class Opening(pydantic.BaseModel):
    account: str


def test_types_of_every_kind_are_distinguished_by_their_class() -> None:
    @sk.process(key="account")
    def kinds(
        event: Order | Refund | Closing | Opening, seen: sk.ListState[str]
    ) -> Iterator[list[str]]:
        seen.append(type(event).__name__)
        yield list(seen)

    assert kinds.record_type.name == "Order | Refund | Closing | Opening"
    harness = Harness(kinds, parallelism=3)
    given = (Opening(account="a"), order("a", 1), Closing("a"), Refund("a"))
    assert harness.send(*given)[-1] == ["Opening", "Order", "Closing", "Refund"]


class Lasting(Refund):
    pass


@pytest.mark.parametrize("value", [{"account": "a"}, Lasting("a"), ("a",), None])
def test_a_record_of_another_type_is_refused(value: Any) -> None:
    @sk.process(key="account")
    def kinds(event: Refund | Closing) -> None: ...

    expected = r"source 'records': expected an instance of just one of Refund \| Closing, got "
    harness = Harness(kinds)
    with pytest.raises(sk.ProcessError, match=expected + type(value).__name__):
        harness.send(Closing("a"), value)
    assert harness.epoch is None


def test_an_output_of_a_subclass_is_received_as_its_declared_class() -> None:
    @sk.process(key="account")
    def last(event: Order) -> Iterator[Refund]:
        yield Lasting(event.account)

    @sk.process(key="account")
    def kinds(event: Refund | Order) -> Iterator[str]:
        yield type(event).__name__

    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.process(last).union(orders).process(kinds).sink("kinds")
    assert job.run({"orders": [order("a", 1)]}).outputs["kinds"] == ["Refund", "Order"]


class Row(TypedDict):
    account: str


class Elsewhere(NamedTuple):
    account: int
    at: str


class Keyless(NamedTuple):
    name: str


def test_types_that_cannot_be_distinguished_or_have_different_keys_are_refused() -> None:
    def takes(annotation: Any, **options: Any) -> Any:
        def fn(event: Any) -> None: ...

        fn.__annotations__["event"] = annotation
        return sk.process(**{"key": "account", **options})(fn)

    for annotation, said in [
        (Order | Row, "fn, parameter 'event': Row cannot be distinguished from the others"),
        (Order | dict, "dict cannot be distinguished from the others"),
        (Order | Payment | None, "allows None, which no stream has"),
        (Order | int, "int is not a record type"),
        (Order | Keyless, r"key field 'account' is not a field of Keyless \(it has name\)"),
        (Order | Elsewhere, "key field 'account' is str in Order and int in Elsewhere: give it"),
    ]:
        with pytest.raises(sk.StateTypeError, match=said):
            takes(annotation)
    with pytest.raises(sk.StateTypeError, match="event_time='at' is not a field of Refund"):
        takes(Order | Refund, event_time="at")
    with pytest.raises(sk.StateTypeError, match="event_time='at' is datetime in Order and str in"):
        takes(Order | Elsewhere, key=None, event_time="at")
    assert takes(Order | Payment, event_time="at", ordered=True).ordered is not None


def test_a_plan_with_several_inputs_is_drawn_and_is_data() -> None:
    @sk.process(key="account")
    def watch(event: Order | Payment, limits: sk.BroadcastState[str, int]) -> None: ...

    @watch.on_broadcast
    def limit(settled: Settled, limits: sk.BroadcastState[str, int]) -> None: ...

    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    settled = payments.union(orders).process(join)
    orders.union(payments).process(watch, broadcast=settled)
    assert str(job) == (
        "job shop\n"
        "├── source orders: Order\n"
        "│   ├── operator join: input 2 of 2\n"
        "│   └── operator watch by account → nothing\n"
        "│       └── state limits: broadcast[str → int]\n"
        "└── source payments: Payment\n"
        "    ├── operator join by account → Settled\n"
        "    │   ├── state orders: list[int]\n"
        "    │   ├── state payments: list[int]\n"
        "    │   └── operator watch: broadcast\n"
        "    └── operator watch: input 2 of 2"
    )
    first, second = (operator.record() for operator in job.plan.operators)
    assert (first.inputs, first.broadcasts) == (("payments", "orders"), ())
    assert (second.inputs, second.broadcasts) == (("orders", "payments"), ("join",))


# -------------------------------------------------------------------------------------- order


def test_a_key_sees_the_records_of_the_first_input_first() -> None:
    done = shop(trail).run(
        {
            "orders": [order("a", 1, 1), order("b", 1, 1), order("a", 9, 2)],
            "payments": [payment("a", 2, 5), payment("b", 0, 5), payment("a", 1, 6)],
        },
        epoch_size=2,
        parallelism=3,
    )
    last = dict(done.outputs["out"])
    assert last == {"a": "O1 P5 O2 P6", "b": "O1 P5"}, "epoch by epoch, of each so many"


def test_a_source_of_several_types_keeps_the_order_in_which_they_came() -> None:
    job = sk.Job("shop")
    job.source("events", Order, Payment).process(trail).sink("out")
    given: list[Order | Payment] = [
        payment("a", 1, 1),
        order("a", 1, 2),
        payment("a", 1, 3),
        order("a", 1, 4),
    ]
    done = job.run({"events": given}, epoch_size=3)
    assert done.outputs["out"][-1] == ("a", "P1 O2 P3 O4")
    assert Harness(trail).send(*given)[-1] == ("a", "P1 O2 P3 O4")
    assert "source events: Order | Payment" in str(job)


def test_records_without_a_key_come_from_several_inputs_too() -> None:
    @sk.process()
    def tell(event: Order | Payment) -> Iterator[str]:
        yield type(event).__name__

    found = (
        shop(tell)
        .run({"orders": [order("a", 1)] * 3, "payments": [payment("b", 1)] * 4}, parallelism=2)
        .outputs["out"]
    )
    assert Counter(found) == {"Order": 3, "Payment": 4}


def test_a_run_continues_at_the_position_of_each_input(tmp_path: Path) -> None:
    orders = [order("a", 1, n) for n in range(5)]
    payments = [payment("a", 1, n) for n in range(3)]

    def run(of_orders: int, of_payments: int) -> list[Any]:
        given: dict[str, list[Any]]
        given = {"orders": orders[:of_orders], "payments": payments[:of_payments]}
        return list(shop(trail).run(given, checkpoint=tmp_path, drain=False).outputs["out"])

    assert run(2, 1)[-1] == ("a", "O0 O1 P0")
    assert run(2, 1) == []
    assert run(5, 3)[-1] == ("a", "O0 O1 P0 O2 O3 O4 P1 P2")


# ------------------------------------------------------------------------------------- watermark


@sk.process(key="account", event_time="at", lateness="5 seconds")
def timed(event: Order | Payment) -> Iterator[Settled]:
    yield Settled(event.account, int(event.at.timestamp()), len(event))


def test_the_watermark_is_that_of_the_input_that_is_furthest_behind() -> None:
    epochs = Epochs(shop(timed))
    epochs.run(orders=[order("a", 100)])
    epochs.run()
    assert epochs.watermark("timed") is None, "no payment came yet"
    epochs.run(payments=[payment("b", 50)])
    epochs.run(payments=[payment("b", 70), payment("b", 46)])
    assert epochs.watermark("timed") == 45
    epochs.run(payments=[payment("b", 200)])
    assert epochs.watermark("timed") == 65
    epochs.run()
    assert epochs.watermark("timed") == 95, "now orders are behind"
    assert epochs.last("timed").largest_by_input == {"orders": 100_000_000, "payments": 200_000_000}


def test_a_source_of_several_types_is_one_input() -> None:
    harness = Harness(timed)
    harness.send(order("a", 100))
    assert harness.send(payment("a", 95), payment("a", 96)) == [Settled("a", 96, 3)]
    assert harness.late == [payment("a", 95)]


def test_late_records_of_all_inputs_are_one_stream() -> None:
    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    stream = orders.union(payments).process(timed)
    stream.late.sink("late")
    stream.late.process(trail).sink("out")
    epochs = Epochs(job)
    epochs.run(orders=[order("a", 100)], payments=[payment("a", 100)])
    late = [order("a", 95, 1), payment("a", 90, 2)]
    found = epochs.run(orders=[late[0], order("a", 96)], payments=[late[1]])
    assert found == {"late": late, "out": [("a", "O1"), ("a", "O1 P2")]}
    assert epochs.last("timed").late == 2


@sk.process(key="account", event_time="at", lateness="2 seconds")
def payments_of(event: Order) -> Iterator[Payment]:
    yield Payment(event.account, event.at, event.number)


@sk.process(key="account")
def untimed(event: Order | Payment) -> Iterator[Payment]:
    yield event if isinstance(event, Payment) else Payment(event.account, event.at, 0)


def test_an_input_that_comes_from_an_operator_is_as_far_as_that_one_was() -> None:
    job = sk.Job("shop")
    orders, more = job.source("orders", Order), job.source("more", Order)
    more.union(orders.process(payments_of)).process(timed)
    epochs = Epochs(job)
    epochs.run(orders=[order("a", 100)], more=[order("a", 500)])
    epochs.run()
    assert epochs.watermark("payments_of") == 98
    assert epochs.watermark("timed") is None
    epochs.run()
    assert epochs.watermark("timed") == 93, "that of payments_of, in the epoch before, less 5"


def test_an_operator_without_event_time_passes_on_the_event_time_of_its_inputs() -> None:
    @sk.process(key="account", event_time="at")
    def late_enough(event: Payment) -> None: ...

    job = sk.Job("shop")
    first, second = job.source("first", Order), job.source("second", Order)
    mixed = first.union(second.process(payments_of)).process(untimed)
    mixed.process(late_enough)
    epochs = Epochs(job)
    epochs.run(first=[order("a", 100)], second=[order("a", 50)])
    epochs.run()
    epochs.run()
    assert epochs.watermark("late_enough") == 48, "payments_of is behind, at 50 less its lateness"
    epochs.run(second=[order("a", 90)])
    epochs.run()
    epochs.run()
    assert epochs.watermark("late_enough") == 88
    epochs.run(second=[order("a", 150)])
    epochs.run()
    epochs.run()
    assert epochs.watermark("late_enough") == 148, "what came of it all, at 150, is further"


def test_event_time_ends_once_all_inputs_have_ended() -> None:
    @sk.process(key="account", event_time="at")
    def ends(event: Order | Payment, ctx: sk.Context) -> Iterator[str]:
        ctx.timers.set(event.at + dt.timedelta(days=1))
        yield from ()

    @ends.on_timer
    def end(timer: sk.Timer, ctx: sk.Context) -> Iterator[str]:
        yield f"{ctx.key} ends"

    job = sk.Job("shop")
    orders, more = job.source("orders", Order), job.source("more", Order)
    more.union(orders.process(payments_of)).process(ends).sink("out")
    epochs = Epochs(job)
    epochs.run(orders=[order("a", 1)], more=[order("b", 1)])
    assert epochs.drain()["out"] == [], "payments_of ends first"
    assert sorted(epochs.drain()["out"]) == ["a ends", "b ends"]
    assert epochs.runner.coordinator.is_drained


def test_a_manifest_without_inputs_applies_to_all_inputs() -> None:
    before = OperatorEpoch(shards=(), largest_event_us=7)
    assert [before.largest_of(name) for name in ("orders", "payments")] == [7, 7]
    now = OperatorEpoch(shards=(), largest_event_us=7, largest_by_input={"orders": 7})
    assert [now.largest_of(name) for name in ("orders", "payments")] == [7, None]


# ------------------------------------------------------- independence of epochs, shards, crashes


accounts = st.sampled_from(["a", "b", "c", "", "é"])
orders_of = st.lists(st.builds(order, accounts, st.integers(0, 50), st.integers(0, 9)), max_size=25)
payments_of_all = st.lists(
    st.builds(payment, accounts, st.integers(0, 50), st.integers(0, 9)), max_size=25
)


@settings(max_examples=40, deadline=None)
@given(orders_of, payments_of_all, st.integers(1, 5), st.integers(1, 30))
def test_a_join_is_the_join_of_sets_however_the_inputs_are_cut(
    orders: list[Order], payments: list[Payment], parallelism: int, epoch_size: int
) -> None:
    done = shop(join).run(
        {"orders": orders, "payments": payments}, parallelism=parallelism, epoch_size=epoch_size
    )
    assert Counter(done.outputs["out"]) == Counter(
        Settled(o.account, o.number, p.cents)
        for o in orders
        for p in payments
        if o.account == p.account
    )


@sk.process(key="account", event_time="at", lateness="1 minute", ordered=True)
def in_order(event: Order | Payment, seen: sk.ListState[str]) -> Iterator[tuple[str, str]]:
    value = event.number if isinstance(event, Order) else event.cents
    seen.append(f"{type(event).__name__[0]}{event.at.timestamp():.0f}:{value}")
    yield event.account, " ".join(seen)


def outputs_by_account(found: list[tuple[str, str]]) -> dict[str, str]:
    """The longest trail of each account, which is its last."""
    return dict(sorted(found, key=lambda pair: len(pair[1])))


@settings(max_examples=30, deadline=None)
@given(orders_of, payments_of_all, st.integers(1, 4), st.integers(1, 30))
def test_ordered_inputs_are_merged_by_time_however_they_are_cut(
    orders: list[Order], payments: list[Payment], parallelism: int, epoch_size: int
) -> None:
    given: dict[str, list[Any]] = {"orders": orders, "payments": payments}
    whole = shop(in_order).run(given).outputs["out"]
    done = shop(in_order).run(given, parallelism=parallelism, epoch_size=epoch_size)
    assert outputs_by_account(done.outputs["out"]) == outputs_by_account(whole)
    for account, told in outputs_by_account(whole).items():
        times = [int(found) for found in re.findall(r"[OP](\d+):", told)]
        assert times == sorted(times)
        mine = [found for found in (*given["orders"], *given["payments"]) if found[0] == account]
        assert len(times) == len(mine)


@pytest.mark.parametrize("backend", BACKENDS)
def test_joined_state_survives_crashes_and_another_parallelism(
    backend: Backend, tmp_path: Path
) -> None:
    harness = Harness(join, parallelism=3, backend=backend)
    harness.send(order("a", 1, 1), payment("b", 1, 2))
    harness.crash()
    with pytest.raises(sk.ProcessError):
        harness.send(payment("a", 1, 3), "nonsense")  # type: ignore[arg-type]
    found = harness.send(payment("a", 1, 4), order("b", 1, 5))
    assert Counter(found) == Counter([Settled("a", 1, 4), Settled("b", 5, 2)])
    assert harness.state("payments", "a") == [4]
    harness.checkpoint(tmp_path)
    restored = Harness.restore(join, tmp_path, parallelism=5, backend=backend)
    assert restored.send(order("a", 1, 6)) == [Settled("a", 6, 4)]
