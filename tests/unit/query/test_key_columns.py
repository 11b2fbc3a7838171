"""Encoded keys as columns: the same as each of them decoded alone."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from typing import Any, Literal, NamedTuple, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.codec.key_codec import key_codec, schema_key_codec
from statekit.codec.schema import Schema, schema_of
from statekit.errors import CorruptCheckpointError
from statekit.query.tables.columns import key_column
from statekit.query.tables.key_columns import PartsOfKey, packed_key_column
from statekit.query.tables.packed_bytes import PackedBytes


class Color(enum.Enum):
    RED = "red"
    NUL = "n\0l"


class Point(NamedTuple):
    x: int
    name: str | None


Typed = tuple[Any, st.SearchStrategy[Any]]

_SCALARS: list[Typed] = [
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (str, st.text(st.characters(codec="utf-8"), max_size=4)),
    (bytes, st.binary(max_size=4)),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (dt.timedelta, st.timedeltas(dt.timedelta(-(10**7)), dt.timedelta(10**7))),
    (float, st.floats(allow_nan=False)),
    (uuid.UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Literal[1, -2], st.sampled_from([1, -2])),
    (Point, st.builds(Point, st.integers(-5, 5), st.none() | st.text("a\0", max_size=3))),
]


def _composite(typed: Typed) -> st.SearchStrategy[Typed]:
    annotation, values = typed

    def pair(other: Typed) -> Typed:
        annotations = (annotation, other[0])
        return tuple.__class_getitem__(annotations), st.tuples(values, other[1])

    return st.one_of(
        st.just(typed),
        st.just((Optional[annotation], st.none() | values)),  # noqa: UP045 - built at run time
        st.just(
            (tuple.__class_getitem__((annotation, ...)), st.lists(values, max_size=3).map(tuple))
        ),
        st.sampled_from(_SCALARS).map(pair),
    )


KEYS = st.sampled_from(_SCALARS).flatmap(_composite).flatmap(_composite)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans())
def test_keys_decoded_together_are_those_decoded_alone(data: st.DataObject, wide: bool) -> None:
    annotation, values = data.draw(KEYS)
    schema, keys = schema_of(annotation), data.draw(st.lists(values, max_size=5))
    stored = [b"\1\2" + key_codec(annotation).encode(key) + b"rest" for key in keys]
    packed = PackedBytes(stored)
    column = packed_key_column(schema, wide=wide)
    found, ends = column.decode(packed, packed.starts + 2)
    found.validate(full=True)
    decode, expected = schema_key_codec(schema).decode, key_column(schema, wide=wide)
    assert found.type == column.type == expected.type
    alone = expected.array([decode(row, 2)[0] for row in stored])
    assert found.to_pylist() == alone.to_pylist()
    assert ends.tolist() == [end - len(b"rest") for end in packed.ends.tolist()]


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("int", bytes(7)),
        ("bool", b"\2"),
        ("str", b"abc\0"),
        ("str", b"\xff\0\0"),
        ("date", b"\xff" * 4),
        ("datetime", b"\xff" * 8),
        ("float", bytes.fromhex("fff8000000000000")),
        ("uuid", bytes(15)),
    ],
)
def test_a_key_that_is_not_of_its_type_is_refused_wherever_it_stands(
    kind: str, stored: bytes
) -> None:
    with pytest.raises(CorruptCheckpointError, match="not of its type"):
        PartsOfKey([Schema(kind)]).decode(packed := PackedBytes([stored]), packed.starts)
