"""Open files below a directory that may be hostile: no symbolic links, devices or pipes.

Anyone may have created a checkpoint on a local disk. A symbolic link in it could lead to any file
of the reader, and a job or the garbage collection could write or delete there. A device or a pipe
could be read without end. So no link is followed out of the directory, and only regular files are
read. The path of the directory itself may contain links.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from statekit.errors import CorruptCheckpointError

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def inside(root: Path, path: str) -> Path:
    """Return the path of a file below a directory.

    Parameters:
        root: the directory.
        path: below it; the file may be missing.

    Raises:
        CorruptCheckpointError: a symbolic link leads out of the directory.
    """
    place = root / path
    folder, home = os.path.realpath(place.parent), os.path.realpath(root)
    if folder != home and not folder.startswith(home.rstrip(os.sep) + os.sep):
        raise CorruptCheckpointError(
            f"{place} lies in {folder}, outside of {home}: a symbolic link leads there. Nothing "
            "was read or written. If the link is yours, mount the directory in its place"
        )
    return place


def regular_file(root: Path, path: str) -> os.stat_result:
    """Return the status of a file below a directory, without opening it.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        CorruptCheckpointError: it is a symbolic link, a device or a pipe, or a link leads out of
            the directory.
    """
    place = inside(root, path)
    status = place.lstat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a device, a pipe or a socket"
        raise CorruptCheckpointError(
            f"{place} is {what}, and a checkpoint has regular files only: restore it from a backup"
        )
    return status


def open_regular(root: Path, path: str) -> IO[bytes]:
    """Open a file below a directory for reading.

    Raises:
        OSError, CorruptCheckpointError: as for `regular_file`, or it cannot be opened.
    """
    regular_file(root, path)
    return open(os.open(root / path, os.O_RDONLY | os.O_CLOEXEC | _NO_LINK), "rb")
