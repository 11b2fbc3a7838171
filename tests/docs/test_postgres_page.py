"""The page about PostgreSQL is true: its examples run, and print what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import statekit as sk
from tests.support.places import DOCS
from tests.support.postgres import PostgresSchema

PAGE = (DOCS / "guide" / "sinks-postgres.md").read_text()


def test_the_examples_of_the_page_write_what_they_say(
    tmp_path: Path, postgres: PostgresSchema
) -> None:
    printed: list[Any] = []
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "print": printed.append}
    given |= {"__name__": "page", "place": tmp_path, "url": postgres.url, "query": postgres.rows}
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for example in examples:
        exec(compile(example, "sinks-postgres.md", "exec", dont_inherit=True), given)
    said = [line.removeprefix("# ") for line in PAGE.splitlines() if line.startswith("# [(")]
    assert list(map(repr, printed)) == said
    assert len(said) == len(examples) == 2
