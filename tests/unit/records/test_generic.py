"""Generic classes as records, outputs and values of states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from pydantic import BaseModel

import statekit as sk
from statekit.codec.schema import schema_of

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Box(Generic[T]):
    key: str
    item: T


class StructBox(msgspec.Struct, Generic[T]):
    key: str
    item: T


class TupleBox(NamedTuple, Generic[T]):
    key: str
    item: T


class DictBox(TypedDict, Generic[T]):
    key: str
    item: T


class ModelBox(BaseModel, Generic[T]):
    key: str
    item: T


@dataclass
class IntBox(Box[int]):
    pass


class StructIntBox(StructBox[int]):
    pass


class TupleIntBox(TupleBox[int]):
    pass


class DictIntBox(DictBox[int]):
    pass


class ModelIntBox(ModelBox[int]):
    pass


@dataclass
class Middle(Box[list[T]], Generic[T, U]):
    others: list[U] = field(default_factory=list)


@dataclass
class Leaf(Middle[str, IntBox]):
    pass


DERIVED: dict[Any, Any] = {
    IntBox: IntBox("a", 1),
    StructIntBox: StructIntBox("a", 1),
    TupleIntBox: TupleIntBox("a", 1),
    DictIntBox: DictIntBox(key="a", item=1),
    ModelIntBox: ModelIntBox(key="a", item=1),
    ModelBox[int]: ModelBox[int](key="a", item=1),
    Leaf: Leaf("a", ["x"], [IntBox("b", 2)]),
}


@pytest.mark.parametrize("cls", DERIVED, ids=lambda cls: cls.__name__)
def test_a_class_that_is_derived_with_types_is_a_record_and_a_value(cls: Any) -> None:
    def keep(record: Any, last: Any) -> Any:
        last.update(record)
        yield last.get()

    hints = {"record": cls, "last": sk.ValueState[cls], "return": Iterator[cls]}
    keep.__annotations__ = hints
    job = sk.Job("boxes")
    job.source("boxes", cls).process(sk.process(key="key")(keep)).sink("out")
    assert job.run({"boxes": [DERIVED[cls]]})["out"] == [DERIVED[cls]]
    wrong = {"key": "a", "item": [1] if cls is Leaf else "text"}
    with pytest.raises(sk.ProcessError, match="does not validate"):
        job.run({"boxes": [DERIVED[cls], wrong]})


def test_fields_have_the_types_of_all_generic_bases() -> None:
    assert str(schema_of(Leaf)) == (
        "Leaf{key: str, item: list[str], others: list[IntBox{key: str, item: int}]}"
    )


@pytest.mark.parametrize("given", [Box[int], StructBox[int], TupleBox[int], DictBox[int]], ids=str)
def test_a_generic_class_with_types_is_refused_with_what_to_use(given: Any) -> None:
    name = given.__origin__.__name__
    message = rf"derive a class from it, as in class My{name}\({name}\[int\]\), and use that"
    with pytest.raises(sk.StateTypeError, match=message):
        schema_of(list[given])
    with pytest.raises(sk.StateTypeError, match=message):
        sk.Job("boxes").source("boxes", given)

    def emit(record: Any) -> Any:
        yield record

    emit.__annotations__ = {"record": IntBox, "return": Iterator[given]}
    with pytest.raises(sk.StateTypeError, match=message):
        sk.process(key="key")(emit)


@pytest.mark.parametrize("given", [Box, StructBox, ModelBox], ids=lambda cls: cls.__name__)
def test_a_generic_class_without_types_is_refused_with_what_to_do(given: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="derive a class with types from it"):
        schema_of(given)


def test_a_field_that_a_typed_dict_does_not_declare_is_named() -> None:
    @sk.process(key="key")
    def put(box: IntBox, last: sk.ValueState[DictIntBox]) -> None:
        last.update({"key": "a", "item": 1, "colour": "red"})  # type: ignore[typeddict-unknown-key]

    job = sk.Job("boxes")
    job.source("boxes", IntBox).process(put)
    with pytest.raises(sk.StateTypeError, match="it has no field 'colour'"):
        job.run({"boxes": [IntBox("a", 1)]})


@pytest.mark.parametrize("box", [Box, StructBox, TupleBox, DictBox, ModelBox, Middle])
def test_a_generic_class_without_types_is_refused_as_a_record_and_says_what_to_use(
    box: Any,
) -> None:
    with pytest.raises(sk.StateTypeError, match=r"derive a class with types from it, as in class"):
        sk.Job("boxes").source("boxes", box)
