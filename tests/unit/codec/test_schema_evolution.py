"""Changes of types: what reads rightly without being rewritten, held against the codecs."""

from __future__ import annotations

import dataclasses
import doctest
import enum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from statekit.codec.schema import schema_of
from statekit.codec.schema_codec import json_value_decoder
from statekit.codec.schema_evolution import is_same_type, why_unreadable
from statekit.codec.value_codec import ValueCodec, value_codec
from statekit.errors import StateTypeError
from tests.support.evolving_types import Declared, changed, expected, plain, schemas, values
from tests.support.places import DOCS

MANY = settings(
    max_examples=400,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def codec_of(declared: Declared) -> ValueCodec[Any]:
    try:
        codec = value_codec(declared.annotation)
    except StateTypeError:  # two classes of one name, or of a union
        reject()
    if codec.schema != declared.schema:
        reject()  # Python merges what is equal
    return codec


def typed(value: Any) -> Any:
    """The same with the class of each number, which == does not see."""
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(typed, value)]
    if isinstance(value, dict):
        return {key: typed(part) for key, part in value.items()}
    return (type(value).__name__, value)


def test_an_empty_dict_of_one_kind_reads_as_one_of_another() -> None:
    before = value_codec(dict[tuple[int], frozenset[str]])
    now = value_codec(dict[str, bool] | dict[tuple[int], frozenset[str]])
    row = before.encode({})
    assert now.decode(row) == {}
    assert agrees(
        json_value_decoder(now.schema)(row), json_value_decoder(now.schema)(now.encode({}))
    )


@MANY
@given(data=st.data())
def test_a_change_that_is_reported_readable_reads_as_expected(data: st.DataObject) -> None:
    schema = data.draw(schemas, label="stored")
    becomes = schema
    for _ in range(data.draw(st.integers(1, 3))):
        becomes = data.draw(changed(becomes), label="declared")
    old, new = Declared(schema), Declared(becomes)
    writer, reader = codec_of(old), codec_of(new)
    if why_unreadable(writer.schema, reader.schema) is not None:
        return
    value = data.draw(values(old), label="value")
    row = writer.encode(value)
    read = reader.decode(row)
    assert reader.accepts(read)
    assert typed(plain(read)) == typed(expected(old, new, value))
    # Without the classes: what is stored, and nothing that contradicts what a program reads.
    shown = json_value_decoder(reader.schema)(row)
    assert agrees(shown, json_value_decoder(reader.schema)(reader.encode(read)))


def agrees(shown: Any, whole: Any) -> bool:
    """Whether what is shown of a row is all right, though fields that it lacks are None."""
    if isinstance(shown, dict) and isinstance(whole, dict):
        return shown.keys() == whole.keys() and all(
            part is None or agrees(part, whole[name]) for name, part in shown.items()
        )
    if shown in ([], {}) and whole in ([], {}):
        return True  # a dict whose keys are no texts is a list of pairs; without any, it is both
    if isinstance(shown, list) and isinstance(whole, list):
        return len(shown) == len(whole) and all(map(agrees, shown, whole))
    return bool(typed(shown) == typed(whole))


# ------------------------------------------------------------------------------- rule by rule


class Leg(NamedTuple):
    origin: str
    minutes: float = 0.0


@dataclasses.dataclass
class Shorter:
    origin: str


class Maybe(TypedDict):
    origin: NotRequired[str]
    minutes: float


class Longer(NamedTuple):
    gate: str
    origin: str


class Other(NamedTuple):
    gate: str = ""


class Day(NamedTuple):
    year: int
    day: int


class Morning(NamedTuple):
    """`Day` with another name and a default."""

    year: int
    day: int = 1


class Month(NamedTuple):
    year: int
    month: int


def colors(**members: str) -> Any:
    return enum.Enum("Color", members)


def set_of(cls: Any) -> Any:
    return set[cls]


def node(of: Any, **more: Any) -> Any:
    """A class `Node` that holds others of its own."""
    made: Any = dataclasses.make_dataclass("Node", [("value", of), ("below", Any), *more.items()])
    made.__annotations__["below"] = list[made]
    return made


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (int, float),
        (int, float | None),
        (tuple[int, str], tuple[float, str | None]),
        (dict[str, int], dict[str, float]),
        (Shorter, Leg),
        (Leg, Shorter),
        (Leg, Maybe),
        (list[Leg], list[Shorter | int]),
        (colors(RED="r"), colors(GREEN="g", RED="r")),
        (Literal["a"], Literal["b", "a"]),
        (int | str, int | str | bytes),
        (int, int | str),
        (int | bytes, bytes | int),
        (Leg | int, int | Leg),
        (node(int), node(float)),
        (set[Day], set[Morning]),
        (dict[Day, int], dict[Morning, float]),
        (set[tuple[Day, int] | None], set[tuple[Morning, int] | None]),
        (set_of(colors(RED="r")), set_of(colors(GREEN="g", RED="r"))),
        (dict[Literal["a"], int], dict[Literal["b", "a"], int]),
    ],
    ids=str,
)
def test_a_type_that_reads_every_stored_value_is_allowed(stored: Any, declared: Any) -> None:
    assert why_unreadable(schema_of(stored), schema_of(declared)) is None


@pytest.mark.parametrize(
    ("stored", "declared", "why"),
    [
        (float, int, "value was float and is int"),
        (int, str, "value was int and is str"),
        (bool, int, "value was bool and is int"),
        (int | None, int, "value was int | None and is int"),
        (list[str], tuple[str, ...], "value was list[str] and is tuple[str, ...]"),
        (tuple[int, int], tuple[int], "value was tuple[int, int] and is tuple[int]"),
        (tuple[int, int], tuple[int, str], "value[1] was int and is str"),
        (set[int], set[float], "value was set[int] and is set[float]"),
        (dict[int, str], dict[float, str], "value.keys() was int and is float"),
        (dict[Day, int], dict[Month, int], "value.keys() was Day and is Month"),
        (set[Day | int], set[Morning | int], "value was set[Day | int] and is set[Morning | int]"),
        (
            set_of(colors(RED="r")),
            set_of(colors(RED="g")),
            "value was set[Color] and is set[Color]",
        ),
        (Shorter, Longer, "value.gate is new and has no default"),
        (Maybe, Leg, "value.origin may be absent in stored rows, and has no default"),
        (Leg, Other, "value would lose all its fields, origin, minutes"),
        (list[Leg], list[Longer], "value[…].gate is new and has no default"),
        (colors(RED="r"), colors(RED="g"), "value: Color has no longer RED as it was"),
        (Literal["a", "b"], Literal["a"], "value: the Literal has no longer 'b' as it was"),
        (int | str, int, "value was str and is int"),
        (str, bytes | str, "value: str is written with its name in only one of str and"),
        (str | bytes, bytes | str, "value: str is written with its name in only one of"),
        (Leg | Shorter, Leg | Longer, "value was Shorter and is Leg | Longer"),
        (Leg | Shorter, Shorter | Leg, "value: Leg is written with its name in only one of"),
        (node(str), node(int), "value.value was str and is int"),
        (node(int), node(int, more=int), "value.more is new and has no default"),
    ],
    ids=str,
)
def test_a_type_that_would_misread_is_refused_with_its_path(
    stored: Any, declared: Any, why: str
) -> None:
    found = why_unreadable(schema_of(stored), schema_of(declared))
    assert found is not None
    assert found.startswith(why)


def test_types_are_the_same_if_nothing_is_lost_either_way() -> None:
    assert is_same_type(schema_of(Shorter), schema_of(TypedDict("T", {"origin": str})))  # type: ignore[operator]
    assert not is_same_type(schema_of(Leg), schema_of(Shorter))
    assert not is_same_type(schema_of(Shorter), schema_of(Leg))


def test_every_example_of_the_format_page_is_true() -> None:
    page = DOCS / "guide" / "evolution.md"
    results = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert results.attempted > 10
    assert results.failed == 0
