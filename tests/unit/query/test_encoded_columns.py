"""Columns as stored bytes: the same as the codecs encode value by value."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekit.codec.key_codec import key_codec
from statekit.codec.value_plan import ENCODER
from statekit.keygroup import key_group
from statekit.query.encoded.binary_columns import Strings, hashes
from statekit.query.encoded.key_bytes import groups_of_columns, packed_keys
from statekit.query.encoded.value_bytes import packed_structs, packed_values

EDGES = [
    edge + by
    for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)
    for edge in (1 << bits, -1 << bits)
    for by in (-1, 0, 1)
]
INTS = st.sampled_from([n for n in EDGES if -(1 << 63) <= n < 1 << 63]) | st.integers(
    -(1 << 63), (1 << 63) - 1
)
SIZES = st.sampled_from([0, 1, 7, 8, 9, 31, 32, 255, 256, 1024, 1025, 65_535, 65_536])
TEXTS = st.text() | SIZES.map(lambda size: "é" + "x" * size)
BYTES = st.binary() | SIZES.map(bytes)
COLUMNS = {
    pa.int64(): INTS,
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): BYTES,
    pa.date32(): st.dates(),
}


@pytest.mark.parametrize("type_", COLUMNS, ids=str)
@given(st.data())
def test_a_column_is_packed_as_the_encoder_packs_each_value(
    type_: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(COLUMNS[type_], max_size=20))
    column = pa.concat_arrays([pa.nulls(1, type_), pa.array(values, type_)])[1:]
    packed = packed_values(column, pa.Array.to_pylist)
    assert packed.to_pylist() == list(map(ENCODER.encode, values))
    packed.validate(full=True)


@given(st.lists(st.tuples(INTS, TEXTS), max_size=20), st.integers(1, 40))
def test_structs_are_packed_as_the_encoder_packs_dicts(
    rows: list[tuple[int, str]], size: int
) -> None:
    numbers, texts = (
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([row[1] for row in rows], pa.string()),
    )
    names = [f"name {number}" for number in range(size)]
    columns = {
        name: (texts if at % 2 else numbers, pa.Array.to_pylist) for at, name in enumerate(names)
    }
    expected = [
        ENCODER.encode({name: row[at % 2] for at, name in enumerate(names)}) for row in rows
    ]
    assert packed_structs(columns).to_pylist() == expected


@given(
    st.lists(
        st.tuples(
            INTS,
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            st.binary().map(lambda data: data.replace(b"\0", b"")),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_keys_and_their_groups_are_those_of_the_key_codec(
    keys: list[tuple[int, str, bytes]],
) -> None:
    columns = [
        pa.array(values, type_)
        for values, type_ in zip(
            zip(*keys, strict=True), (pa.int64(), pa.string(), pa.binary()), strict=True
        )
    ]
    encoded = packed_keys(columns)
    assert encoded is not None
    assert encoded.to_pylist() == list(map(key_codec(tuple[int, str, bytes]).encode, keys))
    assert groups_of_columns(columns, 128).tolist() == [key_group(key, 128) for key in keys]


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array(["a\0"]), pa.array([True])])
def test_other_keys_are_left_to_the_codec(column: pa.Array) -> None:
    assert packed_keys([column]) is None


@given(st.lists(BYTES, max_size=20), st.integers(0, 5))
def test_hashes_depend_on_the_string_alone(strings: list[bytes], offset: int) -> None:
    column = pa.array([*[b"before"] * offset, *strings], pa.binary())[offset:]
    for second in (False, True):
        found = hashes(column, second=second).tolist()
        alone = [hashes(pa.array([each]), second=second)[0] for each in strings]
        assert found == alone
        assert len(set(found)) == len(set(strings))
        with_groups = pa.array([b"--" + each for each in strings], pa.binary())
        assert hashes(with_groups, skip=2, second=second).tolist() == alone
    assert Strings.of(column).sizes.tolist() == list(map(len, strings))
