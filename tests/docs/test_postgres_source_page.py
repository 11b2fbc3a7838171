"""The page about PostgreSQL as a source is true: its example runs, and prints what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import statekit as sk
from tests.support.places import DOCS
from tests.support.postgres import PostgresSchema

PAGE = (DOCS / "guide" / "sources-postgres.md").read_text()


def test_the_examples_read_what_they_say(tmp_path: Path, postgres: PostgresSchema) -> None:
    postgres.rows("CREATE TABLE orders (id int PRIMARY KEY, customer text, cents int, note text)")
    postgres.rows("INSERT INTO orders VALUES (1, 'ada', 500), (2, 'bob', 300), (3, 'ada', 200)")
    printed: list[Any] = []
    given = {"sk": sk, "Iterator": Iterator, "NamedTuple": NamedTuple, "print": printed.append}
    given |= {"__name__": "page", "place": tmp_path}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        example = example.replace("postgresql://ada@localhost:5432/shop", postgres.url)
        exec(compile(example, "sources-postgres.md", "exec", dont_inherit=True), given)
    said = [line.removeprefix("# ") for line in PAGE.splitlines() if line.startswith("# [Spent")]
    assert list(map(repr, printed)) == said
    assert len(said) == 1
