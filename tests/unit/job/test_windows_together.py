"""Records that are added to windows together leave what they leave one by one: all records of a key
with an aggregate of a user's own, and the records of many keys with `collect`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.errors import ProcessError, StateTypeError
from statekit.functions.process import Process
from statekit.job.chaining import chains
from statekit.job.stream import Windowed
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_operator import Windowing
from statekit.state.map_state import MapState
from statekit.testing import Harness
from tests.support.instants import after, at
from tests.unit.job.test_windows_combined import (
    DURATIONS,
    EVENTS,
    LAST,
    WINDOWS,
    Event,
    process_of,
    seen,
    windowed,
)


def listed(held: list[Any], value: Any) -> list[Any]:
    """Tells in which order values came."""
    held.append(value)
    return held


IN_ORDER: sk.Aggregate[Any, list[Any], list[Any]] = sk.Aggregate(
    create=list, add=listed, result=list, merge=list.__add__
)
Values = list[int | None]


def gathered(windows: Windowed[Any]) -> sk.Stream[Any]:
    return windows.aggregate(
        result=sk.OwnAggregate(IN_ORDER, accumulator=Values, result=Values, field="value")
    )


def collected(windows: Windowed[Any]) -> sk.Stream[Any]:
    return windows.collect("value")


def together(
    make: Callable[[Windowed[Any]], sk.Stream[Any]], **options: Any
) -> Process[Any, ..., Any]:
    declared = process_of(make(windowed(**options)))
    assert declared.takes_runs or declared.traits.takes_columns
    return declared


def one_by_one(
    make: Callable[[Windowed[Any]], sk.Stream[Any]], **options: Any
) -> Process[Any, ..., Any]:
    with pytest.MonkeyPatch.context() as patch:
        never = property(lambda _: False, lambda *_: None)
        patch.setattr(Windowing, "_takes_all", never, raising=False)
        declared = process_of(make(windowed(**options)))
    assert not declared.takes_runs
    assert not declared.traits.takes_columns
    return declared


# ----------------------------------------------------------------------------- against one by one


@settings(max_examples=80, deadline=None)
@given(
    WINDOWS,
    st.lists(st.lists(EVENTS, max_size=25), max_size=4),
    DURATIONS,
    DURATIONS,
    st.integers(0, 3),
)
@pytest.mark.parametrize("make", [gathered, collected])
def test_results_states_timers_and_late_records_are_those_of_records_one_by_one(
    make: Callable[[Windowed[Any]], sk.Stream[Any]],
    window: Window,
    epochs: list[list[Event]],
    lateness: int,
    allowed: int,
    at_once: int,
) -> None:
    """However few windows of a key are held at once."""
    options = {"window": window, "lateness": after(lateness), "allowed_lateness": after(allowed)}
    made = [Harness(of(make, **options)) for of in (together, one_by_one)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statekit.job.windows.sliding.WINDOWS_AT_ONCE", at_once)
        for records in [*epochs, []]:
            found, expected = (harness.send(*records) for harness in made)
            assert list(map(tuple, found)) == list(map(tuple, expected))
            assert seen(made[0], timers=True) == seen(made[1], timers=True)
    if not any(record.at == LAST for records in epochs for record in records):
        found, expected = (each.advance_watermark(LAST) for each in made)
        assert list(map(tuple, found)) == list(map(tuple, expected))


@settings(max_examples=20, deadline=None)
@given(WINDOWS, st.lists(st.lists(EVENTS, max_size=25), max_size=3), DURATIONS, st.integers(1, 3))
def test_the_same_on_rocksdb_and_with_any_parallelism(
    window: Window, epochs: list[list[Event]], lateness: int, parallelism: int
) -> None:
    options = {"window": window, "lateness": after(lateness)}
    on_disk = Harness(together(collected, **options), parallelism, backend="rocksdb")
    alone = Harness(one_by_one(collected, **options))
    for records in epochs:
        found, expected = (sorted(map(tuple, each.send(*records))) for each in (on_disk, alone))
        assert found == expected
        assert [on_disk.state("windows", key) for key in "abc"] == [
            alone.state("windows", key) for key in "abc"
        ]


def test_a_job_continues_after_records_were_added_one_by_one(tmp_path: Any) -> None:
    """And the other way round: what is kept is the same, and so is the declaration."""
    given = [Event(key, at(n), n) for n in range(60) for key in "ab"]
    options = {"window": sk.tumbling("10 s"), "lateness": after(5)}
    results = []
    for order in ((one_by_one, together), (together, one_by_one)):
        found: list[Any] = []
        home = tmp_path / order[0].__name__
        for part, of in zip((given[:70], given), order, strict=True):
            job = sk.Job("windows")
            job.source("events", Event).process(of(gathered, **options)).sink("out")
            found += job.run({"events": part}, checkpoint=home, drain=part is given)["out"]
        results.append(sorted(map(tuple, found)))
    assert results[0] == results[1]
    assert ("a", at(30), at(40), list(range(30, 40))) in results[0], "it spans both runs"


# -------------------------------------------------------------------------------- what it is for


@pytest.mark.parametrize(
    ("window", "rows"),
    [(sk.tumbling("10 s"), 10), (sk.sliding("10 s", "5 s"), 21), (sk.session("10 s"), 1)],
)
def test_a_window_is_written_once_for_all_records_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, window: Window, rows: int
) -> None:
    harness = Harness(together(gathered, window=window, lateness="1 d"))
    harness.send(Event("a", at(0), 0))
    written: Counter[Any] = Counter()
    put = MapState.__setitem__

    def noted(state: Any, key: Any, value: Any) -> None:
        written[key] += 1
        put(state, key, value)

    monkeypatch.setattr(MapState, "__setitem__", noted)
    harness.send(*(Event("a", at(n / 10), n) for n in range(1000)))
    assert len(written) <= rows + 1, "a session is written where it was, and where it ends"
    assert sum(written.values()) == len(written)


def test_windows_that_no_record_touches_any_more_are_let_go_of_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key may have more windows in an epoch than fit into memory."""
    written: list[int] = []

    def noted(state: Any, held: dict[Any, Any]) -> None:
        written.append(len(held))
        MutableMapping.update(state, held)

    monkeypatch.setattr(MapState, "update", noted)
    harness = Harness(together(gathered, window=sk.tumbling("1 s"), lateness="1 d"))
    harness.send(*(Event("a", at(n), n) for n in range(1000)))
    held = harness.state("windows", "a")
    assert held == {at(n): [n] for n in range(1000)}
    assert sum(written) == 1000
    assert max(written) <= 103, "a hundred, and those of two records"


# ------------------------------------------------------------------------- behind other operators


class Click(NamedTuple):
    key: str
    at: dt.datetime
    value: int | None = None


@sk.process(key="key", event_time="at", lateness="30 s")
def twice(event: Event) -> Iterator[Click]:
    yield Click(event.key, event.at, 1)
    yield Click(event.key, event.at, 2)


def behind() -> sk.Job:
    job = sk.Job("clicks")
    clicks = job.source("events", Event).process(twice)
    options: dict[str, Any] = {"key": "key", "event_time": "at"}
    gathered(clicks.window(sk.tumbling("10 s"), **options)).sink("out")
    return job


def test_windows_stay_in_the_pass_of_the_operator_that_feeds_them() -> None:
    (each,) = chains(behind().plan)
    assert [operator.name for operator in each.operators] == ["twice", "aggregate_by_key"]
    last = behind().explain().splitlines()[-1].strip()
    assert last == (
        "aggregate_by_key: called with the records of a key together, in the same tasks as twice"
    )


# ------------------------------------------------------------------------------------- what fails


def test_an_error_of_a_function_names_the_added_record() -> None:
    def add(held: int, value: int | None) -> int:
        return held + 10 // (value or 0)

    failing: sk.Aggregate[Any, int, int] = sk.Aggregate(int, add, int)
    made = windowed(sk.tumbling("10 s")).aggregate(
        result=sk.OwnAggregate(failing, accumulator=int, result=int, field="value")
    )
    harness = Harness(process_of(made))
    with pytest.raises(ProcessError, match=r"record taken last was Event.*value=0"):
        harness.send(*(Event("a", at(n), 3 - n) for n in range(6)))
    assert harness.state("windows", "a") == {}
    assert harness.send(Event("a", at(1), 5)) == []
    assert harness.state("windows", "a") == {at(0): 2}, "nothing of the failed epoch is kept"


def test_an_accumulator_of_another_type_is_refused() -> None:
    wrong: Any = sk.Aggregate(create=int, add=lambda held, _: "many", result=int)
    made = windowed(sk.tumbling("10 s")).aggregate(
        result=sk.OwnAggregate(wrong, accumulator=int, result=int)
    )
    harness = Harness(process_of(made))
    with pytest.raises(StateTypeError, match=r"windows.*'many'"):
        harness.send(Event("a", at(1), 5))


@pytest.mark.parametrize("options", [{"emit": "change"}, {"ordered": True}])
def test_where_each_record_counts_by_itself_they_come_one_by_one(options: dict[str, Any]) -> None:
    for make in (gathered, collected):
        assert not process_of(make(windowed(sk.tumbling("10 s"), **options))).takes_runs
