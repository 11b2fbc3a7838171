"""Mirrors beside a job: each runs in a process of its own, which follows the job and ends with it.

The process gets the mirror's options on its standard input. When the input ends, because the job
has ended or was killed, the process takes a last step and ends. It reports each step as a line of
JSON, and an error as the last one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

from statekit.checkpoint.repository import Repository
from statekit.closing import Closing
from statekit.errors import StatekitError, StateTypeError
from statekit.job.mirror_options import MirrorOptions
from statekit.job.progress import MirrorProgress
from statekit.mirrors.mirror import Mirror
from statekit.query.rows.epochs import EpochReader
from statekit.shown import shown_error

_logger = logging.getLogger("statekit.mirrors")

_SIZE_BYTES = 8

_NICENESS = 15
"""The scheduler prefers the job: a mirror may lag, and a job should not wait for it. On a core that
both want, the job gets 96 % of the time (three quarters with 5).
"""


class MirrorsBesideJob(Closing):
    """The mirrors of a run. `close` waits for their last steps, as long as their options say.

    Parameters:
        mirrors: their options.
        repository: the checkpoint of the job.

    Raises:
        StateTypeError: the checkpoint is in memory, so that no other process can read it.
    """

    def __init__(self, mirrors: Sequence[MirrorOptions], repository: Repository) -> None:
        if mirrors and repository.is_in_memory:
            raise StateTypeError(
                "mirror= needs checkpoint=, a directory or the URL of an object store: the process "
                "of a mirror reads the epochs there. Nothing was run"
            )
        self._processes = [_MirrorProcess(options, repository.url) for options in mirrors]

    @property
    def progress(self) -> tuple[MirrorProgress, ...]:
        """How far each mirror is."""
        return tuple(process.progress for process in self._processes)

    def facts(self) -> list[tuple[str, bool, int | None]]:
        """Return the name of each mirror, whether it runs, and its epoch, for metrics."""
        return [(mirror.name, mirror.is_running, mirror.epoch) for mirror in self.progress]

    def close(self) -> None:
        for process in self._processes:
            process.ask_to_end()
        for process in self._processes:
            process.wait()


class _MirrorProcess:
    """The process of one mirror, as the job sees it. No failure of it is one of the job.

    Parameters:
        options: of the mirror.
        url: of the checkpoint.
    """

    def __init__(self, options: MirrorOptions, url: str) -> None:
        self.progress = MirrorProgress(options.known_as)
        self._within_s = options.catch_up_within_s
        self._is_asked = False
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._started(options, url)
        except OSError as error:
            self._ended(f"its process did not start: {error}")
            return
        self._reader = threading.Thread(target=self._read, name="statekit mirror", daemon=True)
        self._reader.start()

    def _started(self, options: MirrorOptions, url: str) -> subprocess.Popen[bytes]:
        """Start the process.

        It has a process group of its own, so that Ctrl-C reaches the job alone. It imports what the
        job can import: a sink may be of a class of the user.
        """
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import follow_job; follow_job()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its reader reports that
            given = pickle.dumps((url, options))
            process.stdin.write(len(given).to_bytes(_SIZE_BYTES) + given)
            process.stdin.flush()
        return process

    def _read(self) -> None:
        """Read the reports of the process until it ends."""
        process = self._process
        assert process is not None, "it was started"
        assert process.stdout is not None, "it is a pipe"
        error: str | None = None
        with process.stdout as reports:
            for line in reports:
                with contextlib.suppress(ValueError):  # a part of a line: the process was killed
                    report = json.loads(line)
                    error = report.get("error")
                    self.progress = replace(self.progress, epoch=report["epoch"])
        code = process.wait()
        if error is None and (code or not self._is_asked):
            error = f"its process was ended by {_cause(code)}"
        self._ended(error)

    def _ended(self, error: str | None) -> None:
        self.progress = replace(self.progress, is_running=False, error=error)
        if error is not None:
            _logger.warning(
                "mirror %r has ended, at epoch %s: %s. The job is not affected. The next start of "
                "the job continues the mirror",
                self.progress.name,
                self.progress.epoch,
                error,
            )

    def ask_to_end(self) -> None:
        """Let the process take its last step and end. Later calls do nothing."""
        if self._is_asked:
            return
        self._is_asked = True
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b".")  # a forked process may keep the pipe open
                self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the process has ended. It is killed if that takes too long. If no time is
        given, it ends alone after its last step, as that of a job that was killed.
        """
        if self._process is None or not self._within_s:
            return
        self._reader.join(self._within_s)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# ---------------------------------------------------------------------------------- in the process


def follow_job() -> None:
    """Follow a job until it ends. The main function of the process of a mirror."""
    os.nice(_NICENESS)
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    size = int.from_bytes(_exactly(_SIZE_BYTES))
    url, options = pickle.loads(_exactly(size))  # noqa: S301 - written by the parent
    threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    epoch: int | None = None
    try:
        for epoch in _steps(url, options, stop):
            _report(reports, epoch=epoch)
    except StatekitError as error:
        _report(reports, epoch=epoch, error=str(error))
    except Exception as error:  # noqa: BLE001 - reported, and the process ends
        _report(reports, epoch=epoch, error=shown_error(error))


def _steps(url: str, options: MirrorOptions, stop: threading.Event) -> Iterator[int]:
    """Yield the epoch after each step, and at the end.

    A later run of the job takes over at once from the mirror of a killed job, which may be taking
    its last step.
    """
    token = f"beside-job-{options.known_as}"
    with Mirror(EpochReader(Repository(url)), options, token) as mirror:
        yield from mirror.follow(stop=stop)
        if mirror.epoch is not None:  # the mirror of a killed job may have taken the last step
            yield mirror.epoch


def _exactly(size: int) -> bytes:
    """Read from the standard input. No buffer is locked while a thread waits there."""
    found = b""
    while len(found) < size:
        part = os.read(sys.stdin.fileno(), size - len(found))
        if not part:
            raise SystemExit  # the job was killed
        found += part
    return found


def _wait_for_end(stop: threading.Event) -> None:
    """Set an event when the job has ended."""
    os.read(sys.stdin.fileno(), 1)
    stop.set()


def _report(reports: IO[str], **values: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the job was killed
        reports.write(json.dumps(values) + "\n")
        reports.flush()
