"""A store whose keys have an ordered part, against sorted items of a dict per partition."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from tests.support.effort import SOAK
from tests.support.instants import at


class Cell(NamedTuple):
    """A record of any operation."""

    part: str
    place: int
    amount: int = 0
    start: int | None = None
    end: int | None = None


BOUNDS: dict[str, dict[str, Any]] = {
    "all": {},
    "from": {"start": "start"},
    "until": {"end": "end"},
    "between": {"start": "start", "end": lambda cell: cell.end},
    "down": {"start": "start", "end": "end", "reverse": True},
    "two": {"start": "start", "end": "end", "limit": 2},
    "last": {"reverse": True, "limit": 1},
}
"""The options of scans."""

KINDS = ["put", "remove", "get", "update", "put_if_absent", *BOUNDS]


def sorted_job() -> sk.Job:
    job = sk.Job("sorted")
    store: Any = job.add(sk.KVStore("kv", key=str, value=int, sort=int))
    for kind in KINDS:
        cells = job.source(kind, Cell)
        if kind in BOUNDS:
            store.scan(cells, key="part", **BOUNDS[kind]).sink(kind)
            continue
        options: dict[str, Any] = {"key": "part", "sort": "place"}
        if kind == "update":
            store.update(cells, added, **options).sink(kind)
            continue
        if kind in ("put", "put_if_absent"):
            options["value"] = "amount"
        getattr(store, kind)(cells, **options).sink(kind)
    return job


def added(amount: int | None, cell: Cell) -> int | None:
    """The sum of both amounts; 2 removes the value."""
    return None if cell.amount == 2 else (amount or 0) + cell.amount


JOB = sorted_job()


class SortedModel:
    """Partitions as dicts."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], int] = {}

    def handle(self, kind: str, cell: Cell) -> tuple[Any, ...]:
        key = cell.part, cell.place
        before = self.values.get(key)
        if kind in BOUNDS:
            given = BOUNDS[kind]
            bounds = [
                of for of, name in ((cell.start, "start"), (cell.end, "end")) if name in given
            ]
            return cell.part, *bounds, list(self.scan(cell, **given))
        if kind == "get":
            return *key, before
        if kind == "put":
            self.write(key, cell.amount)
            return *key, cell.amount
        if kind == "remove":
            self.write(key, None)
            return *key, before
        if kind == "update":
            after = added(before, cell)
            self.write(key, after)
            return *key, cell, before, after
        now = cell.amount if before is None else before
        self.write(key, now)
        return *key, cell, before is None, now

    def write(self, key: tuple[str, int], value: int | None) -> None:
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value

    def scan(
        self,
        cell: Cell,
        start: Any = None,
        end: Any = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[int, int]]:
        low, high = start and cell.start, end and cell.end
        entries = sorted(
            (place, value)
            for (part, place), value in self.values.items()
            if part == cell.part
            and (low is None or low <= place)
            and (high is None or place < high)
        )
        return islice(reversed(entries) if reverse else entries, limit)


PLACES = st.integers(-3, 3)
CELLS = st.builds(
    Cell, st.sampled_from("ab"), PLACES, st.integers(0, 3), st.none() | PLACES, st.none() | PLACES
)
EPOCHS = st.lists(st.lists(st.tuples(st.sampled_from(KINDS), CELLS), max_size=25), max_size=5)


@given(EPOCHS, st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_scans_equal_sorted_items(epochs: list[list[Any]], parallelism: int) -> None:
    check_scans(epochs, parallelism)


@pytest.mark.slow
@given(EPOCHS, st.integers(1, 3))
@settings(max_examples=2_000 if SOAK else 80, deadline=None)
def test_many_more_scans_equal_sorted_items(epochs: list[list[Any]], parallelism: int) -> None:
    check_scans(epochs, parallelism)


def check_scans(epochs: list[list[Any]], parallelism: int) -> None:
    model, repository = SortedModel(), Repository.in_memory()
    inputs: dict[str, list[Cell]] = {kind: [] for kind in KINDS}
    for number, epoch in enumerate(epochs):
        for kind, cell in epoch:
            inputs[kind].append(cell)
        shards = 1 + (number + parallelism) % 3
        done = JOB.run(inputs, checkpoint=repository, parallelism=shards)
        for kind in KINDS:
            own = [cell for of, cell in epoch if of == kind]
            expected = [model.handle(kind, cell) for cell in own]
            found = [tuple(answer) for answer in done.outputs[kind]]
            for part in "ab":
                assert of_part(found, part) == of_part(expected, part)


def of_part(answers: list[tuple[Any, ...]], part: str) -> list[tuple[Any, ...]]:
    return [answer for answer in answers if answer[0] == part]


def test_entries_of_a_scan_are_records_with_the_ordered_part_and_the_value() -> None:
    job = sk.Job("entries")
    store = job.add(sk.KVStore("kv", key=str, value=str, sort=int))
    cells = job.source("cells", Cell)
    store.put(cells, key="part", sort="place", value=lambda cell: f"value {cell.place}")
    store.scan(cells, key="part", limit=1).sink("first")
    store.scan(cells, key="part", reverse=True, limit=1, name="last").sink("last")
    done = job.run({"cells": [Cell("a", 10), Cell("a", -1)]})
    (first, _), (last, _) = done.outputs["first"], done.outputs["last"]
    assert [(entry.sort, entry.value) for entry in first.entries] == [(-1, "value -1")]
    assert [(entry.sort, entry.value) for entry in last.entries] == [(10, "value 10")]


@dataclass
class Place:
    sort: int
    value: str


class Places(NamedTuple):
    entries: list[Place]


def test_entries_of_a_scan_may_have_a_class() -> None:
    job = sk.Job("entries")
    store = job.add(sk.KVStore("kv", key=str, value=str, sort=int))
    cells = job.source("cells", Cell)
    store.put(cells, key="part", sort="place", value=lambda cell: f"value {cell.place}")
    store.scan(cells, key="part", into=Places).sink("found")
    done = job.run({"cells": [Cell("a", 10)]})
    assert done.outputs["found"] == [Places([Place(10, "value 10")])]


class Put(NamedTuple):
    part: str
    place: str
    at: dt.datetime


class Scan(NamedTuple):
    part: str
    at: dt.datetime


def test_scans_of_a_store_in_event_time_see_what_was_put_until_their_time() -> None:
    job = sk.Job("timed")
    store = job.add(sk.KVStore("kv", key=str, value=int, sort=str, event_time="at"))
    puts, scans = job.source("puts", Put), job.source("scans", Scan)
    store.put(puts, key="part", sort="place", value=lambda put: len(put.place))
    store.scan(scans, key="part").sink("found")
    given = [Put("a", "xx", at(3)), Put("a", "x", at(1)), Put("b", "y", at(1))]
    asked = [Scan("a", at(2)), Scan("a", at(3)), Scan("a", at(0))]
    done = job.run({"puts": given, "scans": asked}, parallelism=2)
    found = [
        (answer.at, [tuple(entry) for entry in answer.entries]) for answer in done.outputs["found"]
    ]
    assert found == [(at(0), []), (at(2), [("x", 1)]), (at(3), [("x", 1), ("xx", 2)])]
