"""Hard links to files that never change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_IMPOSSIBLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def linked(source: Path, target: Path) -> bool:
    """Give a file one more name; False if that is not possible between these places.

    Raises:
        OSError: the source is missing, or the disk full or failed.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            return False
        raise
    return True
