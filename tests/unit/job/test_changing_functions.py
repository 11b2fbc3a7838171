"""What a function does to what it gets is seen nowhere else."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from tests.support.changing_functions import (
    PLAIN,
    RULE,
    START,
    Graph,
    Tagged,
    change,
    change_all,
    changing_job,
    keep,
    plain_run,
    same,
    sorted_records,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(0, 6))
    kinds = st.sampled_from(sorted(PLAIN))
    drawn = [(draw(kinds), draw(st.integers(0, number))) for number in range(1, size)]
    return [("process", 0), *drawn]  # a job has an operator


RECORDS = st.lists(
    st.builds(
        Tagged,
        st.sampled_from("ab"),
        st.integers(0, 9).map(lambda minutes: START + dt.timedelta(minutes=minutes)),
        st.integers(0, 9),
        st.lists(st.sampled_from("xy"), max_size=2),
        st.just({}) | st.just({"n": [1]}),
    ),
    max_size=4,
    unique_by=lambda record: record.at,
).map(lambda records: sorted(records, key=lambda record: record.at))


def changed_by_callback(found: list[Any]) -> Any:
    def take(records: list[Any], _epoch: int) -> None:
        found.extend(copy.deepcopy(records))
        for record in records:
            change(record, "callback")

    return take


@given(graphs(), RECORDS, st.data())
@settings(deadline=None, max_examples=15)
def test_functions_that_change_what_they_get_are_as_in_plain_python(
    graph: Graph, records: Sequence[Tagged], data: st.DataObject
) -> None:
    streams = range(len(graph) + 1)
    sinks = data.draw(st.sets(st.sampled_from(streams), min_size=1).map(sorted))
    twice = data.draw(st.sets(st.sampled_from(streams)).map(sorted))
    called = data.draw(st.sets(st.sampled_from(sinks)))
    found: dict[str, list[Any]] = {f"sink_{number}": [] for number in called}
    outputs = {name: changed_by_callback(taken) for name, taken in found.items()}
    size = data.draw(st.sampled_from([1, 2, 100]))
    # The rule must be there before the first record of any epoch.
    given = copy.deepcopy(list(records))
    run = changing_job(graph, sinks, twice).run(
        {"in": given, "rules": [RULE]},
        outputs=outputs,
        parallelism=data.draw(st.integers(1, 3)),
        epoch_size=size,
    )
    expected = plain_run(graph, records)
    for number in sinks:
        name = f"sink_{number}"
        taken = found[name] if name in found else run.outputs[name]
        assert sorted_records(taken) == sorted_records(expected[number]), name
    for number in twice:
        assert sorted_records(run.outputs[f"second_{number}"]) == sorted_records(expected[number])
    assert given == records, "the caller's records are the caller's"


def test_windows_that_share_a_record_do_not_see_what_an_aggregate_does_to_it() -> None:
    def add(total: int, record: Tagged) -> int:
        change(record, "added")
        return total + record.score

    summed = sk.Aggregate(lambda: 0, add, lambda total: total, lambda one, other: one + other)
    job = sk.Job("shared")
    windows = job.source("in", Tagged).window(
        sk.sliding("3 hours", "1 hour"), key="user", event_time="at"
    )
    windows.aggregate(sum=sk.OwnAggregate(summed, accumulator=int, result=int), name="sum").sink(
        "sums"
    )
    run = job.run({"in": [Tagged("a", START, 1, [], {})]})
    assert [found.sum for found in run.outputs["sums"]] == [101, 101, 101]


def test_late_records_are_those_that_arrived_whatever_reads_them_changes() -> None:
    late = Tagged("a", START, 1, [], {})
    records = [Tagged("a", START + dt.timedelta(days=1), 1, [], {}), late]
    job = sk.Job("late")
    source = job.source("in", Tagged)
    changed = source.process(change_all)
    changed.late.map(same, name="changed_late").sink("changed")
    changed.late.sink("late")
    changed.sink("out")
    source.filter(keep, name="kept").sink("kept")
    source.sink("all")
    run = job.run({"in": records}, epoch_size=1)
    assert (run.outputs["late"], run.outputs["all"]) == ([late], records)
    assert [record.score for record in run.outputs["changed"]] == [101]
    assert run.outputs["kept"] == [record for record in records if (record.score + 100) % 3]


def test_an_operator_that_takes_a_stream_twice_gets_two_records() -> None:
    @sk.process(key="user")
    def scores(record: Tagged, times: sk.ValueState[int]) -> Iterator[int]:
        record.score += 1
        yield record.score

    job = sk.Job("twice")
    source = job.source("in", Tagged)
    source.union(source.filter(lambda record: True, name="same")).process(scores).sink("scores")
    assert job.run({"in": [Tagged("a", START, 1, [], {})]}).outputs["scores"] == [2, 2]
