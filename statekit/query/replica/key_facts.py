"""Key facts: all states of one key in an operator, their expiry times, and its timers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from statekit.keygroup import group_of_row
from statekit.query.replica.view import View
from statekit.query.rows.state_rows import OperatorKeys


def key_facts(
    view: View, operator: str, data: Any, states: Iterable[str], rows: int, *, timers: bool
) -> dict[str, Any]:
    """Return the states and timers of an operator for a key after an epoch, as JSON-able data.

    Parameters:
        view: of a replica without process functions.
        data: the key, as JSON.
        states: the names of the keyed states that are read.
        rows: limit of the rows of each state, and of the timers: the first ones are returned.
        timers: return the timers too, if the operator has some.

    Raises:
        QueryError: there is no such operator or state.
        StateTypeError: it is not a key of the operator.
    """
    record, manifest = view.record(operator), view.manifest
    keys = OperatorKeys(record, manifest.key_groups, None)
    key = keys.from_json(data)
    prefix = keys.prefix(key)
    group = group_of_row(prefix)
    shards = manifest.operators[operator].shards
    found = {}
    for name in states:
        state = view.state(operator, name)
        value, is_cut = state.get_first(key, rows)
        expires = state.next_expiry(key)
        iso = None if expires is None else expires.isoformat()
        found[name] = {"value": value, "is_cut": is_cut, "expires": iso}
    has_timers = timers and record.timers
    pending = list(islice(view.timers(operator, key), rows + 1)) if has_timers else []
    shown = [
        {"at": timer.at.isoformat(), "name": timer.name, "clock": timer.clock}
        for _, timer in pending[:rows]
    ]
    return {
        "key": keys.split(prefix)[0],
        "key_group": group,
        "shard": next(n for n, own in enumerate(shards) if own.overlaps(group, group)),
        "states": found,
        "timers": shown if has_timers else None,
        "timers_cut": len(pending) > rows,
    }
