"""Bad records: what a function that fails leaves, and what becomes of the record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.state import base
from statekit.testing import Harness

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime = NOON


class Total(NamedTuple):
    customer: str
    cents: int


@sk.process(key="customer", on_error="collect")
def totals(order: Order, total: sk.ValueState[int]) -> Iterator[Total]:
    total.update((total.get() or 0) + order.cents)
    yield Total(order.customer, total.get() or 0)
    if order.cents < 0:
        raise ValueError(f"{order.cents} cents")


@sk.process(key="customer", on_error="drop", max_errors=1)
def dropping(order: Order, total: sk.ValueState[int]) -> Iterator[Total]:
    yield from totals(order, total)


def failed_so_far(repository: Repository) -> int:
    last = repository.latest_epoch()
    assert last is not None
    return sum(of.failed_so_far for of in repository.manifest(last).operators.values())


def test_a_failed_record_goes_to_errors_and_the_next_one_is_processed() -> None:
    harness = Harness(totals)
    orders = [Order("ann", 5), Order("ann", -1), Order("ann", 2)]
    assert harness.send(*orders) == [Total("ann", 5), Total("ann", 7)]
    assert harness.errors == [
        sk.FailedRecord(
            operator="totals",
            input="records",
            key='"ann"',
            record='{"customer":"ann","cents":-1,"at":"2026-01-01T12:00:00Z"}',
            timer=None,
            error="ValueError",
            message="-1 cents",
        )
    ]


def test_errors_feed_an_operator_and_a_sink(tmp_path: Path) -> None:
    @sk.process(key="error")
    def counted(failed: sk.FailedRecord, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
        seen.update((seen.get() or 0) + 1)
        yield failed.error, seen.get() or 0

    job = sk.Job("shop")
    outputs = job.source("orders", Order).process(totals).sink("totals")
    outputs.errors.sink("bad")
    texts = outputs.errors.map(lambda failed: failed.message, into=str, name="texts").sink("texts")
    outputs.errors.process(counted).sink("counted")
    orders = [Order("ann", -1), Order("bob", 3), Order("bob", -2)]
    run = job.run({"orders": orders}, checkpoint=tmp_path, parallelism=2)
    assert run["totals"] == [Total("bob", 3)]
    assert sorted(run[texts]) == ["-1 cents", "-2 cents"]
    assert run["counted"] == [("ValueError", 1), ("ValueError", 2)]
    assert {each.key for each in run[outputs.errors]} == {'"ann"', '"bob"'}
    assert failed_so_far(Repository(tmp_path)) == 2
    assert "failed records of totals" in str(job)


def test_dropped_records_are_counted_and_have_no_stream(tmp_path: Path) -> None:
    job = sk.Job("shop")
    outputs = job.source("orders", Order).process(dropping).sink("totals")
    with pytest.raises(sk.StateTypeError, match="does not collect errors"):
        _ = outputs.errors
    run = job.run({"orders": [Order("ann", -1), Order("ann", 3)]}, checkpoint=tmp_path)
    assert run["totals"] == [Total("ann", 3)]
    assert failed_so_far(Repository(tmp_path)) == 1


@pytest.mark.parametrize("parallelism", [1, 4])
def test_more_errors_than_allowed_end_the_job_before_anything_is_written(
    tmp_path: Path, parallelism: int
) -> None:
    job = sk.Job("shop")
    job.source("orders", Order).process(dropping).sink("totals")
    good = [Order("ann", 1), Order("bob", -1)]
    written: list[Any] = []
    outputs = {"totals": lambda records, epoch: written.append(records)}
    options: dict[str, Any] = {"parallelism": parallelism, "outputs": outputs}
    options["checkpoint"] = tmp_path
    job.run({"orders": good}, **options)
    assert written == [[Total("ann", 1)]]
    bad = [*good, Order("ann", 2), Order("cid", -7)]
    with pytest.raises(sk.ProcessError, match=r"failed for 2 records so far.*max_errors=1.*-7"):
        job.run({"orders": bad}, **options)
    assert written == [[Total("ann", 1)]]
    assert failed_so_far(Repository(tmp_path)) == 1


def test_errors_of_all_shards_count_together() -> None:
    harness = Harness(dropping, parallelism=8)
    bad = [Order(name, -1) for name in "abcdefgh"[:2]]
    assert harness.shard_of("a") != harness.shard_of("b")
    with pytest.raises(sk.ProcessError, match="failed for 2 records so far"):
        harness.send(*bad)
    assert harness.epoch is None


def test_a_failing_timer_has_fired_and_goes_to_errors() -> None:
    @sk.process(key="customer", event_time="at", on_error="collect")
    def reminded(order: Order, ctx: sk.Context, seen: sk.ListState[int]) -> Iterator[str]:
        ctx.timers.set(order.at)
        seen.append(order.cents)
        yield from ()

    @reminded.on_timer
    def remind(timer: sk.Timer, ctx: sk.Context, seen: sk.ListState[int]) -> Iterator[str]:
        yield "never emitted"
        ctx.timers.set(timer.at + dt.timedelta(hours=1))
        seen.clear()
        if ctx.key == "ann":
            raise KeyError("no address")

    harness = Harness(reminded)
    harness.send(Order("ann", 5), Order("bob", 6))
    assert harness.advance_watermark(NOON) == ["never emitted"]
    assert (harness.state("seen", "ann"), harness.state("seen", "bob")) == ([5], [])
    assert (len(harness.timers("ann")), len(harness.timers("bob"))) == (0, 1)
    (failed,) = harness.errors
    assert (failed.input, failed.record, failed.message) == (None, None, "'no address'")
    assert failed.timer == '{"at":"2026-01-01T12:00:00Z","name":"default","clock":"event"}'


def test_ordered_records_fail_one_by_one() -> None:
    @sk.process(key="customer", event_time="at", ordered=True, on_error="collect")
    def ordered(order: Order, seen: sk.ListState[int]) -> Iterator[list[int]]:
        seen.append(order.cents)
        if order.cents < 0:
            raise ValueError
        yield seen.get()

    harness = Harness(ordered)
    times = [NOON + dt.timedelta(minutes=minute) for minute in range(3)]
    harness.send(*(Order("ann", c, at) for c, at in zip([1, -2, 3], times, strict=True)))
    assert harness.advance_watermark(times[-1]) == [[1], [1, 3]]
    assert [(failed.input, failed.message) for failed in harness.errors] == [("records", "")]


def test_a_value_that_does_not_fit_its_state_is_an_error_of_the_record() -> None:
    @sk.process(key="customer", on_error="collect")
    def stored(order: Order, total: sk.ValueState[int], by: sk.MapState[str, int]) -> None:
        by["x"] = 1
        total.update(order.cents)

    harness = Harness(stored)
    harness.send(Order("ann", 1), Order("ann", 2**70), Order("ann", "two"))  # type: ignore[arg-type]
    assert harness.state("total", "ann") == 1
    assert [failed.error for failed in harness.errors] == ["StateTypeError"] * 2


def test_a_record_that_the_function_changed_is_reported_as_it_arrived() -> None:
    @sk.process(key="customer", on_error="collect")
    def changing(record: dict[str, Any]) -> None:
        record["cents"].append(5)
        raise ValueError

    harness = Harness(changing)
    harness.send({"customer": "ann", "cents": [1]})
    assert [failed.record for failed in harness.errors] == ['{"customer":"ann","cents":[1]}']


def test_outputs_are_kept_as_they_were_when_they_were_emitted() -> None:
    @sk.process(key="customer", on_error="collect")
    def growing(order: Order) -> Iterator[list[int]]:
        found = [1]
        yield found
        found.append(2)

    assert Harness(growing).send(Order("ann", 1)) == [[1]]


def test_functions_without_a_key_and_functions_that_return_lists_may_fail() -> None:
    @sk.process(on_error="collect")
    def listed(
        order: Order, seen: Annotated[sk.OperatorState[int], sk.Redistribute("broadcast")]
    ) -> list[int]:
        seen.update((seen.get() or 0) + 1)
        return [100 // order.cents]

    harness = Harness(listed)
    assert harness.send(Order("a", 5), Order("b", 0), Order("c", 2)) == [20, 50]
    assert harness.operator_state("seen") == [2]
    assert [(failed.key, failed.error) for failed in harness.errors] == [
        ("[]", "ZeroDivisionError")
    ]


def test_a_failed_add_that_the_function_caught_leaves_the_accumulator_unchanged() -> None:
    def grown(held: list[int], number: int) -> list[int]:
        held.append(number)
        if number < 0:
            raise ValueError
        return held

    @sk.process(key="customer", on_error="drop")
    def careful(
        order: Order,
        held: Annotated[sk.AggregatingState[int, list[int], int], sk.Aggregate(list, grown, sum)],
    ) -> None:
        try:
            held.add(order.cents)
        except ValueError:
            held.add(1000)

    harness = Harness(careful)
    harness.send(Order("ann", 1), Order("ann", -5), Order("ann", 2))
    assert harness.state("held", "ann") == 1003


def test_a_call_with_many_changes_writes_them_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "PENDING_ROWS_MAX", 3)

    @sk.process(key="customer", on_error="drop")
    def many(order: Order, by: sk.MapState[int, int], all_: sk.ListState[int]) -> Iterator[int]:
        for number in range(20):
            by[number] = by.get(number, 0) + order.cents
            all_.append(number)
        if order.cents < 0:
            raise ValueError
        yield sum(by.values())

    harness = Harness(many, backend="rocksdb")
    assert harness.send(Order("ann", -1), Order("ann", 2), Order("ann", -3)) == [40]
    assert harness.send(Order("ann", 1), Order("ann", -3), Order("ann", 1)) == [60, 80]
    assert len(harness.state("all_", "ann")) == 60


def fail_with(error: Callable[[], BaseException]) -> Any:
    @sk.process(key="customer", on_error="drop")
    def failing(order: Order, total: sk.ValueState[int]) -> None:
        total.update(1)
        raise error()

    return failing


@pytest.mark.parametrize(
    "error",
    [
        ValueError,
        lambda: SystemExit(1),
        GeneratorExit,
        StopIteration,
        lambda: ExceptionGroup("several", [ValueError(1)]),
        lambda: sk.ProcessError("raised by the user"),
    ],
)
def test_all_errors_of_the_user_count(error: Callable[[], BaseException]) -> None:
    harness = Harness(fail_with(error))
    harness.send(Order("ann", 1))
    assert harness.state("total", "ann") is None


def test_an_interruption_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        Harness(fail_with(KeyboardInterrupt)).send(Order("ann", 1))


def test_a_failing_broadcast_handler_ends_the_run() -> None:
    @dataclass(frozen=True)
    class Rate:
        value: int

    @sk.process(on_error="drop")
    def priced(order: Order, rates: sk.BroadcastState[str, int]) -> None:
        raise ValueError

    @priced.on_broadcast
    def rate(new: Rate, rates: sk.BroadcastState[str, int]) -> None:
        rates["x"] = new.value
        1 / new.value

    harness = Harness(priced)
    harness.send(Order("ann", 1), broadcast=[Rate(5)])
    with pytest.raises(sk.ProcessError, match="division by zero"):
        harness.broadcast(Rate(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "skip"}, 'use "fail", "drop" or "collect"'),
        ({"max_errors": 3}, 'declare on_error="collect" or "drop"'),
        ({"on_error": "drop", "max_errors": -1}, "0 or more"),
        ({"on_error": "drop", "max_errors": True}, "0 or more"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.process(key="customer", **options)


def test_functions_whose_calls_cannot_be_taken_back_are_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="takes all records of a key at once"):

        @sk.process(key="customer", on_error="drop")
        def together(orders: Iterator[Order]) -> None: ...

    class Memory:
        def snapshot_state(self) -> int:
            return 1

        def restore_state(self, state: int) -> None: ...

    with pytest.raises(sk.StateTypeError, match="Checkpointed object cannot be"):

        @sk.process(key="customer", on_error="collect")
        def remembering(order: Order, memory: Memory) -> None: ...


def test_the_name_of_the_stream_of_errors_is_reserved() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.filter(lambda order: True, name="totals.errors")
    with pytest.raises(sk.StateTypeError, match="failed records of operator 'totals'"):
        orders.process(totals)


def test_other_operators_have_no_errors() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    with pytest.raises(sk.StateTypeError, match="does not collect errors"):
        _ = orders.errors
