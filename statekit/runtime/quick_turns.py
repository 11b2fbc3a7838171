"""Quick turns: the threads of a process with short epochs give way soon."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_TURN_S = 0.0005


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads give way after half a millisecond.

    An epoch waits for the disk several times. After each wait, it waits for the interpreter, if
    another thread collects the checkpoint's garbage or answers for metrics: up to 5 ms by default.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, _TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
