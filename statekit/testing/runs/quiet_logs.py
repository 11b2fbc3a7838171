"""Suppression of statekit's log while runs are disturbed on purpose."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

_NOTHING = logging.CRITICAL + 1

_lock = threading.Lock()
_levels: list[int] = []
"""Level of statekit's log before the first of the blocks that run now, one for each block."""


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Suppress the log of statekit in a block, also that of other threads: warnings are expected
    where stores and disks fail, copies are stale, and weeks pass between two epochs. The logs of
    the user are shown.
    """
    log = logging.getLogger("statekit")
    with _lock:
        _levels.append(_levels[0] if _levels else log.level)
        log.setLevel(_NOTHING)
    try:
        yield
    finally:
        with _lock:
            before = _levels.pop()
            if not _levels:
                log.setLevel(before)
