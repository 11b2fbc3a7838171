"""Values of NumPy and pandas are refused wherever a value goes, with what to call instead."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pytest

import statekit as sk
from statekit.job.plan import applied
from statekit.spark.worker.pickling import pickled_transforms, unpickled

NANOSECONDS = "2024-01-01T00:00:00.123456789"

VALUES: list[tuple[Any, Any, str]] = [
    (int, np.int64(5), r"numpy\.int64: call \.item\(\)"),
    (int, np.array(5), r"numpy\.ndarray: call \.item\(\)"),
    (int, np.array([5]), r"numpy\.ndarray: call \.tolist\(\)"),
    (int, pd.NA, r"pandas\.NA: it stands for an absent value: use None"),
    (float, np.float64(1.5), r"numpy\.float64: call \.item\(\)"),
    (float, np.float32(1.5), r"numpy\.float32: call \.item\(\)"),
    (float | None, pd.NaT, r"pandas\.NaT: it stands for an absent value"),
    (bool, np.True_, r"numpy\.bool: call \.item\(\)"),
    (str, np.str_("a"), r"numpy\.str_?: call \.item\(\)"),
    (bytes, np.bytes_(b"a"), r"numpy\.bytes_?: call \.item\(\)"),
    (dt.datetime, pd.Timestamp(NANOSECONDS, tz="UTC"), r"pandas\.Timestamp: call \.to_pydatetime"),
    (dt.datetime, pd.NaT, r"pandas\.NaT: it stands for"),
    (dt.datetime, np.datetime64(NANOSECONDS), r"numpy\.datetime64: call \.astype"),
    (dt.datetime, np.datetime64("NaT", "ns"), r"numpy\.datetime64: it is NaT"),
    (dt.timedelta, pd.Timedelta(1, "ns"), r"pandas\.Timedelta: call \.to_pytimedelta"),
    (dt.timedelta, np.timedelta64(1, "ns"), r"numpy\.timedelta64: call \.astype"),
    (dt.date, pd.Timestamp("2024-01-01"), r"pandas\.Timestamp: call \.to_pydatetime"),
    (Literal["a"], np.str_("a"), r"numpy\.str_?: call \.item\(\)"),
]
IDS = [f"{value!r} as {getattr(of, '__name__', of)}" for of, value, _ in VALUES]
KEYS = {int, bool, str, bytes, dt.datetime, dt.timedelta, dt.date}


class Event(NamedTuple):
    key: str


def run(annotation: Any, act: Callable[..., Any]) -> None:
    """Run a function that does something with the states of a key."""

    def put(event: Any, one: Any, many: Any, entries: Any, keyed: Any) -> Any:
        returned = act(one, many, entries, keyed)
        if returned is not None:
            yield returned

    map_key: Any = annotation if annotation in KEYS else str
    put.__annotations__ = {
        "event": Event,
        "one": sk.ValueState[annotation],
        "many": sk.ListState[annotation],
        "entries": sk.MapState[str, annotation],
        "keyed": sk.MapState[map_key, int],
        "return": Iterator[annotation],
    }
    job = sk.Job("values")
    job.source("events", Event).process(sk.process(key="key")(put)).sink("out")
    job.run({"events": [Event("a")]})


@pytest.mark.parametrize(("annotation", "value", "message"), VALUES, ids=IDS)
def test_states_and_outputs_refuse_them(annotation: Any, value: Any, message: str) -> None:
    def put(one: Any, many: Any, entries: Any, keyed: Any) -> None:
        one.update(value)

    def append(one: Any, many: Any, entries: Any, keyed: Any) -> None:
        many.append(value)

    def set_entry(one: Any, many: Any, entries: Any, keyed: Any) -> None:
        entries["a"] = value

    def look(one: Any, many: Any, entries: Any, keyed: Any) -> None:
        keyed.get(value)

    def emit(one: Any, many: Any, entries: Any, keyed: Any) -> Any:
        return value

    acts = [put, append, set_entry, emit, *([look] if annotation in KEYS else [])]
    for act in acts:
        with pytest.raises(sk.StatekitError) as e:
            run(annotation, act)
        for part in message.split(": ", 1):
            assert e.match(part), act


@pytest.mark.parametrize("kind", ["object", "mapping", "key"])
@pytest.mark.parametrize(("annotation", "value", "message"), VALUES, ids=IDS)
def test_sources_and_keys_refuse_them(annotation: Any, value: Any, message: str, kind: str) -> None:
    if kind == "key" and annotation not in KEYS:
        return
    cls: Any = make_dataclass("Record", [("key", str), ("value", annotation)])

    def take(record: Any, one: Any) -> None:
        one.update(1)

    take.__annotations__ = {"record": cls, "one": sk.ValueState[int], "return": None}
    job = sk.Job("values")
    declared = sk.process(key="value" if kind == "key" else "key")(take)
    job.source("records", cls).process(declared)
    record = {"key": "a", "value": value} if kind == "mapping" else cls("a", value)
    with pytest.raises(sk.ProcessError) as e:
        job.run({"records": [record]})
    for part in message.split(": ", 1):
        assert e.match(part)


def test_they_are_found_within_values() -> None:
    def nested(one: Any, many: Any, entries: Any, keyed: Any) -> None:
        one.update({"a": [1.0, np.float64(2)]})

    with pytest.raises(sk.StateTypeError, match=r"\['a'\]\[1\].*numpy\.float64.*\.item\(\)"):
        run(dict[str, list[float]], nested)


@dataclass
class Loose:
    key: str
    value: Any


class Untyped(NamedTuple):
    part: dict[str, Any]


@sk.process(key="key")
def counted(event: Event, times: sk.ValueState[int]) -> Iterator[Event]:
    yield event


UNTYPED: list[tuple[Any, Any]] = [
    (Any, np.int64(5)),
    (object, np.int64(5)),
    (dict, {"a": {"b": np.int64(5)}}),
    (dict[str, Any], {"a": [np.int64(5)]}),
    (dict[Any, int], {np.int64(5): 1}),
    (list, [1, (np.int64(5),)]),
    (tuple[Any, ...], ({np.int64(5)},)),
    (Loose, Loose("a", np.int64(5))),
    (Any, Loose("a", [np.int64(5)])),
    (Untyped, Untyped({"a": Untyped({"b": np.int64(5)})})),
    (str | list[Any], [np.int64(5)]),
    (Any | None, np.int64(5)),
]


@pytest.mark.parametrize(("annotation", "value"), UNTYPED, ids=repr)
def test_outputs_without_types_refuse_them_in_all_functions(annotation: Any, value: Any) -> None:
    with pytest.raises(sk.ProcessError, match=r"numpy\.int64: call \.item\(\)"):
        emitting(annotation, value).run({"events": [Event("a")]})

    def mapped(event: Any) -> Any:
        return value

    def flat_mapped(event: Any) -> Any:
        yield value

    for kind, function in (("map", mapped), ("flat_map", flat_mapped)):
        job = sk.Job("values")
        stream: Any = job.source("events", Event).process(counted)
        getattr(stream, kind)(function, into=annotation).sink("out")
        with pytest.raises(sk.ProcessError, match=r"numpy\.int64: call \.item\(\)"):
            job.run({"events": [Event("a")]})
        # The workers of Spark call the same.
        transforms = unpickled(pickled_transforms((job.plan.transforms[0],)))
        with pytest.raises(sk.ProcessError, match=r"numpy\.int64: call \.item\(\)"):
            applied(transforms, [Event("a")], 0)


def emitting(annotation: Any, value: Any) -> sk.Job:
    def emit(event: Event) -> Any:
        yield value

    emit.__annotations__["return"] = Iterator[annotation]
    job = sk.Job("values")
    job.source("events", Event).process(sk.process(key="key")(emit)).sink("out")
    return job


def test_values_without_types_are_emitted_as_they_are() -> None:
    around: list[Any] = [1]
    around.append(around)
    emitted: Any = emitting(Any, around).run({"events": [Event("a")]})["out"][0]
    assert emitted[1] is emitted
    for value in ({"a": [1, None, Loose("a", 2)]}, Loose("a", object), 5, None):
        assert emitting(Any, value).run({"events": [Event("a")]})["out"] == [value]


@pytest.mark.parametrize("value", [np.int64(5), [np.int64(5)], {"a": np.float64(1)}], ids=repr)
def test_sources_without_types_refuse_them(value: Any) -> None:
    def take(record: Any, one: sk.ValueState[int]) -> None:
        one.update(1)

    for cls, record in ((Loose, Loose("a", value)), (dict, {"key": "a", "value": value})):
        job = sk.Job("values")
        source: Any = job.source("records", cls)
        take.__annotations__["record"] = cls
        source.process(sk.process(key="key")(take))
        with pytest.raises(sk.ProcessError, match=r"numpy.*call \.item\(\)"):
            job.run({"records": [record]})


def test_options_and_timers_refuse_them() -> None:
    with pytest.raises(sk.StateTypeError, match=r"size=.*pandas\.Timedelta.*to_pytimedelta"):
        sk.tumbling(pd.Timedelta(1, "h"))

    @sk.process(key="key")
    def alarm(event: Event, ctx: sk.Context) -> None:
        ctx.timers.set(pd.Timestamp(NANOSECONDS, tz="UTC"), clock="processing")

    @alarm.on_timer
    def ring(timer: sk.Timer, ctx: sk.Context) -> None:
        return

    job = sk.Job("alarms")
    job.source("events", Event).process(alarm)
    with pytest.raises(sk.StateTypeError, match=r"at key 'a'.*pandas\.Timestamp.*to_pydatetime"):
        job.run({"events": [Event("a")]})
