"""Process functions and their classes reach the workers, wherever they are defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.main_classes import DECLARED

HERE = Path(__file__).parent


def test_classes_of_a_script_are_sent_whatever_they_are_made_with(tmp_path: Path) -> None:
    # Run elsewhere, and as `__main__`: nothing of it can be imported by a worker.
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    environment.pop("PYSPARK_PYTHON", None)
    ended = subprocess.run(
        [sys.executable, str(HERE / "main_classes.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    *lines, held = ended.stdout.splitlines()
    assert lines == [f"{declared.name} same" for _, declared in DECLARED]
    assert held.startswith("{'a': {'factor': 3, 'line': {'word': 'A', 'line_number': 2,"), held
