"""The process of a Python worker: garbage collection, connections, executor and disk."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from functools import cache
from pathlib import Path

from statekit.checkpoint.repository import Repository
from statekit.runtime.rare_collection import RARE_COLLECTION


@cache
def collect_rarely() -> None:
    """Reduce the frequency of cyclic garbage collection until this process ends.

    After each task Spark runs a full collection. Objects from before the first shard, most of them
    modules, are excluded from now on.
    """
    gc.set_threshold(*RARE_COLLECTION)
    gc.freeze()


def acknowledge_at_once() -> None:
    """Disable delayed acknowledgements. They wait for Nagle's algorithm, which in turn waits for
    them.

    Spark sends a task to a worker in several small writes over TCP. The second one waits until the
    first is acknowledged, which Linux delays by 40 ms: most of the time of a small epoch in a
    worker.
    """
    at_once = getattr(socket, "TCP_QUICKACK", None)
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed again
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if _is_from_here(connection):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if at_once is not None:
                        connection.setsockopt(socket.IPPROTO_TCP, at_once, 1)


def _is_from_here(connection: socket.socket) -> bool:
    """Return whether a connection is between two processes of this host, like Spark and its
    worker.
    """
    is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
    return is_internet and connection.getpeername()[0] in ("127.0.0.1", "::1")


@cache
def opened_repository(url: str) -> Repository:
    """Return the checkpoint at a URL, opened once in this process."""
    return Repository(url)


@cache
def executor_id() -> str:
    """Return the id of the executor that started this worker; empty if it is unknown.

    Kubernetes passes it in the environment. Elsewhere it is in the command of the executor, which
    is the parent of the process that forks workers.
    """
    if given := os.environ.get("SPARK_EXECUTOR_ID"):
        return given
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError):  # there is no /proc, or no such process
        while pid > 1:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--executor-id" in words:
                return words[words.index(b"--executor-id") + 1].decode()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return ""


def executors_directory() -> str:
    """Return a directory for working copies that Spark removes with the executor.

    Spark passes its Python workers the directories of blocks. A directory next to the first of them
    is on a suitable disk, and exists no longer than the application.
    """
    blocks = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    return os.path.join(os.path.dirname(blocks), "statekit")
