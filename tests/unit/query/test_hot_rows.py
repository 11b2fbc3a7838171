"""Rows that were read before come from memory, are the same, and take a limited part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.query.replica.hot_rows import HotRows
from tests.support.served import Sale, sales, sell

STORED = {b"a": b"1", b"b": b"", b"c": b"333"}


@given(st.lists(st.lists(st.sampled_from([*STORED, b"absent"]))), st.integers(0, 600))
def test_rows_are_those_that_a_read_returns(lists: list[list[bytes]], limit: int) -> None:
    rows = HotRows(limit)
    for keys in lists:
        known = rows.known(keys)
        found = rows.get_many(keys, lambda some: [STORED.get(key) for key in some])
        assert found == [STORED.get(key) for key in keys]
        assert known in (None, found)


def test_a_row_is_read_once_as_long_as_there_is_room() -> None:
    read: list[bytes] = []

    def reading(keys: list[bytes]) -> list[bytes | None]:
        read.extend(keys)
        return [key * 100 for key in keys]

    rows = HotRows(1_000)
    rows.get_many([b"a", b"b"], reading)
    rows.get_many([b"b", b"a", b"c"], reading)
    assert read == [b"a", b"b", b"c"]
    rows.get_many([b"d", b"e", b"f", b"g"], reading)
    rows.get_many([b"h"], reading)
    rows.get_many([b"h"], reading)
    assert read[-2:] == [b"h", b"h"]
    rows.forget()
    assert rows.known([b"a"]) is None


def test_each_epoch_has_its_own_rows_and_a_closed_view_has_none(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    sell(home, [Sale("rome", "tea", 400)])
    with sk.Replica(home, follow=False, views=4) as replica:
        key = sales.key_codec.encode("rome")
        before = replica.at()
        first = before.state("sales", "total").stored_rows([key])
        sell(home, [Sale("rome", "tea", 400), Sale("rome", "pot", 5)])
        replica.refresh()
        with replica.at() as after:
            state = after.state("sales", "total")
            second = state.stored_rows([key])
            assert first != second
            assert state.hot_rows([key]) == second == state.stored_rows([key])
            assert state.get("rome") == 405
        assert before.state("sales", "total").stored_rows([key]) == first
        before.close()
        with pytest.raises(sk.QueryError, match="closed"):
            state.hot_rows([key])
