"""Hard links to files that never change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_IMPOSSIBLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def linked(source: Path, target: Path) -> bool:
    """Create a hard link. Return False if the file system does not support it between these paths.

    Raises:
        OSError: the source is missing, or the disk is full or failed.
    """
    try:
        os.link(source, target)
        return True
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        return False
