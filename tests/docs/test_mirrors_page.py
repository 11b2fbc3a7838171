"""The page about mirrors is true: its examples run, and print what they should."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.places import DOCS


def test_the_examples_of_mirrors_write_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given: dict[str, Any] = {"__name__": "page", "print": printed.append}
    text = (DOCS / "guide" / "mirrors.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, "mirrors.md", "exec", dont_inherit=True), given)
    (beside,) = printed.pop(1)
    assert (beside.name, beside.epoch, beside.error) == ("spending.total", 0, None)
    rows = DeltaTable(given["place"] / "beside").to_pyarrow_table().to_pylist()
    assert {row["customer"]: row["value"] for row in rows} == {"ada": 700, "bob": 300, "eve": 50}
    table, followed, log, history = (sorted(rows, key=str) for rows in printed)
    assert table == [{"customer": "ada", "value": 700}, {"customer": "bob", "value": 300}]
    assert followed == [{"epoch": 0, "behind": 0}]
    assert log == [{"op": "upsert", **row} for row in table]
    assert history == [{**row, "from_epoch": 0, "until_epoch": None} for row in table]
    assert DeltaTable(given["place"] / "first").to_pyarrow_table().num_rows == 2
