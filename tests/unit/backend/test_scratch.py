"""Scratch directories: they end with their process, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from statekit.backend.scratch import scratch_directory

_HELD = """
import sys
from pathlib import Path
from statekit.backend.scratch import scratch_directory
with scratch_directory("mirror", Path(sys.argv[1])) as place:
    (place / "row").write_text("1")
    print(place, flush=True)
    sys.stdin.read()
"""


def held(below: Path) -> subprocess.Popen[str]:
    """A process that uses a scratch directory until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", _HELD, str(below)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def place_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_the_directory_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with held(tmp_path) as killed, held(tmp_path) as living:
        left, used = place_of(killed), place_of(living)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        others = tmp_path / "statekit-others"
        others.mkdir()
        assert (left / "row").exists()
        with scratch_directory("feed", tmp_path) as own:
            assert own.is_dir()
            assert not left.parent.exists()
            assert (used / "row").exists()
            assert others.is_dir()
        assert not own.exists()
        living.communicate("")
    assert sorted(tmp_path.iterdir()) == [others]
