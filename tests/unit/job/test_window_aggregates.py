"""Several aggregates in one operator of windows: the results of one operator each."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.functions.process import Process
from statekit.job.windows.accumulation import Accumulation
from statekit.job.windows.sliding import Sliding
from statekit.job.windows.window_kind import Window
from statekit.records.result_type import ResultRecords
from statekit.testing import Harness
from tests.support.effort import SOAK
from tests.support.instants import after, at
from tests.unit.job.test_windows_combined import (
    EVENTS,
    LAST,
    WINDOWS,
    Event,
    events,
    process_of,
    windowed,
)

NOTED: sk.Aggregate[Any, list[Any], list[Any]] = sk.Aggregate(
    list, lambda held, value: [*held, value], list, merge=list.__add__
)


def own(field: str | None = "value") -> sk.OwnAggregate:
    kept: Any = list[int | None] if field else list[Event]
    return sk.OwnAggregate(NOTED, accumulator=kept, result=kept, field=field)


BUILT_IN: Mapping[str, sk.FieldAggregate] = {
    "total": sk.Sum("value"),
    "events": sk.Count(),
    "values": sk.Count("value"),
    "least": sk.Min("value"),
    "most": sk.Max("value"),
    "mean": sk.Mean("value"),
    "top": sk.Top(2, by="-value"),
    "newest": sk.Last("value", by="at"),
}
LISTS: Mapping[str, sk.FieldAggregate] = {
    "all": sk.Collect(),
    "each": sk.Collect("value"),
    "newest": sk.Last(by="at"),
}
OWN: Mapping[str, sk.FieldAggregate] = {"noted": own(), "total": sk.Sum("value"), "all": own(None)}


def declared(
    aggregates: Mapping[str, sk.FieldAggregate], window: Window, **options: Any
) -> Process[Any, ..., Any]:
    of: Any = windowed(window, **options).aggregate
    return process_of(of(**aggregates))


def found(harness: Harness[Any], records: list[Event]) -> dict[Any, list[tuple[Any, ...]]]:
    """The values of each window in order, whatever the order of windows."""
    results: dict[Any, list[tuple[Any, ...]]] = {}
    for result in harness.send(*records):
        results.setdefault(tuple(result[:3]), []).append(tuple(result[3:]))
    return results


OPTIONS = st.fixed_dictionaries(
    {"lateness": st.sampled_from([0, 7, 30]).map(after)},
    optional={"allowed_lateness": st.sampled_from([7, 30]).map(after), "emit": st.just("change")},
) | st.just({"lateness": after(7), "ordered": True})


@settings(max_examples=40 if SOAK else 20, deadline=None)
@given(WINDOWS, st.lists(st.lists(EVENTS, max_size=20), max_size=4), OPTIONS, st.integers(1, 3))
@pytest.mark.parametrize("aggregates", [BUILT_IN, LISTS, OWN])
def test_each_result_is_that_of_an_operator_of_its_own(
    aggregates: Mapping[str, sk.FieldAggregate],
    window: Window,
    epochs: list[list[Event]],
    options: dict[str, Any],
    parallelism: int,
) -> None:
    together = Harness(declared(aggregates, window, **options), parallelism)
    alone = [Harness(declared({name: of}, window, **options)) for name, of in aggregates.items()]
    ends = [] if any(event.at == LAST for some in epochs for event in some) else [LAST]
    for records in [*epochs, []]:
        of_each = [found(harness, records) for harness in alone]
        expected = {
            bounds: [tuple(value for (value,) in values) for values in zip(*of_all, strict=True)]
            for bounds in of_each[0]
            for of_all in [[each[bounds] for each in of_each]]
        }
        assert found(together, records) == expected
    for end in ends:
        results = [sorted(map(tuple, each.advance_watermark(end)), key=repr) for each in alone]
        merged = [(*rows[0][:3], *(row[3] for row in rows)) for rows in zip(*results, strict=True)]
        of_all = sorted(map(tuple, together.advance_watermark(end)), key=repr)
        assert {row[:3]: row for row in of_all} == {row[:3]: row for row in merged}


def test_records_are_combined_before_the_shuffle_once_for_all_aggregates() -> None:
    combiner = declared(BUILT_IN, sk.tumbling("10 s")).traits.combiner
    assert combiner is not None
    # The mean shares the sum and the number of values; the number of records is there in any case.
    assert [(part.verb, part.field) for part in combiner.parts] == [
        ("sum", "value"),
        ("count", "value"),
        ("min", "value"),
        ("max", "value"),
        ("first", None),
        ("first", None),
    ]


class Doubled(sk.Sum):
    """Twice the sum: it adds another value than that of its only part."""

    def accumulation(self, results: ResultRecords) -> Accumulation:
        def doubled(sums: Sequence[Any]) -> list[Any]:
            return [None if each is None else 2 * each for each in sums]

        own = super().accumulation(results)
        return own._replace(value_of=lambda event: doubled([event.value])[0], added=doubled)


@pytest.mark.parametrize("options", [{}, {"allowed_lateness": "5 s"}, {"ordered": True}])
@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.sliding("10 s", "3 s")])
def test_what_combined_rows_add_is_up_to_the_aggregate(
    window: Window, options: dict[str, Any]
) -> None:
    pair = {"doubled": Doubled("value"), "total": sk.Sum("value")}
    harness = Harness(declared(pair, window, **options))
    assert harness.send(Event("a", at(1), 3), Event("a", at(2), None), Event("b", at(2), 4)) == []
    results = harness.advance_watermark(LAST)
    assert results
    assert all(each.doubled == 2 * each.total for each in results)


@pytest.mark.parametrize("window", [sk.tumbling("10 s"), sk.session("3 s")])
def test_a_window_is_one_row_with_the_values_in_the_order_of_names(window: Window) -> None:
    pair = {"total": sk.Sum("value"), "events": sk.Count()}
    harness = Harness(declared(pair, window))
    harness.send(*events((1, 5), (2, 7)))
    ((_, row),) = harness.state("windows", "k").items()
    assert (row if isinstance(window, Sliding) else row[2]) == (2, 12)
    single = Harness(declared({"total": sk.Sum("value")}, window))
    single.send(*events((1, 5), (2, 7)))
    ((_, row),) = single.state("windows", "k").items()
    assert (row if isinstance(window, Sliding) else row[2]) == 12


def test_the_order_of_aggregates_may_change_and_other_ones_are_refused(tmp_path: Path) -> None:
    window, path = sk.tumbling("10 s"), tmp_path / "checkpoint"
    harness = Harness(declared(BUILT_IN, window))
    harness.send(*events((1, 5), (2, 7)))
    harness.checkpoint(path)
    reordered = {name: BUILT_IN[name] for name in reversed([*BUILT_IN])}
    restored = Harness.restore(declared(reordered, window), path)
    (before,), (result,) = (each.advance_watermark(LAST) for each in (harness, restored))
    assert result._asdict() == before._asdict()
    for others, told in (
        ({**BUILT_IN, "more": sk.Count()}, "changed its type, and stored rows would be misread"),
        ({**BUILT_IN, "most": sk.Min("value")}, "another name"),
    ):
        with pytest.raises(sk.StateSchemaError, match=told):
            Harness.restore(declared(others, window), path)


def test_a_job_continues_with_the_aggregate_in_the_place_of_a_method(tmp_path: Path) -> None:
    def run(made: Callable[[Any], sk.Stream[Any]], *given: tuple[float, int], drain: bool) -> Any:
        job = sk.Job("windows")
        windows = job.source("events", Event).window(
            sk.tumbling("10 s"), key="key", event_time="at"
        )
        made(windows).sink("means")
        inputs = {"events": events((1, 5), (2, 8), *given)}
        return job.run(inputs, checkpoint=tmp_path / "checkpoint", drain=drain)["means"]

    run(lambda windows: windows.mean("value", name="mean"), drain=False)
    means = run(
        lambda windows: windows.aggregate(value=sk.Mean("value"), name="mean"), (3, 11), drain=True
    )
    assert [result.value for result in means] == [8.0]


class Short(NamedTuple):
    key: str
    end: dt.datetime
    total: int | None
    top: list[Event]


def test_into_takes_some_of_the_fields() -> None:
    of: Any = windowed(sk.tumbling("10 s")).aggregate
    harness = Harness(process_of(of(**BUILT_IN, into=Short)))
    harness.send(*events((1, 5)))
    assert harness.advance_watermark(LAST) == [Short("k", at(10), 5, events((1, 5)))]


@dataclasses.dataclass
class Changing:
    key: str
    at: dt.datetime
    values: list[int]


def _adding(held: list[int], record: Changing) -> list[int]:
    record.values.append(1)
    return [*held, len(record.values)]


CHANGES: sk.Aggregate[Changing, list[int], list[int]] = sk.Aggregate(
    list, _adding, list, merge=list.__add__
)


@pytest.mark.parametrize("by_window", [True, False])
def test_a_record_that_one_aggregate_changes_is_unchanged_for_the_others(by_window: bool) -> None:
    changing = sk.OwnAggregate(CHANGES, accumulator=list[int], result=list[int])
    stream: Any = sk.Job("changing").source("events", Changing)
    aggregates = {"one": changing, "other": changing}
    if by_window:
        made = stream.window(sk.tumbling("10 s"), key="key", event_time="at").aggregate(
            **aggregates
        )
    else:
        made = stream.aggregate(key="key", **aggregates)
    harness = Harness(process_of(made))
    records = [Changing("k", at(1), [7]), Changing("k", at(2), [])]
    (result,) = (
        [*harness.send(*records), *harness.advance_watermark(LAST)]
        if by_window
        else (harness.send(*records))
    )
    assert (result.one, result.other) == ([2, 1], [2, 1])


def test_aggregates_of_your_own_by_key_get_all_records_in_order(tmp_path: Path) -> None:
    def made() -> Process[Any, ..., Any]:
        stream: Any = sk.Job("own").source("events", Event)
        return process_of(stream.aggregate(key="key", noted=own(), all=own(None), n=sk.Count()))

    harness = Harness(made())
    first = [*events((3, 5)), Event("k", at(1), None), *events((2, 7))]
    (result,) = harness.send(*first)
    assert (result.noted, result.all, result.n) == ([5, None, 7], first, 3)
    harness.checkpoint(tmp_path / "checkpoint")
    restored = Harness.restore(made(), tmp_path / "checkpoint", parallelism=3)
    more = events((9, 1))
    (result,) = restored.send(*more)
    assert (result.noted, result.all, result.n) == ([5, None, 7, 1], first + more, 4)


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({}, "name an aggregate"),
        ({"cents": 5}, "cents=5: give Count"),
        ({"start": sk.Count()}, "give the aggregate another name"),
        ({"n": sk.Sum("nothing")}, "'nothing' is not a field"),
    ],
)
def test_wrong_aggregates_are_refused(aggregates: dict[str, Any], message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        declared(aggregates, sk.tumbling("10 s"))
