"""A machine of a job finds what does not survive crashes, other shards and time, and models say."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import statekit as sk
from statekit.state.timers import Timers
from statekit.testing import JobHarness
from statekit.testing.machines import JobMachine
from statekit.testing.process_model import ProcessModel


class Order(NamedTuple):
    customer: str
    at: dt.datetime
    cents: int


@sk.process(key="customer", event_time="at", lateness="1 minute")
def visit(order: Order, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    total.update((total.get() or 0) + order.cents)
    ctx.timers.replace(order.at + dt.timedelta(minutes=30))
    yield order.customer, total.get() or 0


@visit.on_timer
def ended(
    timer: sk.Timer, ctx: sk.Context[str], total: sk.ValueState[int]
) -> Iterator[tuple[str, int]]:
    yield ctx.key, total.get() or 0
    total.clear()


class Visits(JobMachine):
    job = visit


class VisitsOfModel(Visits):
    def make_model(self) -> ProcessModel:
        return ProcessModel(visit)


def run(machine: type[RuleBasedStateMachine], examples: int = 100) -> None:
    given = settings(
        machine.TestCase.settings,
        max_examples=examples,
        stateful_step_count=20,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(machine, settings=given)


@pytest.mark.parametrize("machine", [Visits, VisitsOfModel])
def test_a_function_that_uses_states_only_passes(machine: type[JobMachine]) -> None:
    run(machine, 20)


def test_a_replaced_timer_that_still_fires_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timers, "replace", Timers.set)
    with pytest.raises(AssertionError, match="sink 'outputs' is missing"):
        run(VisitsOfModel)


def test_state_that_is_lost_in_a_crash_is_found() -> None:
    class Forgets(Visits):
        @rule()
        def crash(self) -> None:
            self.harness = JobHarness(self.subject.job)

    with pytest.raises(AssertionError, match=r"is missing|are expected"):
        run(Forgets)


def test_a_global_variable_is_found() -> None:
    seen = [0]

    @sk.process(key="customer")
    def numbered(order: Order) -> Iterator[int]:
        seen[0] += 1
        yield seen[0]

    class Numbered(JobMachine):
        job = numbered

    with pytest.raises((AssertionError, ExceptionGroup)):
        run(Numbered)


def test_a_job_of_several_operators_is_compared_by_its_sinks() -> None:
    job = sk.Job("shop")
    orders = job.source("orders", Order)
    orders.process(visit).sink("totals")
    hours = orders.window(sk.tumbling("1 hour"), key="customer", event_time="at")
    hours.sum("cents", name="hours").sink("hours")

    shop: type[JobMachine] = type("Shop", (JobMachine,), {"job": job})
    run(shop, 15)
    assert shop.subject.job is job


def test_a_model_of_the_user_is_compared_with_the_sinks_that_it_has() -> None:
    class Wrong:
        def send(self, **records: Iterable[Any]) -> dict[str, list[Any]]:
            return {"late": [], "outputs": [len(list(some)) for some in records.values()]}

        def advance_watermark(self, to: dt.datetime) -> dict[str, list[Any]]:
            return {}

        def advance_processing_time(self, to: dt.datetime) -> dict[str, list[Any]]:
            return {}

    class Lengths(JobMachine):
        job = visit

        def make_model(self) -> Wrong:
            return Wrong()

    with pytest.raises(AssertionError, match="sink 'outputs' is missing"):
        run(Lengths)


def test_operator_state_without_a_rule_is_not_rescaled() -> None:
    @sk.process(key="customer")
    def count(order: Order, seen: sk.OperatorState[int]) -> Iterator[int]:
        seen.update((seen.get() or 0) + 1)
        yield order.cents

    class Counts(JobMachine):
        job = count

    run(Counts, 10)
    assert Counts.subject.undivided == "no rule redistributes operator state 'seen' of count"


def test_given_records_and_a_unit_of_time_are_used() -> None:
    found: set[int] = set()

    class Few(Visits):
        events = st.builds(
            Order,
            st.just("ada"),
            st.just(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
            st.integers(1, 3),
        )
        unit = dt.timedelta(hours=7)

        def check(self, emitted: Any, expected: Any) -> None:
            super().check(emitted, expected)
            assert self.scene.unit == dt.timedelta(hours=7)
            found.update(total for customer, total in emitted["outputs"] if customer == "ada")

    run(Few, 10)
    assert found
    assert min(found) in (1, 2, 3)


def test_records_of_a_machine_are_compared_by_value() -> None:
    machine: Any = object()
    JobMachine.check(machine, {"out": [{8, 0}, float("nan")]}, {"out": [float("nan"), {0, 8}]})
    with pytest.raises(AssertionError, match=r"missing \[2\], and has \[1\], which"):
        JobMachine.check(machine, {"out": [1, 1, 2]}, {"out": [2, 1, 2]})


def test_a_machine_shows_records_whose_repr_fails() -> None:
    class Broken:
        def __init__(self) -> None:
            self.cents = 5

        def __repr__(self) -> str:
            raise OSError

    machine: Any = object()
    with pytest.raises(AssertionError, match="repr"):
        JobMachine.check(machine, {"out": [Broken()]}, {"out": []})
