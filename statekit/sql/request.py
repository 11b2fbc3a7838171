"""Request for the process that runs a query."""

from __future__ import annotations

from typing import Literal

import msgspec

from statekit.checkpoint.epoch_id import EpochId


class Request(msgspec.Struct, frozen=True):
    """A query, and its limits.

    Parameters:
        checkpoint: a directory or URL.
        epoch: number or identity of the epoch; None for the last one.
        sql: one statement.
        rows: limit of the rows of the result. One more row is returned if there are more.
        memory_bytes: memory limit of DuckDB.
        states: the states that may be read, as operator and state; None for all.
        wide_ints: as for `statekit.read`.
    """

    checkpoint: str
    epoch: int | EpochId | None
    sql: str
    rows: int
    memory_bytes: int
    states: list[tuple[str, str]] | None = None
    wide_ints: bool | Literal["text"] = False
