"""Background uploads: one thread per process, for which no epoch waits.

An epoch submits work and continues. Failed work is logged. It is recorded on the disk, and the
next epoch of its shard submits it again. When a process ends or forks, its work stays on
the disk: the next process that runs the shard resumes it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable

from statekit.clock import stopwatch_s

_logger = logging.getLogger("statekit.uploader")

Going = Callable[[], None]
"""A callback for long work, called at intervals. An exception that it raises ends the work."""

Work = Callable[[Going], object]
"""Submitted work. Its argument is a function to call at intervals."""

_EXIT_S = 10
"""The time for which the end of the process waits for the thread."""


class _Ending(Exception):  # noqa: N818 - no failure
    """The exception that ends the running work."""


class Uploader:
    """A thread that runs submitted work in order."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._work: dict[str, Work] = {}
        self._busy_with: str | None = None
        self._thread: threading.Thread | None = None
        self._ends = False
        self._is_given_up = False

    def submit(self, name: str, work: Work) -> bool:
        """Submit work. Return False if it is already submitted.

        Parameters:
            name: unique on this host.
            work: gets a function to call at intervals, which raises to end the work.
        """
        with self._changed:
            if self._ends or name in self._work:
                return False
            self._work[name] = work
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="statekit-uploader", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return True

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until all work is done. Return False after the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._work, timeout_s)

    def give_up(self, under: str, timeout_s: float = _EXIT_S) -> bool:
        """Drop all work whose name starts with `under`, and wait until none of it is running.

        Call it before the files of the work are removed. Work that is given up does not fail, and
        nothing is logged.

        Returns:
            False if some still runs: after the time-out, or if the thread itself calls this.
        """
        with self._changed:
            self._drop_queued(under)
            if not (self._busy_with or "").startswith(under):
                return True
            self._is_given_up = True
            if threading.current_thread() is self._thread:
                return False  # it would wait for itself
            return self._changed.wait_for(lambda: not self._is_given_up, timeout_s)

    def _drop_queued(self, under: str) -> None:
        for name in [name for name in self._work if name.startswith(under)]:
            if name != self._busy_with:
                del self._work[name]

    def close(self, timeout_s: float = _EXIT_S) -> None:
        """End the thread, even during work. Another process can resume the work later."""
        if os.getpid() != self._pid:
            return  # forked: the thread does not exist here, and its lock may be held for ever
        with self._changed:
            self._ends = True
            self._drop_queued("")
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._ends)
                if self._ends:
                    return
                name, work = next(iter(self._work.items()))
                self._busy_with = name
            self._do(name, work)
            with self._changed:
                self._busy_with, self._is_given_up = None, False
                del self._work[name]
                self._changed.notify_all()

    def _do(self, name: str, work: Work) -> None:
        begun_s = stopwatch_s()
        try:
            work(self._going)
            _logger.debug("%s took %.3f s", name, stopwatch_s() - begun_s)
        except _Ending:
            return
        except Exception as error:  # noqa: BLE001 - the epoch that handed it in is over
            if self._is_given_up:  # its files may be gone
                _logger.debug("%s was given up: %s", name, error)
                return
            _logger.warning(
                "%s failed and is tried again with a later epoch; until then a restore applies "
                "more change files: %s",
                name,
                error,
            )

    def _going(self) -> None:
        if self._ends or self._is_given_up:
            raise _Ending


_in_process: dict[int, Uploader] = {}


def uploader() -> Uploader:
    """Return the uploader of this process. A forked process has its own uploader."""
    pid = os.getpid()
    if pid not in _in_process:
        _in_process.clear()  # that of the parent process has no thread here
        _in_process[pid] = Uploader()
        atexit.register(_in_process[pid].close)
    return _in_process[pid]
