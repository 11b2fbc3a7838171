"""Temporary directories in memory, where no write waits for a disk."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")

_FREE_BYTES_MIN = 256 * 1024**2
"""In a container, it often has room for 64 MiB, which other programs may need."""


def memory_directory(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary directory for the files of a run, in memory if there is room, otherwise
    below `TMPDIR`.

    The files of a run survive a killed process. None has to survive a computer that is switched
    off, for which writes would wait. They take less than 1 MiB.

    Parameters:
        purpose: a word in its name.
    """
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free >= _FREE_BYTES_MIN
    place = _IN_MEMORY if has_room else None
    return tempfile.TemporaryDirectory(prefix=f"statekit-{purpose}-", dir=place)
