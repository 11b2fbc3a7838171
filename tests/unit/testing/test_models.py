"""Models behave as the semantics of states, timers and functions say."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.errors import StateTypeError
from statekit.testing.models import (
    AggregatingModel,
    ListModel,
    MapModel,
    ModelClocks,
    ReducingModel,
    TimersModel,
    ValueModel,
    model_of,
    models_of,
)
from statekit.testing.process_model import ProcessModel
from tests.support.instants import after, at


def test_a_model_owns_what_is_written_and_the_reader_owns_what_is_read() -> None:
    value, items = ValueModel[list[int]](), ListModel[list[int]]()
    written = [1]
    value.update(written)
    items.append(written)
    written.append(2)
    read = value.get()
    assert read is not None
    read.append(3)
    items[0].append(3)
    assert (value.get(), items.get()) == ([1], [[1]])


def test_a_mutable_default_is_not_shared() -> None:
    model = ValueModel(default=[7])
    read = model.get()
    assert read is not None
    read.append(8)
    assert model.get() == model.plain() == [7]
    assert not model.exists()


@given(st.lists(st.integers()), st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5))
def test_a_list_is_read_as_a_python_list(
    numbers: list[int], start: int | None, stop: int | None
) -> None:
    model = ListModel[int]()
    model.extend(numbers)
    assert model.get() == list(model) == model.plain() == numbers
    assert list(reversed(model)) == numbers[::-1]
    assert model[start:stop] == numbers[start:stop]
    assert [number in model for number in numbers] == [True] * len(numbers)
    assert [model.index(number) for number in numbers] == [numbers.index(n) for n in numbers]


@given(st.dictionaries(st.none() | st.integers(-9, 9), st.text()), st.integers(-9, 9))
def test_a_map_is_in_the_order_of_its_keys_and_none_comes_first(
    entries: dict[int | None, str], bound: int
) -> None:
    model = MapModel[int | None, str]()
    model.update(entries)
    ordered = sorted(entries, key=lambda key: (key is not None, key or 0))
    assert list(model) == list(model.keys()) == [key for key, _ in model.items()] == ordered
    assert [key for key, _ in model.scan(reverse=True)] == ordered[::-1]
    assert [key for key, _ in model.scan(bound)] == [
        k for k in ordered if k is not None and k >= bound
    ]
    below = [key for key in ordered if key is None or key <= bound]
    assert model.floor(bound) == ((below[-1], entries[below[-1]]) if below else None)


def test_what_is_iterated_is_the_list_or_map_as_it_was() -> None:
    items, entries = ListModel[int](), MapModel[int, int]()
    items.extend([1, 2])
    entries.update({1: 1, 2: 2})
    elements, keys, pairs = iter(items), iter(entries), iter(entries.items())
    items.clear()
    entries.clear()
    items.append(3)
    entries[3] = 3
    assert (list(elements), list(keys), list(pairs)) == ([1, 2], [1, 2], [(1, 1), (2, 2)])


def test_a_list_may_be_replaced_by_what_is_read_of_it() -> None:
    items = ListModel[int]()
    items.extend([1, 2, 3])
    items.update(reversed(items))
    assert items.get() == [3, 2, 1]


def test_reducers_and_aggregates_may_change_their_accumulators_in_place() -> None:
    def extend(held: list[int], added: list[int]) -> list[int]:
        held.extend(added)
        return held

    reducing = ReducingModel[list[int]](sk.Reduce(extend))
    counted = ReducingModel[int](sk.Reduce("count"))
    aggregating = AggregatingModel(sk.Aggregate(list[int], extend, sorted))
    added = [2, 1]
    for _ in range(2):
        reducing.add(added)
        counted.add(9)
        aggregating.add(added)
    assert added == [2, 1]
    assert (reducing.get(), counted.get(), aggregating.get()) == ([2, 1, 2, 1], 2, [1, 1, 2, 2])
    assert reducing.exists()
    reducing.clear()
    assert (reducing.get(), reducing.exists()) == (None, False)


@pytest.mark.parametrize("refresh", ["write", "read"])
def test_state_expires_when_its_clock_reaches_the_last_write_or_read_plus_the_ttl(
    refresh: Any,
) -> None:
    clocks = ModelClocks(processing_time=at(0))
    entries = MapModel[str, int](ttl=sk.TTL("10 s", refresh=refresh), clocks=clocks)
    entries.update({"read": 1, "kept": 2})
    clocks.processing_time = at(5)
    assert entries["read"] == 1
    assert "kept" in entries
    clocks.processing_time = at(10)
    assert entries.plain() == ({"read": 1} if refresh == "read" else {})
    with pytest.raises(KeyError):
        del entries["kept"]
    clocks.processing_time = at(15)
    assert not entries


def test_in_event_time_the_latest_write_counts_and_nothing_expires_before_event_time_begins() -> (
    None
):
    clocks = ModelClocks()
    value = ValueModel[int](ttl=sk.TTL("10 s", "event"), clocks=clocks)
    value.update(1)
    clocks.watermark = at(10_000)
    assert value.get() == 1, "there was no event time when it was written"
    clocks.event_time = at(10_020)
    value.update(2)
    clocks.event_time = at(10_005)
    value.update(3)
    clocks.watermark = at(10_029)
    assert value.get() == 3
    clocks.watermark = at(10_030)
    assert value.get() is None


def test_timers_fire_in_order_of_time_and_event_time_comes_first() -> None:
    timers = TimersModel()
    timers.set(at(2), "b")
    timers.set(at(2), "a")
    timers.set(at(2), "b")
    timers.set(at(2), "a", "processing")
    timers.set(at(1), "late", "processing")
    timers.delete(at(7))
    fired = []
    while (timer := timers.take_due(at(2), at(2))) is not None:
        fired.append((timer.name, timer.clock))
    assert fired == [("late", "processing"), ("a", "event"), ("b", "event"), ("a", "processing")]


def test_a_replaced_timer_is_the_only_one_of_its_name_and_clock() -> None:
    timers = TimersModel()
    timers.set(at(1))
    timers.set(at(2))
    timers.set(at(3), clock="processing")
    timers.set(at(4), "other")
    timers.replace(at(9))
    assert [timer.at for timer in timers.list(clock="event")] == [at(4), at(9)]
    assert [timer.at for timer in timers.list("default")] == [at(3), at(9)]


# ---------------------------------------------------------------------------------- declarations


def test_models_of_declarations_have_their_options() -> None:
    clocks = ModelClocks(processing_time=at(0))
    expiring = model_of(Annotated[sk.ListState[int], sk.TTL("1 s")], clocks)
    expiring.append(1)
    clocks.processing_time = at(1)
    assert not expiring
    assert model_of(Annotated[sk.OperatorState[int], sk.Default(3)]).value == 3
    assert isinstance(model_of(sk.BroadcastState[str, int]), MapModel)
    assert isinstance(model_of(sk.OperatorListState[str]), ListModel)


def test_models_of_declarations_check_types_and_return_the_stored_form() -> None:
    model = model_of(sk.ValueState[float])
    model.update(1)
    assert repr(model.get()) == "1.0"
    with pytest.raises(StateTypeError, match="cannot hold 'x': its type is float"):
        model.update("x")
    added: sk.Aggregate[int, int, str] = sk.Aggregate(int, lambda held, n: held + n, str)
    total = model_of(Annotated[sk.AggregatingState[int, int, str], added])
    with pytest.raises(StateTypeError, match="cannot hold 'x': its type is int"):
        total.add("x")
    total.add(2)
    assert total.get() == "2"


class Mean:
    def snapshot_state(self) -> int:
        return 0

    def restore_state(self, state: int) -> None: ...


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int = 0


def test_an_object_has_no_model() -> None:
    @sk.process(key="customer")
    def price(order: Order, mean: Mean) -> None: ...

    with pytest.raises(StateTypeError, match="'mean' is a Mean, which is plain Python already"):
        models_of(price)


# ----------------------------------------------------------------------------- process functions


def test_a_model_of_a_function_drops_late_records_and_fires_timers() -> None:
    @sk.process(key="customer", event_time="at", lateness="5 s")
    def visit(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[str]:
        total.update((total.get() or 0) + order.cents)
        ctx.timers.replace(order.at + after(10))
        yield f"{ctx.key} {total.get()} {ctx.watermark.timestamp():.0f}"

    @visit.on_timer
    def ended(timer: sk.Timer, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[str]:
        yield f"{ctx.key} ended with {total.get()}"
        total.clear()

    model = ProcessModel(visit)
    assert model.send(records=[Order("a", at(20), 1)])["outputs"] == ["a 1 -62135596800"]
    late, kept = Order("a", at(15), 9), Order("a", at(16), 2)
    assert model.send(records=[late, kept]) == {"outputs": ["a 3 15"], "late": [late]}
    assert [timer.at for timer in model.timers("a")] == [at(26)]
    assert model.advance_watermark(at(26))["outputs"] == ["a ended with 3"]
    assert (model.state("total", "a"), list(model.timers("a"))) == (None, [])


def test_a_model_of_an_ordered_function_handles_records_and_timers_in_order_of_time() -> None:
    @sk.process(key="customer", event_time="at", lateness="9 s", ordered=True)
    def visit(order: Order, ctx: sk.Context) -> Iterator[str]:
        if order.cents == 1:
            ctx.timers.set(order.at + after(2))
        yield f"{order.cents}"

    @visit.on_timer
    def ended(timer: sk.Timer) -> Iterator[str]:
        yield "timer"

    model = ProcessModel(visit)
    records = [Order("a", at(4), 4), Order("a", at(3), 3), Order("a", at(1), 1)]
    assert model.send(records=records)["outputs"] == []
    assert model.advance_watermark(at(3))["outputs"] == ["1", "timer", "3"]
    assert model.advance_watermark(at(9))["outputs"] == ["4"]


def test_a_function_with_operator_state_or_without_a_key_has_no_model() -> None:
    @sk.process(key="customer")
    def count(order: Order, seen: sk.OperatorState[int]) -> None: ...

    @sk.process()
    def keyless(order: Order) -> None: ...

    for function in (count, keyless):
        with pytest.raises(StateTypeError, match="write a model of your own"):
            ProcessModel(function)
