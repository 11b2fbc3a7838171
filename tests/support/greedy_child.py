"""A child process that takes as much memory as it is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from statekit.query.tables.child_process import ChildWork


class Memory(msgspec.Struct):
    """So many bytes, after a rest."""

    size: int
    rests_s: float = 0.0


def _answer(work: Memory, _: Path) -> bytes:
    time.sleep(work.rests_s)
    return str(len(bytearray(work.size))).encode()


CHILD_WORK = ChildWork(Memory, _answer)
