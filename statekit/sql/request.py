"""What a process that runs a query gets."""

from __future__ import annotations

from typing import Literal

import msgspec

from statekit.checkpoint.epoch_id import EpochId


class Request(msgspec.Struct, frozen=True):
    """A query.

    Parameters:
        checkpoint: a directory or URL.
        epoch: which epoch, by its number or its identity; None for the last one.
        sql: one statement.
        rows: how many rows of the result at most, and one more if there are more.
        memory_bytes: how much memory DuckDB may take.
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
