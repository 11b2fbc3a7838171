"""Everything that an operator has for one key: its states, when they expire, and its timers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, NamedTuple

from statekit.keygroup import group_of_row
from statekit.query.operator_keys import OperatorKeys
from statekit.query.view import View
from statekit.state.timers import Timer


class StateOfKey(NamedTuple):
    """What a state has for a key.

    Parameters:
        value: a value, a list or a map; None if it is absent.
        expires: when its next row expires; None if none does.
    """

    value: Any
    expires: dt.datetime | None


class KeyFacts(NamedTuple):
    """What an operator has for a key.

    Parameters:
        key: as answers show it.
        key_group: its number.
        shard: the number of the shard that has the key group.
        states: by name.
        timers: those that are pending; None if the operator has no timers.
    """

    key: Any
    key_group: int
    shard: int
    states: dict[str, StateOfKey]
    timers: list[Timer] | None


def key_facts(
    view: View, operator: str, data: Any, states: Iterable[str], *, rows: int = 10_000
) -> KeyFacts:
    """Return what an operator has for a key after an epoch.

    Parameters:
        view: of a replica without process functions.
        data: the key, as JSON.
        states: the names of the keyed states that are read.
        rows: how many rows a state may have for the key.

    Raises:
        QueryError: there is no such operator or state, or a state has more rows.
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
        found[name] = StateOfKey(state.get_at_most(key, rows), state.next_expiry(key))
    timers = [timer for _, timer in view.timers(operator, key)] if record.timers else None
    shard = next(number for number, own in enumerate(shards) if own.overlaps(group, group))
    return KeyFacts(keys.split(prefix)[0], group, shard, found, timers)
