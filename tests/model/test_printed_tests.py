"""Tests that checks print fail when they are pasted into new files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.checked import CASES
from tests.mutation.pasted import pasted

PASTED = (
    *("module-totals", "generated-numbers", "random-sample", "clock-of-the-computer"),
    *("salted-hash", "batches-in-memory", "forgetful-merge", "lossy-split"),
    *("nested-without-update", "timers-that-stay", "divided-by-zero"),
)
"""Of each property that finds much, and of each kind of function: a job, one of chance."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PASTED)
def test_a_printed_test_fails_in_a_new_file(name: str, tmp_path: Path) -> None:
    ran = pasted(CASES[name], tmp_path)
    assert ran.again == ran.found
    assert ran.records <= 10, "the history is small"
