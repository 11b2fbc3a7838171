"""File descriptors: the limit of the server, and the shares of its jobs' copies.

A database keeps the tables that it reads open, up to a limit of its own. Shells and systemd allow a
process 1,024 descriptors, and let it raise the limit.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace

from statekit.backend.rocksdb_options import RocksOptions
from statekit.errors import StorageError

_ASKED_FOR = 1 << 20
"""Number of descriptors to ask for if the hard limit is infinite."""

_OF_TABLES = 0.5
"""Fraction of all descriptors that tables of copies may take."""

_DATABASES_OF_JOB = 4
"""Databases of a job: one per operator, and more after a change of parallelism."""

_TABLES_MIN = 20
"""Smallest limit that RocksDB accepts."""

_TOO_MANY = os.strerror(errno.EMFILE)


def raised_limit() -> int:
    """Raise the limit of descriptors of this process to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ASKED_FOR if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # a system may allow less than its hard limit
            return soft
        return most
    return _ASKED_FOR if soft == resource.RLIM_INFINITY else soft


def sharing(options: RocksOptions, limit: int, jobs: int) -> RocksOptions:
    """Return RocksDB options with which the databases of several jobs share the descriptors.

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
    """Return the number of open descriptors of this process; 0 if it is not known."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is that no descriptor is left."""
    own: BaseException | None = error
    while own is not None:
        if getattr(own, "errno", None) == errno.EMFILE or _TOO_MANY in str(own):
            return True
        own = own.__cause__ or own.__context__
    return False


def exhausted(alias: str, opened: int, jobs: int) -> StorageError:
    """Return the error for a server without descriptors for the copy of a job.

    Parameters:
        alias: of the job.
        opened: number of jobs that were opened before it.
        jobs: number of jobs to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return StorageError(
        f"the server may have {soft:,} open files (ulimit -n; the hard limit is {hard:,}), and "
        f"needs more to serve {alias!r}, after {opened} of {jobs} jobs: it was not started, "
        "and no checkpoint is affected. Raise the hard limit (LimitNOFILE= of systemd, --ulimit "
        "nofile= of Docker), or serve fewer jobs with one server"
    )
