"""Histories: the earlier values of a state for a key, from the epochs that can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from statekit.query.replica.view import View
from statekit.server.answers.problems import client_left
from statekit.server.answers.values import encode
from statekit.server.jobs.served_job import ServedJob
from statekit.server.routes.reads import AskedPart, read_key

BYTES_MAX = 2_000_000
"""Limit of the values of one answer, in bytes."""


class KeyHistory(NamedTuple):
    """The values of a key in several epochs.

    Parameters:
        entries: a JSON array with the first value and each later change, each with its epoch; the
            newest is the last.
        is_cut: True if older values were left out.
    """

    entries: msgspec.Raw
    is_cut: bool


def history_of(
    job: ServedJob,
    operator: str,
    state: str,
    key: Any,
    part: AskedPart,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> KeyHistory:
    """Return the values of a key. This reads epochs from the newest back, until `BYTES_MAX`.

    Parameters:
        key: as JSON.
        part: one entry of a map, or all.
        is_unwanted: returns whether to stop.

    Raises:
        StateTypeError, QueryError: as for `StateView`.
        Problem: nobody wants the values any more.
    """
    entries: list[bytes] = []
    left = BYTES_MAX
    later: tuple[View, bytes] | None = None
    for view in reversed(job.history_views()):
        if is_unwanted():
            raise client_left()
        value = encode(_value(view, operator, state, key, part))
        if later is not None and value != later[1]:
            entries.append(_entry(*later))
            left -= len(entries[-1]) + 1
        if left < len(value):
            return _history(entries, is_cut=True)
        later = view, value
    if later is not None:
        entries.append(_entry(*later))
    return _history(entries, is_cut=False)


def _value(view: View, operator: str, state: str, key: Any, part: AskedPart) -> Any:
    """Return the value after an epoch; None before the job had the operator or the state."""
    if operator not in view.operators:
        return None
    if state not in {own.name for own in view.record(operator).states}:
        return None
    rows = view.state(operator, state)
    return read_key(rows, rows.key_from_json(key), part)


def _entry(view: View, value: bytes) -> bytes:
    return encode(
        {
            "epoch": view.epoch,
            "processing_time": view.processing_time.isoformat(),
            "value": msgspec.Raw(value),
        }
    )


def _history(newest_first: list[bytes], *, is_cut: bool) -> KeyHistory:
    return KeyHistory(msgspec.Raw(b"[" + b",".join(newest_first[::-1]) + b"]"), is_cut)
