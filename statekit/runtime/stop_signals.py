"""What ends a run after its current epoch: signals, and the end of the standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from statekit.clock import sleep_s

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set an event at SIGTERM and Ctrl-C within this block. A second Ctrl-C interrupts at once.

    Only the main thread can handle signals; in others nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = [(number, signal.signal(number, ask)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def stop_with_input(stop: threading.Event, within_s: float) -> None:
    """Set an event when the standard input of this process ends, as it does when a supervisor that
    holds its other end is killed.

    Parameters:
        within_s: the seconds after which the process is ended at once if it still runs: another
            supervisor may then start the job again.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 1):
                pass
        stop.set()
        sleep_s(within_s)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with what the job has forked, which holds its lock
        os._exit(1)

    threading.Thread(target=wait, name="statekit input", daemon=True).start()
