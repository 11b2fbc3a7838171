"""Ranking of keys in a process of its own.

A ranking reads all rows of a state, which would slow down a process that serves requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from statekit.checkpoint.epoch_id import EpochId
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.child_process import ChildWork, ForkServer, run_child
from statekit.query.tables.top import Measure, first_keys


class TopRequest(msgspec.Struct, frozen=True):
    """Request for a ranking: the parameters of `first_keys`.

    Parameters:
        memory_bytes: memory limit of the process; None for no limit.
    """

    checkpoint: str
    epoch: int | EpochId
    operator: str
    states: tuple[str, ...]
    by: Measure = "size"
    limit: int = 10
    memory_bytes: int | None = None


def top_as_json(
    request: TopRequest,
    *,
    timeout_s: float,
    is_unwanted: Callable[[], bool] = lambda: False,
    below: Path | None = None,
    forks: ForkServer | None = None,
) -> bytes:
    """Return a ranking as JSON: `keys`, `key_groups` with their rows, and `epochs`.

    Parameters:
        timeout_s: the longest time, in seconds.
        is_unwanted: asked while the child runs; it is ended once nobody wants the answer.
        below: where the directory for its files is created; None for `TMPDIR`.
        forks: forks the process; None to start one for this call alone.

    Raises:
        ChildLimitError: it takes too long, or too much memory.
        QueryError: there is no such state or epoch.
        StatekitError: the checkpoint cannot be read.
    """
    return run_child(
        __name__,
        request,
        "ranking",
        timeout_s=timeout_s,
        is_unwanted=is_unwanted,
        below=below,
        forks=forks,
        memory_bytes=request.memory_bytes,
        advice="rank one state, or by size or rows, which takes little memory",
    )


def _answer(request: TopRequest, _: Path) -> bytes:
    reader = CheckpointReader(request.checkpoint, epoch=request.epoch)
    found = first_keys(reader, request.operator, request.states, by=request.by, limit=request.limit)
    keys = [key._asdict() for key in found.keys]
    data = {"keys": keys, "key_groups": sorted(found.groups), "epochs": found.epochs}
    return msgspec.json.encode(data)


CHILD_WORK = ChildWork(TopRequest, _answer)
