"""Rows that a transform reads and writes: their lifetimes, their order, and many of one key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend import divided_rows
from statekit.backend.divided_rows import DividedRows
from statekit.errors import ProcessError, StateTypeError
from statekit.maintenance.transform.unique_rows import Repeated, unique_rows
from statekit.query.tables.packed_bytes import RowColumns

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LATER = AT + dt.timedelta(days=900)


class Order(NamedTuple):
    order: str
    cents: int
    at: dt.datetime


def smaller(first: int, second: int) -> int:
    if first == second:
        raise LookupError("equal")
    return min(first, second)


Brief = sk.TTL("1000 days", clock="event")


@sk.process(key="order", event_time="at")
def kinds(
    order: Order,
    ctx: sk.Context,
    last: Annotated[sk.ValueState[int], Brief],
    some: Annotated[sk.ListState[int], Brief],
    paid: Annotated[sk.MapState[str, int], Brief],
    kept: sk.ValueState[int],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
    least: Annotated[sk.ReducingState[int], sk.Reduce(smaller)],
) -> None:
    pass


@kinds.on_timer
def fires(timer: sk.Timer, last: Annotated[sk.ValueState[int], Brief]) -> None:
    pass


def shop() -> sk.Job:
    job = sk.Job("shop", key_groups=8)
    job.source("orders", Order).process(kinds)
    return job


@pytest.fixture
def old(tmp_path: Path) -> Path:
    orders = [Order("a", 1, AT)] * 3
    shop().run({"orders": orders}, checkpoint=tmp_path / "old", epoch_size=1, drain=False)
    return tmp_path / "old"


def transformed(old: Path, name: str, function: Any) -> Path:
    sk.transform(shop())(function).run(old, into=old.parent / name)
    return old.parent / name


def writes(state: str, rows: Any) -> Callable[[sk.Transformation], None]:
    return lambda old: old.write("kinds", state, rows)


def entries(at: Path, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sk.read(at, "kinds", state).read_all().to_pylist()
    return sorted(found, key=str)


# ------------------------------------------------------------------------------------ lifetimes

LIFETIMES = ("last", "some", "paid")


def with_lifetimes(old: sk.Transformation) -> None:
    """Rows that expire, that do not, and with the time of the old epoch."""
    times: list[Any] = [LATER, None, "epoch"]
    for number, written in enumerate(times):
        key: Any = f"o{number}"
        old.write("kinds", "last", [sk.StateRow(key, number, written=written)])
        old.write("kinds", "some", [sk.StateRow(key, n, written=written) for n in range(2)])
        old.write("kinds", "paid", [sk.StateRow(key, n, "xy"[n], written) for n in range(2)])


def test_rows_that_do_not_expire_are_written_and_read_as_such(old: Path) -> None:
    new = transformed(old, "new", with_lifetimes)
    assert [row["written"] for row in entries(new, "last")] == [LATER, None, AT]
    seen = {}

    def same(old: sk.Transformation) -> None:
        for state in LIFETIMES:
            rows = list(old.rows("kinds", state))
            seen[state] = [row.written for row in rows if row.key == "o1"]
            old.write("kinds", state, rows)

    again = transformed(new, "again", same)
    assert seen == {"last": [None], "some": [None] * 2, "paid": [None] * 2}
    for state in LIFETIMES:
        assert entries(again, state) == entries(new, state) != []


def test_the_rows_of_each_key_have_their_lifetimes_too(old: Path) -> None:
    new = transformed(old, "new", with_lifetimes)

    def by_key(old: sk.Transformation) -> None:
        for key in old.keys("kinds", *LIFETIMES, "_timers"):
            assert key.rows("_timers") == []
            with pytest.raises(KeyError):
                key.rows("total")
            for state in LIFETIMES:
                old.write("kinds", state, key.rows(state))

    again = transformed(new, "again", by_key)
    for state in LIFETIMES:
        assert entries(again, state) == entries(new, state) != []


def test_a_state_without_a_ttl_has_no_times_of_writes(old: Path) -> None:
    row = sk.StateRow("a", 1, written=AT)
    with pytest.raises(StateTypeError, match="the state has no TTL: leave `written` out"):
        transformed(old, "refused", writes("kept", [row]))
    new = transformed(old, "new", writes("kept", [sk.StateRow("a", 1, written=None)]))

    def dated(old: sk.Transformation) -> None:
        (row,) = old.rows("kinds", "kept")
        assert row.written == "epoch"
        old.write("kinds", "last", [row])

    assert [row["written"] for row in entries(transformed(new, "dated", dated), "last")] == [AT]


# -------------------------------------------------------------------------- order and repetition


def put(rows: DividedRows, pairs: list[tuple[bytes, bytes]]) -> None:
    rows.add("f", *(pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)))


def unique(rows: DividedRows, range_: int, repeated: Repeated) -> list[tuple[bytes, bytes]]:
    batches = (RowColumns(*batch.columns) for batch in rows.of("f", range_))
    return [
        pair
        for columns in unique_rows(batches, repeated)
        for pair in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def joined(_key: bytes, rows: list[bytes]) -> bytes:
    return b"".join(rows)


def test_rows_are_sorted_by_their_keys_also_if_one_begins_with_another() -> None:
    zeros = b"\0" * 8
    keys = [b"\0\0x" + end for end in (b"", zeros, b"\0", b"\xff", b"\0\xff", zeros + b"\xff")]
    with closing(DividedRows(["f"], [0, 7], is_sorted=True)) as rows:
        for number in range(3):
            put(rows, [(key, b"%d" % number) for key in keys])
        assert unique(rows, 0, joined) == [(key, b"012") for key in sorted(keys)]
        assert unique(rows, 1, joined) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=2)), min_size=1), max_size=8),
    st.integers(1, 4),
    st.sampled_from([1, 40, 1 << 20]),
)
def test_rows_of_any_number_of_pieces_are_merged_in_the_order_of_writing(
    batches: list[list[tuple[int, bytes]]], piece_rows: int, gathered_bytes: int
) -> None:
    expected: list[dict[bytes, bytes]] = [{}, {}]
    with (
        mock.patch.object(divided_rows, "_SORTED_PIECE_ROWS", piece_rows),
        mock.patch.object(divided_rows, "_GATHERED_BYTES", gathered_bytes),
        closing(DividedRows(["f"], [1, 3], is_sorted=True)) as rows,
    ):
        number = 0
        for batch in batches:
            pairs = [(bytes([0, group]) + key, b"") for group, key in batch]
            for at, (key, _) in enumerate(pairs):
                number += 1
                pairs[at] = key, b"%d," % number
                of_range = expected[key[1] // 2]
                of_range[key] = of_range.get(key, b"") + pairs[at][1]
            put(rows, pairs)
        for range_, of_range in enumerate(expected):
            assert unique(rows, range_, joined) == sorted(of_range.items())


def test_a_timer_is_set_once_also_if_its_name_begins_another_one(old: Path) -> None:
    names = ["x", "x" + "\0" * 8, "x"]
    timers = [sk.StateRow("a", sk.Timer(LATER, name)) for name in names]
    new = transformed(old, "new", writes("_timers", timers))
    assert [row["timer"] for row in entries(new, "_timers")] == sorted({*names})


def test_many_rows_of_one_key_are_combined_while_they_are_read() -> None:
    most = 0

    def counted(key: bytes, rows: list[bytes]) -> bytes:
        nonlocal most
        most = max(most, len(rows))
        return b"%d" % sum(map(int, rows))

    count = 200_000
    with (
        mock.patch.object(divided_rows, "_GATHERED_BYTES", 1 << 20),
        closing(DividedRows(["f"], [0], is_sorted=True)) as rows,
    ):
        for _ in range(count // 10_000):
            put(rows, [(b"\0\0hot", b"1")] * 10_000)
        assert unique(rows, 0, counted) == [(b"\0\0hot", b"%d" % count)]
    assert most < count // 10


def test_values_that_cannot_be_combined_are_refused_with_state_key_and_advice(old: Path) -> None:
    wide = pa.table({"order": ["a"] * 5, "value": [2**62] * 5})
    where = r"write\('kinds', '{}'\): {} rows of the key 'a' "
    message = where.format("total", 5) + r"are combined .* cannot hold: .* declare a type"
    with pytest.raises(StateTypeError, match=message):
        transformed(old, "wide", writes("total", wide))
    message = where.format("least", 2) + r"cannot be combined: LookupError: equal"
    with pytest.raises(ProcessError, match=message):
        transformed(old, "equal", writes("least", [sk.StateRow("a", 1)] * 2))


# ------------------------------------------------------------------------- timers, jobs, functions


@pytest.mark.parametrize("name", [pa.array([None], pa.string()), pa.array([7])], ids=str)
def test_a_timer_needs_a_name_of_text(old: Path, name: pa.Array) -> None:
    rows = pa.table({"order": ["a"], "at": [LATER], "timer": name})
    with pytest.raises(StateTypeError, match=r"row 0, .* the name of a timer is text, and not"):
        transformed(old, "new", writes("_timers", rows))


def failing_job() -> sk.Job:
    raise LookupError("no such job")


@pytest.mark.parametrize(
    ("job", "error", "text"),
    [
        (lambda: None, StateTypeError, "the function of the new job returns None, and no job"),
        (failing_job, ProcessError, "of the new job failed with LookupError: no such job"),
        (sk.Job("empty"), StateTypeError, "job 'empty' has no operator, and so no state"),
    ],
    ids=["none", "failing", "empty"],
)
def test_a_job_that_cannot_be_used_is_refused_with_the_reason(
    old: Path, job: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sk.transform(job)(lambda old: None).run(old, into=old.parent / "new")
    assert not (old.parent / "new").exists()


async def later(old: sk.Transformation) -> None:
    old.copy("kinds")


def piecemeal(old: sk.Transformation) -> Iterator[None]:
    old.copy("kinds")
    yield


@pytest.mark.parametrize("function", [later, piecemeal])
def test_a_function_whose_call_does_nothing_yet_is_no_transform(function: Any) -> None:
    with pytest.raises(StateTypeError, match="does nothing yet: use a function without async"):
        sk.transform(shop())(function)
