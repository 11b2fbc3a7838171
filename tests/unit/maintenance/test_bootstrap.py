"""Bootstraps: the table of a state makes the same state again, and wrong rows are refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit import sources
from statekit.checkpoint.repository import Repository
from statekit.codec.value_codec import ValueCodec
from statekit.errors import BootstrapError, RestoreError, StateTypeError
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables import given_rows
from statekit.query.tables.read import StateTable, WideIntError
from tests.support import generated_types
from tests.support.effort import SOAK
from tests.support.generated_keys import KeyType, key_types
from tests.support.generated_types import Typed
from tests.support.key_types import KEY_TYPES, record_of, records_of

KEYED = ("one", "some", "by", "last", "least")
STATES = (*KEYED, "whole", "parts", "shared", "thing")
LISTS = ("some", "parts")


class Put(NamedTuple):
    """What the function writes for a key: its number in the values and the map keys."""

    key: int
    values: list[int]
    entries: list[int]


class Kept(NamedTuple):
    """A job that keeps values of one type in each kind of state, and the values."""

    job: sk.Job
    values: list[Any]
    map_keys: list[Any]


def class_of_objects(annotation: Any, values: list[Any]) -> Any:
    """A class for state of one plain object per shard, whose snapshot is a value."""

    class Thing:
        def __init__(self) -> None:
            self.held = values[0]

        def snapshot_state(self) -> Any:
            return self.held

        def restore_state(self, state: Any) -> None:
            self.held = state

    Thing.snapshot_state.__annotations__["return"] = annotation
    Thing.restore_state.__annotations__["state"] = annotation
    return Thing


def job_of(
    annotation: Any, map_key: Any, values: list[Any], map_keys: list[Any], *options: sk.TTL
) -> sk.Job:
    def keep(
        put: Put,
        one: Any,
        some: Any,
        by: Any,
        last: Any,
        least: Any,
        whole: Any,
        parts: Any,
        shared: Any,
        thing: Any,
    ) -> None:
        for number in put.values:
            thing.held = value = values[number]
            one.update(value)
            some.append(value)
            last.add(value)
            least.add(value)
            whole.update(value)
            parts.append(value)
            for entry in put.entries:
                by[map_keys[entry]] = value

    def told(put: Put, shared: Any) -> None:
        for number in put.values:
            for entry in put.entries:
                shared[map_keys[entry]] = values[number]

    aggregate = sk.Aggregate(
        create=lambda: values[0], add=lambda _, value: value, result=lambda value: value
    )
    last = sk.Reduce(lambda _, value: value)
    keyed = {
        "one": sk.ValueState[annotation],
        "some": sk.ListState[annotation],
        "by": sk.MapState[map_key, annotation],
        "last": Annotated[sk.ReducingState[annotation], last],
        "least": Annotated[sk.AggregatingState[annotation, annotation, annotation], aggregate],
    }
    for ttl in options:
        keyed = {name: Annotated[state, ttl] for name, state in keyed.items()}
    keep.__annotations__ |= {
        "put": Put,
        **keyed,
        "whole": sk.OperatorState[annotation],
        "parts": sk.OperatorListState[annotation],
        "shared": sk.BroadcastState[map_key, annotation],
        "thing": class_of_objects(annotation, values),
    }
    told.__annotations__ |= {"put": Put, "shared": keep.__annotations__["shared"]}
    process = sk.process(key="key")(keep)
    process.on_broadcast(told)
    job = sk.Job("kept")
    puts = job.source("puts", Put)
    puts.process(process, broadcast=job.source("told", Put))
    return job


@st.composite
def kept(draw: st.DrawFn) -> Kept:
    of: Typed = draw(generated_types.annotations())
    key_of: KeyType = draw(key_types())
    values = draw(st.lists(of.values, min_size=1, max_size=4))
    map_keys = draw(st.lists(key_of.keys, min_size=1, max_size=3))
    options = draw(st.sampled_from(((), (sk.TTL("1 day"),))))
    job = job_of(of.annotation, key_of.annotation, values, map_keys, *options)
    (spec, *_) = job.plan.operators[0].declared.states
    values[:] = stored_forms(spec.codec, values)
    assume(values)
    return Kept(job, values, map_keys)


def stored_forms(codec: ValueCodec[Any], values: list[Any]) -> list[Any]:
    """The values that the type can hold, as they are read: an int in a float is a float."""
    found = []
    for value in filter(codec.accepts, values):
        with contextlib.suppress(StateTypeError):
            found.append(codec.decode(codec.encode(value)))
    return found


def tables_of(checkpoint: Any, operator: str, states: typing.Iterable[str]) -> dict[str, pa.Table]:
    """Tables of states, with wide ints where they are needed."""
    found = {}
    for state in states:
        try:
            found[f"{operator}.{state}"] = sk.read(checkpoint, operator, state).read_all()
        except WideIntError:
            table = sk.read(checkpoint, operator, state, wide_ints=True).read_all()
            found[f"{operator}.{state}"] = table
    return found


def shown(tables: dict[str, pa.Table]) -> dict[str, tuple[pa.Schema, str]]:
    """Tables in a form in which NaN equals NaN."""
    return {name: (table.schema, repr(table.to_pylist())) for name, table in tables.items()}


def stored_rows_of(checkpoint: Any, operator: str, state: str) -> list[tuple[int, bytes, bytes]]:
    """Shards of operator state, row keys and rows as stored, without positions of list elements."""
    cut, found = -12 if state in LISTS else None, list[tuple[int, bytes, bytes]]()
    for keys, rows, shards in StateTable(CheckpointReader(checkpoint), operator, state).batches():
        parts = zip(shards or [0] * len(keys), keys, rows, strict=True)
        found += [(shard, key[:cut], row) for shard, key, row in parts]
    return found


@settings(max_examples=400 if SOAK else 20, deadline=None, suppress_health_check=list(HealthCheck))
@given(of=kept(), shards=st.integers(1, 5), data=st.data())
def test_state_to_table_to_bootstrap_to_state_is_the_identity_for_all_types(
    of: Kept, shards: int, data: st.DataObject
) -> None:
    numbers = st.lists(st.integers(0, len(of.values) - 1), max_size=3)
    entries = st.lists(st.integers(0, len(of.map_keys) - 1), max_size=2)
    puts = data.draw(st.lists(st.builds(Put, st.integers(0, 5), numbers, entries), min_size=1))
    first, second = Repository.in_memory(), Repository.in_memory()
    inputs = {"puts": puts, "told": puts}
    of.job.run(inputs, checkpoint=first, epoch_size=2, parallelism=shards)
    tables = tables_of(first, "keep", STATES)
    result = of.job.bootstrap(tables, checkpoint=second, parallelism=shards, refuse=1000)
    for table in result.refused.values():
        # JSON text does not say of which member of a union it is.
        assert all("in JSON it could be" in reason for reason in table["reason"].to_pylist())
    assume(not result.refused)
    assert shown(tables_of(second, "keep", STATES)) == shown(tables)
    for state in STATES:
        expected = sorted(stored_rows_of(first, "keep", state))
        assert sorted(stored_rows_of(second, "keep", state)) == expected


class Nothing(msgspec.Struct):
    """A class without fields, whose column is JSON text."""


def test_values_of_a_class_without_fields_are_filled() -> None:
    job = job_of(Nothing, bool, [Nothing()], [False])
    first, second = Repository.in_memory(), Repository.in_memory()
    job.run({"puts": [Put(0, [0], [0])], "told": [Put(0, [0], [0])]}, checkpoint=first)
    job.bootstrap(tables_of(first, "keep", STATES), checkpoint=second)
    for state in STATES:
        found = stored_rows_of(second, "keep", state)
        assert found == stored_rows_of(first, "keep", state)
        assert len(found) == 1


@pytest.mark.parametrize("name", KEY_TYPES)
@pytest.mark.parametrize("shards", [1, 4])
def test_keys_of_all_types_are_taken(name: str, shards: int) -> None:
    annotation, values = KEY_TYPES[name]

    def count(record: Any, n: sk.ValueState[int]) -> None:
        n.update((n.get() or 0) + record.n)

    count.__annotations__ |= {"record": record_of(annotation), "n": sk.ValueState[int]}
    job = sk.Job("keys")
    job.source("records", record_of(annotation)).process(sk.process(key="key")(count))
    first, second = Repository.in_memory(), Repository.in_memory()
    records = records_of(annotation, values)
    job.run({"records": records}, checkpoint=first, drain=False)
    tables = tables_of(first, "count", ["n"])
    job.bootstrap(tables, checkpoint=second, parallelism=shards)
    assert sorted(stored_rows_of(second, "count", "n")) == sorted(
        stored_rows_of(first, "count", "n")
    )
    job.run({"records": [*records, *records]}, checkpoint=first)
    job.run({"records": records}, checkpoint=second)
    assert tables_of(second, "count", ["n"]) == tables_of(first, "count", ["n"])


# ------------------------------------------------------------------ jobs that continue


class Order(NamedTuple):
    customer: str
    cents: int
    at: dt.datetime


START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


AVERAGE = sk.Aggregate[int, tuple[int, int], float](
    create=lambda: (0, 0),
    add=lambda accumulator, value: (accumulator[0] + value, accumulator[1] + 1),
    result=lambda accumulator: accumulator[0] / accumulator[1],
)


@sk.process(key="customer", event_time="at")
def spent(
    order: Order,
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
    mean: Annotated[sk.AggregatingState[int, tuple[int, int], float], AVERAGE],
    seen: Annotated[sk.ListState[int], sk.TTL("1 day", clock="event")],
    last: Annotated[sk.MapState[int, Order], sk.TTL("30 days")],
) -> Iterator[tuple[str, int, float, list[int], list[int]]]:
    total.add(order.cents)
    mean.add(order.cents)
    seen.append(order.cents)
    last[order.cents % 3] = order
    yield order.customer, total.get() or 0, mean.get() or 0.0, list(seen), sorted(last)


def shop() -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order).process(spent).sink("out")
    return job


def orders(first: int, count: int) -> list[Order]:
    numbers = range(first, first + count)
    return [Order(f"c{n % 7}", n, START + dt.timedelta(minutes=n)) for n in numbers]


SPENT = ("total", "mean", "seen", "last")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_job_continues_as_if_it_had_made_the_state(shards: int) -> None:
    first, second = Repository.in_memory(), Repository.in_memory()
    shop().run({"orders": orders(0, 100)}, checkpoint=first, drain=False)
    tables = tables_of(first, "spent", SPENT)
    result = shop().bootstrap(tables, checkpoint=second, parallelism=shards)
    assert result.rows == {name: table.num_rows for name, table in tables.items()}
    assert tables_of(second, "spent", SPENT) == tables
    later = orders(100, 60)
    expected = shop().run({"orders": [*orders(0, 100), *later]}, checkpoint=first)
    actual = shop().run({"orders": later}, checkpoint=second)
    assert sorted(actual["out"], key=repr) == sorted(expected["out"], key=repr)
    assert actual.last_epoch == 2, "the bootstrap, the records, the end of event time"


def test_rows_expire_as_they_would_have() -> None:
    first, second = Repository.in_memory(), Repository.in_memory()
    shop().run({"orders": orders(0, 10)}, checkpoint=first, drain=False)
    shop().bootstrap(tables_of(first, "spent", SPENT), checkpoint=second)
    later = [Order("c9", 1, START + dt.timedelta(days=day)) for day in (3, 4)]
    shop().run({"orders": later}, checkpoint=second, epoch_size=1, drain=False)
    left = sk.read(second, "spent", "seen").read_all()
    assert left["customer"].to_pylist() == ["c9", "c9"]
    (operator,) = CheckpointReader(second).manifest.operators.values()
    assert operator.rows["seen"] == 2, "the index of expiry found the rows"


def test_states_that_are_not_given_are_empty() -> None:
    checkpoint = Repository.in_memory()
    shop().bootstrap(
        "spent.total", pa.table({"customer": ["c0"], "value": [5]}), checkpoint=checkpoint
    )
    out = shop().run({"orders": [Order("c0", 1, START)]}, checkpoint=checkpoint)["out"]
    assert out == [("c0", 6, 1.0, [1], [1])]


class Reading(NamedTuple):
    room: str
    hour: int
    degrees: float


def test_a_sorted_store_is_filled() -> None:
    def rooms() -> sk.Job:
        job = sk.Job("rooms")
        store = job.add(sk.KVStore("rooms", key=str, sort=int, value=float))
        store.put(job.source("readings", Reading), key="room", sort="hour", value="degrees")
        return job

    readings = [Reading(f"r{n % 5}", n, n / 2) for n in range(40)]
    first, second = Repository.in_memory(), Repository.in_memory()
    rooms().run({"readings": readings}, checkpoint=first)
    tables = tables_of(first, "rooms", ["values"])
    rooms().bootstrap(tables, checkpoint=second, parallelism=2)
    assert tables_of(second, "rooms", ["values"]) == tables


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (int | str, [1, "2", "x"]),
        (bool | int, [True, 1]),
        (int | None | str, [1, None, "x"]),
        (float | str, [1.5, "x"]),
        (int | float, [1, 2.5]),
        (dt.date | str, [dt.date(2026, 1, 2), "x"]),
        (uuid.UUID | int, [uuid.UUID(int=5), 5]),
        (list[int | str], [[1, "2"]]),
        (dict[str, int | str], [{"a": 1, "b": "2"}]),
    ],
)
def test_values_of_unions_of_scalars_are_taken_if_only_one_member_has_their_json(
    annotation: Any, values: list[Any]
) -> None:
    job = job_of(annotation, str, values, ["k"])
    first, second = Repository.in_memory(), Repository.in_memory()
    puts = [Put(number, [number], [0]) for number in range(len(values))]
    job.run({"puts": puts, "told": []}, checkpoint=first)
    tables = tables_of(first, "keep", KEYED)
    refusable = sum(type(value) is dt.date for value in values)  # a text has the same JSON
    result = job.bootstrap(tables, checkpoint=second, refuse=len(KEYED) * refusable)
    assert set(result.rows.values()) == {len(values) - refusable}
    for state in KEYED:
        missing = set(stored_rows_of(first, "keep", state))
        missing -= set(stored_rows_of(second, "keep", state))
        assert len(missing) == refusable


# ----------------------------------------------------------------------------- refused rows


def test_rows_that_do_not_fit_are_refused_with_their_reasons() -> None:
    at = pa.array([START] * 6, pa.timestamp("us", "UTC"))
    table = pa.table(
        {
            "key_customer": ["a", None, "a", "b", "c", "d"],
            "map_key": [1, 1, 1, 1, None, 1],
            "customer": ["a", "a", "a", None, "c", "d"],
            "cents": pa.array([1, 2, 3, 4, 5, 6], pa.int16()),
            "at": at,
            "written": at,
            "note": list("uvwxyz"),
        }
    )
    checkpoint = Repository.in_memory()
    with pytest.raises(BootstrapError, match="Nothing is committed") as raised:
        shop().bootstrap("spent.last", table, checkpoint=checkpoint, refuse=3)
    assert raised.value.refused["spent.last"].num_rows == 4
    assert checkpoint.latest_epoch() is None
    result = shop().bootstrap("spent.last", table, checkpoint=checkpoint, refuse=4)
    refused = result.refused["spent.last"]
    assert result.rows == {"spent.last": 2}
    assert refused.drop_columns("reason") == table.take([1, 2, 3, 4])
    reasons = refused["reason"].to_pylist()
    assert "a key of type str cannot be None" in reasons[0]
    assert reasons[1] == "a row before has the same key"
    assert "customer" in reasons[2]
    assert "a key of type int cannot be None" in reasons[3]


def test_refused_rows_of_files_with_other_schemas_are_in_one_table(tmp_path: Path) -> None:
    twice = pa.table({"customer": ["a", "a"], "value": pa.array([1, 2], pa.int32())})
    once = pa.table({"customer": ["a"], "value": [3]})
    pq.write_table(twice.append_column("note", [["u", "v"]]), tmp_path / "a.parquet")
    pq.write_table(once.append_column("note", [[5]]), tmp_path / "b.parquet")
    checkpoint = Repository.in_memory()
    with pytest.raises(BootstrapError, match="2 rows so far cannot be stored") as raised:
        shop().bootstrap("spent.total", tmp_path, checkpoint=checkpoint, refuse=1)
    assert checkpoint.latest_epoch() is None
    result = shop().bootstrap("spent.total", tmp_path, checkpoint=checkpoint, refuse=2)
    for refused in (raised.value.refused, result.refused):
        assert refused["spent.total"].select(["customer", "value", "note"]).to_pylist() == [
            {"customer": "a", "value": "2", "note": "v"},
            {"customer": "a", "value": "3", "note": "5"},
        ]


def test_the_column_of_reasons_has_a_name_that_no_column_has() -> None:
    table = pa.table(
        {"customer": ["a"] * 2, "value": [1, 2], "reason": list("xy"), "refused_reason": list("xy")}
    )
    result = shop().bootstrap("spent.total", table, checkpoint=Repository.in_memory(), refuse=1)
    assert result.refused["spent.total"].column_names[-1] == "refused_refused_reason"


def test_times_that_python_cannot_hold_are_refused_rows() -> None:
    at = pa.array([1 << 40, 2000], pa.timestamp("s", "UTC"))
    for annotation, key in ((dt.datetime, str), (str, dt.datetime)):
        job = job_of(annotation, key, [START if annotation is dt.datetime else "x"], ["k"])
        table = pa.table(
            {
                "key": [1, 2],
                "map_key": at if key is dt.datetime else ["k", "k"],
                "value": at if annotation is dt.datetime else ["x", "x"],
            }
        )
        result = job.bootstrap("keep.by", table, checkpoint=Repository.in_memory(), refuse=1)
        assert result.rows == {"keep.by": 1}
        assert "out of range" in result.refused["keep.by"]["reason"][0].as_py()


NO_ROWS = pa.table({"customer": pa.array([], pa.string()), "value": pa.array([], pa.int64())})


def test_columns_are_checked_without_rows_and_nothing_at_all_is_refused(tmp_path: Path) -> None:
    checkpoint = Repository.in_memory()
    with pytest.raises(BootstrapError, match="column value of type int64 is missing"):
        shop().bootstrap("spent.total", NO_ROWS.drop_columns("value"), checkpoint=checkpoint)
    read_already = TOTALS.to_reader()
    read_already.read_all()
    for nothing in (read_already, sources.arrow(tmp_path, static=True)):
        with pytest.raises(StateTypeError, match="from a reader or a source that has none"):
            shop().bootstrap("spent.total", nothing, checkpoint=checkpoint)
    assert checkpoint.latest_epoch() is None
    result = shop().bootstrap("spent.total", NO_ROWS, checkpoint=checkpoint)
    assert result.rows == {"spent.total": 0}


def test_arguments_that_are_not_valid_are_refused_before_anything_is_read() -> None:
    job, checkpoint = shop(), Repository.in_memory()
    for states, options, problem in (
        ({}, {}, "no state is given"),
        ({"spent.total": TOTALS}, {"from_": TOTALS}, "leave out one of them"),
        ("spent.total", {"from_": TOTALS, "refuse": None}, "refuse=None: give a number of rows"),
        ("spent.total", {"from_": TOTALS, "refuse": -1}, "refuse=-1: give a number of rows"),
        ("spent.total", {"from_": TOTALS, "checkpoint": None}, "checkpoint=None: give a directory"),
    ):
        with pytest.raises(StateTypeError, match=problem):
            job.bootstrap(states, **{"checkpoint": checkpoint, **options})
    assert checkpoint.latest_epoch() is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (pa.table({"customer": ["a"]}), "column value of type int64 is missing"),
        (pa.table({"customer": ["a"], "value": ["5"]}), "value is of type string, and must be"),
        (pa.table({"customer": [1], "value": [5]}), "customer is of type int64, and must be"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_are_refused(
    table: pa.Table, problem: str
) -> None:
    checkpoint = Repository.in_memory()
    with pytest.raises(BootstrapError, match=problem):
        shop().bootstrap("spent.total", table, checkpoint=checkpoint, refuse=100)
    assert checkpoint.latest_epoch() is None


TOTALS = pa.table({"customer": ["a", "b"], "value": [1, 2]})


def test_a_checkpoint_with_epochs_is_refused() -> None:
    checkpoint = Repository.in_memory()
    shop().bootstrap("spent.total", TOTALS, checkpoint=checkpoint)
    with pytest.raises(RestoreError, match="has epochs up to 0, and a bootstrap makes the first"):
        shop().bootstrap("spent.total", TOTALS, checkpoint=checkpoint)


def test_states_that_no_table_can_fill_are_refused() -> None:
    with pytest.raises(StateTypeError, match=r"it has spent\.total, spent\.mean"):
        shop().bootstrap("spent.sum", TOTALS, checkpoint=Repository.in_memory())
    job = sk.Job("windows")
    hours = job.source("orders", Order).window(
        sk.tumbling("1 hour"), key="customer", event_time="at"
    )
    hours.aggregate(n=sk.Count())
    name = f"{job.plan.operators[0].name}.{job.plan.operators[0].declared.states[0].name}"
    with pytest.raises(StateTypeError, match="depend on the options of the operator"):
        job.bootstrap(name, TOTALS, checkpoint=Repository.in_memory())


# ------------------------------------------------------------------------ where rows are from


def test_tables_are_read_from_files_sources_and_frames(tmp_path: Path) -> None:
    pq.write_table(TOTALS, tmp_path / "totals.parquet")
    origins = [
        TOTALS,
        TOTALS.to_batches()[0],
        TOTALS.to_reader(),
        TOTALS.to_pandas(),
        tmp_path,
        str(tmp_path / "totals.parquet"),
        sources.parquet(tmp_path, static=True),
    ]
    for origin in origins:
        checkpoint = Repository.in_memory()
        shop().bootstrap("spent.total", origin, checkpoint=checkpoint)
        assert sk.read(checkpoint, "spent", "total").read_all().to_pylist() == TOTALS.to_pylist()
    for wrong in (sources.parquet(tmp_path), 5):
        with pytest.raises(StateTypeError, match="Nothing was read"):
            shop().bootstrap("spent.total", wrong, checkpoint=Repository.in_memory())


def test_keys_are_found_again_among_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_rows, "_BATCH_ROWS", 7)
    names = [f"c{n}" for n in range(500)]
    table = pa.table({"customer": [*names, *names[::50]], "value": range(510)})
    checkpoint = Repository.in_memory()
    result = shop().bootstrap("spent.total", table, checkpoint=checkpoint, refuse=10)
    assert result.refused["spent.total"]["value"].to_pylist() == list(range(500, 510))
    assert sk.read(checkpoint, "spent", "total").read_all().num_rows == 500
