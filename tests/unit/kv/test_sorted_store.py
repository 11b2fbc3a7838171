"""A store whose keys have an ordered part, by examples. State machines compare it with a model."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import statekit as sk
from tests.support.instants import at


class Cell(NamedTuple):
    """A record of any operation."""

    part: str
    place: int
    amount: int = 0
    word: str | None = None


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


class Sale(NamedTuple):
    shop: str
    item: str
    number: int


class Ask(NamedTuple):
    shop: str
    item: str | None
    number: int | None = None


def prefixed(sort: Any, place: Any, prefix: Any, *asked: Ask) -> list[list[Any]]:
    """The ordered parts of the entries that scans by a prefix find."""
    job = sk.Job("prefixes")
    store: Any = job.add(sk.KVStore("kv", key=str, value=int, sort=sort))
    store.put(job.source("sales", Sale), key="shop", sort=place, value="number")
    store.scan(job.source("asks", Ask), key="shop", prefix=prefix).sink("found")
    sales = [Sale("a", item, n) for item, n in (("tea", 1), ("tea", 2), ("tent", 3), ("pot", 4))]
    done = job.run({"sales": [*sales, Sale("b", "tea", 9)], "asks": asked})
    return [[entry.sort for entry in answer.entries] for answer in done.outputs["found"]]


def test_a_scan_may_read_the_texts_with_a_prefix() -> None:
    asked = [Ask("a", "te"), Ask("a", "tea"), Ask("a", "x"), Ask("a", None)]
    found = prefixed(str, "item", "item", *asked)
    assert found == [["tea", "tent"], ["tea"], [], ["pot", "tea", "tent"]]


def test_a_scan_may_read_the_bytes_with_a_prefix() -> None:
    def coded(record: Any) -> bytes:
        return record.item.encode() + b"\0"  # type: ignore[no-any-return]

    asked = [Ask("a", "tea"), Ask("a", "te")]
    assert prefixed(bytes, coded, coded, *asked) == [[b"tea\0"], []]


class Item(NamedTuple):
    item: str
    number: int


def item_of(sale: Sale) -> Item:
    return Item(sale.item, sale.number)


def pair_of(sale: Sale) -> tuple[str, int]:
    return sale.item, sale.number


@pytest.mark.parametrize(("sort", "place"), [(tuple[str, int], pair_of), (Item, item_of)])
def test_a_scan_may_read_the_tuples_with_the_same_first_parts(sort: Any, place: Any) -> None:
    asked = [Ask("a", "tea"), Ask("a", None), Ask("b", "te")]
    tea = [("tea", 1), ("tea", 2)]
    every = [("pot", 4), *tea, ("tent", 3)]
    assert prefixed(sort, place, "item", *asked) == [tea, every, []]
    asked = [Ask("a", "tea", 2), Ask("a", "tea", None)]
    assert prefixed(sort, place, ("item", "number"), *asked) == [[("tea", 2)], tea]


class Ranges(NamedTuple):
    entries: list[list[Place]]


def test_entries_of_several_ranges_may_have_a_class() -> None:
    job = sk.Job("entries")
    store = job.add(sk.KVStore("kv", key=str, value=str, sort=int))
    cells = job.source("cells", Cell)
    store.put(cells, key="part", sort="place", value=lambda cell: str(cell.place))
    store.multi_scan(
        cells, key="part", ranges=lambda cell: [(None, 5), (10, None)], into=Ranges
    ).sink("found")
    done = job.run({"cells": [Cell("a", 10)]})
    assert done.outputs["found"] == [Ranges([[], [Place(10, "10")]])]


def test_a_store_keeps_the_last_entries_only() -> None:
    job = sk.Job("last")
    store = job.add(sk.KVStore("kv", key=str, value=int, sort=int))
    cells = job.source("cells", Cell)
    store.put(cells, key="part", sort="place", value="place")
    store.trim(cells, key="part", keep=2).sink("trimmed")
    store.scan(cells, key="part").sink("kept")
    done = job.run({"cells": [Cell("a", place) for place in (4, 1, 3)]}, epoch_size=1)
    assert [answer.removed for answer in done.outputs["trimmed"]] == [0, 0, 1]
    assert [entry.sort for entry in done.outputs["kept"][-1].entries] == [3, 4]


def test_numbers_of_entries_may_be_as_large_as_an_int_is() -> None:
    job = sk.Job("numbers")
    store = job.add(sk.KVStore("kv", key=str, value=int, sort=int))
    cells, huge = job.source("cells", Cell), 2**63 - 1
    store.put(cells, key="part", sort="place", value="place")
    pages = store.scan(
        cells, key="part", limit=lambda cell: huge, offset=lambda cell: huge, after=lambda cell: 0
    )
    pages.sink("page")
    store.scan(cells, key="part", limit=10**30, name="all").sink("all")
    store.trim(cells, key="part", keep=10**30).sink("trimmed")
    done = job.run({"cells": [Cell("a", 1)]})
    assert [answer.entries for answer in done.outputs["page"]] == [[]]
    assert [entry.sort for answer in done.outputs["all"] for entry in answer.entries] == [1]
    assert [answer.removed for answer in done.outputs["trimmed"]] == [0]


@pytest.mark.parametrize("most", [-1, True])
def test_a_number_of_entries_that_is_none_is_an_error_that_names_the_operation(most: Any) -> None:
    job = sk.Job("numbers")
    store = job.add(sk.KVStore("kv", key=str, value=int, sort=int))
    cells = job.source("cells", Cell)
    store.scan(cells, key="part", limit=lambda cell: most).sink("found")
    with pytest.raises(sk.StateTypeError, match=r"scan"):
        job.run({"cells": [Cell("a", 1)]})
