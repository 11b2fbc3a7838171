"""Key fields of every type: process functions, windows, aggregates, stores, and readers."""

from __future__ import annotations

import datetime as dt
import enum
import json
from collections import Counter, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import statekit as sk
from statekit.codec.key_example import key_example
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.key_types import KEY_TYPES, record_of, records_of


def totals(annotation: Any) -> Any:
    """Return a process function that adds the numbers of a key, and keeps the key in a map."""
    cls: Any = record_of(annotation)

    def total(record: Any, sum: Any, seen: Any) -> Any:
        sum.update((sum.get() or 0) + record.n)
        if record.key is not None:
            seen[record.key] = record.n
        yield record

    hints = {"sum": sk.ValueState[int], "seen": sk.MapState[annotation, int]}
    total.__annotations__ = {"record": cls, **hints, "return": Iterator[cls]}
    return sk.process(key="key")(total)


def key_text(key: Any) -> str:
    """Return a key as text, as a user types it after `statekit get`."""
    match key:
        case None:
            return "null"
        case enum.Enum():
            return str(key.name)
        case bytes():
            return key.hex()
        case dt.datetime() | dt.date():
            return key.isoformat()
        case dt.timedelta():
            return str(msgspec.to_builtins(key))
        case tuple():
            return json.dumps(
                [part if part is None or type(part) is int else _json(part) for part in key]
            )
    return str(key)


def _json(part: Any) -> Any:
    if part is None or type(part) is int:
        return part
    return json.loads(key_text(part)) if isinstance(part, tuple) else key_text(part)


def expected(records: list[Any]) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for record in records:
        sums[record.key] += record.n
    return dict(sums)


@pytest.mark.parametrize("name", KEY_TYPES)
def test_a_key_of_every_type_has_its_state_and_is_read_from_outside(
    name: str, tmp_path: Path
) -> None:
    annotation, values = KEY_TYPES[name]
    records, declared = records_of(annotation, values), totals(annotation)
    job: Any = sk.Job("keys")
    job.source("records", type(records[0])).process(declared).sink("out")
    out: list[Any] = job.run({"records": records}, checkpoint=tmp_path, parallelism=3)["out"]
    assert sorted(out, key=lambda record: record.n) == records
    rows = sk.read(tmp_path, "total", "sum").read_all()
    assert sorted(rows["value"].to_pylist()) == sorted(expected(records).values())
    reader = CheckpointReader(tmp_path)
    texts = [reader.get("total", "sum", key_text(value)) for value in values]
    assert texts == [expected(records)[value] for value in values]
    with sk.Replica(tmp_path, functions=[declared]) as replica:
        state = replica.at().state("total", "sum")
        assert {key: state.get(key) for key in values} == expected(records)
        assert dict(state.items()) == expected(records)
    with sk.Replica(tmp_path) as replica:
        shown = dict(replica.at().state("total", "sum").items())
        assert Counter(shown.values()) == Counter(expected(records).values())


@pytest.mark.parametrize("name", ["NamedTuple", "nested", "NamedTuple | None"])
def test_a_typed_replica_refuses_other_tuples_with_an_example_that_it_takes(
    name: str, tmp_path: Path
) -> None:
    annotation, values = KEY_TYPES[name]
    records, declared = records_of(annotation, values), totals(annotation)
    job: Any = sk.Job("keys")
    job.source("records", type(records[0])).process(declared)
    job.run({"records": records}, checkpoint=tmp_path)
    example = key_example(declared.key_codec.schema)
    with sk.Replica(tmp_path, functions=[declared]) as replica:
        for state in ("sum", "seen"):
            assert not replica.get("total", state, example).value
            for key in (list(example), (*example, 1), (), "oslo", key_text(example)):
                with pytest.raises(sk.StateTypeError) as told:
                    replica.get("total", state, key)
                assert str(told.value).endswith(f", such as {example!r}")
    with sk.Replica(tmp_path) as replica:
        with pytest.raises(sk.StateTypeError, match="give a JSON list, such as ") as told:
            replica.get("total", "sum", "oslo")
        assert replica.get("total", "sum", str(told.value).partition("such as ")[2]).value is None


@pytest.mark.parametrize("window", [sk.tumbling("1 hour"), sk.session("1 hour")], ids=str)
@pytest.mark.parametrize("name", KEY_TYPES)
def test_windows_have_keys_of_every_type(name: str, window: Any) -> None:
    annotation, values = KEY_TYPES[name]
    job: Any = sk.Job("keys")
    source = job.source("records", record_of(annotation))
    source.window(window, key="key", event_time="at").count().sink("out")
    out: list[Any] = job.run({"records": records_of(annotation, values)})["out"]
    assert {each.key: each.count for each in out} == dict.fromkeys(values, 2)


@pytest.mark.parametrize("name", KEY_TYPES)
def test_aggregates_have_keys_of_every_type(name: str) -> None:
    annotation, values = KEY_TYPES[name]
    job: Any = sk.Job("keys")
    source = job.source("records", record_of(annotation))
    source.aggregate(key="key", number=sk.Count(), last=sk.Last("n", by="n")).sink("out")
    records = records_of(annotation, values)
    out: list[Any] = job.run({"records": records}, parallelism=3)["out"]
    assert {each.key: each.number for each in out} == dict.fromkeys(values, 2)
    assert {each.key: each.last for each in out} == {of.key: of.n for of in records}


@pytest.mark.parametrize("name", KEY_TYPES)
def test_stores_have_keys_of_every_type(name: str, tmp_path: Path) -> None:
    annotation, values = KEY_TYPES[name]
    job, store = sk.Job("keys"), sk.KVStore("store", key=annotation, value=int)
    job.add(store)
    cls, records = record_of(annotation), records_of(annotation, values)
    store.put(job.source("puts", cls), key="key", value="n").sink("put")
    store.get(job.source("gets", cls), key="key").sink("got")
    job.run({"puts": records, "gets": []}, checkpoint=tmp_path)
    got: list[Any] = job.run({"puts": records, "gets": records}, checkpoint=tmp_path)["got"]
    last = {record.key: record.n for record in records}
    assert sorted(each.value for each in got) == sorted(last[record.key] for record in records)


def _named_tuple(name: str, *fields: str, **defaults: int) -> Any:
    made: Any = namedtuple(name, fields, defaults=defaults.values())  # type: ignore[misc]
    made.__annotations__ = dict.fromkeys(fields, int)
    return made


def _enum(name: str, **members: Any) -> Any:
    return enum.Enum(name, members)


RENAMED: dict[str, tuple[Any, Any]] = {
    "NamedTuple": (_named_tuple("Day", "year", "day"), _named_tuple("Date", "year", "day")),
    "NamedTuple with a default": (
        _named_tuple("Day", "year", "day"),
        _named_tuple("Day", "year", "day", day=1),
    ),
    "Enum": (_enum("Kind", A="a"), _enum("Sort", A="a")),
    "Enum with more members": (_enum("Kind", A=1), _enum("Kind", B=0, A=1)),
    "Optional": (_enum("Kind", A=1) | None, _enum("Sort", A=1) | None),
}


def _a_key(annotation: Any) -> Any:
    cls: Any = annotation if isinstance(annotation, type) else get_args(annotation)[0]
    return cls["A"] if issubclass(cls, enum.Enum) else cls(2026, 7)


@pytest.mark.parametrize("name", RENAMED)
def test_a_job_goes_on_after_the_class_of_its_keys_was_renamed(name: str, tmp_path: Path) -> None:
    before, after = RENAMED[name]
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    Harness(totals(before), checkpoint=tmp_path).send(record_of(before)(_a_key(before), 2, at))
    key = _a_key(after)
    harness = Harness(totals(after), checkpoint=tmp_path)
    harness.send(record_of(after)(key, 3, at))
    assert harness.state("sum", key) == 5
    assert harness.state("seen", key) == {key: 3}


def test_keys_of_other_parts_or_values_are_refused_after_a_restart(tmp_path: Path) -> None:
    kind = _enum("Kind", A="a")
    changes = [
        (_named_tuple("Day", "year", "day"), _named_tuple("Day", "year", "month")),
        (kind, _enum("Kind", A="b")),
        (kind, _enum("Kind", B="a")),
        (kind, str),
    ]
    for number, (before, after) in enumerate(changes):
        place = tmp_path / str(number)
        Harness(totals(before), checkpoint=place).send(
            record_of(before)(_a_key(before), 2, dt.datetime(2024, 1, 1, tzinfo=dt.UTC))
        )
        with pytest.raises(sk.StateSchemaError, match="keys cannot change their types") as refused:
            Harness(totals(after), checkpoint=place)
        stored, declared = str(refused.value).split(" in the checkpoint and by ")
        assert stored.partition("by ")[2] != declared.partition(" in the code")[0]


@pytest.mark.parametrize("annotation", [float, tuple[str, int], list[int]], ids=str)
def test_other_types_cannot_be_keys(annotation: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="cannot be a key"):
        totals(annotation)
