"""Point-in-time reads of stores equal the answers of `get(as_of=)`."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from operator import itemgetter
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
from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError
from statekit.query.tables import as_of
from statekit.working_copy import unpacked_shard
from tests.support.effort import SOAK

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOW = 60
HISTORY = 40
KEYS = ("", "a", "a\0", "b", "ü")
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
    st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9), st.integers(0, NOW - 1)),
    max_size=25,
)
questions = st.lists(
    st.tuples(st.sampled_from((*KEYS, "never")), st.integers(-5, NOW + 3)), min_size=1, max_size=20
)


def shop(minutes: int = HISTORY) -> sk.Job:
    job = sk.Job("shop")
    history = f"{minutes} minutes"
    store = job.add(sk.KVStore("prices", key=str, value=int, event_time="at", history=history))
    store.put(job.source("puts", Put), key="item", value="value")
    store.remove(job.source("removals", Removal), key="item")
    store.get(job.source("asked", Question), key="item", as_of="then").sink("answers")
    return job


def inputs_of(puts: list[Any]) -> dict[str, list[Any]]:
    """Records of values, and of removals, which are None."""
    puts = sorted(puts, key=itemgetter(2))
    return {
        "puts": [Put(item, value, minute(at)) for item, value, at in puts if value is not None],
        "removals": [Removal(item, minute(at)) for item, value, at in puts if value is None],
    }


def run_to_now(
    inputs: dict[str, list[Any]], checkpoint: Repository, earlier: int = HISTORY, **options: Any
) -> list[Any]:
    """Run until the watermark is `NOW`, and return all answers.

    Parameters:
        earlier: the history of the first run, in minutes.
    """
    last = {
        "puts": Put("z", 0, minute(NOW)),
        "removals": Removal("y", minute(NOW)),
        "asked": Question("z", minute(NOW), minute(NOW)),
    }
    shop(earlier).run({**inputs, "asked": []}, checkpoint=checkpoint, drain=False, **options)
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


@contextlib.contextmanager
def small_limits(*, on_disk: bool) -> Iterator[None]:
    """Few requests in a block, and shards in RocksDB also if they are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_of, "_BLOCK_REQUESTS", 3)
        if on_disk:
            patch.setattr(unpacked_shard, "_FEW_BYTES", 0)
        yield


@settings(max_examples=200 if SOAK else 12, deadline=None)
@given(
    puts=puts,
    questions=questions,
    shards=st.integers(1, 3),
    size=st.integers(1, 30),
    earlier=st.sampled_from((HISTORY, 10)),
)
def test_offline_and_online_agree_also_after_a_longer_history(
    puts: list[Any], questions: list[Any], shards: int, size: int, earlier: int
) -> None:
    asked = [Question(item, minute(then), minute(NOW)) for item, then in questions]
    inputs = {**inputs_of(puts), "asked": asked}
    checkpoint = Repository.in_memory()
    answers = run_to_now(inputs, checkpoint, earlier, parallelism=shards, epoch_size=size)
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


def model(puts: list[Any], item: str, then: int) -> tuple[int | None, str]:
    """The value of a key at a time, and its status, as the documentation of stores has them."""
    if then > NOW:
        return None, "not yet"
    if then < NOW - HISTORY:
        return None, "too old"
    # Those of one time run in the order of operations, puts first, and then of their fields.
    ordered = sorted(
        (at, value is None, value or 0, value) for key, value, at in puts if key == item
    )
    value = next((value for at, *_, value in reversed(ordered) if at <= then), None)
    return value, "absent" if value is None else "found"


@settings(max_examples=500 if SOAK else 20, deadline=None)
@given(
    puts=puts,
    questions=questions,
    shards=st.integers(1, 5),
    size=st.integers(1, 30),
    on_disk=st.booleans(),
)
def test_values_at_times_equal_those_of_a_plain_model(
    puts: list[Any], questions: list[Any], shards: int, size: int, on_disk: bool
) -> None:
    checkpoint = Repository.in_memory()
    run_to_now({**inputs_of(puts), "asked": []}, checkpoint, parallelism=shards, epoch_size=size)
    asked = [Question(item, minute(then), minute(NOW)) for item, then in questions]
    with small_limits(on_disk=on_disk):
        table = sk.read(checkpoint, "prices", "value", as_of=asked_of(asked)).read_all()
    found = list(zip(table["value"].to_pylist(), table["status"].to_pylist(), strict=True))
    assert found == [model(puts, item, then) for item, then in questions]


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
    with pytest.raises(
        StateTypeError, match=r"the rows of as_of= are \('a', .*: give an Arrow table"
    ):
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


def test_a_damaged_file_is_named_with_the_state(tmp_path: Path) -> None:
    puts = [Put("a", 5, minute(30))]
    run_to_now({"puts": puts, "removals": [], "asked": []}, Repository(tmp_path), epoch_size=9)
    asked = asked_of([Question("a", minute(40), minute(NOW))])
    for file in tmp_path.glob("data/prices/*.changes.arrow"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"prices.value in epoch .*changes.arrow"):
        sk.read(tmp_path, "prices", "value", as_of=asked)
