"""The plan: wiring, its refusals, and how it is shown."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository


class Flight(NamedTuple):
    tail: str
    airport: str
    delay: int


class Visit(NamedTuple):
    airport: str
    tail: str
    number: int


@sk.process(key="tail")
def visits(flight: Flight, count: sk.ValueState[int]) -> Iterator[Visit]:
    count.update((count.get() or 0) + 1)
    yield Visit(flight.airport, flight.tail, count.get() or 0)


@sk.process(key="airport")
def arrivals(visit: Visit, tails: sk.MapState[str, int]) -> Iterator[tuple[str, int]]:
    tails[visit.tail] = visit.number
    yield visit.airport, len(tails)


@sk.process(key=("airport", "tail"))
def silent(visit: Visit, last: sk.ListState[Visit]) -> None:
    last.append(visit)


def fleet() -> sk.Job:
    job = sk.Job("fleet")
    stream = job.source("flights", Flight).process(visits)
    stream.sink("visits")
    stream.process(arrivals).sink("arrivals").sink("again")
    stream.process(silent)
    return job


FLIGHTS = [
    Flight("N1", "JFK", 5),
    Flight("N2", "JFK", 6),
    Flight("N1", "LGA", 7),
    Flight("N1", "JFK", 8),
]


def test_a_run_is_indexed_by_streams_and_names_of_sinks() -> None:
    job = sk.Job("fleet")
    of_visits = job.source("flights", Flight).process(visits)
    unread = of_visits.filter(lambda visit: True, name="unread")
    of_visits.sink("visits").process(arrivals).sink("arrivals")
    run = job.run({"flights": FLIGHTS}, outputs={"arrivals": lambda records, epoch: None})
    assert run[of_visits] == run["visits"] == run.outputs["visits"]
    with pytest.raises(sk.StateTypeError, match="no records of a sink 'visit': it has those of vi"):
        run["visit"]
    with pytest.raises(sk.StateTypeError, match="outputs= had a callback for it"):
        run["arrivals"]
    with pytest.raises(sk.StateTypeError, match="stream 'unread' has no sink in this job"):
        run[unread]


def test_operators_keyed_differently_are_chained() -> None:
    done = fleet().run({"flights": FLIGHTS}, parallelism=3)
    assert sorted(done.outputs["visits"]) == sorted(
        [Visit("JFK", "N1", 1), Visit("JFK", "N2", 1), Visit("LGA", "N1", 2), Visit("JFK", "N1", 3)]
    )
    assert sorted(done.outputs["arrivals"]) == sorted(done.outputs["again"])
    assert max(done.outputs["arrivals"]) == ("LGA", 1)
    assert ("JFK", 2) in done.outputs["arrivals"]


def test_all_operators_commit_in_one_manifest(tmp_path: Path) -> None:
    done = fleet().run({"flights": FLIGHTS}, checkpoint=tmp_path, parallelism=2, epoch_size=2)
    repository = Repository(tmp_path)
    assert repository.epochs() == [0, 1]
    assert done.epochs == 2
    manifest = repository.manifest(1)
    assert sorted(manifest.operators) == ["arrivals", "silent", "visits"]
    for operator in manifest.operators.values():
        assert len(operator.shards) == 2
        assert operator.records_in == 2
    assert manifest.offsets == {"flights": 4}


def test_a_plan_is_drawn() -> None:
    assert str(fleet()) == (
        "job fleet\n"
        "└── source flights: Flight\n"
        "    └── operator visits by tail → Visit\n"
        "        ├── state count: value[int]\n"
        "        ├── sink visits\n"
        "        ├── operator arrivals by airport → tuple[str, int]\n"
        "        │   ├── state tails: map[str → int]\n"
        "        │   ├── sink arrivals\n"
        "        │   └── sink again\n"
        "        └── operator silent by airport, tail → nothing\n"
        "            └── state last: list[Visit{airport: str, tail: str, number: int}]"
    )


def test_a_plan_is_data() -> None:
    job = fleet()
    records = [operator.record().model_dump(mode="json") for operator in job.plan.operators]
    assert json.loads(json.dumps(records)) == records
    assert job.name == "fleet"
    assert job.key_groups is None
    assert [(source.name, source.record_type.name) for source in job.plan.sources] == [
        ("flights", "Flight")
    ]
    assert [record["name"] for record in records] == ["visits", "arrivals", "silent"]
    assert records[1]["inputs"] == ["visits"]
    assert "operator arrivals by airport → tuple[str, int]" in str(job)
    assert [field["name"] for field in records[2]["key"]] == ["airport", "tail"]
    assert ("again", "arrivals") in [(sink.name, sink.stream) for sink in job.plan.sinks]


def test_a_function_that_takes_other_records_is_refused() -> None:
    stream = sk.Job("fleet").source("flights", Flight)
    with pytest.raises(sk.StateTypeError, match="arrivals takes Visit; stream 'flights' has Fli"):
        stream.process(arrivals)  # type: ignore[arg-type]


def test_nothing_can_be_fed_by_a_stream_without_records() -> None:
    stream = sk.Job("fleet").source("flights", Flight).process(visits).process(silent)
    with pytest.raises(sk.StateTypeError, match="'silent' has no records"):
        stream.process(visits)  # type: ignore[arg-type]


def test_a_function_of_one_type_does_not_take_outputs_of_several() -> None:
    @sk.process(key="tail")
    def either(flight: Flight) -> Iterator[Flight | Visit]:
        yield flight

    stream = sk.Job("fleet").source("flights", Flight).process(either)
    match = r"visits takes Flight; stream 'either' has Flight \| Visit"
    with pytest.raises(sk.StateTypeError, match=match):
        stream.process(visits)  # type: ignore[arg-type]


def test_outputs_that_are_no_records_cannot_be_processed_further() -> None:
    stream = sk.Job("fleet").source("flights", Flight).process(visits).process(arrivals)
    with pytest.raises(sk.StateTypeError, match="visits takes Flight"):
        stream.process(visits)  # type: ignore[arg-type]


def test_an_undecorated_function_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="decorated with @process"):
        sk.Job("fleet").source("flights", Flight).process(len)  # type: ignore[arg-type]


def test_streams_and_sinks_have_names_of_their_own() -> None:
    job = sk.Job("fleet")
    stream = job.source("flights", Flight)
    with pytest.raises(sk.StateTypeError, match="same name as source 'flights'"):
        job.source("flights", Flight)
    made = stream.process(visits)
    with pytest.raises(sk.StateTypeError, match=r"same name as operator 'visits'.*Choose"):
        stream.process(visits)
    assert stream.process(visits, name="visits-again").name == "visits-again"
    made.sink("out")
    with pytest.raises(sk.StateTypeError, match="sink 'out' already"):
        stream.sink("out")


@pytest.mark.parametrize("name", ["", "a/b", "..", "1a", "a b", "ä", "-a"])
def test_names_that_could_not_be_file_names_are_refused(name: str) -> None:
    with pytest.raises(sk.StateTypeError, match="names have letters"):
        sk.Job(name)
    job = sk.Job("fleet")
    with pytest.raises(sk.StateTypeError, match="names have letters"):
        job.source(name, Flight)
    stream = job.source("flights", Flight)
    with pytest.raises(sk.StateTypeError, match="names have letters"):
        stream.sink(name)
    if name:
        with pytest.raises(sk.StateTypeError, match="names have letters"):
            stream.process(visits, name=name)


@pytest.mark.parametrize("groups", [0, -1, 32_769, 1.5, True])
def test_a_number_of_key_groups_that_cannot_be_is_refused(groups: Any) -> None:
    with pytest.raises(sk.RescaleError, match="key_groups"):
        sk.Job("fleet", key_groups=groups)


def test_a_source_of_no_record_type_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="'fleet', source 'numbers'"):
        sk.Job("fleet").source("numbers", int)


def test_a_job_without_operators_does_not_run() -> None:
    job = sk.Job("fleet")
    job.source("flights", Flight).sink("out")
    with pytest.raises(sk.RestoreError, match="no operator"):
        job.run({"flights": []})


def test_a_source_may_be_a_sink_too() -> None:
    job = sk.Job("fleet")
    stream = job.source("flights", Flight)
    stream.sink("raw")
    stream.process(visits)
    assert job.run({"flights": FLIGHTS}).outputs["raw"] == FLIGHTS


class Reading(NamedTuple):
    tail: str
    at: dt.datetime


@sk.process(key="tail", event_time="at")
def timed(reading: Reading, count: sk.ValueState[int]) -> Iterator[Reading]:
    yield reading


@sk.process(key="tail")
def untimed(reading: Reading, count: sk.ValueState[int]) -> Iterator[Reading]:
    yield reading


@pytest.mark.parametrize("declared", [timed, untimed])
def test_a_source_named_like_a_late_stream_is_refused_in_either_order(declared: Any) -> None:
    name = f"{declared.name}.late"
    first, second = sk.Job("j"), sk.Job("j")
    told = f"late stream '{name}' of operator '{declared.name}' .* source '{name}'.*Choose another"
    with pytest.raises(sk.StateTypeError, match=told):
        first.source(name, Reading).process(declared)
    assert not first.plan.operators, "the refused operator is not part of the job"
    second.source("in", Reading).process(declared)
    told = f"source '{name}' .* late stream '{name}' of operator '{declared.name}'.*Choose another"
    with pytest.raises(sk.StateTypeError, match=told):
        second.source(name, Reading)
    assert [source.name for source in second.plan.sources] == ["in"]


def test_an_operator_named_like_a_late_stream_is_refused_in_either_order() -> None:
    first, second = sk.Job("j"), sk.Job("j")
    stream = first.source("in", Reading)
    stream.process(untimed, name="timed.late")
    with pytest.raises(sk.StateTypeError, match=r"'timed\.late' of operator 'timed' .* operator"):
        stream.process(timed)
    stream = second.source("in", Reading)
    stream.process(timed)
    with pytest.raises(sk.StateTypeError, match=r"operator 'timed\.late' .* operator 'timed'"):
        stream.process(untimed, name="timed.late")


def test_windows_and_aggregates_named_like_a_late_stream_are_refused() -> None:
    job = sk.Job("j")
    stream = job.source("in", Reading)
    stream.process(timed)
    windows = stream.window(sk.tumbling("1 hour"), key="tail", event_time="at")
    with pytest.raises(sk.StateTypeError, match=r"late stream 'timed\.late'"):
        windows.count(name="timed.late")
    with pytest.raises(sk.StateTypeError, match=r"late stream 'timed\.late'"):
        stream.aggregate(key="tail", readings=sk.Count(), name="timed.late")


def test_names_of_columns_that_statekit_adds_are_refused() -> None:
    job = sk.Job("j")
    with pytest.raises(sk.StateTypeError, match="begin with '__statekit'"):
        job.source("__statekit_source", Reading)
