"""What mypy says to users: wrong lines in typing_cases are reported, right ones are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.mypy_reports import mypy_reports
from tests.support.places import TESTS

CASES = sorted((TESTS / "typing_cases").glob("*.py"))
_MARK = re.compile(r"# error: (?P<said>.*)$")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, list[str]]]:
    """What one run of mypy says, by file and line."""
    return mypy_reports(CASES, tmp_path_factory.mktemp("mypy"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_mypy_reports_every_wrong_line_and_no_other(
    case: Path, reports: dict[str, dict[int, list[str]]]
) -> None:
    said = reports.get(case.name, {})
    marked = {
        number: match["said"]
        for number, line in enumerate(case.read_text().splitlines(), start=1)
        if (match := _MARK.search(line))
    }
    assert marked, "a case has wrong lines too"
    problems = [
        f"line {number}: expected {fragment!r}, mypy says {said.get(number, 'nothing')}"
        for number, fragment in marked.items()
        if not any(fragment in text for text in said.get(number, ()))
    ]
    problems += [
        f"line {number} is right, mypy says {texts}"
        for number, texts in said.items()
        if number not in marked
    ]
    assert not problems, "\n".join(problems)
