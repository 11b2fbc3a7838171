"""Upload in the background: one thread per process, which no epoch waits for.

An epoch submits work and continues. Failed work is logged and counted. It is recorded on the disk,
and the next epoch of its shard submits it again. When a process ends or forks, its work stays on
the disk: the next process that runs the shard resumes it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from statekit.clock import stopwatch_s
from statekit.working_copy.staging import Going

_logger = logging.getLogger("statekit.uploader")

Work = Callable[[Going], object]
"""Submitted work. Its argument is a function to call at intervals."""

WAITING_MAX = 1000
"""The length of the queue. Work beyond it is refused, and submitted again by a later epoch."""

_EXIT_S = 10
"""How long the end of the process waits for the thread."""


class _Ending(Exception):  # noqa: N818 - no failure
    """Raised in the work to end it."""


class Uploader:
    """One thread that does the submitted work in order.

    Attributes:
        done: number of completed pieces of work.
        failed: number of failed attempts.
        failure: the last error; None if there was none.
    """

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.failure: Exception | None = None
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Work]] = deque()
        self._names: set[str] = set()
        self._thread: threading.Thread | None = None
        self._ends = False
        self._given_up: list[str] = []
        self._busy_with = ""

    def hand_in(self, name: str, work: Work) -> bool:
        """Submit work. Return False if it is queued already or the queue is full.

        Parameters:
            name: unique on this host.
            work: gets a function to call at intervals, which raises to end the work.
        """
        with self._changed:
            if self._ends or name in self._names or len(self._waiting) >= WAITING_MAX:
                return False
            self._names.add(name)
            self._waiting.append((name, work))
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
            return self._changed.wait_for(lambda: not self._names, timeout_s)

    def give_up(self, under: str) -> None:
        """Drop all work whose name starts with `under`, and wait until none of it runs."""
        with self._changed:
            self._given_up.append(under)
            left = [work for work in self._waiting if work[0].startswith(under)]
            for work in left:
                self._waiting.remove(work)
                self._names.discard(work[0])
            self._changed.wait_for(
                lambda: not any(name.startswith(under) for name in self._names), _EXIT_S
            )
            self._given_up.remove(under)

    def close(self, timeout_s: float = _EXIT_S) -> None:
        """End the thread, also in the middle of work. Another process can resume the work later."""
        if os.getpid() != self._pid:
            return  # forked: the thread does not exist here, and its lock may be held for ever
        with self._changed:
            self._ends = True
            self._names -= {name for name, _ in self._waiting}
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if self._ends:
                    return
                name, work = self._waiting.popleft()
                self._busy_with = name
            self._do(name, work)
            with self._changed:
                self._names.discard(name)
                self._changed.notify_all()

    def _do(self, name: str, work: Work) -> None:
        begun_s = stopwatch_s()
        try:
            work(self._going)
            self.done += 1
            _logger.debug("%s took %.3f s", name, stopwatch_s() - begun_s)
        except _Ending:
            return
        except Exception as error:  # noqa: BLE001 - the epoch that handed it in is over
            self.failed += 1
            self.failure = error
            _logger.warning(
                "%s failed and is tried again with a later epoch; until then a restore applies "
                "more change files: %s",
                name,
                error,
            )

    def _going(self) -> None:
        if self._ends or any(map(self._busy_with.startswith, self._given_up)):
            raise _Ending


_in_process: dict[int, Uploader] = {}


def uploader() -> Uploader:
    """Return the uploader of this process. A forked process has its own."""
    pid = os.getpid()
    found = _in_process.get(pid)
    if found is None:
        _in_process.clear()  # one of the process we were forked from has no thread here
        found = _in_process[pid] = Uploader()
        atexit.register(found.close)
    return found
