"""Pastes the test that a failed check prints into a new file beside the module of the user, and
runs it there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import statekit as sk
from tests.mutation import wrong_memory, wrong_results
from tests.mutation.cases import Case
from tests.support.places import ROOT

_LIMIT_S = 600

_WITHOUT_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
"""Options of pytest: to import the second one takes longer than the printed test."""

_FIRST = """
from pathlib import Path
import pytest
from shop import {name}
from statekit.testing import check

def test_first() -> None:
    with pytest.raises(AssertionError) as caught:
        check({name}, depth="quick")
    Path("message").write_text(str(caught.value))
"""


@dataclass(frozen=True)
class Pasted:
    """A printed test that was pasted into a new file.

    Parameters:
        found: the property that the first check has found not to hold.
        again: the property that the printed test found not to hold; what pytest prints, if none.
        records: how many records its history has.
    """

    found: str
    again: str
    records: int


def pasted(case: Case, place: Path) -> Pasted:
    """Check a wrong function in a module `shop`, and run the printed test in another process.

    Parameters:
        place: an empty directory.
    """
    name = _written_module(case, place)
    (place / "pytest.ini").write_text("[pytest]\n")
    (place / "test_first.py").write_text(_FIRST.format(name=name))
    ran = _pytest(place, "test_first.py")
    assert (place / "message").exists(), ran
    message = (place / "message").read_text()
    test = printed_test(message)
    (place / "test_pasted.py").write_text(test)
    again = _pytest(place, "test_pasted.py")
    return Pasted(_property(message) or message, _property(again) or again, _records(test))


def printed_test(message: str) -> str:
    """Return the test in the message of a check."""
    text = message.split("This test runs it again:")[1].split("If this is intended")[0]
    return dedent(text).strip() + "\n"


def _written_module(case: Case, place: Path) -> str:
    """Write a module with the function or job of a case, and return how it is called there."""
    module = wrong_memory if case in wrong_memory.WRONG else wrong_results
    assert module.__file__ is not None
    text, name = Path(module.__file__).read_text(), case.name.replace("-", "_")
    if isinstance(case.given, sk.Job):
        text, name = f"{text}\n\njob = {name}()\n", "job"
    (place / "shop.py").write_text(text)
    return name


def _pytest(place: Path, file: str) -> str:
    """Return what pytest prints of a file, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *_WITHOUT_PLUGINS, file],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return ran.stdout + ran.stderr


def _property(text: str) -> str | None:
    found = re.search(r": '([A-Za-z ]+)' does not hold", text)
    return None if found is None else found[1]


def _records(test: str) -> int:
    """Return how many records the history of a printed test has."""
    history = next(each for each in ast.walk(ast.parse(test)) if isinstance(each, ast.Assign)).value
    assert isinstance(history, ast.List)
    lists = [each for each in ast.walk(history) if isinstance(each, ast.List)]
    return sum(len(each.elts) for each in lists if not any(_holds_lists(of) for of in each.elts))


def _holds_lists(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Dict)
