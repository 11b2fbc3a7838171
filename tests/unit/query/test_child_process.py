"""Child processes: the limit of their memory."""

from __future__ import annotations

import pytest

from statekit.query.child_process import ChildLimitError, run_child
from tests.support.greedy_child import Memory


def test_a_child_takes_no_more_memory_than_it_is_given() -> None:
    def answer(size: int) -> bytes:
        return run_child(
            "tests.support.greedy_child",
            Memory(size),
            "count",
            timeout_s=60,
            memory_bytes=2**30,
            advice="count fewer",
        )

    assert answer(10_000) == b"10000"
    with pytest.raises(ChildLimitError, match=r"took more than 1,024 MB of memory: count fewer"):
        answer(2**30)
