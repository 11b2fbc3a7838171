from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.errors import RescaleError, StateTypeError
from statekit.keygroup import (
    check_groups,
    check_parallelism,
    group_range,
    key_group,
    key_hash,
    shard_of_group,
)
from tests.support.key_vectors import GROUPS, VECTORS

UNHURRIED = settings(deadline=None)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.just(dt.UTC)),
)


@pytest.mark.parametrize(("key", "_sql", "group"), VECTORS, ids=repr)
def test_key_group_equals_the_vector(key: Any, _sql: str, group: int) -> None:
    assert key_group(key, GROUPS) == group


@UNHURRIED
@given(st.lists(st.one_of(SCALARS, st.none()), max_size=4), st.integers(0, 4))
def test_a_missing_field_does_not_change_the_hash(fields: list[Any], at: int) -> None:
    assert key_hash([*fields[:at], None, *fields[at:]]) == key_hash(fields)


@UNHURRIED
@given(SCALARS)
def test_hash_is_a_signed_64_bit_integer(value: Any) -> None:
    assert -(2**63) <= key_hash((value,)) < 2**63


def test_key_group_of_a_negative_hash_is_not_negative() -> None:
    negative = next(key for key in range(100) if key_hash((key,)) < 0)
    assert key_group(negative, 100) == key_hash((negative,)) % 100 >= 0


def test_datetime_of_another_zone_is_the_same_instant() -> None:
    utc = dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)
    assert key_group(utc.astimezone(dt.timezone(dt.timedelta(hours=-5)))) == key_group(utc)


@pytest.mark.parametrize(
    "key",
    [1.5, 2**63, -(2**63) - 1, "\ud800", dt.datetime(2013, 1, 1), [1], (1, [2, 3]), (1, (2.5,))],
    ids=repr,
)
def test_a_key_of_an_unsupported_type_is_refused(key: Any) -> None:
    with pytest.raises(StateTypeError):
        key_group(key)


def test_hash_does_not_depend_on_the_salt_of_the_process() -> None:
    code = "from statekit.keygroup import key_group; print(key_group(('UA', 'hello', b'x')))"
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
    assert seen == {f"{key_group(('UA', 'hello', b'x'))}\n"}


@pytest.mark.parametrize(
    ("shards", "groups", "ranges"),
    [
        (3, 128, [(0, 42), (43, 85), (86, 127)]),
        (4, 10, [(0, 2), (3, 4), (5, 7), (8, 9)]),
        (1, 1, [(0, 0)]),
        (128, 128, [(group, group) for group in range(128)]),
    ],
)
def test_ranges_of_shards(shards: int, groups: int, ranges: list[tuple[int, int]]) -> None:
    assert [group_range(shard, shards, groups) for shard in range(shards)] == ranges


@UNHURRIED
@given(st.data())
def test_every_group_is_in_the_range_of_its_shard_only(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 600))
    shards = data.draw(st.integers(1, groups))
    covered = []
    for shard in range(shards):
        first, last = group_range(shard, shards, groups)
        assert first <= last
        covered += [(group, shard) for group in range(first, last + 1)]
    expected = [(group, shard_of_group(group, shards, groups)) for group in range(groups)]
    assert covered == expected


@pytest.mark.parametrize("groups", [0, -1, 32_769, 1.5, True, "128"])
def test_number_of_groups_out_of_range_is_refused(groups: Any) -> None:
    with pytest.raises(RescaleError, match="key_groups"):
        check_groups(groups)


@pytest.mark.parametrize("shards", [0, -1, 129, 2.0, True])
def test_parallelism_out_of_range_is_refused(shards: Any) -> None:
    with pytest.raises(RescaleError, match="parallelism"):
        check_parallelism(shards, 128)


def test_group_and_shard_outside_of_the_job_are_refused() -> None:
    with pytest.raises(RescaleError):
        shard_of_group(128, 4, 128)
    with pytest.raises(RescaleError):
        group_range(4, 4, 128)


def test_largest_numbers_are_accepted() -> None:
    assert check_groups(32_768) == 32_768
    assert check_parallelism(32_768, 32_768) == 32_768
