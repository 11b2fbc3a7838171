"""`async` process functions: records of a key one by one, many keys at a time, exact states."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.calls.event_loops import VirtualTimeLoop, with_event_loop
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.keygroup import key_group
from statekit.runtime.shard_input import KeyedBatchBuilder
from statekit.runtime.task import ShardTask
from statekit.testing import Harness, JobHarness, Replay
from statekit.testing.process_model import ProcessModel

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    customer: str
    number: int
    pauses: tuple[int, ...] = ()


class Seen(NamedTuple):
    customer: str
    largest: int
    calls: int
    numbers: list[int]
    entries: list[tuple[str, int]]


def _order(customer: str, number: int, *pauses: int) -> Order:
    return Order(customer, number, pauses)


@sk.process(key="customer", concurrency=4)
async def seen(
    order: Order,
    ctx: sk.Context,
    count: sk.ValueState[int],
    numbers: sk.ListState[int],
    digits: sk.MapState[str, int],
    largest: Annotated[sk.ReducingState[int], sk.Reduce(max)],
) -> list[Seen]:
    before = count.get() or 0
    for pause in order.pauses:
        numbers.append(order.number)
        await asyncio.sleep(pause)
        digit = str(order.number % 3)
        digits[digit] = digits.get(digit, 0) + 1
        if order.number % 7 == 0:
            numbers.clear()
    entries = []
    for digit in digits:
        await asyncio.sleep(0.5)
        entries.append((digit, digits[digit]))
    largest.add(order.number)
    listed = []
    for number in numbers:
        await asyncio.sleep(0.25)
        listed.append(number)
    assert ctx.key == order.customer
    assert (count.get() or 0) == before, "another call of this key has run"
    count.update(before + 1)
    return [Seen(order.customer, largest.get() or 0, before + 1, listed, sorted(entries))]


class _Expected:
    """The states of one customer as plain Python."""

    def __init__(self) -> None:
        self.count, self.largest = 0, 0
        self.numbers: list[int] = []
        self.digits: Counter[str] = Counter()

    def handle(self, order: Order) -> Seen:
        for _ in order.pauses:
            self.numbers.append(order.number)
            self.digits[str(order.number % 3)] += 1
            if order.number % 7 == 0:
                self.numbers.clear()
        self.count += 1
        self.largest = max(self.largest, order.number)
        entries = sorted(self.digits.items())
        return Seen(order.customer, self.largest, self.count, [*self.numbers], entries)


def _expected(orders: list[Order], states: dict[str, _Expected]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for order in orders:
        state = states.setdefault(order.customer, _Expected())
        found.setdefault(order.customer, []).append(state.handle(order))
    return found


ORDERS = st.lists(
    st.builds(
        Order,
        st.sampled_from("abcdefgh"),
        st.integers(0, 20),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    max_size=25,
)


@pytest.mark.parametrize("backend", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_states_are_those_of_calls_one_after_the_other(
    backend: Literal["memory", "rocksdb"],
) -> None:
    @settings(max_examples=20, deadline=None)
    @given(st.lists(ORDERS, min_size=1, max_size=3))
    def check(epochs: list[list[Order]]) -> None:
        harness, states = Harness(seen, 2, backend=backend), dict[str, _Expected]()
        for orders in epochs:
            emitted: dict[str, list[Seen]] = {}
            for output in harness.send(*orders):
                emitted.setdefault(output.customer, []).append(output)
            assert emitted == _expected(orders, states)

    check()


class _Open:
    """The keys whose calls are open."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.most = 0

    async def call(self, key: str) -> None:
        assert key not in self.keys
        self.keys.add(key)
        self.most = max(self.most, len(self.keys))
        await asyncio.sleep(1)
        self.keys.remove(key)


OPEN = _Open()


@sk.process(key="customer", concurrency=3)
async def counted(order: Order, count: sk.ValueState[int]) -> AsyncIterator[tuple[str, int]]:
    await OPEN.call(order.customer)
    count.update((count.get() or 0) + 1)
    yield order.customer, count.get() or 0


def test_so_many_keys_are_called_at_a_time() -> None:
    OPEN.most = 0
    orders = [_order(f"c{number % 10}", number) for number in range(50)]
    found = Harness(counted).send(*orders)
    assert OPEN.most == 3
    assert Counter(found) == Counter((f"c{n % 10}", 1 + n // 10) for n in range(50))


def test_records_of_a_key_continue_in_later_batches() -> None:
    """The next batch arrives while the call for a key at the end of the previous one is open."""
    orders = sorted(_order(f"c{n % 3}", n, *[9 - n % 10] * (n % 3)) for n in range(200))
    orders.sort(key=lambda order: key_group(order.customer, 128))
    builder = KeyedBatchBuilder(seen, 128)
    batches = []
    for start in range(0, len(orders), 7):
        some = orders[start : start + 7]
        keys = builder.keys(some)
        groups = [builder.key_group(key, None) for key in keys]
        batches.append(builder.batch(keys, groups, some))
    backend = MemoryBackend(seen.families)
    shard = ShardState(first_group=0, last_group=127)
    plan = ShardPlan("", "seen", 0, 0, shard, None)
    with with_event_loop(VirtualTimeLoop()):
        task = ShardTask(seen, plan, backend, backend.write)
        found = list(chain.from_iterable(task.run_all(iter(batches))))
    emitted: dict[str, list[Seen]] = {}
    for output in found:
        emitted.setdefault(output.customer, []).append(output)
    assert emitted == _expected(orders, {})


def test_a_job_runs_in_real_time_and_continues(tmp_path: Path) -> None:
    @sk.process(key="customer")
    async def paused(order: Order, count: sk.ValueState[int]) -> list[tuple[str, int]]:
        before = count.get() or 0
        await asyncio.sleep(0.001)
        count.update(before + 1)
        return [(order.customer, before + 1)]

    orders = [_order(f"c{number % 7}", number) for number in range(140)]
    for end in (70, 140):
        job = sk.Job("shop")
        job.source("orders", Order).process(paused).sink("counts")
        run = job.run(
            {"orders": orders[:end]}, checkpoint=tmp_path, backend="rocksdb", epoch_size=35
        )
        assert Counter(run["counts"]) == Counter(
            (f"c{n % 7}", 1 + n // 7) for n in range(end - 70, end)
        )


class Visit(NamedTuple):
    user: str
    at: dt.datetime


@sk.process(key="user", event_time="at")
async def visits(visit: Visit, ctx: sk.Context, last: sk.ValueState[int]) -> list[str]:
    await asyncio.sleep(visit.at.second)
    assert ctx.event_time == visit.at
    last.update((last.get() or 0) + 1)
    ctx.timers.replace(ctx.event_time + dt.timedelta(minutes=30))
    return []


@visits.on_timer
def gone(timer: sk.Timer, ctx: sk.Context, last: sk.ValueState[int]) -> Iterator[str]:
    yield f"{ctx.key} left after {last.get()}"


def test_timers_and_event_time_are_those_of_the_record() -> None:
    harness = Harness(visits)
    harness.send(*(Visit(user, NOON + dt.timedelta(seconds=n)) for n in range(9) for user in "abc"))
    left = harness.advance_watermark(NOON + dt.timedelta(hours=1))
    assert sorted(left) == [f"{user} left after 9" for user in "abc"]


def test_the_input_is_that_of_the_record() -> None:
    class Payment(NamedTuple):
        customer: str

    @sk.process(key="customer")
    async def inputs(event: Order | Payment, ctx: sk.Context) -> list[str]:
        await asyncio.sleep(0 if isinstance(event, Payment) else 1)
        return [f"{event.customer} {ctx.input}"]

    job = sk.Job("shop")
    orders, payments = job.source("orders", Order), job.source("payments", Payment)
    orders.union(payments).process(inputs).sink("out")
    found = JobHarness(job).send(orders=[_order("a", 1)], payments=[Payment("a"), Payment("b")])
    assert sorted(found["out"]) == ["a orders", "a payments", "b payments"]


async def _read(count: sk.ValueState[int]) -> int | None:
    await asyncio.sleep(0)
    return count.get()


@sk.process(key="customer")
async def by_task(order: Order, count: sk.ValueState[int]) -> None:
    await asyncio.gather(_read(count), _read(count))


@sk.process(key="customer")
async def by_thread(order: Order, count: sk.ValueState[int]) -> None:
    await asyncio.to_thread(count.get)


@sk.process(key="customer")
async def of_context(order: Order, ctx: sk.Context) -> None:
    await asyncio.to_thread(lambda: ctx.key)


@pytest.mark.parametrize("declared", [by_task, by_thread, of_context])
def test_nothing_beside_the_function_sees_a_key(declared: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="in a task or thread that the function"):
        Harness(declared).send(_order("a", 1), _order("b", 2))


async def _also_reads(count: sk.ValueState[int]) -> int | None:
    return count.get()


def test_functions_that_are_awaited_use_states() -> None:
    @sk.process(key="customer")
    async def awaits(order: Order, count: sk.ValueState[int]) -> list[int]:
        count.update(order.number)
        return [await _also_reads(count) or 0]

    assert Harness(awaits).send(_order("a", 5), _order("b", 7)) == [5, 7]


def test_a_call_that_fails_names_its_key_and_record() -> None:
    @sk.process(key="customer")
    async def fails(order: Order, count: sk.ValueState[int]) -> None:
        await asyncio.sleep(order.number)
        count.update(1)
        if order.number == 2:
            raise ConnectionError("refused")

    harness = Harness(fails)
    with pytest.raises(sk.ProcessError, match=r"failed at key 'c2' .* refused; the record was Or"):
        harness.send(*(_order(f"c{number}", number) for number in range(5)))
    assert harness.state("count", "c0") is None
    harness.send(_order("c0", 0))
    assert harness.state("count", "c0") == 1


def test_a_value_that_does_not_fit_its_state_names_its_key() -> None:
    @sk.process(key="customer")
    async def wrong(order: Order, count: sk.ValueState[int]) -> None:
        await asyncio.sleep(0)
        count.update("5")  # type: ignore[arg-type]

    with pytest.raises(sk.StateTypeError) as raised:
        Harness(wrong).send(_order("a", 1))
    assert "at key 'a' in epoch 0 cannot hold '5'" in str(raised.value)
    assert raised.value.__notes__ == [f"while operator 'wrong' handled {_order('a', 1)}"]


def test_the_model_of_a_function_calls_it_for_one_record_after_the_other() -> None:
    orders = [_order(f"c{number % 3}", number, 2, 1) for number in range(12)]
    modelled = ProcessModel(seen).send(records=orders)["outputs"]
    assert sorted(modelled) == sorted(Harness(seen).send(*orders))


def test_a_function_may_be_called_by_itself() -> None:
    given = sk.testing.states(seen, "a")
    (found,) = asyncio.run(seen(_order("a", 3, 0), **given))
    assert (found.calls, found.numbers) == (1, [3])


@sk.process(key="customer")
async def doubled(order: Order, total: sk.ValueState[int]) -> list[int]:
    before = total.get() or 0
    await asyncio.sleep(0)
    total.update(before + 2 * order.number)
    return [before + 2 * order.number]


def test_a_recorded_epoch_runs_again(tmp_path: Path) -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(doubled).sink("totals")
    orders = [_order("ada", 5), _order("bob", 1), _order("ada", 7)]
    recorder = sk.Recorder(tmp_path / "recorded")
    checkpoint = tmp_path / "checkpoint"
    job.run({"orders": orders}, checkpoint=checkpoint, record=recorder, epoch_size=2, drain=False)
    again = Replay(job, checkpoint, epoch=1, recorded_at=recorder, key="ada")
    assert again.run() == [24]
    assert "assert replay(job, " in again.as_test()


async def _plain(order: Order) -> None: ...


async def _of_all(orders: Iterator[Order]) -> None: ...


async def _of_time(visit: Visit) -> None: ...


def _ordinary(order: Order) -> None: ...


@pytest.mark.parametrize(
    ("fn", "options", "said"),
    [
        (_plain, {}, "stream.map_async"),
        (_of_all, {"key": "customer"}, "takes one record"),
        (_of_time, {"key": "user", "event_time": "at", "ordered": True}, "with ordered=True"),
        (_plain, {"key": "customer", "on_error": "collect"}, "catch the error in the function"),
        (_plain, {"key": "customer", "concurrency": 0}, "1 or more"),
        (_ordinary, {"key": "customer", "concurrency": 5}, "for async functions"),
    ],
)
def test_what_cannot_be_exact_is_refused(fn: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said):
        sk.process(**options)(fn)


def test_timer_callbacks_are_not_async() -> None:
    @sk.process(key="customer")
    async def fn(order: Order) -> None: ...

    async def late(timer: sk.Timer) -> None: ...

    with pytest.raises(sk.StateTypeError, match="late is async, and takes a timer"):
        fn.on_timer(late)  # type: ignore[arg-type]
