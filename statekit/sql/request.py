"""What a process that runs a query gets, and how it reports a failure."""

from __future__ import annotations

import msgspec

FAILED = 3
"""The exit code if the query failed: the output is a `Failure` as JSON."""


class Request(msgspec.Struct, frozen=True):
    """A query.

    Parameters:
        checkpoint: a directory or URL.
        epoch: which epoch; None for the last one.
        sql: one statement.
        rows: how many rows of the result at most, and one more if there are more.
        memory: how much memory DuckDB may take, as "1GB".
        states: the states that may be read, as operator and state; None for all.
        directory: for files of the query, which whoever asks removes.
        seconds: after which the process ends by itself.
        parent: the process that asks, without which it ends, too.
    """

    checkpoint: str
    epoch: int | None
    sql: str
    rows: int
    memory: str
    directory: str
    seconds: float
    parent: int
    states: list[tuple[str, str]] | None = None


class Failure(msgspec.Struct):
    """Why a query has no result.

    Parameters:
        kind, detail: as of an error of statekit.
    """

    kind: str
    detail: str
