"""The columns of a savepoint, as tools see them that know nothing of statekit."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.maintenance.savepoint import write as writing
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.tables.table import column_names
from statekit.testing import Harness
from tests.support.all_row_kinds import START, Step, keep, keep_in_order, stored


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Leg:
    origin: str
    minutes: float | None = None
    stops: list[str] = field(default_factory=list)


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list)


class Point(NamedTuple):
    x: int
    y: int


UTC_NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
ID = uuid.UUID(int=5)

VALUES: list[tuple[Any, Any, pa.DataType, Any]] = [
    (int, -5, pa.int64(), -5),
    (bool, True, pa.bool_(), True),
    (float, 1.5, pa.float64(), 1.5),
    (float, 3, pa.float64(), 3.0),
    (str, "ü\x00", pa.string(), "ü\x00"),
    (bytes, b"\x00\xff", pa.binary(), b"\x00\xff"),
    (dt.date, dt.date(1, 1, 1), pa.date32(), dt.date(1, 1, 1)),
    (dt.datetime, UTC_NOON, pa.timestamp("us", "UTC"), UTC_NOON),
    (
        dt.timedelta,
        dt.timedelta(days=-1, microseconds=1),
        pa.duration("us"),
        dt.timedelta(days=-1, microseconds=1),
    ),
    (decimal.Decimal, decimal.Decimal("1.50"), pa.string(), "1.50"),
    (uuid.UUID, ID, pa.string(), str(ID)),
    (Color, Color.BLUE, pa.string(), "b"),
    (Literal[1, 2], 2, pa.int64(), 2),
    (Literal["a", 1], 1, pa.string(), "1"),
    (list[int], [1, 2], pa.list_(pa.int64()), [1, 2]),
    (set[str], {"b", "a"}, pa.list_(pa.string()), ["a", "b"]),
    (tuple[int, ...], (1, 2), pa.list_(pa.int64()), [1, 2]),
    (
        tuple[int, str],
        (1, "a"),
        pa.struct([("_1", pa.int64()), ("_2", pa.string())]),
        {"_1": 1, "_2": "a"},
    ),
    (tuple[()], (), pa.string(), "[]"),
    (Point, Point(1, 2), pa.struct([("x", pa.int64()), ("y", pa.int64())]), {"x": 1, "y": 2}),
    (dict[str, int], {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (
        dict[dt.date, Color],
        {dt.date(2013, 1, 1): Color.RED},
        pa.map_(pa.date32(), pa.string()),
        [(dt.date(2013, 1, 1), "r")],
    ),
    (dict[tuple[int, int], int], {(1, 2): 3}, pa.string(), "[[[1,2],3]]"),
    (
        Leg,
        Leg("JFK", None, ["LGA"]),
        pa.struct(
            [("origin", pa.string()), ("minutes", pa.float64()), ("stops", pa.list_(pa.string()))]
        ),
        {"origin": "JFK", "minutes": None, "stops": ["LGA"]},
    ),
    (int | None, None, pa.int64(), None),
    (list[int | None], [1, None], pa.list_(pa.int64()), [1, None]),
    (int | str, "a", pa.string(), '"a"'),
    (str | uuid.UUID, ID, pa.string(), f'"{ID}"'),
    (
        Node,
        Node("a", [Node("b")]),
        pa.struct([("name", pa.string()), ("below", pa.list_(pa.string()))]),
        {"name": "a", "below": ['{"name":"b","below":[]}']},
    ),
    (int, 2**64 - 1, pa.decimal128(20, 0), decimal.Decimal(2**64 - 1)),
    (list[int], [2**63], pa.list_(pa.decimal128(20, 0)), [decimal.Decimal(2**63)]),
]


class Keyed(NamedTuple):
    key: str


def table(path: Path, harness: Harness, family: str) -> pa.Table:
    made = write_savepoint(harness._repository, "s")
    operator = harness.process.name
    folder = path / f"savepoints/s/state.{made.id}" / operator / family
    return ds.dataset(folder, format="parquet").to_table()


@pytest.mark.parametrize(("annotation", "value", "kind", "shown"), VALUES)
def test_a_value_has_the_type_that_tools_expect(
    tmp_path: Path, annotation: Any, value: Any, kind: pa.DataType, shown: Any
) -> None:
    @sk.process(key="key")
    def hold(record: Keyed, held: sk.ValueState[annotation]) -> None:
        held.update(value)

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Keyed("k"))
    found = table(tmp_path, harness, "held")
    assert found.schema.field("value").type == kind
    assert found["value"].to_pylist() == [shown]
    assert found["key"].to_pylist() == ["k"]
    again = Harness.restore(hold, tmp_path / "savepoints/s", key_groups=3)
    assert again.state("held", "k") == value


def test_pickled_values_are_null_and_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was unpickled",)

    @sk.process(key="key")
    def hold(record: Keyed, held: Annotated[sk.ValueState[Bomb], sk.PickleCodec()]) -> None:
        held.update(Bomb())

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Keyed("k"))
    found = table(tmp_path, harness, "held")
    assert found["value"].to_pylist() == [None]
    target = Repository.in_memory()
    import_savepoint(Savepoint.at(tmp_path / "savepoints/s"), target)
    assert stored(target) == stored(harness._repository)


def test_keys_of_plain_dicts_are_json_text_as_their_type_is_not_known(tmp_path: Path) -> None:
    @sk.process(key=("a", "b"))
    def hold(record: dict[str, Any], held: sk.ValueState[int]) -> None:
        held.update(1)

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send({"a": 5, "b": "x"})
    found = table(tmp_path, harness, "held").select(["a", "b"])
    assert found.to_pylist() == [{"a": "5", "b": '"x"'}]


@pytest.mark.parametrize(
    ("annotation", "key", "shown"),
    [
        (int, -1, -1),
        (uuid.UUID, ID, str(ID)),
        (dt.timedelta, dt.timedelta(seconds=1), dt.timedelta(seconds=1)),
        (dt.date, dt.date(2013, 1, 1), dt.date(2013, 1, 1)),
        (Color, Color.RED, "r"),
        (tuple[int, str], (1, "a"), {"_1": 1, "_2": "a"}),
        (tuple[int, ...], (1, 2), [1, 2]),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (str | None, None, None),
        (float, 1.5, 1.5),
    ],
)
def test_a_key_of_a_map_has_the_type_that_tools_expect(
    tmp_path: Path, annotation: Any, key: Any, shown: Any
) -> None:
    @sk.process(key="key")
    def hold(record: Keyed, held: sk.MapState[annotation, int]) -> None:
        held[key] = 1

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Keyed("k"))
    assert table(tmp_path, harness, "held")["map_key"].to_pylist() == [shown]


def test_a_key_has_a_column_per_field(tmp_path: Path) -> None:
    class Flight(NamedTuple):
        carrier: str
        number: int | None
        day: dt.date

    @sk.process(key=("carrier", "number", "day"))
    def hold(flight: Flight, seen: sk.ValueState[int]) -> None:
        seen.update(1)

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Flight("UA", 1545, dt.date(2013, 1, 1)), Flight("AA", None, dt.date(2013, 1, 2)))
    found = table(tmp_path, harness, "seen")
    assert found.column_names == ["carrier", "number", "day", "value", "_key", "_subkey", "_row"]
    rows = found.select(["carrier", "number", "day"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        ("AA", None, dt.date(2013, 1, 2)),
        ("UA", 1545, dt.date(2013, 1, 1)),
    ]


def test_fields_of_a_key_whose_names_are_taken_get_a_prefix(tmp_path: Path) -> None:
    @dataclass
    class Clash:
        value: int
        POSITION: int
        key_value: str

    @sk.process(key=("value", "POSITION", "key_value"))
    def hold(record: Clash, seen: sk.ListState[str]) -> None:
        seen.append("x")

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Clash(1, 2, "three"), Clash(1, 2, "three"))
    found = table(tmp_path, harness, "seen").drop_columns(["_key", "_subkey", "_row"])
    common = {"key_value": 1, "key_POSITION": 2, "key_key_value": "three", "value": "x"}
    assert found.to_pylist() == [{**common, "position": 0}, {**common, "position": 1}]


@given(st.lists(st.sampled_from(["a", "A", "value", "key_a", "_row"]), unique=True))
def test_names_of_columns_never_clash(wanted: list[str]) -> None:
    found = column_names(wanted, ["value", "_row"], "key_")
    assert len({name.lower() for name in [*found, "value", "_row"]}) == len(wanted) + 2
    assert len(found) == len(wanted)


def test_timers_and_times_of_writing_are_columns(tmp_path: Path) -> None:
    harness = Harness(keep, checkpoint=tmp_path)
    harness.advance_processing_time(START)
    harness.send(Step("a", 3, START))
    timers = table(tmp_path, harness, "_timers")
    rows = timers.select(["key", "timer", "clock", "at"]).to_pylist()
    assert rows == [
        {"key": "a", "timer": "t1", "clock": "event", "at": START + dt.timedelta(seconds=3)},
        {
            "key": "a",
            "timer": "default",
            "clock": "processing",
            "at": START + dt.timedelta(seconds=21),
        },
    ]
    folder = next((tmp_path / "savepoints/s").glob("state.*")) / "keep"
    seen = ds.dataset(folder / "seen").to_table()
    assert seen["written"].to_pylist() == [START]
    by_n = ds.dataset(folder / "by_n").to_table().select(["key", "map_key", "value"])
    assert by_n.to_pylist() == [{"key": "a", "map_key": 0, "value": "3"}]


def test_buffered_records_are_columns(tmp_path: Path) -> None:
    harness = Harness(keep_in_order, checkpoint=tmp_path)
    step = Step("a", 3, START)
    harness.send(step)
    found = table(tmp_path, harness, "_waiting").select(["key", "at", "value"])
    assert found.to_pylist() == [{"key": "a", "at": START, "value": step._asdict()}]


def test_a_table_without_rows_shows_its_columns(tmp_path: Path) -> None:
    harness = Harness(keep_in_order, checkpoint=tmp_path)
    harness.send(Step("a", 3, START))
    found = table(tmp_path, harness, "seen")
    assert found.num_rows == 0
    assert found.schema.names == ["key", "position", "value", "written", "_key", "_subkey", "_row"]


class Number(NamedTuple):
    key: str
    n: int


@sk.process(key="key")
def numbers(record: Number, seen: sk.ListState[int], by_n: sk.MapState[str, list[int]]) -> None:
    seen.append(record.n)
    by_n[str(record.n)] = [record.n]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([-(2**63), -1, 0, 2**63 - 1, 2**63])),
        max_size=12,
    ),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 60]),
)
def test_ints_of_any_size_come_at_any_place(
    records: list[tuple[str, int]], rows_per_group: int, bytes_per_file: int
) -> None:
    """Files that were begun with narrow columns are written again with wide ones."""
    harness = Harness(numbers)
    harness.send(*(Number(*record) for record in records))
    repository = harness._repository
    with (
        mock.patch.object(writing, "_GROUP_ROWS_MAX", rows_per_group),
        mock.patch.object(writing, "_PART_BYTES_MAX", bytes_per_file),
    ):
        made = write_savepoint(repository, "s")
    wide = any(n >= 2**63 for _, n in records)
    paths = [file.path for file in made.operators["numbers"].states["seen"].files]
    tables = list(_tables(repository, paths))
    expected = pa.decimal128(20, 0) if wide else pa.int64()
    assert {found.schema.field("value").type for found in tables} == {expected}
    found = pa.concat_tables(tables).to_pylist()
    for key in "abc":
        values = [n for other, n in records if other == key]
        rows = [row for row in found if row["key"] == key]
        assert [int(row["value"]) for row in rows] == values
        assert [row["position"] for row in rows] == list(range(len(values)))
    stale = set(repository.tree("savepoints/s")) - {f"savepoints/s/{path}" for path in _all(made)}
    assert stale == {"savepoints/s/savepoint.json"}
    target = Repository.in_memory()
    import_savepoint(Savepoint(repository, "savepoints/s"), target, key_groups=2)
    assert stored(target) == stored(repository)


def _all(made: Any) -> Iterator[str]:
    for operator in made.operators.values():
        for contents in operator.states.values():
            yield from (file.path for file in contents.files)


def _tables(repository: Repository, paths: list[str]) -> Iterator[pa.Table]:
    for path in paths:
        data = repository.read(f"savepoints/s/{path}")
        yield pq.read_table(pa.BufferReader(data))


def test_json_text_is_json_even_for_numbers_that_json_lacks(tmp_path: Path) -> None:
    @sk.process(key="key")
    def hold(record: Keyed, held: sk.ValueState[float | str]) -> None:
        held.update(float("nan"))

    harness = Harness(hold, checkpoint=tmp_path)
    harness.send(Keyed("k"))
    (text,) = table(tmp_path, harness, "held")["value"].to_pylist()
    assert json.loads(text) == "NaN"
