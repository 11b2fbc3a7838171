"""File descriptors: how many the server may have, and how the copies of its jobs share them.

A database keeps the tables that it reads open, up to a limit of its own. Shells and systemd allow a
process 1,024 descriptors, and let it raise that.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace

from statekit.backend.rocksdb_options import RocksOptions
from statekit.errors import StorageError

_ASKED_FOR = 1 << 20
"""What is asked for where there is no other limit."""

_OF_TABLES = 0.5
"""How many of all descriptors may be tables of copies."""

_DATABASES_OF_JOB = 4
"""Databases of a job: one per operator, and more after a change of parallelism."""

_TABLES_MIN = 20
"""RocksDB takes no smaller limit."""

_TOO_MANY = os.strerror(errno.EMFILE)


def raised_limit() -> int:
    """Let this process have as many descriptors as it may, and return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ASKED_FOR if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # a system may allow less than it says
            return soft
        return most
    return _ASKED_FOR if soft == resource.RLIM_INFINITY else soft


def sharing(options: RocksOptions, limit: int, jobs: int) -> RocksOptions:
    """Return options with which the databases of some jobs share descriptors.

    Parameters:
        limit: descriptors of the process.

    >>> sharing(RocksOptions(), limit=1_024, jobs=2).open_files
    64
    >>> sharing(RocksOptions(), limit=1_048_576, jobs=20).open_files
    512
    """
    share = int(limit * _OF_TABLES) // (jobs * _DATABASES_OF_JOB)
    return replace(options, open_files=max(_TABLES_MIN, min(options.open_files, share)))


def descriptors_used() -> int:
    """Return how many descriptors this process has; 0 where that is not known."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error says that the process has no descriptor left."""
    own: BaseException | None = error
    while own is not None:
        if getattr(own, "errno", None) == errno.EMFILE or _TOO_MANY in str(own):
            return True
        own = own.__cause__ or own.__context__
    return False


def exhausted(alias: str, opened: int, jobs: int) -> StorageError:
    """Return the error of a server that cannot open the copy of a job.

    Parameters:
        alias: of the job.
        opened: how many jobs were opened before it.
        jobs: how many are to be served.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return StorageError(
        f"the server may have {soft:,} open files (ulimit -n; the hard limit is {hard:,}), and "
        f"needs more to serve {alias!r}, after {opened} of {jobs} jobs: it was not started, "
        "and no checkpoint is affected. Raise the hard limit (LimitNOFILE= of systemd, --ulimit "
        "nofile= of Docker), or serve fewer jobs with one server"
    )
