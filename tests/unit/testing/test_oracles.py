"""Results of windows, aggregates, stores and redistribution are compared with plain Python."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.job.windows.open_windows import Deadlines
from statekit.kv.layouts import OneValue
from statekit.query.rows.reader import CheckpointReader
from statekit.records.record_order import CompleteOrder
from statekit.state import redistribution
from statekit.testing import check
from statekit.testing.checks.redistribution import wrong_pieces
from statekit.working_copy import copies
from tests.support.effort import SOAK
from tests.support.kv_jobs import KINDS, Shape, store_job


class Reading(NamedTuple):
    sensor: str
    at: dt.datetime
    level: int
    price: float | None


TIMES: dict[str, Any] = {"key": "sensor", "event_time": "at", "lateness": "20 seconds"}
LATE = {"allowed_lateness": "30 s"}
WINDOWS = [
    sk.tumbling("30 s"),
    sk.sliding("60 s", every="20 s"),
    sk.session("10 s"),
    sk.tumbling("1 hour", zone="Asia/Kathmandu"),
]
SEVERAL: dict[str, sk.FieldAggregate] = {
    "readings": sk.Count(),
    "prices": sk.Count("price"),
    "total": sk.Sum("level"),
    "least": sk.Min("price"),
    "most": sk.Max("level"),
    "mean": sk.Mean("price"),
    "first": sk.Top(2, by="-level"),
    "last": sk.Last("level", by="at"),
}
SPREAD: sk.Aggregate[Any, tuple[int, ...], int] = sk.Aggregate(
    tuple,
    lambda held, level: (min((*held, level)), max((*held, level))),
    lambda held: held[-1] - held[0],
    merge=lambda one, other: (min(one + other), max(one + other)),
)
OTHERS: dict[str, sk.FieldAggregate] = {
    "total": sk.Sum("level"),
    "levels": sk.Collect("level"),
    "spread": sk.OwnAggregate(SPREAD, accumulator=tuple[int, ...], result=int, field="level"),
    "all": sk.Collect(),
}
RESULTS: dict[str, Callable[[Any], Any]] = {
    "count": lambda windows: windows.count(),
    "mean": lambda windows: windows.mean("price"),
    "top": lambda windows: windows.top(2, by="-level"),
    "collect": lambda windows: windows.collect("level"),
    "several": lambda windows: windows.aggregate(**SEVERAL),
    "others": lambda windows: windows.aggregate(**OTHERS),
}


def job_of(made: Callable[[sk.Stream[Reading]], sk.Stream[Any]]) -> sk.Job:
    job = sk.Job("readings")
    results = made(job.source("readings", Reading))
    results.sink("results")
    declared = job.plan.process_of(results.name)
    if declared is not None and declared.event_time is not None:
        results.late.sink("late")
    return job


def windows(window: Any, result: str, **options: Any) -> sk.Job:
    return job_of(lambda readings: RESULTS[result](readings.window(window, **TIMES, **options)))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, LATE, {"emit": "change"}, {"ordered": True}],
    ids=["closed", "late", "changes", "ordered"],
)
def test_windows_are_what_plain_python_says(window: Any, options: dict[str, Any]) -> None:
    for result in ("several", "others") if SOAK or not options else ("others",):
        check(windows(window, result, **options), holds=["plain Python"], depth="quick")


def test_sessions_of_a_maximum_length_are_what_plain_python_says() -> None:
    window = sk.session("10 s", at_most="25 s")
    check(windows(window, "others"), holds=["plain Python"], depth="quick")
    check(windows(window, "several", emit="change"), holds=["plain Python"], depth="quick")


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("result", RESULTS if SOAK else ["mean", "top", "several"])
@pytest.mark.parametrize(
    "options",
    [{}, LATE, {"emit": "change"}, {"ordered": True}],
    ids=["closed", "late", "changes", "ordered"],
)
def test_all_windows_are_what_plain_python_says(
    window: Any, result: str, options: dict[str, Any]
) -> None:
    check(windows(window, result, **options), holds=["plain Python"])


def aggregates(**options: Any) -> sk.Job:
    return job_of(
        lambda readings: readings.aggregate(
            key="sensor",
            count=sk.Count(),
            prices=sk.Count("price"),
            total=sk.Sum("price"),
            least=sk.Min("price"),
            most=sk.Max("level"),
            mean=sk.Mean("price"),
            first=sk.Top(2, by="-price", ties=True),
            last=sk.Last("level", by="at"),
            all=sk.Collect("price"),
            spread=OTHERS["spread"],
            **options,
        )
    )


@pytest.mark.parametrize("refresh", [None, "write", "read"])
def test_aggregates_are_what_plain_python_says(refresh: Any) -> None:
    options = {} if refresh is None else {"ttl": sk.TTL("15 minutes", refresh=refresh)}
    check(aggregates(**options), holds=["plain Python"], depth="quick")


def test_a_store_is_what_plain_python_says() -> None:
    job = store_job(("put", "get", "remove"), Shape())
    check(job, holds=["plain Python"], depth="quick")


@pytest.mark.slow
@pytest.mark.parametrize("history", [0, 60])
def test_all_operations_of_a_store_are_what_plain_python_says(history: int) -> None:
    check(store_job(tuple(KINDS), Shape()), holds=["plain Python"], depth="quick")
    kinds = (*KINDS, "get_as_of") if history else tuple(KINDS)
    timed = store_job(kinds, Shape(lateness=20, history=history))
    check(timed, holds=["plain Python"])


@pytest.mark.slow
@pytest.mark.parametrize("lateness", [None, 20], ids=["", "timed"])
def test_all_operations_of_a_sorted_store_are_what_plain_python_says(lateness: Any) -> None:
    kinds = ("put", "scan_page", "multi_scan", "last", "count", "remove_range", "trim_to_two")
    job = store_job(kinds, Shape(sort=int, lateness=lateness))
    check(job, holds=["plain Python"], depth="quick")


class Limit(NamedTuple):
    sensor: str
    at: dt.datetime
    level: int


def two_inputs() -> sk.Job:
    """Two sources and an operator behind another, with late records."""

    @sk.process(**TIMES, ordered=True)
    def above(event: Reading | Limit, limit: sk.ValueState[int]) -> Iterator[Limit]:
        if isinstance(event, Limit):
            limit.update(event.level)
        elif event.level > (limit.get() or 0):
            yield Limit(event.sensor, event.at, event.level)

    job = sk.Job("limits")
    readings, limits = job.source("readings", Reading), job.source("limits", Limit)
    found = readings.union(limits).process(above)
    found.late.sink("late")
    hours = found.window(sk.tumbling("1 minute"), key="sensor", event_time="at")
    hours.count(name="minutes").sink("minutes")
    return job


def test_several_inputs_are_what_plain_python_says() -> None:
    check(two_inputs(), holds=["plain Python"], depth="quick")


@pytest.mark.parametrize("kind", ["windows", "sessions", "aggregates"])
def test_operators_of_several_key_fields_that_are_not_the_first_ones_pass(kind: str) -> None:
    key = ("sensor", "level")

    def counted(readings: sk.Stream[Reading]) -> sk.Stream[Any]:
        if kind == "aggregates":
            return readings.aggregate(key=key, readings=sk.Count())
        window = sk.session("10 s") if kind == "sessions" else sk.tumbling("10 s")
        return readings.window(window, **{**TIMES, "key": key}).count()

    check(job_of(counted), holds=["plain Python"], depth="quick")


@pytest.mark.parametrize("name", ["hosts", "together", "queries"])
def test_readers_and_hosts_see_what_the_functions_have(name: str) -> None:
    for given in (two_inputs(), smallest):
        check(given, holds=[name], examples=30)


# ------------------------------------------------------------------------------------- with faults


def too_soon(of: Any) -> Any:
    return lambda self, end, name: of(self, end, name) - dt.timedelta(seconds=1)


def too_few(first: Any) -> Any:
    return lambda self, records: first(self, records)[:1]


def without_effect(_: Any) -> Any:
    return lambda self, request, states: None


FAULTS: dict[str, tuple[Any, str, Any, Callable[[], sk.Job]]] = {
    "windows fire too soon": (Deadlines, "of", too_soon, lambda: windows(WINDOWS[0], "count")),
    "top keeps one": (CompleteOrder, "first", too_few, lambda: windows(WINDOWS[0], "top", **LATE)),
    "a removed value stays": (
        OneValue,
        "remove",
        without_effect,
        lambda: store_job(("put", "remove"), Shape()),
    ),
}


def only_here(given: Any, name: str, examples: int | None = None) -> str:
    """Return what a check finds in this process: new ones do not have what a test has patched."""
    report = check(given, holds=[name], depth="quick", examples=examples)
    (found,) = [each.only_here for each in report.properties if each.name == name]
    assert found is not None, "nothing was found"
    assert f"fails in this process and not in new ones ({found})" in str(report)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_windows_and_stores_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, function, spoilt, job = FAULTS[name]
    monkeypatch.setattr(owner, function, spoilt(getattr(owner, function)))
    assert only_here(job(), "plain Python")


def test_a_row_that_readers_do_not_see_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CheckpointReader.rows
    monkeypatch.setattr(CheckpointReader, "rows", lambda *given: islice(rows(*given), 1, None))
    assert "as a reader sees it" in only_here(smallest, "queries", 60)


def test_a_stale_copy_of_another_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies._DiskCopy, "_reopens", lambda *_: True)
    assert only_here(smallest, "hosts", 100)


@sk.process(key="sensor")
def numbered(
    reading: Reading, levels: Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
) -> Iterator[int]:
    levels.append(reading.level)
    yield reading.level


def test_an_element_that_a_rescale_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = redistribution.moved_rows

    def lossy(*arguments: Any) -> Any:
        moved = cut(*arguments)
        return [*moved[:-1], moved[-1][:-1]] if len(moved) > 1 else moved

    monkeypatch.setattr(redistribution, "moved_rows", lossy)
    found = only_here(numbered, "rescaling")
    assert "operator state 'levels' of numbered before epoch" in found


def test_operator_state_is_where_its_rule_says() -> None:
    even, union = sk.Redistribute("even"), sk.Redistribute("union")
    broadcast = sk.Redistribute("broadcast")
    total = sk.Redistribute(split=lambda held, n: [held, *[0] * (n - 1)], merge=sum)
    lists = [[1, 2, 3], [4, 5]]
    assert wrong_pieces(even, lists, [[1, 2], [3, 4], [5]]) is None
    assert wrong_pieces(even, lists, [[1, 2], [3], [4, 5]]) is not None
    assert wrong_pieces(union, lists, [[1, 2, 3, 4, 5]]) is None
    assert wrong_pieces(broadcast, [7, 8], [7, 8, 7]) is None
    assert wrong_pieces(total, [7, None, 8], [7, None, 8]) is None
    assert wrong_pieces(total, [7, None, 8], [7, 8]) is None
    assert wrong_pieces(total, [7, 8], [7, 0, 8]) is None
    assert wrong_pieces(total, [7, 8], [15, 0, 0]) is not None


@sk.process(key="sensor")
def forgetful(reading: Reading, levels: sk.ValueState[list[int]]) -> Iterator[int]:
    held = levels.get()
    if held is None:
        levels.update([reading.level])
    else:
        held.append(reading.level)
        yield len(held)


@sk.process(key="sensor")
def smallest(reading: Reading, levels: sk.ValueState[list[int]]) -> Iterator[int]:
    levels.update([*(levels.get() or []), reading.level][-3:])
    held = levels.get() or []
    held.sort()
    yield held[0]


def test_a_change_of_a_value_that_is_not_written_is_found() -> None:
    check(smallest, holds=["in place"], depth="quick")
    with pytest.raises(AssertionError, match="'in place' does not hold"):
        check(forgetful, holds=["in place"], depth="quick")


def test_an_epoch_that_ends_before_its_commit_is_run_again() -> None:
    check(smallest, holds=["replays"], depth="quick")
