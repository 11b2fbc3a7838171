from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import os
import subprocess
import sys
import typing
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from statekit.codec.schema import Schema, schema_of
from statekit.errors import StateTypeError

TailNumber = NewType("TailNumber", str)
Minutes = TypeAliasType("Minutes", float)


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Leg(NamedTuple):
    origin: str
    minutes: float = 0.0


@dataclasses.dataclass
class Flight:
    tailnum: TailNumber
    legs: list[Leg] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Plane(pydantic.BaseModel):
    tailnum: str = pydantic.Field(min_length=2)
    seats: int | None = None


class Options(TypedDict):
    name: str
    limit: NotRequired[int]


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


class Parent(pydantic.BaseModel):
    child: Child | None = None


class Child(pydantic.BaseModel):
    parent: Parent | None = None


SHOWN: list[tuple[Any, str]] = [
    (None, "None"),
    (int, "int"),
    (dt.datetime, "datetime"),
    (decimal.Decimal, "decimal"),
    (uuid.UUID, "uuid"),
    (Color, "Color(RED='r', GREEN='g')"),
    (Level, "Level(LOW=1, HIGH=2)"),
    (Literal["a", 1, True, None], "Literal['a', 1, True, None]"),
    (tuple[str, int], "tuple[str, int]"),
    (tuple[()], "tuple[()]"),
    (tuple[int, ...], "tuple[int, ...]"),
    (list[set[frozenset[int]]], "list[set[frozenset[int]]]"),
    (dict[str, list[int]], "dict[str, list[int]]"),
    (Optional[int], "int | None"),  # noqa: UP045
    (int | None | str, "int | str | None"),
    (typing.Union[int, str], "int | str"),  # noqa: UP007
    (Annotated[int, "minutes"], "int"),
    (TailNumber, "str"),
    (list[Minutes], "list[float]"),
    (Flight, "Flight{tailnum: str, legs: list[Leg{origin: str, minutes: float}]}"),
    (Point, "Point{x: int, y: int}"),
    (Plane, "Plane{tailnum: str, seats: int | None}"),
    (Options, "Options{name: str, limit: int}"),
    (Node, "Node{value: int, children: list[Node]}"),
    (Parent, "Parent{child: Child{parent: Parent | None} | None}"),
]


@pytest.mark.parametrize(("annotation", "text"), SHOWN, ids=[text for _, text in SHOWN])
def test_schema_reads_like_the_type(annotation: Any, text: str) -> None:
    assert str(schema_of(annotation)) == text


@pytest.mark.parametrize(("annotation", "text"), SHOWN, ids=[text for _, text in SHOWN])
def test_schema_survives_json(annotation: Any, text: str) -> None:
    schema = schema_of(annotation)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.fingerprint == schema.fingerprint


def test_different_types_have_different_fingerprints() -> None:
    prints = {schema_of(annotation).fingerprint for annotation, _ in SHOWN}
    texts = {text for _, text in SHOWN}
    assert len(prints) == len(texts)


def test_literal_true_and_literal_one_differ() -> None:
    one, true = schema_of(Literal[1]), schema_of(Literal[True])
    assert one.fingerprint != true.fingerprint
    assert one != true


def test_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from tests.unit.codec.test_schema import *\n"
        "print([schema_of(a).fingerprint for a, _ in SHOWN])"
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
    assert seen == {f"{[schema_of(annotation).fingerprint for annotation, _ in SHOWN]}\n"}


def test_schema_fields_record_whether_they_are_required_and_have_a_default() -> None:
    told = {
        cls: [(field.required, field.default) for field in schema_of(cls).fields]
        for cls in (Flight, Leg, Point, Plane, Options)
    }
    with_default = [(True, False), (False, True)]
    assert told == {
        Flight: with_default,
        Leg: with_default,
        Point: with_default,
        Plane: with_default,
        Options: [(True, False), (False, False)],
    }


def test_struct_keeps_its_flavour() -> None:
    flavours = [schema_of(cls).flavour for cls in (Flight, Leg, Options, Point, Plane)]
    assert flavours == ["dataclass", "namedtuple", "typeddict", "msgspec", "pydantic"]


class Permission(enum.Flag):
    READ = 1


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Open(pydantic.BaseModel, extra="allow"):
    x: int


@dataclasses.dataclass
class WithInitVar:
    x: dataclasses.InitVar[int]


@dataclasses.dataclass
class Broken:
    legs: list[NoSuchType]  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass
class HoldsAny:
    numbers: list[Any]


Unnamed = collections.namedtuple("Unnamed", "x")


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (dict, r"dict\[str, int\]"),
        (list, r"list\[int\]"),
        (tuple, r"tuple\[int, \.\.\.\]"),
        (set, r"set\[int\]"),
        (Any, "definite"),
        (object, "definite"),
        (list[Any], r"Any \(in list\[Any\]\)"),
        (Mapping[str, int], r"dict\[str, int\]"),
        (collections.deque, r"list\[int\]"),
        (bytearray, "use bytes"),
        (complex, r"tuple\[float, float\]"),
        (dt.time, "timedelta"),
        (range, "PickleCodec"),
        ("int", "itself"),
        (list["int"], "itself"),
        (Permission, "all str or all int"),
        (Mixed, "all str or all int"),
        (Literal[b"x"], "Literal"),
        (Open, "extra"),
        (WithInitVar, "InitVar"),
        (Broken, "NoSuchType"),
        (HoldsAny, r"HoldsAny\.numbers: Any"),
        (Unnamed, "NamedTuple"),
        (5, "not supported"),
    ],
    ids=str,
)
def test_an_unsupported_type_is_refused_with_an_alternative(annotation: Any, message: str) -> None:
    with pytest.raises(StateTypeError, match=message):
        schema_of(annotation)


def test_two_classes_of_one_name_are_refused() -> None:
    other: Any = msgspec.defstruct("Point", [("z", int)])
    with pytest.raises(StateTypeError, match="two classes are named Point"):
        schema_of(tuple[Point, other])


@pytest.mark.parametrize("data", [5, None, "no such kind", {}, {"kind": "list", "items": 5}, []])
def test_json_that_is_not_a_schema_is_refused(data: Any) -> None:
    with pytest.raises(StateTypeError, match="not a schema"):
        Schema.from_json(data)
