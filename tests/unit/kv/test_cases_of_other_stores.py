"""What the tests of other key-value stores on streams expect, and where ours differs.

Stores of other systems take a put at exactly the watermark: ours is late there, as every record is.
Of two puts of one time they keep the one that arrived later: ours keeps the greater value, so that
the result does not depend on arrival.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk


def at(seconds: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


class Put(NamedTuple):
    key: str
    value: str
    at: dt.datetime


class Get(NamedTuple):
    key: str
    as_of: dt.datetime
    at: dt.datetime


def versions(lateness: str, **options: Any) -> sk.Job:
    job = sk.Job("versions")
    store = job.add(
        sk.KVStore(
            "store",
            key=str,
            value=str,
            event_time="at",
            lateness=lateness,
            history="1 hour",
            **options,
        )
    )
    store.put(job.source("puts", Put), key="key", value="value")
    store.get(job.source("gets", Get), key="key", as_of="as_of").sink("got")
    return job


def values(lateness: str, puts: list[int], asked: list[int]) -> dict[int, str | None]:
    """Put a value at each time, one per epoch, then ask for the values at some times."""
    run = versions(lateness).run(
        {
            "puts": [Put("a", f"v{time}", at(time)) for time in puts],
            "gets": [Get("a", at(time), at(100)) for time in asked],
        },
        epoch_size=1,
    )
    return {int((found.as_of - at(0)).total_seconds()): found.value for found in run.outputs["got"]}


def test_a_put_that_is_not_late_is_seen_from_its_time_on() -> None:
    assert values("6 seconds", [10, 5, 4], [5, 4]) == {5: "v5", 4: None}
    assert values("5 seconds", [10, 5, 4], [5, 4]) == {5: None, 4: None}, "5 is at the watermark"


def test_no_value_is_seen_before_the_first_put() -> None:
    assert values("10 seconds", [2, 5], [2, 1]) == {2: "v2", 1: None}


@pytest.mark.parametrize("arrived", [("x", "y"), ("y", "x")])
def test_of_two_puts_of_one_time_the_greater_value_stays(arrived: tuple[str, str]) -> None:
    puts = [Put("a", value, at(1)) for value in arrived]
    gets = [Get("a", at(0), at(9)), Get("a", at(1), at(9))]
    run = versions("0 seconds").run({"puts": puts, "gets": gets})
    assert [(found.value, found.status) for found in run.outputs["got"]] == [
        (None, "absent"),
        ("y", "found"),
    ]


@pytest.mark.parametrize("epoch_size", [1, 9])
@pytest.mark.parametrize("arrived", [("x", "y"), ("y", "x")])
def test_of_two_puts_of_one_time_the_one_that_arrived_later_stays_with_ties_by_arrival(
    arrived: tuple[str, str], epoch_size: int
) -> None:
    puts = [Put("a", value, at(1)) for value in arrived]
    job = versions("5 seconds", ties="arrival")
    run = job.run({"puts": puts, "gets": [Get("a", at(1), at(9))]}, epoch_size=epoch_size)
    assert [found.value for found in run.outputs["got"]] == [arrived[1]]


class Word(NamedTuple):
    key: str
    value: str


def words(*, fails: bool = False) -> sk.Job:
    """A store with puts, removals and gets, in this order."""
    job = sk.Job("words")
    store = job.add(sk.KVStore("store", key=str, value=str))
    puts = job.source("puts", Word)

    def changed(held: str | None, word: Word) -> str:
        if fails and word.value == "bad":
            raise ValueError("no such word")
        return word.value

    store.update(puts, changed, key="key").sink("put")
    store.remove(job.source("removals", Word), key="key").sink("removed")
    store.get(job.source("gets", Word), key="key").sink("got")
    return job


def given(**records: list[Word]) -> dict[str, list[Word]]:
    return {"puts": [], "removals": [], "gets": []} | records


def test_nothing_of_an_epoch_is_written_if_an_operation_fails(tmp_path: Path) -> None:
    puts = [Word("a", "good"), Word("b", "good"), Word("a", "new"), Word("b", "bad")]
    with pytest.raises(sk.ProcessError, match="no such word"):
        words(fails=True).run(given(puts=puts), checkpoint=tmp_path, epoch_size=2, drain=False)
    assert rows(tmp_path) == {"a": "good", "b": "good"}
    words().run(given(puts=puts), checkpoint=tmp_path, epoch_size=2, drain=False)
    assert rows(tmp_path) == {"a": "new", "b": "bad"}


def test_an_epoch_that_only_reads_stores_no_changes(tmp_path: Path) -> None:
    puts, gets = [Word("a", "x")], [Word("a", ""), Word("b", "")]
    words().run(given(puts=puts), checkpoint=tmp_path, drain=False)
    before = sorted(path.name for path in (tmp_path / "data").rglob("*"))
    run = words().run(given(puts=puts, gets=gets), checkpoint=tmp_path, drain=False)
    assert [found.value for found in run.outputs["got"]] == ["x", None]
    assert sorted(path.name for path in (tmp_path / "data").rglob("*")) == before


def test_a_put_and_a_removal_in_one_epoch_are_one_deletion(tmp_path: Path) -> None:
    puts = [Word("a", "x"), Word("a", "y"), Word("new", "z")]
    removals = [Word("a", ""), Word("a", ""), Word("new", "")]
    words().run(given(puts=puts[:1]), checkpoint=tmp_path, drain=False)
    run = words().run(given(puts=puts, removals=removals), checkpoint=tmp_path, drain=False)
    assert [found.value for found in run.outputs["removed"] if found.key == "a"] == ["y", None]
    with sk.feed(tmp_path, "store", "value", after=0) as epochs:
        ((change,),) = [[change for change in epoch if change.key == "a"] for epoch in epochs]
    assert change.op == "delete"
    assert rows(tmp_path) == {}


def rows(checkpoint: Path) -> dict[str, str]:
    table = sk.read(checkpoint, "store", "value").read_all()
    return {row["key"]: row["value"] for row in table.to_pylist()}
