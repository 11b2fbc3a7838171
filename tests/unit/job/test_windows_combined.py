"""Windows over combined records come to what they come to over single ones.

The other way is an aggregate of a user's own, which nobody can combine.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.functions.context import Context
from statekit.functions.process import Process
from statekit.job.stream import Windowed
from statekit.job.windows.sessions import Session, SessionColumns
from statekit.job.windows.sliding import SlidingRows
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_operator import Windowing
from statekit.records.panes import SlidingPanes
from statekit.records.preaggregate import Combiner
from statekit.spark.worker.rows import batches_of_rows
from statekit.state.map_state import MapState
from statekit.testing import Harness
from statekit.timestamp import MAX_MICROS, MIN_MICROS, datetime_to_micros
from statekit.watermark import BEGINNING
from tests.support.instants import after, at
from tests.unit.job.test_aggregation_in_shards import GROUPS, Shard, shuffled

FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)


class Event(NamedTuple):
    key: str
    at: dt.datetime
    value: int | None = None


def events(*given: tuple[float, int]) -> list[Event]:
    return [Event("k", at(seconds), value) for seconds, value in given]


def windowed(window: Window, record: type[Any] = Event, **options: Any) -> Windowed[Any]:
    options = {"key": "key", "event_time": "at", **options}
    return sk.Job("windows").source("events", record).window(window, **options)


def process_of(stream: sk.Stream[Any]) -> Process[Any, ..., Any]:
    declared = stream.plan.process_of(stream.name)
    assert declared is not None
    return declared


def known(windows: Windowed[Any], how: str) -> Process[Any, ..., Any]:
    stream = windows.count() if how == "count" else getattr(windows, how)("value")
    declared = process_of(stream)
    assert declared.traits.combiner is not None
    return declared


def passing_over(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def add(held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return combine(held, value)

    return add


ADDED: dict[str, Callable[[Any, Any], Any]] = {
    "count": lambda held, _: (held or 0) + 1,
    "sum": passing_over(lambda held, value: held + value),
    "min": passing_over(min),
    "max": passing_over(max),
    "mean": lambda held, value: (
        held if value is None else (value, 1) if held is None else (held[0] + value, held[1] + 1)
    ),
}
MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "count": operator.add,
    "mean": passing_over(lambda held, more: (held[0] + more[0], held[1] + more[1])),
}
KEPT: dict[str, Any] = {"mean": tuple[int, int] | None}
RESULT: dict[str, Any] = {"mean": lambda held: None if held is None else held[0] / held[1]}
HOW = st.sampled_from(sorted(ADDED))


def of_records(windows: Windowed[Any], how: str) -> Process[Any, ..., Any]:
    """The same, added record by record."""
    own: sk.Aggregate[Any, Any, Any] = sk.Aggregate(
        lambda: None, ADDED[how], RESULT.get(how, lambda held: held), MERGED.get(how, ADDED[how])
    )
    kept: Any = KEPT.get(how, int | None)
    result: Any = float | None if how == "mean" else kept
    field = None if how == "count" else "value"
    declared = process_of(
        windows.aggregate(result=sk.OwnAggregate(own, accumulator=kept, result=result, field=field))
    )
    assert declared.traits.combiner is None
    return declared


SLIDING = st.builds(
    lambda every, more, offset: sk.sliding(after(every + more), after(every), after(offset)),
    st.integers(1, 20),
    st.integers(0, 25),
    st.integers(0, 30),
)
SESSIONS = st.integers(1, 20).map(lambda gap: sk.session(after(gap / 2)))
WINDOWS = SLIDING | SESSIONS
ENDS = [FIRST, FIRST + MICROSECOND, LAST - after(3), LAST]
TIMES = st.integers(-50, 120).map(lambda n: at(n / 2))
EVENTS = st.builds(
    Event,
    st.sampled_from("abc"),
    st.one_of(TIMES, TIMES, TIMES, TIMES, st.sampled_from(ENDS)),
    st.integers(-3, 3) | st.none(),
)
DURATIONS = st.sampled_from([0, 1, 7, 30])


# ---------------------------------------------------------------------------------------- panes


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 60),
    st.integers(0, 90),
    st.lists(
        st.integers(-100, 200)
        | st.integers(MIN_MICROS, MIN_MICROS + 100)
        | st.integers(MAX_MICROS - 100, MAX_MICROS),
        min_size=1,
    ),
)
def test_instants_of_a_pane_are_in_the_same_windows_and_those_of_others_are_not(
    every: int, more: int, offset: int, times: list[int]
) -> None:
    window = sk.sliding(*(n * MICROSECOND for n in (every + more, every, offset)))
    found = window.panes("at").of([], pa.chunked_array([times], pa.int64()), BEGINNING).to_pylist()
    size = every + more

    def starts(time: int) -> list[int]:
        return [s for s in range(time - size + 1, time + 1) if (s - offset) % every == 0]

    of_pane: dict[int, list[int]] = {}
    for time, pane in zip(times, found, strict=True):
        assert of_pane.setdefault(pane, starts(time)) == starts(time)
    assert len(of_pane) == len({tuple(starts) for starts in of_pane.values()})


@pytest.mark.parametrize("unit", ["1 us", "9998 years"])
def test_panes_of_the_shortest_and_the_longest_windows_have_numbers(unit: str) -> None:
    size = MICROSECOND if unit == "1 us" else dt.timedelta(days=365 * 9998)
    times = pa.chunked_array([[MIN_MICROS, -1, 0, MAX_MICROS]], pa.int64())
    for window in (sk.tumbling(size), sk.sliding(size, size - MICROSECOND or size, "1 h")):
        found = window.panes("at").of([], times, BEGINNING).to_pylist()
        assert found == sorted(found)
        assert found[0] >= 0


def test_late_instants_have_a_pane_of_their_own() -> None:
    panes = SlidingPanes("at", size_us=10, every_us=10, origin_us=0)
    times = pa.chunked_array([[-30, 3, 4, 5]], pa.int64())
    found = panes.of([], times, late_us=4).to_pylist()
    assert found[:3] == [-1, -1, -1]
    assert found[3] >= 0


KEYS = st.sampled_from([None, "", "a", "b"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(KEYS, st.booleans(), st.integers(0, 30)), max_size=20),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_a_pane_of_sessions_has_the_records_without_a_gap_and_is_identified_by_its_start(
    records: list[tuple[str | None, bool, int]], gap: int, size: int
) -> None:
    pieces = [records[start : start + size] for start in range(0, len(records), size)] or [[]]
    names, flags, times = (
        pa.chunked_array([[record[n] for record in piece] for piece in pieces], kind)
        for n, kind in enumerate((pa.string(), pa.bool_(), pa.int64()))
    )
    window = sk.session(gap * MICROSECOND)
    found = window.panes("at").of([names, flags], times, late_us=4).to_pylist()

    def start(name: str | None, flag: bool, time: int) -> int:
        of_key = sorted(t for n, f, t in records if (n, f) == (name, flag) and 4 < t <= time)
        gaps = [after for before, after in pairwise(of_key) if after - before >= gap]
        return gaps[-1] if gaps else of_key[0]

    expected = [-1 if record[2] <= 4 else start(*record) for record in records]
    assert [pane if pane < 0 else pane + MIN_MICROS for pane in found] == expected


# --------------------------------------------------------------------------- against single records


@settings(max_examples=60, deadline=None)
@given(WINDOWS, HOW, st.lists(st.lists(EVENTS, max_size=12), max_size=5), DURATIONS, DURATIONS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_results_states_timers_and_late_records_are_those_of_single_records(
    parallelism: int,
    window: Window,
    how: str,
    epochs: list[list[Event]],
    lateness: int,
    allowed: int,
) -> None:
    allowed = 0 if isinstance(window, Session) else allowed
    windows = windowed(window, lateness=after(lateness), allowed_lateness=after(allowed))
    made = [Harness(of(windows, how), parallelism) for of in (known, of_records)]
    for records in [*epochs, []]:
        found, expected = (sorted(map(tuple, harness.send(*records))) for harness in made)
        assert found == expected
        # A session that grows finds its timer too early, and sets another; here it grows at once.
        sets_the_same = not isinstance(window, Session)
        assert seen(made[0], timers=sets_the_same) == seen(made[1], timers=sets_the_same)
    if not any(record.at == LAST for records in epochs for record in records):
        found, expected = (sorted(map(tuple, each.advance_watermark(LAST))) for each in made)
        assert found == expected


def seen(harness: Harness, *, timers: bool) -> Any:
    """What is kept, is set, came late and was counted."""
    last = harness._runner.coordinator.last
    assert last is not None
    operator = last.operators[harness.process.name]
    held = [harness.state("windows", key) for key in "abc"]
    counted = operator.records_by_input, operator.late_so_far, operator.watermark_us
    told = held, operator.rows.get("windows"), counted, harness.late
    return (*told, operator.rows, *map(harness.timers, "abc")) if timers else told


@settings(max_examples=40, deadline=None)
@given(
    WINDOWS,
    HOW,
    st.lists(st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=3), max_size=4),
    st.sampled_from([1, 2, 100]),
    DURATIONS,
)
def test_combined_rows_have_the_results_of_single_records(
    window: Window, how: str, epochs: list[list[list[Event]]], size: int, lateness: int
) -> None:
    windows = windowed(window, lateness=after(lateness))
    alone, rows = of_records(windows, how), known(windows, how)
    shards = [Shard(of, MemoryBackend(of.families)) for of in (alone, rows, rows)]
    watermark_us = BEGINNING
    for partitions in epochs:
        outputs = []
        for shard, combines in zip(shards, (False, True, False), strict=True):
            declared = shard.declared
            batches = shuffled(declared, partitions, size, watermark_us, combines=combines)
            chunks = batches_of_rows(shard.declared, iter(batches), GROUPS)
            outputs.append(sorted(map(tuple, shard.epoch(chunks, watermark_us=watermark_us))))
        assert outputs[0] == outputs[1] == outputs[2]
        counted = [(of.task.late, of.task.records_by_input) for of in shards]
        assert counted[0] == counted[1] == counted[2]
        largest = [shard.task.largest_by_input for shard in shards]
        assert largest[0] == largest[1] == largest[2]
        assert rows_of(shards[0]) == rows_of(shards[1]) == rows_of(shards[2])
        seen_us = max(largest[0].values(), default=BEGINNING)
        watermark_us = max(watermark_us, seen_us - lateness * 1_000_000)


def rows_of(shard: Shard) -> list[tuple[bytes, bytes]]:
    return list(shard.backend.scan("windows", b"", b"\xff" * 9))


@pytest.mark.parametrize("window", [sk.sliding("10 s", "4 s"), sk.session("7 s")])
def test_a_checkpoint_of_single_records_continues_with_combined_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    def sums() -> Process[Any, ..., Any]:
        return process_of(windowed(window, lateness="20 s").sum("value"))

    with monkeypatch.context() as patch:
        patch.setattr(Windowing, "_combiner", lambda *_: None)
        harness = Harness(sums(), parallelism=2)
    harness.send(*events((1, 1), (9, 2), (13, 4)))
    harness.checkpoint(tmp_path / "checkpoint")
    assert harness.process.traits.combiner is None
    restored = Harness.restore(sums(), tmp_path / "checkpoint")
    assert restored.process.traits.combiner is not None
    more = events((9, 16), (14, 32), (10, 64))
    assert harness.send(*more) == restored.send(*more) == []
    outputs = [each.advance_watermark(at(100)) for each in (harness, restored)]
    assert list(map(tuple, outputs[0])) == list(map(tuple, outputs[1])) != []


# ----------------------------------------------------------------------------------- how it is done


@pytest.mark.parametrize(
    ("window", "allowed", "ends"),
    [
        (sk.sliding("5 s", "2 s"), "1 s", [n + 0.99 for n in range(10)]),
        (sk.session("10 ms"), 0, [n / 100 for n in range(1000)]),
        (sk.session("11 ms"), 0, (9.99,)),
    ],
)
def test_windows_are_touched_once_per_key_and_pane_and_not_per_record(
    monkeypatch: pytest.MonkeyPatch, window: Window, allowed: Any, ends: Sequence[float]
) -> None:
    given = [Event(key, at(n / 100), 1) for n in range(1000) for key in "ab"]
    times: list[dt.datetime] = []
    put, add = SlidingRows.put, SessionColumns._add

    def noted(rows: Any, ctx: Context, *rest: Any) -> Any:
        times.append(ctx.event_time)
        return put(rows, ctx, *rest)

    def noted_in_columns(
        columns: Any, opened: Any, start: dt.datetime, end: dt.datetime, value: Any
    ) -> None:
        assert isinstance(window, Session)
        times.append(end - window.gap)
        add(columns, opened, start, end, value)

    monkeypatch.setattr(SlidingRows, "put", noted)
    monkeypatch.setattr(SessionColumns, "_add", noted_in_columns)
    lateness: dict[str, Any] = {"allowed_lateness": allowed} if allowed else {}
    harness = Harness(process_of(windowed(window, **lateness).count()))
    assert harness.send(*given) == []
    assert sorted(times) == sorted(at(end) for end in ends for _ in "ab")


def test_windows_in_columns_are_added_and_fired_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    add_all, remove_all = MapState.add_all, MapState.remove_rows

    def added(state: Any, row_keys: Any, *rest: Any) -> None:
        sizes.append(len(row_keys))
        add_all(state, row_keys, *rest)

    def removed(state: Any, rows: Any) -> None:
        sizes.append(-len(rows))
        remove_all(state, rows)

    monkeypatch.setattr(MapState, "add_all", added)
    monkeypatch.setattr(MapState, "remove_rows", removed)
    harness = Harness(process_of(windowed(sk.sliding("2 s", "1 s")).count()))
    harness.send(*(Event(str(key), at(1.5), 1) for key in range(100)))
    assert sum(sizes) == 200
    assert max(sizes) >= 50
    sizes.clear()
    assert len(harness.advance_watermark(at(2))) == 100  # the others end at 3
    assert sizes == [-100]
    assert not harness.timers("7")
    assert len(harness.state("windows", "7")) == 1


def test_windows_of_more_intervals_than_a_scan_may_read_have_timers() -> None:
    few, many = (process_of(windowed(sk.sliding(f"{size} s", "1 s")).count()) for size in (16, 17))
    assert few.traits.fires is not None
    assert many.traits.fires is None


def test_a_job_says_that_windows_combine_records() -> None:
    job = sk.Job("ads")
    options: dict[str, Any] = {"key": "key", "event_time": "at"}
    windows = job.source("events", Event).window(sk.tumbling("10 s"), **options)
    sums = windows.sum("value", into=Sum)
    sums.window(sk.tumbling("1 min"), key="key", event_time="start", lateness="10 s").count()
    windows.collect("value").sink("all")
    assert (
        job.explain()
        == """job ads
pass 1, fed by events
    reads key, value, at of events, and nothing else
    shuffled once, by the key group of key
    sum_value_by_key: sum of value, combined before the shuffle, added to windows and \
fired for many keys at a time
    count_by_key: count, combined in Arrow, added to windows and fired for many keys at a time, \
in the same tasks as sum_value_by_key
pass 2, fed by events
    reads key, value, at of events, and nothing else
    shuffled once, by the key group of key
    collect_value_by_key: all values of value, combined in Arrow, added to windows and fired for \
many keys at a time"""
    )


class Sum(NamedTuple):
    key: str
    start: dt.datetime
    value: int | None


class Model(pydantic.BaseModel):
    key: str
    at: dt.datetime
    value: int


@dataclasses.dataclass
class Checked:
    key: str
    at: dt.datetime
    value: int

    def __post_init__(self) -> None:
        self.value += 1


Named = TypedDict("Named", {"from": str, "at": dt.datetime, "value": int})


@dataclasses.dataclass
class Out:
    start: dt.datetime
    count: int


@pytest.mark.parametrize(
    ("record", "window", "options"),
    [
        (Event, sk.session("10 s"), {"allowed_lateness": "1 s"}),
        (Event, sk.tumbling("10 s"), {"emit": "change"}),
        (Event, sk.tumbling("10 s"), {"ordered": True}),
        (Model, sk.tumbling("10 s"), {}),
        (Checked, sk.tumbling("10 s"), {}),
        (Named, sk.tumbling("10 s"), {"key": "from"}),
    ],
)
def test_records_that_cannot_be_combined_are_added_one_by_one(
    record: Any, window: Any, options: dict[str, Any]
) -> None:
    declared = process_of(windowed(window, record, **options).count(into=Out))
    assert declared.traits.combiner is None
    made = [{"key": "a", "from": "a", "at": at(n), "value": n} for n in (1, 2)]
    names = {"from", "at", "value"} if record is Named else {"key", "at", "value"}
    harness = Harness(declared)
    harness.send(*({name: fields[name] for name in names} for fields in made))
    harness.send(*made[:0])
    if "emit" not in options:
        assert [out.count for out in harness.advance_watermark(at(100))] == [2]


def test_records_of_several_streams_are_added_one_by_one() -> None:
    job = sk.Job("both")
    left, right = job.source("left", Event), job.source("right", Event)
    options: dict[str, Any] = {"key": "key", "event_time": "at"}
    windows = left.union(right).window(sk.tumbling("10 s"), **options).sum("value")
    assert process_of(windows).traits.combiner is None
    of_left = process_of(left.window(sk.tumbling("10 s"), **options).sum("value", name="left-only"))
    with pytest.raises(sk.StateTypeError, match="call window on the union itself"):
        left.union(right).process(of_left, name="of-both")
    windows.sink("out")
    given = {"left": events((1, 1), (2, 2)), "right": events((3, 4), (11, 8))}
    assert [out.value for out in job.run(given).outputs["out"]] == [7, 8]


# ------------------------------------------------------------------------------------------- values


class Reading(NamedTuple):
    key: str
    at: dt.datetime
    celsius: float | None = None
    price: decimal.Decimal | None = None


def closed(how: str, field: str, *readings: Reading) -> Any:
    """What a window comes to whose records come one by one, and all at once."""
    windows = windowed(sk.tumbling("10 s"), Reading, lateness="9 s")
    declared = process_of(getattr(windows, how)(field))
    outputs = []
    for sent in ([readings], [[reading] for reading in readings]):
        harness = Harness(declared)
        for records in sent:
            harness.send(*records)
        ((*_, found),) = harness.advance_watermark(at(100))
        outputs.append(found)
    assert repr(outputs[0]) == repr(outputs[1])
    return outputs[0]


@pytest.mark.parametrize(
    "numbers", [[math.nan, 2.0, 1.0], [1.0, math.nan, 2.0], [2.0, 1.0, math.nan]]
)
def test_nan_is_passed_over_where_there_are_numbers(numbers: list[float]) -> None:
    readings = [Reading("k", at(5), number) for number in numbers]
    assert (closed("min", "celsius", *readings), closed("max", "celsius", *readings)) == (1.0, 2.0)
    assert math.isnan(closed("max", "celsius", Reading("k", at(5), math.nan)))
    assert math.isnan(closed("sum", "celsius", *readings))


def test_decimals_of_as_many_digits_as_a_column_has_are_summed_exactly() -> None:
    many = decimal.Decimal("12345678901234567890.123456789012345678")
    with decimal.localcontext(prec=38):
        expected = many * 3
    assert closed("sum", "price", *[Reading("k", at(5), price=many)] * 3) == expected


def test_a_sum_that_is_too_large_names_its_key_and_changes_nothing() -> None:
    windows = windowed(sk.tumbling("10 s"), lateness="9 s")
    harness = Harness(process_of(windows.sum("value")))
    harness.send(*events((5, 1)))
    said = r"^operator 'sum_value_by_key': .*a sum of int64 values, that of the key key='k', d"
    with pytest.raises(sk.ProcessError, match=said):
        harness.send(*events((5, 2**62), (6, 2**62)))
    assert harness.state("windows", "k") == {at(0): 1}
    too_late = events((-9, 2**62), (-8, 2**62))
    harness.send(*too_late)
    assert harness.late == too_late
    cancelled = events((5, 2**62), (6, 2**62), (7, -(2**62)))
    harness.send(*cancelled)
    assert harness.state("windows", "k") == {at(0): 2**62 + 1}


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Event("k", None), "at"),  # type: ignore[arg-type]
        (Event("k", dt.datetime(2026, 1, 1)), "time zone"),
        (Event(None, at(1)), "key"),  # type: ignore[arg-type]
        (Event("k", at(1), "much"), "value"),  # type: ignore[arg-type]
    ],
)
def test_a_record_of_another_type_than_declared_fails_and_is_named(wrong: Event, said: str) -> None:
    harness = Harness(process_of(windowed(sk.tumbling("10 s")).sum("value")))
    with pytest.raises(sk.ProcessError, match=rf"(?s)Event\(key=.*{said}"):
        harness.send(*events((1, 1)), wrong)
    assert harness.epoch is None


class Loose(NamedTuple):
    key: str
    at: dt.datetime | None
    value: int = 5


def combiner_of(record: type[Any]) -> Combiner:
    combiner = process_of(windowed(sk.tumbling("10 s"), record).sum("value")).traits.combiner
    assert combiner is not None
    return combiner


UTC_TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("record", "time", "said"),
    [
        (Event, None, "Event.at is null, but its type does not allow None"),
        (Loose, None, r"event time 'at' of Loose\(key='b', value=2, at=None\) is no instant"),
        (Event, MAX_MICROS + 1, r"row 1 of a batch, .* does not fit Event: Event.at"),
        (Loose, MIN_MICROS - 1, r"row 1 of a batch, .* does not fit Loose: Loose.at"),
    ],
)
def test_a_row_without_an_instant_is_named(record: type[Any], time: int | None, said: str) -> None:
    times = pa.array([0, time], pa.int64()).cast(UTC_TIME)
    table = pa.table({"key": ["a", "b"], "at": times, "value": [1, 2]})
    with pytest.raises(sk.ProcessError, match=said):
        combiner_of(record).rows(table)


def test_missing_fields_of_a_frame_read_as_the_defaults_of_the_record() -> None:
    times = pa.array([0, 1], pa.int64()).cast(UTC_TIME)
    found = combiner_of(Loose).rows(pa.table({"key": ["a", "a"], "at": times}))
    assert found.column("part_1").to_pylist() == [10]
    assert combiner_of(Loose).read(["key", "at"]).cls is Loose


class Wide(NamedTuple):
    key: str
    at: dt.datetime
    value: float
    price: decimal.Decimal


def test_columns_of_integers_are_summed_as_the_fields_are_declared() -> None:
    windows = windowed(sk.tumbling("10 s"), Wide)
    times = pa.array([0, 1], pa.int64()).cast(UTC_TIME)
    large = [2**62, 2**62]
    table = pa.table({"key": ["a", "a"], "at": times, "value": large, "price": large})
    for field, total in (("value", 2.0**63), ("price", decimal.Decimal(2**63))):
        combiner = process_of(windows.sum(field)).traits.combiner
        assert combiner is not None
        assert combiner.rows(table).column("part_1").to_pylist() == [total]


PRICE = decimal.Decimal("99.9")


def valued(kind: type[Any]) -> Any:
    """Records with a value of a type."""
    return cast("Any", NamedTuple)("Valued", [("key", str), ("at", dt.datetime), ("value", kind)])


@pytest.mark.parametrize(
    ("kind", "narrow", "values", "total"),
    [
        (int, pa.int8(), [100, 27, 1], 128),
        (int, pa.int16(), [2**15 - 1, 1, 1], 2**15 + 1),
        (int, pa.int32(), [2**31 - 1, 1, 1], 2**31 + 1),
        (float, pa.float32(), [0.5, 0.25, 0.25], 1.0),
        (
            decimal.Decimal,
            pa.decimal128(3, 1),
            [decimal.Decimal("99.9")] * 3,
            decimal.Decimal("299.7"),
        ),
        (dt.timedelta, pa.duration("us"), [dt.timedelta(20_000)] * 3, dt.timedelta(60_000)),
    ],
)
@pytest.mark.parametrize("how", ["sum", "max"])
def test_columns_of_narrow_types_are_combined_over_several_batches_of_a_shard(
    kind: type[Any], narrow: pa.DataType, values: list[Any], total: Any, how: str
) -> None:
    record = valued(kind)
    combiner = process_of(
        getattr(windowed(sk.tumbling("10 s"), record), how)("value")
    ).traits.combiner
    assert combiner is not None
    batches = [
        pa.record_batch(
            {
                "group": pa.array([0], pa.int32()),
                "key": ["a"],
                "at": pa.array([0], UTC_TIME),
                "value": pa.array([value], narrow),
                "arrival": [number],
            }
        )
        for number, value in enumerate(values)
    ]
    batches.insert(1, batches[0].slice(1))
    each = (batch.remove_column(6) for batch in combiner.combined_sorted(batches, BEGINNING))
    rows = pa.concat_tables(combiner.merged(each))
    assert rows.column("part_1").to_pylist() == [total if how == "sum" else max(values)]


def test_spans_of_time_are_summed_exactly_as_long_as_their_sum_fits() -> None:
    record = valued(dt.timedelta)
    harness = Harness(process_of(windowed(sk.tumbling("10 s"), record).sum("value")))
    spans = [dt.timedelta(days=20_000)] * 5_000 + [dt.timedelta(0)] * 1_000
    harness.send(*[record("k", at(1), span) for span in spans])
    assert harness.state("windows", "k") == {at(0): dt.timedelta(days=100_000_000)}


def test_large_records_are_combined_before_many_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("statekit.records.preaggregate._BYTES_AT_ONCE", 1000)
    combined: list[int] = []
    rows = Combiner.rows

    def noted(self: Combiner, table: pa.Table, late_us: int, *, restores: bool) -> pa.Table:
        combined.append(len(table))
        return rows(self, table, late_us, restores=restores)

    monkeypatch.setattr(Combiner, "rows", noted)
    record = valued(str)
    combiner = process_of(windowed(sk.tumbling("10 s"), record).max("value")).traits.combiner
    assert combiner is not None
    batch = pa.record_batch(
        {"key": ["a"] * 4, "at": pa.array([0] * 4, UTC_TIME), "value": ["x" * 100] * 4}
    )
    made = pa.concat_tables(combiner.combined_batches([batch] * 9, BEGINNING))
    assert sum(made.column("number").to_pylist()) == 36
    assert combined == [12, 12, 12]


def test_the_largest_event_time_of_a_row_is_in_its_pane() -> None:
    combiner = combiner_of(Event)
    (row,) = combiner.combine(events((1, 1), (9.999999, 2), (3, 4)))
    assert row[-1] == datetime_to_micros(at(9.999999))
    assert row[combiner.number_at] == 3
