"""One more name for a file that nobody ever changes.

What lives here: making a hard link where that is possible. What does not: who may rely on a file
that it has in common with others (`rocks`, `store`).
"""

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
