"""The memory of a join does not grow with the matches of one record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.slow

COUNT, MEGABYTES = 1_000_000, 300


def test_a_million_matches_of_one_record_need_less_than_300_megabytes(tmp_path: Path) -> None:
    peaks = []
    for what in ("load", "join"):
        command = [sys.executable, "-m", "tests.support.one_large_key"]
        run = subprocess.run(
            [*command, str(tmp_path), str(COUNT), what],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
        peaks.append(int(run.stdout))
    found = ds.dataset(tmp_path / "pairs").to_table(columns=["right"])["right"].to_pylist()
    assert found == list(range(COUNT))
    assert max(peaks) < MEGABYTES, peaks
