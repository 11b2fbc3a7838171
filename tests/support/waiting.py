"""Waiting for something that another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something to be so.

    Parameters:
        seconds: the test fails after them.
    """
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.02)
