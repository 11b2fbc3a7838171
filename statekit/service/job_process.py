"""Processes of the service: each runs `statekit` for one job, with its output in the job's log.
Epochs and the last error are reported in a pipe of their own.

A process holds a lock of its job as long as it lives, and ends when its standard input ends because
the server was killed. So the next server on this machine starts no second process of a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from statekit.checkpoint.sealed_json import faults_of
from statekit.clock import now_us, sleep_s, stopwatch_s
from statekit.service.job_environment import job_environment
from statekit.service.job_log import JobLog
from statekit.service.job_record import REASON_MAX
from statekit.service.run_report import JobProgress, RunReport

_logger = logging.getLogger("statekit.service")

_LINE_BYTES_MAX, _REPORT_BYTES_MAX = 1 << 16, 1 << 20
_EPOCH_LINE = b'{"epoch": '
_GROUP_ENDS_S, _POLL_S = 3.0, 0.05
"""How long a group has to end after its main process, and how often it is looked at, in seconds."""

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
        reports: whether it is a run, which reports its epochs in a pipe, and keeps the lock from
            the processes that it starts.
        secrets: names of environment variables that the process gets although they are secrets.

    Attributes:
        progress: the last epoch that it has reported; None before the first one.
        progress_at_us: when it was reported, in microseconds since 1970 UTC.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: JobLog,
        lock: int,
        secrets: Sequence[str] = (),
        *,
        reports: bool = False,
    ) -> None:
        self.progress: JobProgress | None = None
        self.progress_at_us: int | None = None
        self._log = log
        self._others: deque[str] = deque(maxlen=_REASON_LINES)
        self._error: str | None = None
        self._asked_s: float | None = None
        self._ended = threading.Event()
        own_end, its_end = os.pipe()
        own = [f"--reports-to={its_end}", f"--lock={lock}"] if reports else []
        try:
            self._process = subprocess.Popen(
                [*_COMMAND, *words, *own],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=(lock, its_end),
                env={**job_environment(secrets), **_ENVIRONMENT},
            )
        except BaseException:
            os.close(own_end)
            raise
        finally:
            os.close(lock)
            os.close(its_end)
        with contextlib.suppress(OSError):  # it has ended
            nice = os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)
        assert self._process.stdout is not None, "it is a pipe"
        readers = [
            self._in_thread(self._read, self._process.stdout, _LINE_BYTES_MAX, self._note),
            self._in_thread(
                self._read, os.fdopen(own_end, "rb"), _REPORT_BYTES_MAX, self._note_report
            ),
        ]
        self._in_thread(self._watch, readers)

    @staticmethod
    def _in_thread(target: Callable[..., None], *given: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=given, name="statekit job", daemon=True)
        thread.start()
        return thread

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
        """The exit code, once it and the processes of its group have ended."""
        return self._process.returncode if self._ended.is_set() else None

    @property
    def reason(self) -> str:
        """The error that it has reported, or else the last lines that it printed."""
        code = self._process.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        lines = self._others if self._error is None else [self._error]
        text = "\n".join(line for line in (*lines, ended) if line)
        return text[-REASON_MAX:] or f"it ended with exit code {code}"

    def ask_to_end(self, within_s: float) -> None:
        """Let the process end after its epoch. A later call kills it if that takes too long.

        Parameters:
            within_s: how long it may take, in seconds.
        """
        if self._asked_s is None:
            self._asked_s = stopwatch_s()
            self._process.terminate()  # not its group: Spark's JVM would end before the epoch
        elif stopwatch_s() - self._asked_s > within_s:
            self.kill()

    def kill(self) -> None:
        """Kill the process, and those that it has started in its group."""
        self._asked_s = self._asked_s or stopwatch_s()
        if not self._ended.is_set():
            self._signal_group(signal.SIGKILL)

    def wait(self, within_s: float) -> bool:
        """Wait until the process and its group have ended, and return whether they have."""
        return self._ended.wait(within_s)

    def _watch(self, readers: Sequence[threading.Thread]) -> None:
        """Wait for the process, and end those that it has left: a child that it has forked holds
        its pipes, so the end of its output is no sign.
        """
        self._process.wait()
        until_s, is_there = stopwatch_s() + _GROUP_ENDS_S, self._signal_group(signal.SIGTERM)
        while is_there and stopwatch_s() < until_s:
            sleep_s(_POLL_S)
            is_there = self._signal_group(0)
        if is_there:
            self._signal_group(signal.SIGKILL)
        for reader in readers:
            reader.join(_GROUP_ENDS_S)  # a process in another group may hold the pipes
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._ended.set()

    def _signal_group(self, number: int) -> bool:
        """Send a signal to all processes of the group, and return whether it has any."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _read(self, pipe: IO[bytes], line_bytes: int, note: Callable[[bytes], None]) -> None:
        with pipe:
            while line := pipe.readline(line_bytes):
                note(line)

    def _note(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk: the job is not affected
            self._log.write(line if line.endswith(b"\n") else line + b"\n")
        if not line.startswith(_EPOCH_LINE):
            self._others.append(line.decode(errors="replace").rstrip())

    def _note_report(self, line: bytes) -> None:
        try:
            report = RunReport.model_validate_json(line)
        except ValueError as error:
            _logger.warning("a report of process %d is ignored: %s", self.id, faults_of(error))
            return
        if report.progress is not None:
            self.progress, self.progress_at_us = report.progress, now_us()
        self._error = report.error or self._error


def taken_lock(path: Path) -> int | None:
    """Return the open file of a lock that a process is to inherit; None if another one holds it."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened
