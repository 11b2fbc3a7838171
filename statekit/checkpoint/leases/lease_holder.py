"""The process that holds a lease, and the test whether it still exists."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

from statekit.checkpoint.sealed_json import Count, Record
from statekit.clock import unique_id
from statekit.names import StoredId, StoredText

_PROC = Path("/proc")


class Holder(Record):
    """The process that wrote a lease.

    Parameters:
        host: its machine.
        process: its process id there.
        session: a unique id of the process: process ids are used again.
        place: where the process id is valid: the boot of the machine and the namespace of process
            ids. Empty if the system does not report it.
        started: when the process started, in ticks of the machine's clock.
    """

    host: StoredText
    process: Count
    session: StoredId
    place: StoredText = ""
    started: Count = 0

    @classmethod
    def of_this_process(cls) -> Holder:
        """Return this process as a holder."""
        process = os.getpid()
        return cls(
            host=socket.gethostname() or "unknown",
            process=process,
            session=_session(process),
            place=_place(process),
            started=_started(process) or 0,
        )

    @property
    def has_ended(self) -> bool:
        """True if the process has certainly ended. This is known only on Linux, and only for
        processes of the same machine or container.
        """
        if not self.place or self.place != _place(os.getpid()):
            return False
        try:
            os.kill(self.process, 0)  # sends nothing
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # a process of another user
        started = _started(self.process)
        return started is not None and 0 < self.started != started

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@functools.cache
def _session(process: int) -> str:
    """Return the unique id of this process. A forked process has another one."""
    return unique_id()


@functools.cache
def _place(process: int) -> str:
    """Return the namespace in which the ids of visible processes are valid; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> int | None:
    """Return the start time of a process; 0 if it was killed; None if the system does not report
    it.
    """
    try:
        status = (_PROC / str(process) / "stat").read_text(errors="replace")
        # The name of the program comes before the last bracket, and may have any character.
        state, *rest = status.rpartition(")")[2].split()
        return 0 if state in "ZX" else int(rest[18])
    except (OSError, ValueError, IndexError):
        return None
