"""Hooks run in Spark's workers, and a migrated checkpoint goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.migrate import Migration
from tests.support.spark_job import EVENT_SCHEMA, Event, events
from tests.support.spark_runs import Runs


def summing(of: Any, **options: Any) -> sk.Job:
    """A job that adds up numbers per word, in a state of some type."""

    def total(event: Event, sum_: Any) -> Iterator[tuple[str, str]]:
        sum_.update(of(int(sum_.get() or 0) + event.number))
        yield event.word, repr(sum_.get())

    total.__annotations__["sum_"] = sk.ValueState[of]
    job = sk.Job("sums")
    declared: Any = sk.process(key="word", **options)(total)
    job.source("events", Event).process(declared).sink("out")
    return job


def totals(given: list[Event]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in given:
        found[event.word] = found.get(event.word, 0) + event.number
    return found


def text_of(number: int) -> str:
    return str(number)


def test_a_hook_runs_in_a_worker_and_a_migrated_stream_continues(runs: Runs) -> None:
    given = events(seed=3, size=90)
    sink = sk.sinks.parquet(runs.home / "out")
    hooked = summing(str, migrate={"sum_": text_of})
    stages = [(summing(int), None), (hooked, None), (summing(str), hooked)]
    for stage, (job, migrated) in enumerate(stages):
        if migrated is not None:
            made = Migration(migrated, runs.home / "checkpoint").run(lambda *_: None)
            assert made is not None
            assert made.batch == stage - 1
        piece = given[30 * stage : 30 * (stage + 1)]
        runs.feed("events", [event._asdict() for event in piece])
        runs.finish(job, {"events": runs.stream("events", EVENT_SCHEMA)}, outputs={"out": sink})
    found = {word: int(held) for word, held in runs.state("total", "sum_").items()}
    assert found == totals(given)
    assert len(runs.parquet("out")) == len(given)


class Order(NamedTuple):
    buyer: str
    seller: str
    cents: int


class Sold(NamedTuple):
    customer: str
    seller: str
    cents: int


def spending(cls: Any, *key: str, **options: Any) -> sk.Job:
    """A job that adds up what each buyer spent at each seller, one by one and combined."""

    def spent(order: Any, total: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
        total.update((total.get() or 0) + order.cents)
        yield f"{order[0]} {order[1]}", total.get() or 0

    spent.__annotations__["order"] = cls
    job = sk.Job("shop")
    orders = job.source("orders", cls)
    orders.process(sk.process(key=key, **options)(spent)).sink("spent")
    sums: dict[str, Any] = {"key": key, "name": "sums", "cents": sk.Sum("cents"), **options}
    orders.aggregate(**sums).sink("sums")
    return job


def test_a_stream_with_swapped_key_fields_is_refused_and_one_with_renamed_fields_goes_on(
    runs: Runs,
) -> None:
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in ("spent", "sums")}

    def finish(job: sk.Job, buyer: str) -> None:
        schema = f"{buyer} string, seller string, cents bigint"
        runs.finish(job, {"orders": runs.stream("orders", schema)}, outputs=sinks)

    runs.feed("orders", [{"buyer": "ann", "seller": "bob", "cents": 100}])
    finish(spending(Order, "buyer", "seller"), "buyer")
    with pytest.raises(sk.StateSchemaError, match="keyed by other fields"):
        finish(spending(Order, "seller", "buyer"), "buyer")
    assert Repository(runs.checkpoint).latest_epoch() == 0
    runs.feed("orders", [{"customer": "ann", "seller": "bob", "cents": 20}])
    finish(spending(Sold, "customer", "seller", renamed={"buyer": "customer"}), "customer")
    expected = {("ann", "bob"): 120}
    assert runs.state("spent", "total") == runs.state("sums", "cents") == expected
