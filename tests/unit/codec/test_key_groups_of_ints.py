"""Key groups of many keys that are ints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekit.codec.vectorized import key_groups
from statekit.keygroup import key_group

INTS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INTS, min_size=1), st.sampled_from([1, 7, 128, 32_768]))
def test_they_are_the_groups_of_each_key(keys: list[int], groups: int) -> None:
    assert key_groups(keys, groups) == [key_group(key, groups) for key in keys]


@given(st.lists(st.tuples(INTS, INTS, INTS), min_size=1))
def test_keys_may_have_several_fields(keys: list[tuple[int, ...]]) -> None:
    assert key_groups(keys, 128) == list(map(key_group, keys))


@pytest.mark.parametrize("wide", [2**63, -(2**63) - 1])
def test_an_int_of_more_than_64_bits_has_none(wide: int) -> None:
    with pytest.raises(OverflowError):
        key_groups([1, wide], 128)
