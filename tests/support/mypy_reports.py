"""What mypy says about files that use statekit, as users have it installed."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.places import ROOT

_REPORT = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<said>.*)$")


def mypy_reports(
    files: Sequence[Path], home: Path, *, strict: bool = True
) -> dict[str, dict[int, list[str]]]:
    """Return what one run of mypy says, by the name of the file and the line.

    Parameters:
        home: a directory for its settings.
        strict: whether functions need annotations, too.
    """
    settings = home / "mypy.ini"
    settings.write_text(
        f"[mypy]\nstrict = {strict}\ncheck_untyped_defs = true\npython_version = 3.11\n"
        f"color_output = false\nmypy_path = {ROOT / 'typings'}\n"
        f"cache_dir = {Path(tempfile.gettempdir()) / f'statekit-mypy-{strict}'}\n"
        "[mypy-statekit.*]\nfollow_imports = silent\n"
        "[mypy-pyarrow.*]\nignore_missing_imports = true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(settings), *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, dict[int, list[str]]] = {}
    for line in done.stdout.splitlines():
        if match := _REPORT.match(line):
            by_line = found.setdefault(Path(match["file"]).name, {})
            by_line.setdefault(int(match["line"]), []).append(match["said"])
    return found
