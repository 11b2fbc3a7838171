"""A child process that takes as much memory as it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from statekit.query.tables.child_process import answer_parent


class Memory(msgspec.Struct):
    """So many bytes."""

    size: int


def _answer(work: Memory, _: Path) -> bytes:
    return str(len(bytearray(work.size))).encode()


if __name__ == "__main__":
    sys.exit(answer_parent(Memory, _answer))
