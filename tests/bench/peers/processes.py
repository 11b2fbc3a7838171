"""Running a job in a process of its own, and counting what it and all its children took.

What lives here: `run`, and how a job is asked (`jobs.handshake` is its side). What does not: what
jobs do.

A job says when it is ready and waits, and says when it is done and waits: so what is counted is
what lies between, and the processes are still there to be looked at. CPU time is that of all
processes of its session, with those that have ended and were waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.bench.peers.environments import NotAvailable, last_line
from tests.bench.peers.jobs.handshake import DONE, READY

__all__ = ["Spent", "peak", "run"]

ROOT = Path(__file__).parents[3]
LIMIT_S = 600


class Spent(NamedTuple):
    """What a job took.

    Parameters:
        cpu_s: CPU seconds between ready and done.
        memory: the peaks of its processes, added up; None where the system does not tell.
        told: what it said when it was done.
    """

    cpu_s: float
    memory: int | None
    told: dict[str, Any]


def run(python: Path, module: str, arguments: Sequence[str], *, limit_s: float = LIMIT_S) -> Spent:
    """Run a job to its end.

    Raises:
        NotAvailable: it failed, or took too long.
    """
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            cwd=ROOT,
            env=_environment(python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        is_late = threading.Event()

        def end_late() -> None:
            is_late.set()
            _kill(job.pid)

        late = threading.Timer(limit_s, end_late)
        late.start()
        try:
            _told(job, READY)
            before, _ = _taken(job.pid)
            _go_on(job)
            told = _told(job, DONE)
            after, memory = _taken(job.pid)
            _go_on(job)
            return Spent(after - before, memory, told)
        except (EOFError, BrokenPipeError) as silent:
            if is_late.is_set():
                raise NotAvailable(f"it took more than {limit_s:g} s") from silent
            job.wait(10)
            errors.seek(0)
            raise NotAvailable(f"it failed: {last_line(errors.read())}") from silent
        finally:
            late.cancel()
            _end(job)


def _environment(python: Path) -> dict[str, str]:
    """The variables of a job. One without statekit must not take itself for a test, since `tests`
    imports statekit then.
    """
    is_ours = python == Path(sys.executable)
    return {
        name: value for name, value in os.environ.items() if is_ours or name != "PYTEST_VERSION"
    }


def _told(job: subprocess.Popen[str], word: str) -> dict[str, Any]:
    """What a job says behind a word; other lines are those of libraries."""
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith(word):
            told: dict[str, Any] = json.loads(line.removeprefix(word))
            return told
    raise EOFError(word)


def _go_on(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def _end(job: subprocess.Popen[str]) -> None:
    """Wait for it a while, and let nothing of its session stay behind."""
    try:
        job.wait(10)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _kill(job.pid)
        job.wait()
        for pipe in (job.stdin, job.stdout):
            assert pipe is not None
            pipe.close()


def _kill(session: int) -> None:
    for process in _processes(session):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            process.send_signal(signal.SIGKILL)


def _processes(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                yield process
        except ProcessLookupError:
            continue  # it has ended since


def _taken(session: int) -> tuple[float, int | None]:
    """CPU seconds and the peaks of memory of all processes of a session."""
    cpu_s, peaks = 0.0, []
    for process in _processes(session):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system + times.children_user + times.children_system
        peaks.append(peak(process.pid))
    known = [most for most in peaks if most is not None]
    return cpu_s, sum(known) if known else None


def peak(process: int) -> int | None:
    """The most bytes of memory that a process held; None where the system does not tell."""
    status = Path(f"/proc/{process}/status")  # Linux alone tells
    if not status.exists():
        return None
    _, _, behind = status.read_text().partition("VmHWM:")
    return int(behind.split()[0]) * 1024 if behind else None
