"""The pages about tables in a lake are true: their examples run, and print what they should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

import statekit as sk
from tests.support.places import DOCS


def _printed(page: str, **names: Any) -> list[Any]:
    """What the examples of a page print, one after the other."""
    printed: list[Any] = []
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "print": printed.append}
    given |= {"__name__": "page", **names}
    text = (DOCS / "guide" / page).read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, page, "exec", dont_inherit=True), given)
    return [sorted(rows, key=lambda row: tuple(row.values())) for rows in printed]


SUMS = [
    {"customer": "ada", "cents": 500},
    {"customer": "ada", "cents": 700},
    {"customer": "bob", "cents": 300},
]
LAST = [{"customer": "ada", "cents": 700}]


def test_the_examples_about_delta_lake_write_what_they_say(tmp_path: Path) -> None:
    assert _printed("sinks-delta.md", place=tmp_path, DeltaTable=DeltaTable) == [SUMS, LAST]


def test_the_examples_about_iceberg_write_what_they_say(tmp_path: Path) -> None:
    assert _printed("sinks-iceberg.md", place=tmp_path) == [SUMS, LAST]
