"""Point-in-time reads of stores equal the answers of `get(as_of=)`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit import sources
from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError, StateTypeError

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOW = 60
SECONDS = pa.timestamp("s", "UTC")


class Put(NamedTuple):
    item: str
    value: int
    at: dt.datetime


class Removal(NamedTuple):
    item: str
    at: dt.datetime


class Question(NamedTuple):
    item: str
    then: dt.datetime
    at: dt.datetime


def minute(number: int) -> dt.datetime:
    return START + dt.timedelta(minutes=number)


puts = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9), st.integers(0, NOW - 1)),
    max_size=25,
)
questions = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(-5, NOW + 3)), min_size=1, max_size=20
)


def shop() -> sk.Job:
    job = sk.Job("shop")
    store = job.add(sk.KVStore("prices", key=str, value=int, event_time="at", history="40 minutes"))
    store.put(job.source("puts", Put), key="item", value="value")
    store.remove(job.source("removals", Removal), key="item")
    store.get(job.source("asked", Question), key="item", as_of="then").sink("answers")
    return job


def run_to_now(inputs: dict[str, list[Any]], checkpoint: Repository, **options: Any) -> list[Any]:
    """Run until the watermark is `NOW`, and return all answers."""
    last = {
        "puts": Put("z", 0, minute(NOW)),
        "removals": Removal("y", minute(NOW)),
        "asked": Question("z", minute(NOW), minute(NOW)),
    }
    shop().run({**inputs, "asked": []}, checkpoint=checkpoint, drain=False, **options)
    options["epoch_size"] = 100  # else the first question would make others late
    given, answers = dict(inputs), list[Any]()
    for _ in range(2):
        given = {name: [*records, last[name]] for name, records in given.items()}
        answers += shop().run(given, checkpoint=checkpoint, drain=False, **options)["answers"]
    return answers


def asked_of(questions: list[Question]) -> pa.Table:
    times = [question.then for question in questions]
    return pa.table(
        {
            "key": [question.item for question in questions],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


@settings(max_examples=12, deadline=None)
@given(puts=puts, questions=questions, shards=st.integers(1, 3), size=st.integers(1, 30))
def test_offline_and_online_agree(
    puts: list[Any], questions: list[Any], shards: int, size: int
) -> None:
    puts = sorted(puts, key=lambda put: put[2])
    asked = [Question(item, minute(then), minute(NOW)) for item, then in questions]
    inputs: dict[str, list[Any]] = {
        "puts": [Put(item, value, minute(at)) for item, value, at in puts if value is not None],
        "removals": [Removal(item, minute(at)) for item, value, at in puts if value is None],
        "asked": asked,
    }
    checkpoint = Repository.in_memory()
    answers = run_to_now(inputs, checkpoint, parallelism=shards, epoch_size=size)
    online = {
        (answer.key, answer.as_of): (answer.value, answer.status)
        for answer in answers
        if answer.key != "z"
    }
    assert online, "the store has answered"
    table = sk.read(checkpoint, "prices", "value", as_of=asked_of(asked)).read_all()
    assert {
        (row["key"], row["at"]): (row["value"], row["status"]) for row in table.to_pylist()
    } == online


def test_other_columns_are_kept_and_wrong_ones_refused() -> None:
    checkpoint = Repository.in_memory()
    run_to_now(
        {"puts": [Put("a", 5, minute(30))], "removals": [], "asked": []}, checkpoint, epoch_size=9
    )
    asked = asked_of([Question("a", minute(40), minute(NOW))]).append_column("value", [["label"]])
    (row,) = sk.read(checkpoint, "prices", "value", as_of=asked).read_all().to_pylist()
    assert (row["value"], row["value_value"], row["status"]) == ("label", 5, "found")
    for wrong, problem in (
        (asked.drop_columns("key"), "column key of type string is missing"),
        (asked.drop_columns("at"), "column at of type .* is missing"),
        (asked.set_column(0, "key", pa.array([None], pa.string())), "column key has nulls"),
    ):
        with pytest.raises(QueryError, match=problem):
            sk.read(checkpoint, "prices", "value", as_of=wrong)
    with pytest.raises(QueryError, match="has no past values"):
        sk.read(checkpoint, "prices", "since", as_of=asked)


def test_keys_and_times_are_taken_from_all_that_a_bootstrap_takes(tmp_path: Path) -> None:
    checkpoint = Repository.in_memory()
    run_to_now(
        {"puts": [Put("a", 5, minute(30))], "removals": [], "asked": []}, checkpoint, epoch_size=9
    )
    asked = asked_of([Question("a", minute(40), minute(NOW))])
    pq.write_table(asked, tmp_path / "asked.parquet")
    expected = sk.read(checkpoint, "prices", "value", as_of=asked).read_all()
    (batch,) = asked.to_batches()
    for origin in (
        batch,
        asked.to_reader(),
        asked.to_pandas(),
        tmp_path,
        sources.parquet(tmp_path, static=True),
    ):
        table = sk.read(checkpoint, "prices", "value", as_of=origin).read_all()
        assert table.to_pylist() == expected.to_pylist()
    none = sk.read(checkpoint, "prices", "value", as_of=asked.slice(0, 0)).read_all()
    assert (none.num_rows, none.schema) == (0, expected.schema)


def test_what_is_no_table_or_has_other_times_is_refused_with_a_typed_error() -> None:
    checkpoint = Repository.in_memory()
    run_to_now({"puts": [], "removals": [], "asked": []}, checkpoint, epoch_size=9)
    with pytest.raises(StateTypeError, match=r"the rows of as_of= are \[.*: give an Arrow table"):
        sk.read(checkpoint, "prices", "value", as_of=[("a", START)])
    for times in (pa.array([1500], pa.timestamp("ns", "UTC")), pa.array([1 << 60], SECONDS)):
        asked = pa.table({"key": ["a"], "at": times})
        with pytest.raises(QueryError, match="a value is not of its type: Casting"):
            sk.read(checkpoint, "prices", "value", as_of=asked)
    asked = asked_of([Question("a", START, START)])
    options: dict[str, Any]
    for options in ({"columns": ["value"]}, {"key": "a"}, {"wide_ints": True}):
        with pytest.raises(StateTypeError, match="leave out key=, columns="):
            sk.read(checkpoint, "prices", "value", as_of=asked, **options)
