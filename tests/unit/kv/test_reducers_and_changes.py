"""Reducers, the stream of changes and versions of a store, by examples."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.testing import check
from tests.support.instants import at

NOW = at(1)


class Sale(NamedTuple):
    shop: str
    cents: int
    item: str = "tea"
    at: dt.datetime = NOW


SALES = [Sale("a", 5), Sale("b", 2, "pot"), Sale("a", -1, "cup")]


def store_of(value: Any, **options: Any) -> tuple[sk.Job, Any, Any]:
    job = sk.Job("shops")
    sales = job.source("sales", Sale)
    return job, job.add(sk.KVStore("kv", key=str, value=value, **options)), sales


def answers(job: sk.Job, stream: Any, **options: Any) -> list[tuple[Any, ...]]:
    stream.sink("found")
    return sorted(map(tuple, job.run({"sales": SALES}, **options).outputs["found"]))


def test_a_value_is_incremented_by_a_field_or_by_a_number() -> None:
    job, store, sales = store_of(int)
    found = answers(job, store.increment(sales, key="shop", by="cents"))
    assert found == [("a", -1, 4), ("a", 5, 5), ("b", 2, 2)]
    job, store, sales = store_of(float)
    assert answers(job, store.increment(sales, key="shop", by=0.5)) == [
        ("a", 0.5),
        ("a", 1.0),
        ("b", 0.5),
    ]


def test_an_element_is_appended_to_a_list_in_epochs_of_one_record() -> None:
    job, store, sales = store_of(list[str])
    found = answers(job, store.append(sales, key="shop", value="item"), epoch_size=1)
    assert found == [("a", "cup", ["tea", "cup"]), ("a", "tea", ["tea"]), ("b", "pot", ["pot"])]


@pytest.mark.parametrize(
    ("fn", "last"), [(min, -1), ("max", 5), (sum, 4), (lambda held, added: held * 10 + added, 49)]
)
def test_a_value_is_reduced_by_a_function_of_two_values(fn: Any, last: int) -> None:
    job, store, sales = store_of(int, sort=str)
    reduced = store.reduce(sales, fn, key="shop", sort=lambda sale: "all", value="cents")
    assert ("a", "all", -1, last) in answers(job, reduced)


@pytest.mark.parametrize(
    ("value", "act", "said"),
    [
        (str, lambda s, of: s.increment(of, key="shop"), "increment needs values that are numbers"),
        (int, lambda s, of: s.increment(of, key="shop", by=0.5), "by=0.5.: expected int"),
        (
            int,
            lambda s, of: s.append(of, key="shop", value="cents"),
            "append needs values that are",
        ),
        (int, lambda s, of: s.reduce(of, "count", key="shop", value="cents"), "use increment"),
        (int, lambda s, of: s.reduce(of, 5, key="shop", value="cents"), "not a reducer"),
        (int, lambda s, of: s.versions(of, key="shop"), "versions needs values of the past"),
        (int, lambda s, of: s.changes(), "changes.. needs operations"),
    ],
)
def test_operations_that_do_not_fit_the_store_are_refused(value: Any, act: Any, said: str) -> None:
    _, store, sales = store_of(value)
    with pytest.raises(sk.StateTypeError, match=said):
        act(store, sales)


class Move(NamedTuple):
    accounts: list[str]
    old: int
    new: int


def test_a_compare_and_set_over_several_keys_is_refused_with_the_reason() -> None:
    job = sk.Job("moves")
    store = job.add(sk.KVStore("kv", key=str, value=int))
    moves = job.source("moves", Move)
    with pytest.raises(
        sk.StateTypeError, match=r"Move.accounts is list\[str\]. Several keys may be"
    ):
        store.compare_and_set(moves, key="accounts", expected="old", value="new")


def test_a_store_has_one_stream_of_changes() -> None:
    _, store, sales = store_of(int)
    store.put(sales, key="shop", value="cents")
    store.changes(name="first")
    with pytest.raises(sk.StateTypeError, match="has a stream of its changes"):
        store.changes(name="second")


def test_changes_feed_another_store() -> None:
    job, store, sales = store_of(int)
    store.put(sales, key="shop", value="cents")
    totals = job.add(sk.KVStore("totals", key=bool, value=int))

    def growth(change: Any) -> int:
        return (change.value or 0) - (change.before or 0)

    total = totals.increment(store.changes(), key=lambda change: True, by=growth)
    found = answers(job, total)  # of a: 5, then -1; of b: 2
    assert sorted(by for _, by, _ in found) == [-6, 2, 5]
    assert sum(by for _, by, _ in found) == 1


@pytest.mark.parametrize("ordered", [{}, {"event_time": "at"}], ids=["eager", "ordered"])
def test_reducers_and_changes_are_what_plain_python_says(ordered: Any) -> None:
    job, store, sales = store_of(int, **ordered)
    store.increment(sales, key="shop", by="cents").sink("sums")
    store.remove(sales, key="shop").sink("removed")
    store.changes().sink("changes")
    check(job, holds=["plain Python"], depth="quick")


@dataclass
class Period:
    value: int
    valid_from: dt.datetime | None
    valid_until: dt.datetime | None


class Periods(NamedTuple):
    versions: list[Period]
    status: str


def test_versions_have_their_interval_and_may_have_a_class() -> None:
    job, store, sales = store_of(int, event_time="at", history="10 s")
    store.put(sales, key="shop", value="cents")
    asked = job.source("asked", Sale)
    store.versions(asked, key="shop", into=Periods).sink("found")
    given = [Sale("a", 5, at=at(1)), Sale("a", 7, at=at(3))]
    done = job.run({"sales": given, "asked": [Sale("a", 0, at=at(4)), Sale("b", 0, at=at(4))]})
    periods = [Period(5, at(1), at(3)), Period(7, at(3), None)]
    assert sorted(done.outputs["found"]) == [Periods([], "complete"), Periods(periods, "complete")]
