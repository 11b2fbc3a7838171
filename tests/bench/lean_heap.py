"""A block in which collections of garbage cost as little as in a process that runs nothing else."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["lean_heap"]


@contextlib.contextmanager
def lean_heap() -> Iterator[None]:
    """Take the objects of this process out of collections of garbage within this block.

    All benchmarks are imported here, with Spark and plots. Collections visit their objects: a loop
    that makes an object per record takes a third more time than in a program of its own.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
