"""Collected records, by key and by window, are those of plain lists."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.state.list_state import ListState
from statekit.testing import Harness
from tests.support.instants import after, at
from tests.unit.job.test_windows import LAST
from tests.unit.job.test_windows_combined import WINDOWS, process_of


class Stop(NamedTuple):
    bus: str
    at: dt.datetime
    riders: int | None
    lines: list[str]


STOPS = st.builds(
    Stop,
    st.sampled_from("abc"),
    st.integers(0, 60).map(at),
    st.none() | st.integers(0, 4),
    st.lists(st.sampled_from("xyz"), max_size=2),
)
EPOCHS = st.lists(st.lists(STOPS, max_size=12), min_size=1, max_size=4)
BACKENDS = pytest.mark.parametrize("backend", ["memory", "rocksdb"])


def stream_of(record: Any, **options: Any) -> sk.Stream[Any]:
    aggregate: Any = sk.Job("buses").source("stops", record).aggregate
    made: sk.Stream[Any] = aggregate(key="bus", **options)
    return made


# ------------------------------------------------------------------------------------------ by key


@settings(max_examples=20, deadline=None)
@given(EPOCHS, st.sampled_from([1, 3]))
@BACKENDS
def test_a_key_has_all_its_records_in_the_order_of_arrival(
    backend: Any, epochs: list[list[Stop]], parallelism: int
) -> None:
    stream = stream_of(
        Stop,
        stops=sk.Collect(),
        riders=sk.Collect("riders"),
        lines=sk.Collect("lines"),
        most=sk.Max("riders"),
    )
    harness = Harness(stream, parallelism, backend=backend)
    seen: dict[str, list[Stop]] = {}
    for stops in epochs:
        for stop in stops:
            seen.setdefault(stop.bus, []).append(stop)
        wanted = []
        for bus in sorted({stop.bus for stop in stops}):
            own = seen[bus]
            riders = [stop.riders for stop in own if stop.riders is not None]
            lines = [stop.lines for stop in own]
            wanted.append((bus, own, riders, lines, max(riders, default=None)))
        assert sorted(map(tuple, harness.send(*stops)), key=lambda out: out[0]) == wanted
    for bus, own in seen.items():
        assert harness.state("stops", bus) == own


def test_an_epoch_writes_the_new_elements_only(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    put_pending = ListState._put_pending

    def counted(state: Any) -> None:
        written.append(len(state._pending))
        put_pending(state)

    monkeypatch.setattr(ListState, "_put_pending", counted)
    harness = Harness(stream_of(Stop, stops=sk.Collect()), backend="rocksdb")
    for epoch in range(3):
        (out,) = harness.send(*(Stop("a", at(n), n, []) for n in range(5)))
        assert len(out.stops) == 5 * (epoch + 1)
    assert written == [5, 5, 5]


def test_the_state_is_a_list_and_a_job_continues_with_it(tmp_path: Path) -> None:
    harness = Harness(stream_of(Stop, riders=sk.Collect("riders")))
    harness.send(*(Stop("a", at(n), n, []) for n in (3, 1)))
    assert harness.state("riders", "a") == [3, 1]
    harness.checkpoint(tmp_path / "checkpoint")
    restored = Harness.restore(harness.process, tmp_path / "checkpoint", parallelism=3)
    (out,) = restored.send(Stop("a", at(9), 3, []))
    assert out.riders == [3, 1, 3]


def test_elements_expire_one_by_one() -> None:
    harness = Harness(stream_of(Stop, riders=sk.Collect("riders"), ttl=sk.TTL("1 hour")))
    start = at(0)
    harness.advance_processing_time(start)
    harness.send(Stop("a", at(0), 1, []))
    harness.advance_processing_time(start + dt.timedelta(minutes=40))
    (out,) = harness.send(Stop("a", at(0), 2, []))
    assert out.riders == [1, 2]
    harness.advance_processing_time(start + dt.timedelta(minutes=80))
    (out,) = harness.send(Stop("a", at(0), 3, []))
    assert out.riders == [2, 3]


@dataclasses.dataclass
class Changing:
    bus: str
    riders: int


class Model(pydantic.BaseModel):
    bus: str
    riders: int


class Named(TypedDict):
    bus: str
    riders: int


@pytest.mark.parametrize("record", [Changing, Model, Named])
def test_records_may_be_of_any_class(record: Any) -> None:
    made = [record(bus="a", riders=riders) for riders in (2, 7, 5)]
    harness = Harness(stream_of(record, stops=sk.Collect()))
    for one in made:
        (out,) = harness.send(one)
    assert out.stops == made


class Partial(TypedDict):
    bus: str
    at: dt.datetime
    note: NotRequired[str]


class Unclear(TypedDict):
    bus: str
    at: dt.datetime
    note: NotRequired[str | None]


PARTIAL: list[Any] = [
    {"bus": "a", "at": at(0)},
    {"bus": "a", "at": at(0), "note": "x"},
    {"bus": "a", "at": at(1)},
]
OF_RECORDS = [sk.Collect(), sk.Top(3, by="at"), sk.Last(by="at")]


@pytest.mark.parametrize("aggregate", OF_RECORDS, ids=str)
def test_kept_records_keep_which_keys_of_a_typed_dict_they_have(aggregate: Any) -> None:
    harness = Harness(stream_of(Partial, found=aggregate))
    found = [out.found for record in PARTIAL for out in harness.send(record)]
    if isinstance(aggregate, sk.Last):
        assert found[0] == PARTIAL[0]
        assert found[2] == PARTIAL[2]
    else:
        assert sorted(map(str, found[2])) == sorted(map(str, PARTIAL))


@pytest.mark.parametrize("aggregate", OF_RECORDS, ids=str)
def test_records_with_a_key_that_may_be_absent_or_none_cannot_be_kept_in_columns(
    aggregate: Any,
) -> None:
    with pytest.raises(sk.StateTypeError, match=r"Unclear\.note may be absent or None"):
        stream_of(Unclear, found=aggregate)


@pytest.mark.parametrize("record", [Partial, Unclear])
def test_records_of_windows_keep_which_keys_of_a_typed_dict_they_have(record: Any) -> None:
    records = PARTIAL if record is Partial else [*PARTIAL, {"bus": "b", "at": at(0), "note": None}]
    job: Any = sk.Job("buses")
    windows = job.source("stops", record).window(sk.tumbling("1 hour"), key="bus", event_time="at")
    windows.collect().sink("all")
    windows.top(9, by="at").sink("top")
    windows.last().sink("last")
    run = job.run({"stops": records})
    for name in ("all", "top"):
        kept = [one for out in run[name] for one in out.records]
        assert sorted(map(str, kept)) == sorted(map(str, records))
    assert [out.record for out in run["last"]] == [PARTIAL[2], *records[3:]]


@pytest.mark.parametrize("record", [Partial, Unclear])
def test_a_record_without_the_key_of_an_aggregate_is_refused(record: Any) -> None:
    job: Any = sk.Job("buses")
    job.source("stops", record).aggregate(key="note", number=sk.Count()).sink("out")
    with pytest.raises(sk.ProcessError, match="a record has no 'note'"):
        job.run({"stops": PARTIAL})


@pytest.mark.parametrize(
    ("record", "aggregate", "message"),
    [
        (Stop, sk.Collect("wheels"), "'wheels' is not a field of Stop"),
        (Stop, sk.Collect, "Mean or Collect of a field, or Top, Last or Collect of the records"),
        (dict, sk.Collect("riders"), "a dict has no declared fields"),
    ],
)
def test_what_cannot_be_collected_is_refused(record: Any, aggregate: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        stream_of(record, found=aggregate)


# --------------------------------------------------------------------------------------- by window


def row_by_row(windows: Any, what: Literal["lines"] | None) -> sk.Stream[Any]:
    """The same, in the order of arrival, with an aggregate that nobody can combine."""

    def added(held: list[Any], stop: Stop) -> list[Any]:
        return [*held, (stop.at, stop if what is None else stop.lines)]

    def in_order(held: list[Any]) -> list[Any]:
        return [value for _, value in sorted(held, key=lambda pair: pair[0])]

    element: Any = Stop if what is None else list[str]
    held: Any = list[tuple[dt.datetime, element]]
    listed: sk.Aggregate[Any, Any, Any] = sk.Aggregate(list, added, in_order, list.__add__)
    made: sk.Stream[Any] = windows.aggregate(
        result=sk.OwnAggregate(listed, accumulator=held, result=list[element])
    )
    return made


@settings(max_examples=15, deadline=None)
@given(WINDOWS, EPOCHS, st.integers(0, 20), st.sampled_from([None, "lines"]))
@BACKENDS
def test_a_window_has_its_records_in_order_of_time_and_arrival(
    backend: Any, window: Any, epochs: list[list[Stop]], lateness: int, what: Any
) -> None:
    options: Any = {"key": "bus", "event_time": "at", "lateness": after(lateness)}
    windows = sk.Job("buses").source("stops", Stop).window(window, **options)
    declared = process_of(windows.collect(what))
    harness = Harness(declared, parallelism=2, backend=backend)
    plain = Harness(process_of(row_by_row(windows, what)), parallelism=2)
    for stops in epochs:
        found, wanted = harness.send(*stops), plain.send(*stops)
        assert sorted(map(tuple, found)) == sorted(map(tuple, wanted))
    found, wanted = harness.advance_watermark(LAST), plain.advance_watermark(LAST)
    assert sorted(map(tuple, found)) == sorted(map(tuple, wanted))
    for bus in "abc":
        assert not any(harness.state(name, bus) for name in ("windows", "elements", "number"))
