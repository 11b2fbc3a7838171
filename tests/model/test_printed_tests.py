"""Tests that checks print fail when they are pasted into new files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.checked import CASES
from tests.mutation.pasted import pasted
from tests.mutation.wrong_memory import WRONG as WRONG_MEMORY
from tests.mutation.wrong_results import WRONG as WRONG_RESULTS
from tests.support.effort import SOAK

WRONG = (*WRONG_MEMORY, *WRONG_RESULTS)

NOT_FOUND = {"cached-rate"}
"""Fails in the process of the check alone, as the message says."""

FEW = ("forgetful-merge", "module-totals", "random-sample", "timers-that-stay")
"""Of several properties, and of each kind of function: a job, one of chance."""

PASTED = [each.name for each in WRONG if each.name not in NOT_FOUND] if SOAK else FEW


@pytest.mark.parametrize("name", PASTED)
def test_a_printed_test_fails_in_a_new_file(name: str, tmp_path: Path) -> None:
    ran = pasted(CASES[name], tmp_path)
    assert ran.again == ran.found
    assert ran.records <= 10, "the history is small"
