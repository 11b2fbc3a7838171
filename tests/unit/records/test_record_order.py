"""Orders of records: Python and Arrow agree on the first records of groups."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.records.record_order import RecordOrder
from statekit.records.record_type import RecordType

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Row(NamedTuple):
    group: int
    whole: int | None
    real: float | None
    text: str
    flag: bool
    data: bytes | None
    price: decimal.Decimal | None
    at: dt.datetime
    day: dt.date
    took: dt.timedelta | None


ROWS = st.builds(
    Row,
    st.integers(0, 4),
    st.none() | st.integers(-2, 2),
    st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["", "a", "é", "\U0001f600", "\uffff"]),
    st.booleans(),
    st.none() | st.binary(max_size=2),
    st.none() | st.sampled_from([decimal.Decimal(n) for n in ("-1.50", "0", "1.5", "2")]),
    st.sampled_from([START, START - dt.timedelta(days=40_000), START + dt.timedelta(seconds=1)]),
    st.sampled_from([dt.date(2026, 1, 1), dt.date(1969, 12, 31)]),
    st.none() | st.integers(-2, 2).map(lambda n: dt.timedelta(seconds=n)),
)
TYPE = RecordType.of(Row, where="test")
STRUCT = pa.struct(
    {
        "group": pa.int64(),
        "whole": pa.int64(),
        "real": pa.float64(),
        "text": pa.string(),
        "flag": pa.bool_(),
        "data": pa.binary(),
        "price": pa.decimal128(38, 18),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "took": pa.duration("us"),
    }
)
NAMES = [name for name in Row._fields if name != "group"]
FIELDS = st.lists(
    st.sampled_from([sign + name for name in NAMES for sign in ("", "-")]),
    min_size=1,
    max_size=4,
    unique_by=lambda field: field.removeprefix("-"),
).map(tuple)


def structs(rows: list[Row]) -> pa.Array:
    return pa.array([row._asdict() for row in rows], STRUCT)


def first_in_arrow(order: Any, groups: list[int], column: pa.ChunkedArray) -> dict[int, list[Any]]:
    """The first records by group."""
    numbers: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        numbers.setdefault(group, []).append(number)
    found = order.of_groups(pa.array(numbers.values(), pa.list_(pa.int64())), column)
    return dict(zip(numbers, found.to_pylist(), strict=True))


def by_group(found: dict[int, list[Any]]) -> str:
    """As text, in which NaN is itself, and -0.0 is 0.0 as in the order."""
    return repr({group: list(map(_alike, found[group])) for group in sorted(found)})


def _alike(row: dict[str, Any]) -> Row:
    real = None if row["real"] is None else row["real"] + 0.0
    price = None if row["price"] is None else row["price"].normalize()
    return Row(**row | {"real": real, "price": price, "at": row["at"].astimezone(dt.UTC)})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=25),
    FIELDS,
    st.integers(1, 5),
    st.integers(1, 6),
    st.booleans(),
)
def test_arrow_and_python_agree_on_the_first_records_whatever_parts_they_come_in(
    rows: list[Row], fields: tuple[str, ...], count: int, size: int, with_ties: bool
) -> None:
    order = RecordOrder(fields, count, with_ties).completed(TYPE)
    groups = [row.group for row in rows]
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    wanted = {
        group: [row._asdict() for row in order.first(row for row in rows if row.group == group)]
        for group in groups
    }
    whole = first_in_arrow(order, groups, pa.chunked_array([structs(part) for part in parts]))
    assert by_group(whole) == by_group(wanted)

    of_parts = [
        (group, first)
        for part in parts
        for group, first in first_in_arrow(
            order, [row.group for row in part], pa.chunked_array([structs(part)])
        ).items()
    ]
    lists = pa.array([first for _, first in of_parts], pa.list_(STRUCT))
    merged = first_in_arrow(order, [group for group, _ in of_parts], pa.chunked_array([lists]))
    assert by_group(merged) == by_group(wanted)

    held: dict[int, tuple[Row, ...]] = {}
    for group, first in of_parts:
        held[group] = order.merged(held.get(group, ()), [Row(**row) for row in first])
    kept = {group: [row._asdict() for row in of] for group, of in held.items()}
    assert by_group(kept) == by_group(wanted)


def test_no_rows_have_no_first_ones() -> None:
    order = RecordOrder(("-whole",), 2).completed(TYPE)
    none = pa.array([], pa.list_(pa.int64()))
    for column in (pa.array([], STRUCT), pa.array([], pa.list_(STRUCT))):
        assert order.of_groups(none, pa.chunked_array([column])).to_pylist() == []


def test_records_that_come_after_all_that_are_held_change_nothing() -> None:
    order = RecordOrder(("-whole",), 1).completed(TYPE)
    high, low = (
        Row(0, whole, None, "", False, None, None, START, START.date(), None) for whole in (2, 1)
    )
    held = (high,)
    assert order.merged(held, [low]) is held
    assert order.merged((low,), [high]) == (high,)
