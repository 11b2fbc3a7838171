"""What is known to be wrong is found, and nothing that is right: docs/internals/mutation.md."""

from __future__ import annotations

import pytest

from tests.mutation.cases import Case
from tests.mutation.checked import CASES, found
from tests.mutation.more_mutants import MORE
from tests.mutation.mutants import MUTANTS
from tests.mutation.right_functions import RIGHT
from tests.mutation.wrong_memory import WRONG as WRONG_MEMORY
from tests.mutation.wrong_results import WRONG as WRONG_RESULTS
from tests.support.effort import SOAK
from tests.support.places import ROOT

WRONG = [each.name for each in (*WRONG_MEMORY, *WRONG_RESULTS)]

FEW_WRONG = {"number-of-the-epoch": "epochs", "nested-without-update": "in place"}
FEW_RIGHT = {
    "total": ["restarts", "parallelism", "plain Python"],
    "sorted-copy": ["in place"],
    "reminded": ["leftovers", "plain Python"],
    "emitted-and-changed": ["in place", "repeats"],
}


def test_each_fault_replaces_lines_that_are_there_once() -> None:
    for fault in (*MUTANTS, *MORE):
        source = (ROOT / "statekit" / fault.file).read_text()
        assert source.count(fault.before[1:]) == 1, fault.name


def test_the_sets_have_different_names() -> None:
    assert len({each.name for each in (*MUTANTS, *MORE)}) == len(MUTANTS) + len(MORE)
    assert len(set(WRONG)) == 53
    assert len({each.name for each in RIGHT}) == 40
    assert len(MORE) == 39


@pytest.mark.parametrize("name", FEW_WRONG)
def test_a_wrong_function_is_found(name: str) -> None:
    assert found(CASES[name], [FEW_WRONG[name]], "quick") == f"'{FEW_WRONG[name]}'"


@pytest.mark.parametrize("name", FEW_RIGHT)
def test_a_right_function_causes_no_alarm(name: str) -> None:
    assert found(CASES[name], FEW_RIGHT[name], "quick") is None


# All of them take half an hour.
TRIED = RIGHT if SOAK else RIGHT[::20]


@pytest.mark.slow
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_no_right_function_causes_an_alarm(case: Case) -> None:
    assert found(case, depth="quick") is None
