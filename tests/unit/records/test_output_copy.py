"""Copies of outputs equal them and share nothing that can change."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given, settings

from statekit.codec.annotations import is_frozen
from statekit.records.output_copy import copier
from tests.support.generated_types import shape, typed_values


def changeable_parts(value: Any) -> Iterator[Any]:
    """Yield each part of a value that can change. A record without fields cannot."""
    parts: list[Any] = []
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, pydantic.BaseModel):
        parts = list(dict(value).values())
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, list | set | dict) or (
        parts and not isinstance(value, tuple) and not is_frozen(type(value))
    ):
        yield value
    for part in parts:
        yield from changeable_parts(part)


def check_copy(annotation: Any, value: Any) -> None:
    copy_one = copier(annotation)
    if copy_one is None:
        return
    before = shape(value)
    copied = copy_one(value)
    assert shape(copied) == before
    own = {id(part) for part in changeable_parts(value)}
    assert own.isdisjoint(map(id, changeable_parts(copied)))


@given(typed_values())
@settings(max_examples=500, deadline=None)
def test_copies_equal_the_value_and_share_nothing_that_can_change(typed: tuple[Any, Any]) -> None:
    check_copy(*typed)


class Inner(NamedTuple):
    tags: list[str]


@dataclasses.dataclass
class Outer:
    inner: Inner | None
    by_name: dict[str, list[int]]


@dataclasses.dataclass
class Tree:
    children: list["Tree"]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Outer, Outer(Inner(["a"]), {"a": [1]})),
        (Outer, Outer(None, {})),
        (Outer, Outer(5, ["no dict"])),  # type: ignore[arg-type]
        (Outer, Inner([])),
        (Inner, Inner(({"no list": 1},))),  # type: ignore[arg-type]
        (list[Inner], [Inner(["a"]), 5, None]),
        (Tree, Tree([Tree([]), Tree([Tree([])])])),
    ],
)
def test_so_do_copies_of_nested_recursive_and_wrong_values(annotation: Any, value: Any) -> None:
    check_copy(annotation, value)


def test_a_class_may_say_how_it_is_copied() -> None:
    class Counted(NamedTuple):
        tags: list[str]

        def __deepcopy__(self, memo: Any) -> "Counted":
            return Counted([*self.tags, "copied"])

    copy_one = copier(Counted)
    assert copy_one is not None
    assert copy_one(Counted(["a"])).tags == ["a", "copied"]
