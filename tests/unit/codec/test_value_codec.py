from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import os
import pickle
import subprocess
import sys
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statekit.codec.key_codec import dynamic_key_codec, key_codec
from statekit.codec.schema import Schema, schema_of
from statekit.codec.schema_codec import (
    json_key_decoder,
    json_key_encoder,
    json_value_decoder,
    text_key_encoder,
)
from statekit.codec.value_codec import PickleCodec, value_codec
from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError
from statekit.timestamp import datetime_to_micros, micros_to_datetime
from tests.support.effort import SOAK
from tests.support.generated_keys import KeyType, key_types

FEW = settings(
    max_examples=30 if SOAK else 12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
UTC = dt.UTC
INT64 = st.integers(-(2**63), 2**63 - 1)
EXACT = st.integers(-(2**53), 2**53)  # as a float
INSTANTS = st.datetimes(timezones=st.just(UTC)).map(
    lambda at: at.replace(fold=0)
) | st.sampled_from(
    [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
)
TEXT = st.text() | st.text(alphabet="\0\x01a\U0001f600")
DELTAS = st.timedeltas(dt.timedelta(days=-100_000_000), dt.timedelta(days=100_000_000))


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Leg(NamedTuple):
    origin: str
    minutes: float = 0.0


class Stop(NamedTuple):
    """Its fields have all their values, and none is converted."""

    level: Level
    share: float
    at: dt.datetime | None
    tags: list[str]


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


class Vector(msgspec.Struct):
    x: int
    y: int


class Renamed(msgspec.Struct, array_like=True, rename="camel", tag=True):
    tail_number: str
    seat_count: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclasses.dataclass
class Flight:
    tailnum: str
    departed: dt.datetime
    legs: list[Leg] = dataclasses.field(default_factory=list)
    _note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Carrier:
    code: str
    color: Color = Color.RED


class Plane(pydantic.BaseModel):
    tailnum: str
    seats: int | None = None
    tags: set[str] = pydantic.Field(default_factory=set)
    inner: Plane | None = None


class FrozenPlane(pydantic.BaseModel, frozen=True):
    tailnum: str


class Options(TypedDict):
    name: str
    limit: NotRequired[set[int]]


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


# ------------------------------------------------------------------ keys

KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, INT64),
    (str, TEXT),
    (bytes, st.binary() | st.lists(st.sampled_from([0, 1, 255])).map(bytes)),
    (dt.date, st.dates()),
    (dt.datetime, INSTANTS),
    (dt.timedelta, DELTAS),
    (float, st.floats(allow_nan=False) | INT64.map(float)),
    (uuid.UUID, st.uuids()),
    (tuple[str, int], st.tuples(TEXT, INT64)),
    (tuple[bytes, str, bool], st.tuples(st.binary(), TEXT, st.booleans())),
    (tuple[str], st.tuples(TEXT)),
    (tuple[str, ...], st.lists(TEXT).map(tuple)),
    (tuple[tuple[int, ...], str], st.tuples(st.lists(INT64).map(tuple), TEXT)),
    (Leg, st.builds(Leg, TEXT, st.floats(allow_nan=False))),
    (Level, st.sampled_from(Level)),
    (Literal["a", "b", "a\0"], st.sampled_from(["a", "b", "a\0"])),
]
KEY_IDS = [str(schema_of(annotation)) for annotation, _ in KEYS]
each_key = pytest.mark.parametrize(("annotation", "values"), KEYS, ids=KEY_IDS)


@each_key
@FEW
@given(data=st.data())
def test_key_survives_a_round_trip_within_other_bytes(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = key_codec(annotation)
    value = data.draw(values)
    encoded = codec.encode(value)
    found, end = codec.decode(b"xyz" + encoded + b"\0\xff", 3)
    assert (found, type(found), end) == (value, type(value), 3 + len(encoded))


@each_key
@FEW
@given(data=st.data())
def test_keys_sort_like_python_and_none_is_a_prefix_of_another(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = key_codec(annotation)
    one, two = data.draw(values), data.draw(values)
    first, second = codec.encode(one), codec.encode(two)
    assert (first < second) == (one < two)
    assert (first == second) == (one == two)
    assert one == two or not (first.startswith(second) or second.startswith(first))


@each_key
@FEW
@given(data=st.data())
def test_none_sorts_before_every_key(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = key_codec(annotation | None)
    value = data.draw(values)
    assert codec.encode(None) < codec.encode(value)
    assert codec.decode(codec.encode(None)) == (None, 1)
    assert codec.decode(codec.encode(value))[0] == value


@each_key
@FEW
@given(data=st.data())
def test_key_of_damaged_bytes_is_corrupt_or_another_key(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = key_codec(annotation)
    damaged = data.draw(_damaged(codec.encode(data.draw(values))))
    try:
        value, end = codec.decode(damaged)
    except CorruptCheckpointError:
        return
    assert codec.encode(value) == damaged[:end]


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    cut = data[: draw(st.integers(0, len(data)))]
    if not cut or draw(st.booleans()):
        return cut
    at = draw(st.integers(0, len(cut) - 1))
    return cut[:at] + bytes([draw(st.integers(0, 255))]) + cut[at + 1 :]


def test_string_with_nul_sorts_like_python() -> None:
    encode = key_codec(str).encode
    texts = ["", "\0", "\0\0", "\0\x01", "\x01", "a", "a\0", "a\0b", "ab"]
    assert sorted(texts, key=encode) == sorted(texts) == texts


def test_enum_and_literal_keys_are_their_values() -> None:
    assert key_codec(Color).encode(Color.RED) == key_codec(str).encode("r")
    assert key_codec(Level).encode(Level.HIGH) == key_codec(int).encode(2)
    assert key_codec(Literal["a"]).encode("a") == key_codec(str).encode("a")


def test_minus_zero_and_ints_are_float_keys() -> None:
    codec = key_codec(float)
    assert codec.encode(-0.0) == codec.encode(0.0) == codec.encode(0)
    assert math.copysign(1, codec.decode(codec.encode(-0.0))[0]) == 1
    assert codec.encode(3) == codec.encode(3.0)


def test_datetime_key_is_read_back_in_utc() -> None:
    codec = key_codec(dt.datetime)
    eastern = dt.datetime(2013, 1, 1, 0, 15, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
    found, _ = codec.decode(codec.encode(eastern))
    assert found == eastern
    assert found.tzinfo is UTC


EARLY = dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, True, "bool"),
        (int, 1.0, "float"),
        (int, 2**63, "64 bits"),
        (int, -(2**63) - 1, "64 bits"),
        (int, Level.LOW, "Level"),
        (bool, 1, "int"),
        (str, b"x", "bytes"),
        (str, "\ud800", "surrogates"),
        (str, None, "None"),
        (bytes, bytearray(b"x"), "bytearray"),
        (dt.date, dt.datetime(2013, 1, 1, tzinfo=UTC), "datetime"),
        (dt.datetime, dt.date(2013, 1, 1), "date"),
        (dt.datetime, dt.datetime(2013, 1, 1), "timezone"),
        (dt.datetime, EARLY, "years 1 to 9999"),
        (dt.timedelta, dt.timedelta.max, "64 bits"),
        (float, math.nan, "NaN"),
        (float, 10**400, "large"),
        (float, True, "bool"),
        (uuid.UUID, "x", "str"),
        (Color, "r", "Color"),
        (Level, 1, "Level"),
        (Literal[1], True, "Literal"),
        (Literal["a"], "b", "Literal"),
        (Literal["a"], [], "Literal"),
        (tuple[str, int], ("a",), "tuple"),
        (tuple[str, int], ["a", 1], "list"),
        (tuple[str, int], ("a", "b"), "int"),
        (tuple[str, ...], ["a"], "list"),
        (Leg, ("JFK", 1.0), "Leg"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_the_key_type_is_refused(
    annotation: Any, value: Any, message: str
) -> None:
    with pytest.raises(StateTypeError, match=message):
        key_codec(annotation).encode(value)


@pytest.mark.parametrize(
    "annotation",
    [
        *(None, decimal.Decimal, list[int], dict[str, int], set[int], frozenset[int]),
        *(int | str, Point, Carrier, Plane, Options, Literal["a", 1], Literal["a", None]),
        *(Any, tuple, tuple[int, list[int]]),
    ],
    ids=str,
)
def test_type_that_keys_cannot_have_is_refused(annotation: Any) -> None:
    with pytest.raises(StateTypeError):
        key_codec(annotation)


DYNAMIC = st.recursive(
    st.one_of(st.none(), st.booleans(), INT64, TEXT, st.binary(), st.dates(), INSTANTS),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@FEW
@given(DYNAMIC, DYNAMIC)
def test_dynamic_key_keeps_its_type(one: Any, two: Any) -> None:
    codec = dynamic_key_codec()
    first, second = codec.encode(one), codec.encode(two)
    found, end = codec.decode(first + second)
    assert (repr(found), end) == (repr(one), len(first))
    assert first == second or not (first.startswith(second) or second.startswith(first))


@pytest.mark.parametrize(
    "value", [1.5, [1], dt.datetime(2013, 1, 1), Level.LOW, (1, 2.0)], ids=repr
)
def test_dynamic_key_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(StateTypeError):
        dynamic_key_codec().encode(value)


@FEW
@given(st.binary(max_size=20))
def test_dynamic_key_of_any_bytes_is_corrupt_or_a_key(data: bytes) -> None:
    codec = dynamic_key_codec()
    try:
        value, end = codec.decode(data)
    except CorruptCheckpointError:
        return
    assert codec.encode(value) == data[:end]


# ------------------------------------------------------------------ values

TEXTS = st.lists(st.text(), max_size=2)
LEGS = st.builds(Leg, st.text(), st.floats(allow_nan=False))
POINTS = st.builds(Point, INT64, INT64)
PLANES = st.recursive(
    st.builds(Plane, tailnum=st.text(), seats=st.none() | INT64, tags=st.sets(st.text())),
    lambda inner: st.builds(Plane, tailnum=st.text(), inner=inner),
    max_leaves=3,
)
NODES = st.recursive(
    st.builds(Node, INT64),
    lambda inner: st.builds(Node, INT64, st.lists(inner, max_size=3)),
    max_leaves=5,
)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((annotation, values) for annotation, values in KEYS if annotation is not dt.timedelta),
    (None, st.none()),
    (Color | dict[str, Literal[True]], st.sampled_from(Color)),
    (dt.timedelta, st.timedeltas()),
    (decimal.Decimal, st.decimals(allow_nan=False)),
    (int, st.integers(-(2**63), 2**64 - 1)),
    (int | None, st.none() | INT64),
    (list[int | None], st.lists(st.none() | INT64)),
    (set[str], st.sets(st.text())),
    (set[tuple[int, str]], st.sets(st.tuples(INT64, st.text()))),
    (frozenset[Level], st.frozensets(st.sampled_from(Level))),
    (dict[str, list[int]], st.dictionaries(st.text(), st.lists(INT64))),
    (dict[int, Leg], st.dictionaries(INT64, LEGS)),
    (dict[tuple[str, int], int], st.dictionaries(st.tuples(st.text(), INT64), INT64)),
    (dict[dt.date, bool], st.dictionaries(st.dates(), st.booleans())),
    (dict[Color, int], st.dictionaries(st.sampled_from(Color), INT64)),
    (dict[frozenset[int], set[int]], st.dictionaries(st.frozensets(INT64), st.sets(INT64))),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (str | uuid.UUID, st.text() | st.uuids()),
    (dt.date | dt.datetime | str, st.dates() | INSTANTS | st.text()),
    (bool | int | float | bytes, st.booleans() | INT64 | st.floats() | st.binary()),
    (float | Level, st.floats() | INT64.map(float) | st.sampled_from(Level)),
    (Level | float, st.floats() | st.sampled_from(Level)),
    (Point | Vector | Leg | None, st.none() | POINTS | st.builds(Vector, INT64, INT64) | LEGS),
    (Node | Plane, NODES | PLANES),
    (list[int] | set[int] | str, st.lists(INT64) | st.sets(INT64) | st.text()),
    (Point, POINTS),
    (Leg, LEGS),
    (
        Stop,
        st.builds(Stop, st.sampled_from(Level), st.floats() | EXACT, st.none() | INSTANTS, TEXTS),
    ),
    (Renamed, st.builds(Renamed, st.text(), INT64)),
    (Flight, st.builds(Flight, st.text(), INSTANTS, st.lists(LEGS), st.text())),
    (Carrier, st.builds(Carrier, st.text(), st.sampled_from(Color))),
    (Plane, PLANES),
    (Node, NODES),
    (Options, st.fixed_dictionaries({"name": st.text()}, optional={"limit": st.sets(INT64)})),
]
VALUE_IDS = [schema_of(annotation).brief for annotation, _ in VALUES]
each_value = pytest.mark.parametrize(("annotation", "values"), VALUES, ids=VALUE_IDS)
CODECS = {VALUE_IDS[at]: value_codec(annotation) for at, (annotation, _) in enumerate(VALUES)}


@each_value
@FEW
@given(data=st.data())
def test_value_is_accepted_and_survives_a_round_trip(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    value = data.draw(values)
    assert codec.accepts(value), codec.reason(value)
    encoded = codec.encode(value)
    found = codec.decode(encoded)
    assert type(found) is type(value)
    assert repr(found) == repr(value) or found == value
    assert encoded[0] != 0xC1
    assert codec.accepts(found)


@each_value
@FEW
@given(data=st.data())
def test_values_that_are_decoded_together_are_those_that_are_decoded_one_by_one(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    rows = [codec.encode(value) for value in data.draw(st.lists(values, max_size=4))]
    assert codec.decode_all is not None
    found, expected = codec.decode_all(rows), [codec.decode(row) for row in rows]
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert repr(found) == repr(expected) or found == expected
    if rows:
        broken = [*rows, b"\xc1"]
        with pytest.raises(CorruptCheckpointError):
            codec.decode_all(broken)


@each_value
@FEW
@given(data=st.data())
def test_value_can_be_shown_without_its_class(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    show = json_value_decoder(codec.schema)
    msgspec.json.encode(show(codec.encode(data.draw(values))))


@each_value
@FEW
@given(data=st.data())
def test_value_of_damaged_bytes_is_corrupt_or_another_value(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    damaged = data.draw(_damaged(codec.encode(data.draw(values))))
    try:
        found = codec.decode(damaged)
    except CorruptCheckpointError:
        return
    assert codec.accepts(found), codec.reason(found)


@each_value
@FEW
@given(data=st.binary(max_size=12))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xc1")
def test_any_bytes_are_corrupt_or_a_value(
    annotation: Any, values: st.SearchStrategy[Any], data: bytes
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    show = json_value_decoder(codec.schema)
    with contextlib.suppress(CorruptCheckpointError):
        assert codec.accepts(codec.decode(data))
    with contextlib.suppress(CorruptCheckpointError):
        show(data)


@each_value
@FEW
@given(value=st.sampled_from([object(), 2j, [object()], (object(),), {"x": object()}, {object()}]))
def test_strange_value_is_refused_with_a_reason(
    annotation: Any, values: st.SearchStrategy[Any], value: Any
) -> None:
    codec = CODECS[schema_of(annotation).brief]
    assert not codec.accepts(value)
    assert "expected" in codec.reason(value)


class SubFlight(Flight):
    pass


class SubPoint(Point, frozen=True):
    z: int = 0


class SubPlane(Plane):
    pass


WRONG: Any = "x"
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (int, True, "expected int, got bool True"),
        (int, Level.LOW, "expected int, got Level"),
        (float, True, "expected float, got bool True"),
        (float, "x", "expected float, got str 'x'"),
        (dt.datetime, dt.datetime(2013, 1, 1), "with a timezone"),
        (dt.datetime, EARLY, "years 1 to 9999"),
        (dt.date, NOON, "expected date, got datetime"),
        (Literal[1], True, "expected Literal[1], got bool True"),
        (list[int], [1, 2, "x"], "[2]: expected int, got str 'x'"),
        (tuple[int, ...], (1, None), "[1]: expected int, got NoneType None"),
        (tuple[int, str], (1,), "expected tuple[int, str], got tuple (1,)"),
        (set[int], {1.5}, "{1.5}: expected int"),
        (dict[str, int], {"a": "b"}, "['a']: expected int, got str 'b'"),
        (dict[str, int], {1: 1}, ".keys[1]: expected str, got int 1"),
        (int | str, 1.5, "expected int | str, got float 1.5"),
        (Leg | None, Leg("JFK", WRONG), ".minutes: expected float, got str 'x'"),
        (Leg, ("JFK", 1.0), "expected Leg, got tuple"),
        (
            Flight,
            Flight("N1", NOON, [Leg("A"), Leg("B", WRONG)]),
            ".legs[1].minutes: expected float",
        ),
        (Flight, SubFlight("N1", NOON), "expected Flight, got SubFlight"),
        (Point, SubPoint(1), "a subclass would lose fields"),
        (Plane, SubPlane(tailnum="N1"), "a subclass would lose fields"),
        (Options, {"name": "x", "limit": {"a"}}, "['limit']{'a'}: expected int"),
        (Options, {"name": "x", "other": 1}, "expected Options, got dict"),
        (Options, {}, "expected Options, got dict"),
        (Node, Node(1, [Node(2, [Node(WRONG)])]), ".children[0].children[0].value: expected int"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_the_type_is_refused_with_the_path(
    annotation: Any, value: Any, reason: str
) -> None:
    codec = value_codec(annotation)
    assert not codec.accepts(value)
    assert reason in codec.reason(value)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("wrong", [Leg("JFK", "late"), ("JFK", 1.0), None])  # type: ignore[arg-type]
def test_one_wrong_record_among_several_is_found_at_any_place(wrong: Any, place: int) -> None:
    codec = value_codec(tuple[Leg, ...])
    legs: list[Any] = [Leg("EWR", 1.0), Leg("LGA", 2.0)]
    assert codec.exact(tuple(legs))
    legs.insert(place, wrong)
    assert not codec.accepts(tuple(legs))
    assert not codec.exact(tuple(legs))
    assert f"[{place}]" in codec.reason(tuple(legs))


def test_model_that_was_assigned_a_wrong_value_is_refused() -> None:
    plane = Plane(tailnum="N1")
    setattr(plane, "seats", "many")  # noqa: B010  mypy would refuse it
    codec = value_codec(Plane)
    assert not codec.accepts(plane)
    assert codec.reason(plane) == ".seats: expected int | None, got str 'many'"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        *((int, 2**64), (int, -(2**63) - 1), (str, "\ud800"), (list[int], [2**64])),
        *((Plane, Plane(tailnum="\ud800")), (set[int], {2**64})),
    ],
    ids=repr,
)
def test_a_value_that_messagepack_cannot_encode_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(StateTypeError, match="64 bits"):
        value_codec(annotation).encode(value)


def test_value_that_contains_itself_is_refused() -> None:
    node = Node(1)
    node.children = [node]
    with pytest.raises(StateTypeError, match="nesting"):
        value_codec(Node).encode(node)


def test_nan_is_a_value() -> None:
    codec = value_codec(float)
    assert codec.accepts(math.nan)
    assert math.isnan(codec.decode(codec.encode(math.nan)))


def test_a_struct_default_is_never_shared_between_values() -> None:
    codec = value_codec(Plane)
    first = codec.decode(msgspec.msgpack.encode({"tailnum": "N1"}))
    first.tags.add("x")
    assert codec.decode(msgspec.msgpack.encode({"tailnum": "N1"})).tags == set()


@pytest.mark.parametrize(
    ("annotation", "immutable"),
    [
        *((int, True), (str | None, True), (dt.datetime, True), (Color, True), (Literal[1], True)),
        *((tuple[int, str], True), (tuple[list[int], str], False), (tuple[int, ...], True)),
        *((list[int], False), (set[int], False), (frozenset[int], True), (dict[str, int], False)),
        *((Leg, True), (Point, True), (Vector, False), (Carrier, True), (Flight, False)),
        *((Plane, False), (FrozenPlane, True), (Options, False), (Node, False)),
        *((int | list[int], False), (int | str, True)),
    ],
    ids=str,
)
def test_codec_knows_whether_values_can_be_mutated(annotation: Any, immutable: bool) -> None:
    assert value_codec(annotation).immutable is immutable


def test_bytes_of_sets_do_not_depend_on_the_salt_of_the_process() -> None:
    code = (
        "from tests.unit.codec.test_value_codec import *\n"
        "names = {f'name {n}' for n in range(50)}\n"
        "print(value_codec(set[str]).encode(names).hex())\n"
        "print(value_codec(dict[str, frozenset[str]]).encode({'a': frozenset(names)}).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


# ------------------------------------------------------------------ old rows, new types


def _struct(**fields: Any) -> Any:
    columns = [
        (name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in fields.items()
    ]
    return msgspec.defstruct("Row", columns)


def _model(**fields: Any) -> Any:
    create: Any = pydantic.create_model
    return create(
        "Row",
        **{name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()},
    )


def _named(**fields: Any) -> Any:
    columns = [
        (name, kind[0] if isinstance(kind, tuple) else kind) for name, kind in fields.items()
    ]
    made: Any = NamedTuple("Row", columns)  # type: ignore[misc]
    defaults = {name: kind[1] for name, kind in fields.items() if isinstance(kind, tuple)}
    made._field_defaults.update(defaults)
    made.__new__.__defaults__ = tuple(defaults.values())
    return made


def _dataclass(**fields: Any) -> Any:
    columns = [
        (name, kind[0], dataclasses.field(default=kind[1]))
        if isinstance(kind, tuple)
        else (name, kind)
        for name, kind in fields.items()
    ]
    return dataclasses.make_dataclass("Row", columns)


each_flavour = pytest.mark.parametrize("make", [_struct, _model, _named, _dataclass])


@each_flavour
def test_old_row_gets_the_default_of_an_added_field(make: Any) -> None:
    old, new = make(x=int), make(x=int, y=(str, "new"), z=(set[int] | None, None))
    found = value_codec(new).decode(value_codec(old).encode(old(x=1)))
    assert found == new(x=1, y="new", z=None)


@each_flavour
def test_old_row_with_a_removed_field_is_read(make: Any) -> None:
    old, new = make(x=int, gone=list[int]), make(x=int)
    assert value_codec(new).decode(value_codec(old).encode(old(x=1, gone=[2]))) == new(x=1)


@each_flavour
def test_old_row_is_read_where_int_became_float(make: Any) -> None:
    old, new = make(x=int), make(x=float)
    found = value_codec(new).decode(value_codec(old).encode(old(x=1)))
    assert type(found.x) is float
    assert found == new(x=1.0)


@each_flavour
def test_old_row_without_a_required_field_is_not_read(make: Any) -> None:
    old, new = make(x=int), make(x=int, y=int)
    with pytest.raises(CorruptCheckpointError, match="declared type"):
        value_codec(new).decode(value_codec(old).encode(old(x=1)))


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (int, float, 5),
        (int, int | None, 5),
        (str, str | uuid.UUID, "5e5e5e5e-0000-0000-0000-000000000000"),
        (uuid.UUID, uuid.UUID | str, uuid.UUID(int=5)),
        (str, str | dt.date | dt.datetime | None, "2013-01-01"),
        (int | str, int | str | bytes | list[int], 5),
        (Point, Point | Vector | Leg, Point(1, 2)),
        (Leg, Leg | Point, Leg("JFK", 1.0)),
        (list[int], list[int] | set[int], [1]),
        (list[int], list[float | None], [1]),
        (float, float | int, 5),
        (float, float | Level, 2),
        (Level, Level | float, Level.HIGH),
        (dict[str, int], dict[str, int | str], {"a": 1}),
    ],
    ids=str,
)
def test_old_value_is_read_as_the_wider_type(old: Any, new: Any, value: Any) -> None:
    found = value_codec(new).decode(value_codec(old).encode(value))
    assert found == value
    assert type(found) is type(value) or old in (int, float)


# ------------------------------------------------------------------ pickle


def test_pickle_codec_stores_values_of_unsupported_types() -> None:
    codec = PickleCodec().codec(complex)
    assert (codec.name, codec.immutable, codec.accepts(1j), codec.accepts("x")) == (
        "pickle",
        False,
        True,
        False,
    )
    assert codec.decode(codec.encode(1j)) == 1j
    assert codec.reason("x") == "expected complex, got str 'x'"


def test_pickle_codec_marks_an_annotation() -> None:
    annotation = Annotated[complex, PickleCodec()]
    assert typing.get_args(annotation)[1] == PickleCodec()


def test_reader_must_ask_for_unpickling() -> None:
    codec = PickleCodec().codec(complex)
    with pytest.raises(QueryError, match="allow_pickle=True"):
        json_value_decoder(codec.schema, "pickle")
    assert json_value_decoder(codec.schema, "pickle", True)(codec.encode(1j)) == "1j"


def test_pickled_bytes_that_are_damaged_are_corrupt() -> None:
    with pytest.raises(CorruptCheckpointError):
        PickleCodec().codec(complex).decode(pickle.dumps(1j)[:-3])


def test_value_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(StateTypeError, match="pickled"):
        PickleCodec().codec(object).encode(iter_forever())


def iter_forever() -> typing.Iterator[int]:
    yield 1


def test_codec_of_a_newer_version_is_refused() -> None:
    with pytest.raises(QueryError, match="update statekit"):
        json_value_decoder(Schema("int"), "avro")


# ------------------------------------------------------------------ without the classes


@pytest.mark.parametrize(
    ("annotation", "value", "shown"),
    [
        (dt.datetime, NOON, "2013-01-01T12:00:00Z"),
        (dt.timedelta, dt.timedelta(hours=26), "P1DT2H"),
        (bytes, b"\x00\xff", "00ff"),
        (uuid.UUID, uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
        (float, 5, 5.0),
        (dict[Color, int], {Color.GREEN: 1}, {"g": 1}),
        (dict[int, bool], {5: True}, {"5": True}),
        (dict[tuple[str, int], int], {("UA", 1): 2}, [[["UA", 1], 2]]),
        (list[str | uuid.UUID], ["x", uuid.UUID(int=5)], ["x", str(uuid.UUID(int=5))]),
        (
            Flight,
            Flight("N1", NOON, [Leg("JFK", 1.5)]),
            {
                "tailnum": "N1",
                "departed": "2013-01-01T12:00:00Z",
                "legs": [{"origin": "JFK", "minutes": 1.5}],
                "_note": "",
            },
        ),
        (Point | Vector, Vector(1, 2), {"x": 1, "y": 2}),
        (Node, Node(1, [Node(2)]), {"value": 1, "children": [{"value": 2, "children": []}]}),
    ],
    ids=repr,
)
def test_value_is_shown_as_json(annotation: Any, value: Any, shown: Any) -> None:
    codec = value_codec(annotation)
    assert json_value_decoder(codec.schema)(codec.encode(value)) == shown


@pytest.mark.parametrize(
    ("annotation", "key", "texts", "shown"),
    [
        (int, 5, ["5", 5], 5),
        (str, "5", ["5"], "5"),
        (str, "null", ["null"], "null"),
        (str | None, None, ["null", None], None),
        (str | None, "null", ['"null"'], "null"),
        (bool, True, ["true", True], True),
        (bytes, b"\x00\xff", ["00ff"], "00ff"),
        (dt.date, dt.date(2013, 1, 1), ["2013-01-01"], "2013-01-01"),
        (
            dt.datetime,
            NOON,
            ["2013-01-01T12:00:00+00:00", "2013-01-01T12:00:00Z"],
            "2013-01-01T12:00:00Z",
        ),
        (dt.timedelta, dt.timedelta(seconds=5), ["PT5S"], "PT5S"),
        (float, 1.5, ["1.5", 1.5], 1.5),
        (uuid.UUID, uuid.UUID(int=5), [str(uuid.UUID(int=5))], str(uuid.UUID(int=5))),
        (Color, Color.RED, ["RED", "r"], "r"),
        (Literal[1, 2], 2, ["2", 2], 2),
        (tuple[str, int], ("UA", 5), ['["UA", 5]', ["UA", 5]], ["UA", 5]),
        (tuple[str, int | None], ("UA", None), ['["UA", null]'], ["UA", None]),
        (tuple[int, ...], (1, 2), ["[1, 2]"], [1, 2]),
        (Leg, Leg("JFK", 1.5), ['{"origin": "JFK", "minutes": 1.5}', '["JFK", 1.5]'], ["JFK", 1.5]),
    ],
    ids=repr,
)
def test_key_is_parsed_and_shown_as_json(annotation: Any, key: Any, texts: Any, shown: Any) -> None:
    codec = key_codec(annotation)
    encode = text_key_encoder(codec.schema)
    encoded = codec.encode(key)
    assert [encode(text) for text in texts] == [encoded] * len(texts)
    assert json_key_decoder(codec.schema)(encoded) == (shown, len(encoded))


class Swapped(enum.Enum):
    """Members whose values are names of others."""

    RED = "BLUE"
    BLUE = "RED"


@given(data=st.data(), of=key_types())
def test_a_key_that_is_shown_as_json_is_read_as_the_same_key(
    data: st.DataObject, of: KeyType
) -> None:
    codec = key_codec(of.annotation)
    encoded = codec.encode(data.draw(of.keys))
    shown, _ = json_key_decoder(codec.schema)(encoded)
    assert json_key_encoder(codec.schema)(json.loads(json.dumps(shown))) == encoded


@pytest.mark.parametrize(
    ("annotation", "data", "key"),
    [
        (int, 5.0, 5),  # clients whose numbers are all floats
        (int, 1 - 2.0**53, 1 - 2**53),
        (int, "5", 5),
        (Literal["a", "'a'"], "'a'", "'a'"),
        (Literal[True, False], "true", True),
        (Swapped, "BLUE", Swapped.RED),
        (Swapped, "RED", Swapped.BLUE),
    ],
)
def test_json_is_the_key_that_it_shows(annotation: Any, data: Any, key: Any) -> None:
    codec = key_codec(annotation)
    assert json_key_encoder(codec.schema)(data) == codec.encode(key)


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (str, None),
        (str, ["a"]),
        (int, 5.5),
        (int, 2.0**53),  # another int may have become this float
        (int, True),
        (int, None),
        (int, {"a": 1}),
        (tuple[str, int], '["UA", 5]'),
        (tuple[str, int], ["UA"]),
        (tuple[str, int], {"a": 1, "b": 2}),
    ],
    ids=repr,
)
def test_json_that_is_not_a_key_is_refused(annotation: Any, data: Any) -> None:
    with pytest.raises(StateTypeError):
        json_key_encoder(schema_of(annotation))(data)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        *((int, "x"), (int, "5.5"), (dt.date, "yesterday"), (dt.datetime, "2013-01-01T00:00:00")),
        *((bool, "yes"), (bool, "1"), (bytes, "zz"), (Color, "BLUE"), (tuple[str, int], "UA")),
        *((tuple[str, int], '["UA"]'), (tuple[str, int], "5"), (str, 5), (int, True)),
    ],
    ids=repr,
)
def test_text_that_is_not_a_key_is_refused(annotation: Any, text: Any) -> None:
    with pytest.raises(StateTypeError):
        text_key_encoder(schema_of(annotation))(text)


def test_an_object_that_is_not_a_key_says_what_is_wrong() -> None:
    with pytest.raises(StateTypeError, match="it is an object, and no list"):
        text_key_encoder(schema_of(tuple[str, int]))({"a": "x", "b": 1})
    with pytest.raises(StateTypeError, match="it has no 'minutes'"):
        text_key_encoder(schema_of(_Flown))({"tail": "N1"})


class _Flown(NamedTuple):
    tail: str
    minutes: int


@pytest.mark.parametrize(
    ("text", "key"), [("5", 5), ("hello", "hello"), ('"5"', "5"), ('["UA", [1]]', ("UA", (1,)))]
)
def test_dynamic_key_is_parsed_and_shown_as_json(text: str, key: Any) -> None:
    codec = dynamic_key_codec()
    encoded = text_key_encoder(codec.schema)(text)
    assert encoded == codec.encode(key)
    shown, end = json_key_decoder(codec.schema)(encoded)
    assert end == len(encoded)
    assert codec.encode(key) == text_key_encoder(codec.schema)(
        shown if not isinstance(shown, str) else f'"{shown}"'
    )


@FEW
@given(INSTANTS)
def test_instant_survives_as_microseconds(value: dt.datetime) -> None:
    assert micros_to_datetime(datetime_to_micros(value)) == value


def test_a_naive_datetime_and_other_types_are_refused() -> None:
    with pytest.raises(StateTypeError, match="attach one"):
        datetime_to_micros(dt.datetime(2013, 1, 1))
    for other in (5, None, "2013-01-01", dt.date(2013, 1, 1)):
        with pytest.raises(StateTypeError, match=f"of type {type(other).__name__} is no instant"):
            datetime_to_micros(other)  # type: ignore[arg-type]


def test_a_struct_in_a_union_with_a_dict_of_pairs_is_shown_as_a_struct() -> None:
    @dataclasses.dataclass
    class Seat:
        row: int

    codec = value_codec(Seat | dict[tuple[int, str], int] | None)
    show = json_value_decoder(codec.schema)
    assert show(codec.encode(Seat(12))) == {"row": 12}
    assert show(codec.encode({(12, "A"): 1})) == [[[12, "A"], 1]]
    assert show(codec.encode(None)) is None


# ------------------------------------------------------------------------ plain data as JSON


class Weighed(NamedTuple):
    grams: float
    label: str = "none"


class Boxed(NamedTuple):
    inner: Weighed
    tags: frozenset[str] = frozenset()


@pytest.mark.parametrize("annotation", [float, list[float], Weighed, Boxed, dict[float, float]])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1.5, 2.0**1023])
def test_numbers_that_json_does_not_have_are_text_in_plain_data(
    annotation: Any, number: float
) -> None:
    value = {float: number, Weighed: Weighed(number), Boxed: Boxed(Weighed(number))}.get(
        annotation, {number: number} if annotation == dict[float, float] else [number]
    )
    stored = value_codec(annotation).encode(value)
    shown = json_value_decoder(schema_of(annotation))(stored)
    text = json.dumps(shown, allow_nan=False)
    assert json.dumps(number) in text  # json has the names that JSON texts have
    as_stored = json_value_decoder(schema_of(annotation), as_stored=True)(stored)
    assert repr(as_stored).count(repr(number)) >= 1


def test_fields_that_an_older_row_does_not_have_are_null_in_plain_data() -> None:
    for schema, row, shown, stored in (
        (Weighed, {"grams": 1.0}, {"grams": 1.0, "label": None}, {"grams": 1.0}),
        (
            Boxed,
            {"inner": {"grams": 2.0}},
            {"inner": {"grams": 2.0, "label": None}, "tags": None},
            {"inner": {"grams": 2.0}},
        ),
    ):
        data = msgspec.msgpack.encode(row)
        assert json_value_decoder(schema_of(schema))(data) == shown
        assert json_value_decoder(schema_of(schema), as_stored=True)(data) == stored
    with pytest.raises(CorruptCheckpointError, match="Expected `float`, got `str`"):
        json_value_decoder(schema_of(Weighed))(msgspec.msgpack.encode({"grams": "much"}))
