"""Scratch directories: temporary directories for rows that are unpacked on the local disk for
reading.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from statekit.errors import StorageError


@contextlib.contextmanager
def scratch_directory(purpose: str, below: Path | None = None) -> Iterator[Path]:
    """Create a directory, and remove it at the end.

    Parameters:
        purpose: a word in its name.
        below: where it is created; None for `TMPDIR`.

    Raises:
        StorageError: it cannot be created or written to.
    """
    try:
        with tempfile.TemporaryDirectory(
            prefix=f"statekit-{purpose}-", dir=below, ignore_cleanup_errors=True
        ) as place:
            yield Path(place)
    except OSError as error:
        where = below or tempfile.tempdir or "any temporary directory"
        raise StorageError(
            f"cannot unpack rows in {where}: {error}. Nothing committed is lost: make space there "
            "or set TMPDIR, then start again"
        ) from error
