"""Broadcast input: what handles it, when, and that all shards hold the same."""

from __future__ import annotations

import datetime as dt
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import IdleShards, ShardReport, ShardState
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.coordinator import Coordinator
from statekit.testing import Harness, states
from tests.support.command_line import statekit
from tests.support.instants import after, at

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Price(NamedTuple):
    item: str
    at: dt.datetime
    amount: float
    currency: str = "EUR"


class Rate(NamedTuple):
    currency: str
    dollars: float


class Fee(NamedTuple):
    item: str
    amount: float


class Dollars(NamedTuple):
    item: str
    amount: float | None


def price(item: str, amount: float, currency: str = "EUR", seconds: float = 0) -> Price:
    return Price(item, at(seconds), amount, currency)


@sk.process(key="item")
def in_dollars(
    price: Price, rates: sk.BroadcastState[str, float], sold: sk.ValueState[int]
) -> Iterator[Dollars]:
    sold.update((sold.get() or 0) + 1)
    rate = rates.get(price.currency)
    yield Dollars(price.item, None if rate is None else price.amount * rate)


@in_dollars.on_broadcast
def new_rate(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
    if rate.dollars < 0:
        raise ValueError("a rate below nothing")
    if rate.dollars:
        rates[rate.currency] = rate.dollars
    else:
        rates.pop(rate.currency, None)


# ------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 4])
def test_every_shard_has_the_broadcast_state(backend: Backend, parallelism: int) -> None:
    harness = Harness(in_dollars, parallelism=parallelism, backend=backend)
    items = "abcdefgh"
    assert harness.send(price("a", 2)) == [Dollars("a", None)]
    assert harness.broadcast(Rate("EUR", 1.5), Rate("CHF", 1.0)) == []
    assert sorted(harness.send(*(price(item, 2) for item in items))) == [
        Dollars(item, 3.0) for item in items
    ]
    harness.crash()
    harness.broadcast(Rate("EUR", 0))
    assert harness.operator_state("rates") == [{"CHF": 1.0}] * parallelism
    assert harness.send(price("a", 2), price("a", 2, "CHF")) == [
        Dollars("a", None),
        Dollars("a", 2.0),
    ]
    assert harness.state("sold", "a") == 4


def test_broadcast_records_are_handled_before_all_others_of_the_epoch_and_in_order() -> None:
    harness = Harness(in_dollars, parallelism=3)
    rates = [Rate("EUR", 9.0), Rate("EUR", 0), Rate("EUR", 2.0)]
    assert harness.send(price("a", 1), broadcast=rates) == [Dollars("a", 2.0)]


@sk.process(key="item", event_time="at", lateness="1 second")
def announced(price: Price, ctx: sk.Context, fees: sk.BroadcastState[str, float]) -> Iterator[str]:
    ctx.timers.set(price.at + after(10))
    yield f"{price.item} {dict(fees)}"


@announced.on_timer
def overdue(timer: sk.Timer, ctx: sk.Context, fees: sk.BroadcastState[str, float]) -> Iterator[str]:
    yield f"{ctx.key} overdue {dict(fees)}"


@announced.on_broadcast
def fee(fee: Fee, fees: sk.BroadcastState[str, float]) -> None:
    fees[fee.item] = fee.amount


@announced.on_broadcast
def rate(rate: Rate, fees: sk.BroadcastState[str, float]) -> None:
    fees.clear()


def test_timers_see_broadcast_records_of_their_epoch() -> None:
    harness = Harness(announced, parallelism=2)
    harness.send(price("a", 1, seconds=1))
    assert harness.send(broadcast=[Fee("x", 5.0)]) == []
    assert harness.advance_watermark(at(11)) == ["a overdue {'x': 5.0}"]


def test_streams_of_several_types_come_in_the_order_given_and_have_no_say_in_event_time() -> None:
    job = sk.Job("shop")
    prices, fees = job.source("prices", Price), job.source("fees", Fee)
    rates = job.source("rates", Rate)
    prices.process(announced, broadcast=[fees, rates]).sink("fees-first")
    prices.process(announced, broadcast=[rates, fees], name="again").sink("rates-first")
    done = job.run(
        {
            "prices": [price("a", 1, seconds=50), price("a", 1, seconds=100), price("a", 1)],
            "fees": [Fee("x", 1.0)] * 3,
            "rates": [Rate("EUR", 1)] * 3,
        },
        epoch_size=1,
        parallelism=2,
    )
    assert done.outputs["fees-first"] == ["a {}", "a {}", "a overdue {}", "a overdue {}"]
    assert done.outputs["rates-first"][:2] == ["a {'x': 1.0}"] * 2
    assert done.last_epoch == 3, "what is broadcast in an epoch holds nothing back"


@sk.process()
def tell(price: Price, rates: sk.BroadcastState[str, float]) -> Iterator[dict[str, float]]:
    yield dict(rates)


@tell.on_broadcast
def learn(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
    rates[rate.currency] = rate.dollars


def test_an_operator_without_a_key_has_broadcast_input_too() -> None:
    harness = Harness(tell, parallelism=3)
    found = harness.send(*[price("a", 1)] * 6, broadcast=[Rate("EUR", 2)])
    assert found == [{"EUR": 2.0}] * 6


def test_a_stream_may_be_handled_by_key_and_broadcast_too() -> None:
    @sk.process(key="item")
    def compare(price: Price, all_: sk.BroadcastState[str, float]) -> Iterator[list[str]]:
        yield sorted(item for item, amount in all_.items() if amount < price.amount)

    @compare.on_broadcast
    def note(price: Price, all_: sk.BroadcastState[str, float]) -> None:
        all_[price.item] = price.amount

    job = sk.Job("shop")
    prices = job.source("prices", Price)
    prices.process(compare, broadcast=prices).sink("cheaper")
    given = [price(item, amount) for amount, item in enumerate("abc")]
    done = job.run({"prices": given}, parallelism=3)
    assert sorted(done.outputs["cheaper"]) == [[], ["a"], ["a", "b"]]


def test_outputs_of_an_operator_are_broadcast_like_any_other_stream() -> None:
    @sk.process(key="currency")
    def doubled(rate: Rate) -> Iterator[Rate]:
        yield Rate(rate.currency, 2 * rate.dollars)

    job = sk.Job("shop")
    rates = job.source("rates", Rate).process(doubled)
    job.source("prices", Price).process(in_dollars, broadcast=rates).sink("out")
    done = job.run({"prices": [price("a", 1)], "rates": [Rate("EUR", 3.0)]}, parallelism=2)
    assert done.outputs["out"] == [Dollars("a", 6.0)]


class Named(TypedDict):
    currency: str


def test_a_single_type_of_broadcast_records_may_be_any_record_type() -> None:
    def learning(taken: Any) -> Harness:
        @sk.process(key="item")
        def told(price: Price, names: sk.BroadcastState[str, bool]) -> Iterator[list[str]]:
            yield list(names)

        def learn(record: Any, names: sk.BroadcastState[str, bool]) -> None:
            names[record["currency"]] = True

        learn.__annotations__["record"] = taken
        told.on_broadcast(learn)
        return Harness(told)

    for taken in (dict, Named):
        found = learning(taken).send(price("a", 1), broadcast=[{"currency": "EUR"}])
        assert found == [["EUR"]]


# ---------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handler_that_fails_leaves_all_shards_as_they_were(backend: Backend) -> None:
    harness = Harness(in_dollars, parallelism=3, backend=backend)
    harness.broadcast(Rate("EUR", 1.0))
    with pytest.raises(sk.ProcessError) as failed:
        harness.send(price("a", 1), broadcast=[Rate("EUR", 2.0), Rate("CHF", -1)])
    assert (
        "operator 'in_dollars' failed in shard 0 in epoch 1 with ValueError: a rate below"
        in str(failed.value)
    )
    assert "record was Rate(currency='CHF', dollars=-1.0)" in str(failed.value)
    assert harness.operator_state("rates") == [{"EUR": 1.0}] * 3
    with pytest.raises(sk.StateTypeError) as refused:
        harness.broadcast(Rate(5, 1.0))  # type: ignore[arg-type]
    assert "while operator 'in_dollars' handled Rate(currency=5" in refused.value.__notes__[0]
    with pytest.raises(
        sk.ProcessError, match="source 'broadcast': records are of type Rate, and this"
    ):
        harness.broadcast(price("a", 1))
    assert harness.epoch == 0


def test_only_broadcast_handlers_may_change_broadcast_state() -> None:
    @sk.process(key="item")
    def meddle(price: Price, rates: sk.BroadcastState[str, float]) -> None:
        rates[price.currency] = price.amount

    @meddle.on_broadcast
    def learn(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
        rates[rate.currency] = rate.dollars

    harness = Harness(meddle)
    with pytest.raises(sk.StateTypeError, match=r"'rates'.*@meddle.on_broadcast"):
        harness.send(price("a", 1), broadcast=[Rate("EUR", 1.0)])
    assert harness.operator_state("rates") == [{}]
    given = states(meddle, "a")
    meddle(price("a", 4), **given)
    assert dict(given["rates"]) == {"EUR": 4.0}, "alone in a test, it may be filled"


def test_a_handler_that_yields_after_all_is_refused() -> None:
    @sk.process(key="item")
    def quiet(price: Price, rates: sk.BroadcastState[str, float]) -> Iterator[str]:
        yield price.item

    def loud(rate: Rate, rates: sk.BroadcastState[str, float]) -> Any:
        yield rate.currency

    loud.__annotations__["return"] = None
    quiet.on_broadcast(loud)
    with pytest.raises(sk.ProcessError, match="yielded 'EUR' for the broadcast record Rate"):
        Harness(quiet).broadcast(Rate("EUR", 1.0))


def test_a_handler_whose_effect_could_differ_between_shards_is_refused() -> None:
    @sk.process(key="item")
    def every(
        price: Price,
        ctx: sk.Context,
        count: sk.OperatorState[int],
        sold: sk.ValueState[int],
        rates: sk.BroadcastState[str, float],
    ) -> Iterator[str]:
        yield price.item

    def refused(said: str) -> Callable[[Any], None]:
        def decorate(fn: Any) -> None:
            with pytest.raises(sk.StateTypeError, match=said):
                every.on_broadcast(fn)

        return decorate

    @refused("of_key, parameter 'sold': .*ValueState is not: use BroadcastState")
    def of_key(rate: Rate, sold: sk.ValueState[int]) -> None: ...

    @refused("of_shard, parameter 'count': .*OperatorState is not: use BroadcastState")
    def of_shard(rate: Rate, count: sk.OperatorState[int]) -> None: ...

    @refused("knowing, parameter 'ctx': .*take no Context")
    def knowing(rate: Rate, ctx: sk.Context) -> None: ...

    @refused(r"loud: it returns .*Iterator\[str\], which each shard would emit: return None")
    def loud(rate: Rate, rates: sk.BroadcastState[str, float]) -> Iterator[str]:
        yield rate.currency

    @refused("other, parameter 'names': every has no such state: declare it there, too")
    def other(rate: Rate, names: sk.BroadcastState[str, str]) -> None: ...

    @refused(r"otherwise, parameter 'rates': every declares .*BroadcastState\[str, float\] of that")
    def otherwise(rate: Rate, rates: sk.BroadcastState[str, int]) -> None: ...

    @refused("silent: annotate what it returns")
    def silent(rate: Rate, rates: sk.BroadcastState[str, float]): ...  # type: ignore[no-untyped-def]

    @refused("either, parameter 'record': .* is not a record type")
    def either(record: Rate | Fee, rates: sk.BroadcastState[str, float]) -> None: ...

    @refused("timed, parameter 'timer': .*takes the broadcast record, not Timer")
    def timed(timer: sk.Timer) -> None: ...

    with pytest.raises(sk.StateTypeError, match="on_broadcast decorates a function, not 5"):
        every.on_broadcast(5)  # type: ignore[arg-type]
    assert every.handlers.record_type is None, "nothing of it was taken"

    @every.on_broadcast
    def first(rate: Rate, rates: sk.BroadcastState[str, float]) -> None: ...

    @refused("again, parameter 'rate': first handles Rate already")
    def again(rate: Rate, rates: sk.BroadcastState[str, float]) -> None: ...

    @refused("dict cannot be distinguished from the others")
    def plain(rate: dict, rates: sk.BroadcastState[str, float]) -> None: ...  # type: ignore[type-arg]

    assert [handler.name for handler in every.handlers.signatures] == ["first"]


def test_broadcast_streams_must_match_the_handlers() -> None:
    job = sk.Job("shop")
    prices, rates = job.source("prices", Price), job.source("rates", Rate)
    fees = job.source("fees", Fee)
    with pytest.raises(sk.StateTypeError, match="in_dollars handles broadcast records of Rate"):
        prices.process(in_dollars)
    with pytest.raises(sk.StateTypeError, match=r"on_broadcast takes Rate; stream 'fees' has Fee"):
        prices.process(in_dollars, broadcast=fees)
    with pytest.raises(sk.StateTypeError, match="none of the streams rates has Fee: add one"):
        prices.process(announced, broadcast=[rates])
    with pytest.raises(sk.StateTypeError, match="must be different streams"):
        prices.process(in_dollars, broadcast=[rates, rates])
    with pytest.raises(sk.StateTypeError, match="takes streams of job 'shop'"):
        prices.process(in_dollars, broadcast=sk.Job("other").source("rates", Rate))

    @sk.process(key="item")
    def deaf(price: Price) -> None: ...

    with pytest.raises(sk.StateTypeError, match="deaf handles no broadcast records, and rates"):
        prices.process(deaf, broadcast=rates)
    with pytest.raises(sk.StateTypeError, match="deaf handles no broadcast records"):
        Harness(deaf).broadcast(Rate("EUR", 1.0))
    assert not job.plan.operators


@pytest.mark.parametrize("others", ["3", "nothing"])
def test_shards_that_were_given_different_records_commit_nothing(others: str) -> None:
    job = sk.Job("shop")
    rates = job.source("rates", Rate)
    job.source("prices", Price).process(in_dollars, broadcast=rates)
    coordinator = Coordinator.open(job.plan, Repository.in_memory(), RunOptions(parallelism=2))
    coordinator.begin()
    first, second = (
        ShardReport(
            operator="in_dollars",
            shard=ShardState(first_group=group, last_group=group + 63),
            records_by_input={1: count},
        )
        for group, count in ((0, 2), (64, 3))
    )
    other = second if others == "3" else IdleShards.of("in_dollars", [1])
    given = r"\[2, 3\]" if others == "3" else r"\[0, 2\]"
    with pytest.raises(sk.IncompleteEpochError, match=f"given {given} records of .* 'rates'"):
        coordinator.commit([first, other])
    assert coordinator.last is None


# ------------------------------------------------------------------------------- how it is kept


def test_a_function_with_handlers_travels_as_it_is() -> None:
    for copy in (
        pickle.loads(cloudpickle.dumps(announced)),
        pickle.loads(cloudpickle.dumps(pickle.loads(cloudpickle.dumps(announced)))),
    ):
        handled = copy.handlers.record_type
        assert handled is not None
        assert handled.name == "Fee | Rate"
        harness = Harness(copy)
        assert harness.send(price("a", 1), broadcast=[Fee("x", 2.0)]) == ["a {'x': 2.0}"]


def test_the_manifest_counts_records_by_stream(tmp_path: Path) -> None:
    job = sk.Job("shop")
    rates = job.source("rates", Rate)
    job.source("prices", Price).process(in_dollars, broadcast=rates)
    prices, news = [price("a", 1), price("b", 1)], [Rate("EUR", 1.0)] * 3
    job.run({"prices": prices, "rates": news}, checkpoint=tmp_path, parallelism=4)
    repository = Repository(tmp_path)
    told = repository.manifest(0).operators["in_dollars"]
    assert told.records_by_input == {"prices": 2, "rates": 3}
    assert told.records_in == 2
    stored = repository.newest_job_file()
    assert stored is not None
    record = stored[0].operator("in_dollars")
    assert record is not None
    assert (record.inputs, record.broadcasts) == (("prices",), ("rates",))
    shown = statekit("inspect", tmp_path, columns=80)
    title = "operator in_dollars by item: str ← prices; broadcast: rates"
    assert title in " ".join(shown.stdout.split()), "in a narrow terminal it is wrapped"


def test_a_shard_without_records_stays_shut_unless_something_is_broadcast() -> None:
    harness = Harness(in_dollars, parallelism=4)
    harness.send(price("a", 1))

    def attempts() -> list[str | None]:
        last = harness._runner.coordinator.last
        assert last is not None
        return [shard.attempt for shard in last.operators["in_dollars"].shards]

    assert sum(attempt is not None for attempt in attempts()) == 1
    harness.broadcast(Rate("EUR", 1.0))
    assert all(attempt is not None for attempt in attempts())


class Flag(NamedTuple):
    number: int


@sk.process(key="item")
def flagged(price: Price, flags: sk.BroadcastState[int, bytes]) -> None: ...


@flagged.on_broadcast
def flag(flag: Flag, flags: sk.BroadcastState[int, bytes]) -> None:
    flags[flag.number] = b"x" * 1000


def test_broadcast_state_that_outgrows_memory_spills() -> None:
    harness = Harness(flagged, backend="rocksdb")
    count = 40_000
    flags = [Flag(number) for number in range(count)]
    tracemalloc.start()
    try:
        harness.broadcast(*flags)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < count * 1000, "not everything is in memory at once"
    (held,) = harness.operator_state("flags")
    assert len(held) == count


changes = st.lists(
    st.builds(
        Rate, st.sampled_from(["EUR", "CHF", "JPY", "", "é"]), st.sampled_from([0, 1.0, 2.5])
    ),
    max_size=6,
)
steps = st.lists(
    st.tuples(changes, st.lists(st.sampled_from("abcdef"), max_size=4), st.booleans()), max_size=6
)


def plain_rates(told: list[Rate]) -> dict[str, float]:
    held: dict[str, float] = {}
    for currency, dollars in told:
        held[currency] = dollars
    return {currency: dollars for currency, dollars in held.items() if dollars}


@settings(max_examples=18, deadline=None)
@given(steps, st.integers(1, 5), st.sampled_from(BACKENDS))
def test_all_shards_have_the_same_state_as_plain_python(
    steps: list[tuple[list[Rate], list[str], bool]], parallelism: int, backend: Backend
) -> None:
    harness = Harness(in_dollars, parallelism=parallelism, backend=backend)
    told: list[Rate] = []
    for rates, items, crashes in steps:
        if crashes:
            with pytest.raises(sk.ProcessError):
                harness.send(broadcast=[*rates, Rate("EUR", 7.0), Rate("CHF", -1)])
            harness.crash()
        told += rates
        found = harness.send(*(price(item, 2) for item in items), broadcast=rates)
        expected = plain_rates(told)
        known = expected.get("EUR")
        assert {amount for _, amount in found} <= {None if known is None else 2 * known}
        assert len(found) == len(items)
        assert harness.operator_state("rates") == [expected] * parallelism
