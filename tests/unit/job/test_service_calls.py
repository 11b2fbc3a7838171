"""`map_async`: outputs, timeouts, retries, batches, clients and failed records."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness, JobHarness


class Order(NamedTuple):
    customer: str
    number: int


class Score(NamedTuple):
    customer: str
    risk: float


ORDERS = [Order(f"c{number % 3}", number) for number in range(20)]
SCORES = [Score(order.customer, float(order.number)) for order in ORDERS]


async def scored(order: Order) -> Score:
    await asyncio.sleep(0.001 * (20 - order.number))
    return Score(order.customer, float(order.number))


def _job(fn: Any, **options: Any) -> sk.Job:
    job = sk.Job("shop")
    stream = job.source("orders", Order).map_async(fn, **options).sink("scored")
    if options.get("on_error") == "collect":
        stream.errors.sink("bad")
    return job


def _harness(fn: Any, **options: Any) -> JobHarness:
    """Pauses and timeouts take no time in a harness."""
    return JobHarness(_job(fn, **options), 3)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_outputs_are_in_the_order_of_the_records(parallelism: int) -> None:
    run = _job(scored, concurrency=7).run({"orders": ORDERS}, parallelism=parallelism)
    assert run["scored"] == SCORES


def test_unordered_outputs_are_in_the_order_of_the_answers() -> None:
    assert _harness(scored, ordered=False).send(orders=ORDERS)["scored"] == SCORES[::-1]


async def _none_for_odd(order: Order) -> Score | None:
    return None if order.number % 2 else Score(order.customer, float(order.number))


async def _several(order: Order) -> list[Score]:
    return [Score(order.customer, float(order.number))] * (order.number % 3)


async def _iterated(order: Order) -> Iterator[Score]:
    return iter([Score(order.customer, float(order.number))] * (order.number % 3))


async def _nothing(order: Order) -> None:
    await asyncio.sleep(0)


async def _in_batches(orders: list[Order]) -> list[Score | None]:
    assert len(orders) <= 8
    return [await _none_for_odd(order) for order in orders]


async def _several_in_batches(orders: list[Order]) -> list[list[Score]]:
    return [await _several(order) for order in orders]


@pytest.mark.parametrize(
    ("fn", "batch", "expected"),
    [
        (_none_for_odd, None, SCORES[::2]),
        (_several, None, [s for n, s in enumerate(SCORES) for _ in range(n % 3)]),
        (_iterated, None, [s for n, s in enumerate(SCORES) for _ in range(n % 3)]),
        (_in_batches, 8, SCORES[::2]),
        (_several_in_batches, 8, [s for n, s in enumerate(SCORES) for _ in range(n % 3)]),
    ],
)
def test_a_result_is_an_output_or_none_or_a_list(
    fn: Any, batch: int | None, expected: list[Score]
) -> None:
    assert _job(fn, batch=batch).run({"orders": ORDERS})["scored"] == expected


def test_a_function_that_returns_nothing_has_no_outputs() -> None:
    job = sk.Job("shop")
    job.source("orders", Order).map_async(_nothing)
    run = job.run({"orders": ORDERS})
    assert run.last_epoch == 0


def test_a_batch_is_filled_before_the_service_is_called() -> None:
    sizes: list[int] = []

    async def sized(orders: list[Order]) -> list[Score]:
        sizes.append(len(orders))
        return [Score(order.customer, 0.0) for order in orders]

    _job(sized, batch=8).run({"orders": ORDERS})
    assert sorted(sizes) == [4, 8, 8]


def test_a_batch_without_a_result_per_record_ends_the_job() -> None:
    async def short(orders: list[Order]) -> list[Score]:
        return [Score("", 0.0)]

    with pytest.raises(sk.ProcessError, match="1 results for a batch of 20 records"):
        _job(short, batch=50, on_error="collect").run({"orders": ORDERS})


class _Attempts:
    """A service that fails, or hangs, so many times for each number."""

    def __init__(self, fails: int, hangs: bool = False) -> None:
        self.fails, self.hangs = fails, hangs
        self.times: dict[int, list[float]] = {}

    async def ask(self, order: Order) -> Score:
        times = self.times.setdefault(order.number, [])
        times.append(asyncio.get_running_loop().time())
        if len(times) <= self.fails:
            if self.hangs:
                await asyncio.Event().wait()
            raise ConnectionError("refused")
        return Score(order.customer, float(order.number))


@pytest.mark.parametrize("hangs", [True, False])
def test_a_call_that_fails_or_hangs_is_tried_again(hangs: bool) -> None:
    service = _Attempts(3, hangs)
    assert _harness(service.ask).send(orders=ORDERS)["scored"] == SCORES
    assert {len(times) for times in service.times.values()} == {4}


def test_pauses_grow_and_differ_between_calls() -> None:
    service = _Attempts(3)
    _harness(service.ask).send(orders=ORDERS)
    pauses = [[b - a for a, b in pairwise(t)] for t in service.times.values()]
    for first, second, third in pauses:
        assert 0.05 <= first <= 0.1
        assert second == pytest.approx(2 * first)
        assert third == pytest.approx(4 * first)
    assert len({first for first, _, _ in pauses}) > 10


@pytest.mark.parametrize(
    ("hangs", "said"),
    [(False, r"ConnectionError: refused \(3 attempts\)"), (True, "no answer within 0.5 s")],
)
def test_a_record_whose_attempts_all_fail_ends_the_job(hangs: bool, said: str) -> None:
    harness = _harness(
        _Attempts(99, hangs).ask, retries=2, timeout=dt.timedelta(milliseconds=500), concurrency=1
    )
    with pytest.raises(sk.ProcessError, match=said) as raised:
        harness.send(orders=ORDERS)
    assert "the record was Order(customer='c0', number=0)" in str(raised.value)
    assert harness.epoch is None


async def _refused(order: Order) -> Score:
    if order.number == 3:
        raise ConnectionError("refused")
    if order.number == 5:
        await asyncio.Event().wait()
    return Score(order.customer, float(order.number))


def test_failed_records_are_collected_with_their_attempts() -> None:
    found = _harness(_refused, on_error="collect", retries=1).send(orders=ORDERS)
    assert found["scored"] == [*SCORES[:3], SCORES[4], *SCORES[6:]]
    refused, hung = found["bad"]
    assert refused == sk.FailedRecord(
        operator="_refused",
        input="orders",
        key="[]",
        record='{"customer":"c0","number":3}',
        timer=None,
        error="ConnectionError",
        message="refused (2 attempts)",
    )
    assert hung.record == '{"customer":"c2","number":5}'
    assert (hung.error, hung.message) == ("TimeoutError", "no answer within 2 s (2 attempts)")


def test_failed_records_are_dropped_up_to_a_number() -> None:
    assert len(_harness(_refused, on_error="drop").send(orders=ORDERS)["scored"]) == 18
    harness = _harness(_refused, on_error="drop", max_errors=1)
    with pytest.raises(sk.ProcessError, match="max_errors=1"):
        harness.send(orders=ORDERS)


def test_all_records_of_a_failed_batch_are_collected() -> None:
    async def refused(orders: list[Order]) -> list[Score]:
        return [await _refused(order) for order in orders]

    found = _harness(refused, on_error="collect", batch=4).send(orders=ORDERS)
    assert [score.risk for score in found["scored"]] == [float(n) for n in range(8, 20)]
    assert len(found["bad"]) == 8


def test_an_attempt_gets_a_record_that_no_attempt_has_changed() -> None:
    seen: list[list[int]] = []

    async def spoiled(order: dict) -> int:  # type: ignore[type-arg]
        seen.append(list(order["lines"]))
        order["lines"].append(0)
        if len(seen) < 3:
            raise ConnectionError
        return len(order["lines"])

    job = sk.Job("shop")
    job.source("orders", dict).map_async(spoiled).sink("out")
    assert JobHarness(job).send(orders=[{"lines": [7]}])["out"] == [2]
    assert seen == [[7], [7], [7]]


def test_a_client_is_opened_once_for_all_epochs() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def session() -> AsyncIterator[str]:
        events.append("opened")
        yield "session"
        events.append("closed")

    async def asked(order: Order, client: str) -> Score:
        assert client == "session"
        return Score(order.customer, float(order.number))

    run = _job(asked, client=session).run({"orders": ORDERS}, epoch_size=4)
    assert (run["scored"], run.last_epoch) == (SCORES, 4)
    assert events == ["opened", "closed"]


def test_a_client_that_cannot_be_opened_is_an_attempt() -> None:
    def refused() -> Any:
        raise ConnectionError("no network")

    async def asked(order: Order, client: Any) -> Score:
        return Score("", 0.0)

    with pytest.raises(sk.ProcessError, match=r"no network \(4 attempts\)"):
        _harness(asked, client=refused).send(orders=ORDERS)


def test_a_union_is_asked_for_as_well() -> None:
    class Refund(NamedTuple):
        cents: int

    async def kind(event: Order | Refund) -> str:
        if isinstance(event, Refund):
            raise ConnectionError
        return type(event).__name__

    job = sk.Job("shop")
    orders, refunds = job.source("orders", Order), job.source("refunds", Refund)
    kinds = orders.union(refunds).map_async(kind, on_error="collect").sink("kinds")
    kinds.errors.sink("bad")
    found = JobHarness(job).send(orders=ORDERS[:2], refunds=[Refund(5)])
    assert found["kinds"] == ["Order", "Order"]
    assert [(bad.input, bad.record) for bad in found["bad"]] == [("refunds", '{"cents":5}')]


def test_a_job_starts_with_and_without_calls_on_one_checkpoint(tmp_path: Path) -> None:
    @sk.process(key="customer")
    def count(order: Order, seen: sk.ValueState[int]) -> Iterator[int]:
        seen.update((seen.get() or 0) + 1)
        yield seen.get() or 0

    async def same(order: Order) -> Order:
        return order

    for number, calls in enumerate((True, False, True), start=1):
        job = sk.Job("shop")
        orders = job.source("orders", Order)
        (orders.map_async(same) if calls else orders).process(count).sink("counts")
        run = job.run({"orders": [ORDERS[0]] * number}, checkpoint=tmp_path)
        assert run["counts"] == [number]


def test_no_answer_of_a_committed_epoch_is_asked_for_again(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()
    is_down = [True]

    async def counted(order: Order) -> Score:
        asked[order.number] += 1
        if is_down[0] and order.number == 15:
            raise ConnectionError
        return Score(order.customer, float(order.number))

    written: list[Score] = []
    outputs = {"scored": lambda records, epoch: written.extend(records)}
    job = _job(counted, retries=0)
    with pytest.raises(sk.ProcessError):
        job.run({"orders": ORDERS}, outputs=outputs, checkpoint=tmp_path, epoch_size=10)
    is_down[0] = False
    job.run({"orders": ORDERS}, outputs=outputs, checkpoint=tmp_path, epoch_size=10)
    assert written == SCORES
    assert all(asked[number] == 1 for number in range(10))
    assert all(asked[number] <= 2 for number in range(10, 20))


def _operator(fn: Any, **options: Any) -> Any:
    return sk.Job("shop").source("orders", Order).map_async(fn, **options)


def test_two_readers_of_the_answers_ask_once() -> None:
    asked: Counter[int] = Counter()

    async def counted(order: Order) -> Score:
        asked[order.number] += 1
        return Score(order.customer, float(order.number))

    job = sk.Job("shop")
    answers = job.source("orders", Order).map_async(counted).sink("all")
    answers.filter(lambda score: score.risk > 5, name="risky").sink("risky")
    answers.map(lambda score: score.customer, into=str, name="customers").sink("customers")
    run = job.run({"orders": ORDERS})
    assert (len(run["risky"]), len(run["customers"])) == (14, 20)
    assert set(asked.values()) == {1}


def _plain(order: Order) -> Score:
    return Score("", 0.0)


async def _yields(order: Order) -> AsyncIterator[Score]:
    yield Score("", 0.0)


async def _unannotated(order):  # type: ignore[no-untyped-def]
    return order


async def _of_scores(score: Score) -> Score:
    return Score("", 0.0)


async def _with_state(order: Order, state: sk.ValueState[int]) -> Score:
    return Score("", 0.0)


@pytest.mark.parametrize(
    ("fn", "options", "said"),
    [
        (_plain, {}, "use map for a function that is not async"),
        (_yields, {}, "return a list of outputs"),
        (_unannotated, {}, "into=T"),
        (_of_scores, {}, "the stream has Order"),
        (_with_state, {}, "use @process"),
        (scored, {"batch": 4}, r"list\[Order\]"),
        (scored, {"client": object}, "then the client"),
        (_in_batches, {"batch": 0}, "1 or more"),
        (scored, {"concurrency": 0}, "1 or more"),
        (scored, {"retries": -1}, "0 or more"),
        (scored, {"timeout": "0 seconds"}, "no answer arrives in no time"),
        (scored, {"on_error": "ignore"}, "on_error"),
        (_with_state, {"client": 5}, "httpx.AsyncClient"),
    ],
)
def test_a_wrong_declaration_is_refused(fn: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(sk.StateTypeError, match=said):
        _operator(fn, **options)


def test_the_type_of_outputs_may_be_given() -> None:
    operator = _operator(_unannotated, into=Order, name="same")
    assert Harness(operator).send(*ORDERS) == ORDERS
    assert operator.record_class is Order


def test_explain_says_how_many_calls_are_open() -> None:
    text = _job(scored, concurrency=7).explain()
    assert "scored: called for each record, with up to 7 open calls per task" in text
    assert "each partition goes to one shard" in text
