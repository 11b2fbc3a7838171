"""Processes of the service: each runs `statekit` for one job, with its output in the job's log.

A process holds a lock of its job as long as it lives, and ends when its standard input ends because
the server was killed. So the next server on this machine starts no second process of a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statekit.clock import now_us, stopwatch_s
from statekit.service.job_log import JobLog
from statekit.service.job_record import REASON_MAX

_LINE_BYTES_MAX = 1 << 16
_REASON_LINES = 30

_NICENESS = 5
"""The server is preferred: it has to renew its term, and to answer, if its jobs want all cores."""

_ENVIRONMENT = {"COLUMNS": "1000", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
"""So that errors are printed on one line, without colours."""

_COMMAND = (sys.executable, "-m", "statekit.cli")


class ChildProcess:
    """A process that runs a command of `statekit` for a job.

    Parameters:
        words: the command and its arguments.
        log: gets its output.
        lock: the open file of the lock, which the process inherits. It is closed here.

    Attributes:
        progress: the last line of JSON about an epoch; None before the first one.
        progress_at_us: when it was printed, in microseconds since 1970 UTC.
    """

    def __init__(self, words: Sequence[str], log: JobLog, lock: int) -> None:
        self.progress: dict[str, Any] | None = None
        self.progress_at_us: int | None = None
        self._log = log
        self._others: deque[str] = deque(maxlen=_REASON_LINES)
        self._asked_s: float | None = None
        try:
            self._process = subprocess.Popen(
                [*_COMMAND, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=(lock,),
                env={**os.environ, **_ENVIRONMENT},
            )
        finally:
            os.close(lock)
        with contextlib.suppress(OSError):  # it has ended
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, own + _NICENESS)
        self._reader = threading.Thread(target=self._read, name="statekit job", daemon=True)
        self._reader.start()

    @property
    def id(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_asked(self) -> bool:
        """True if it was asked to end."""
        return self._asked_s is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code, once it has ended and all its output was read."""
        return None if self._reader.is_alive() else self._process.poll()

    @property
    def reason(self) -> str:
        """The last lines that it printed, without those about epochs."""
        code = self._process.poll()
        ended = f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        lines = [line for line in (*self._others, ended) if line]
        return "\n".join(lines)[-REASON_MAX:] or f"it ended with exit code {code}"

    def ask_to_end(self, within_s: float) -> None:
        """Let the process end after its epoch. A later call kills it if that takes too long.

        Parameters:
            within_s: how long it may take, in seconds.
        """
        if self._asked_s is None:
            self._asked_s = stopwatch_s()
            if self._process.poll() is None:
                self._process.terminate()  # not its group: Spark's JVM would end before the epoch
        elif stopwatch_s() - self._asked_s > within_s:
            self.kill()

    def kill(self) -> None:
        """Kill the process, and those that it has started in its group."""
        self._asked_s = self._asked_s or stopwatch_s()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, within_s: float) -> bool:
        """Wait until the process has ended, and return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            self._reader.join(within_s)
        return self._process.poll() is not None

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None, "it is a pipe"
        with out:
            while line := out.readline(_LINE_BYTES_MAX):
                self._note(line)
        self._process.wait()
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _note(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk: the job is not affected
            self._log.write(line if line.endswith(b"\n") else line + b"\n")
        if line.startswith(b'{"epoch": '):
            with contextlib.suppress(ValueError):
                self.progress, self.progress_at_us = json.loads(line), now_us()
                return
        self._others.append(line.decode(errors="replace").rstrip())


def taken_lock(path: Path) -> int | None:
    """Return the open file of a lock that a process is to inherit; None if another one holds it."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened
