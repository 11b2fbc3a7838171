"""Virtual environments with pinned versions, made when they are needed and kept.

What lives here: `Environment`. What does not: what runs in one (`jobs`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment", "NotAvailable", "cache"]

_INSTALLING_S = 900
_MADE = "made"


class NotAvailable(Exception):
    """A system cannot be measured here; the message says why."""


def cache() -> Path:
    """Where environments are kept: `STATEKIT_BENCH_PEERS`, or a directory of the user's."""
    given = os.environ.get("STATEKIT_BENCH_PEERS")
    return Path(given) if given else Path.home() / ".cache" / "statekit-bench"


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Parameters:
        name: of its directory.
        requirements: what pip installs into it, with versions.
    """

    name: str
    requirements: tuple[str, ...]

    @property
    def home(self) -> Path:
        """Its directory, which is another one where versions or Python are others."""
        told = " ".join((*self.requirements, sys.version)).encode()
        return cache() / f"{self.name}-{hashlib.sha256(told).hexdigest()[:12]}"

    @property
    def is_made(self) -> bool:
        """Whether all of it is installed."""
        return (self.home / _MADE).exists()

    def python(self) -> Path:
        """Its interpreter. Makes the environment if it is not there.

        Raises:
            NotAvailable: it cannot be made.
        """
        python = self.home / "bin" / "python"
        if not self.is_made:
            shutil.rmtree(self.home, ignore_errors=True)  # one that was left half made
            self._run("make an environment", sys.executable, "-m", "venv", str(self.home))
            pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            self._run(f"install {' '.join(self.requirements)}", *pip, *self.requirements)
            (self.home / _MADE).touch()
        return python

    def _run(self, what: str, *command: str) -> None:
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALLING_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotAvailable(f"cannot {what}: {error}") from error
        if ended.returncode:
            raise NotAvailable(f"cannot {what}: {last_line(ended.stderr or ended.stdout)}")


def last_line(text: str) -> str:
    """The last line that says something, as far as a table can take it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1][:200]
