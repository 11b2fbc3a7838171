"""The JSON Schema of a type fits what values and keys of that type are shown as."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Optional

import jsonschema
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statekit.codec.json_schema import JsonSchemas
from statekit.codec.key_codec import key_codec
from statekit.codec.schema import Schema, schema_of
from statekit.codec.schema_codec import (
    json_key_decoder,
    json_key_encoder,
    json_value_decoder,
    json_value_encoder,
)
from statekit.codec.value_codec import value_codec
from statekit.errors import StateTypeError
from statekit.query.rows.state_rows import hashable
from tests.support.generated_keys import KeyType, key_types
from tests.support.generated_types import shape, typed_values


def stored(annotation: Any) -> Schema:
    """The schema of a type, as a reader without the classes has it."""
    return Schema.from_json(schema_of(annotation).to_json())


def as_json(shown: Any) -> Any:
    """What a client gets."""
    return json.loads(msgspec.json.encode(shown))


def validator(shown: dict[str, Any], schemas: JsonSchemas) -> Any:
    cls = jsonschema.Draft202012Validator
    complete = {**shown, "$defs": schemas.definitions}
    cls.check_schema(complete)
    return cls(complete, format_checker=cls.FORMAT_CHECKER)


def value_validator(annotation: Any) -> Any:
    schemas = JsonSchemas()
    return validator(schemas.of_value(stored(annotation)), schemas)


def key_validator(annotation: Any) -> Any:
    schemas = JsonSchemas()
    return validator(schemas.of_key(stored(annotation)), schemas)


@settings(max_examples=600, deadline=None)
@given(typed_values())
def test_what_is_shown_of_a_value_fits_the_schema_of_its_type(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    try:
        codec = value_codec(annotation)
    except StateTypeError:
        return  # such as a union of two members that have one name
    if codec.accepts(value):
        shown = json_value_decoder(stored(annotation))(codec.encode(value))
        value_validator(annotation).validate(as_json(shown))


@settings(max_examples=200, deadline=None)
@example((dict[float, bool], {float("inf"): True, float("-inf"): False}))
@example((list[dict[float | None, int]], [{float("nan"): 1, None: 2}]))
@given(typed_values())
def test_json_of_a_value_is_that_value_again_unless_several_members_of_a_union_look_like_it(
    pair: tuple[Any, Any],
) -> None:
    annotation, value = pair
    try:
        codec = value_codec(annotation)
    except StateTypeError:
        return  # such as a union of two members that have one name
    if not codec.accepts(value):
        return
    stored_value = codec.decode(codec.encode(value))
    shown = json_value_decoder(stored(annotation))(codec.encode(value))
    try:
        encoded = json_value_encoder(stored(annotation))(as_json(shown))
    except StateTypeError as error:
        if " in JSON it could be " not in str(error):
            raise
        return
    assert shape(codec.decode(encoded)) == shape(stored_value)


@settings(max_examples=600, deadline=None)
@given(data=st.data(), of=key_types())
def test_what_is_shown_of_a_key_fits_the_schema_and_is_that_key_again(
    data: st.DataObject, of: KeyType
) -> None:
    key = data.draw(of.keys)
    encoded = key_codec(of.annotation).encode(key)
    schema = stored(of.annotation)
    shown = as_json(hashable(json_key_decoder(schema)(encoded)[0]))
    key_validator(of.annotation).validate(shown)
    assert json_key_encoder(schema)(shown) == encoded


class Leg(NamedTuple):
    origin: str
    minutes: float = 0.0


@dataclass
class Tree:
    legs: list[Leg]
    left: Optional[Tree] = None  # noqa: UP045  a forward reference has no `|`
    named: dict[str, Tree] = field(default_factory=dict)


class Colour(enum.Enum):
    RED = "red"
    ROUGE = "red"  # noqa: PIE796  an alias
    BLUE = "blue"


LEG = {"origin": "jfk", "minutes": 0.5}
TREE = {"legs": [LEG], "left": {"legs": [], "left": None, "named": {}}, "named": {}}


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, [5, -(2**70)], ["5", 5.5, None, True]),
        (float, [5, 0.5, "NaN", "-Infinity"], ["5", "nan", None]),
        (bytes, ["", "00ff"], ["0", "FF", 0]),
        (Leg, [LEG, {**LEG, "minutes": None}], [{}, {**LEG, "more": 1}, ["jfk", 0.5]]),
        (Tree, [TREE], [{**TREE, "left": {}}, {**TREE, "named": {"a": None}}, {**TREE, "legs": 1}]),
        (Colour, ["red", "blue"], ["ROUGE", "RED"]),
        (Literal["a", 1, None], ["a", 1, None], ["b", "1", 2]),
        (tuple[int, str], [[1, "a"]], [[1], [1, "a", 1], ["a", 1]]),
        (tuple[()], [[]], [[1]]),
        (dict[int, str], [{"5": "a"}], [{"a": "a"}, {"5": 5}, [[5, "a"]]]),
        (dict[bool, str], [{"true": "a"}], [{"yes": "a"}]),
        (dict[Colour, int], [{"red": 1}], [{"RED": 1}]),
        (dict[tuple[int, int], str], [[[[1, 2], "a"]]], [{"a": "a"}, [[[1], "a"]]]),
        (int | list[Leg], [5, [LEG]], ["5", [5]]),
    ],
    ids=str,
)
def test_a_schema_takes_what_is_of_the_type_and_nothing_else(
    annotation: Any, right: list[Any], wrong: list[Any]
) -> None:
    found = value_validator(annotation)
    assert [data for data in right if not found.is_valid(data)] == []
    assert [data for data in wrong if found.is_valid(data)] == []


def test_keys_of_plain_dicts_are_what_json_has_without_fractions_and_objects() -> None:
    schemas = JsonSchemas()
    found = validator(schemas.of_key(Schema("dynamic")), schemas)
    for right in ("a", 5, None, True, ["a", [1, None]]):
        found.validate(right)
        json_key_encoder(Schema("dynamic"))(right)
    for wrong in (0.5, {"a": 1}, [0.5], 2**63):
        assert not found.is_valid(wrong)
        with pytest.raises(StateTypeError):
            json_key_encoder(Schema("dynamic"))(wrong)


def test_structs_of_one_name_and_different_fields_have_different_definitions() -> None:
    other: Any = NamedTuple("Leg", [("cents", int)])  # type: ignore[name-match]
    schemas = JsonSchemas({"shop.Leg_2": {}}, "shop.", "#/components/schemas/{}".format)
    first, second = schemas.of_value(schema_of(Leg)), schemas.of_value(schema_of(list[other]))
    again = schemas.of_value(schema_of(tuple[Leg, int]))
    assert first == {"$ref": "#/components/schemas/shop.Leg"}
    assert second["items"] == {"$ref": "#/components/schemas/shop.Leg_3"}
    assert again["prefixItems"][0] == first
    assert schemas.definitions.keys() == {"shop.Leg", "shop.Leg_2", "shop.Leg_3"}
