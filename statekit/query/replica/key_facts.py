"""Key facts: all states of one key in an operator, their expiry times, and its timers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from statekit.keygroup import group_of_row
from statekit.query.replica.view import View
from statekit.query.rows.operator_keys import OperatorKeys
from statekit.state.timers import Timer


class StateOfKey(NamedTuple):
    """The value of one state for a key.

    Parameters:
        value: a value, a list or a map; None if it is absent.
        expires: time at which its next row expires; None if no row expires.
        is_cut: True if the state has more rows than the value shows.
    """

    value: Any
    expires: dt.datetime | None
    is_cut: bool


class KeyFacts(NamedTuple):
    """The states and timers of an operator for a key.

    Parameters:
        key: in the form of answers.
        key_group: its number.
        shard: the number of the shard that has the key group.
        states: by name.
        timers: those that are pending; None if the operator has no timers.
        timers_cut: True if there are more timers than `timers`.
    """

    key: Any
    key_group: int
    shard: int
    states: dict[str, StateOfKey]
    timers: list[Timer] | None
    timers_cut: bool


def key_facts(
    view: View, operator: str, data: Any, states: Iterable[str], *, rows: int = 1_000
) -> KeyFacts:
    """Return the states and timers of an operator for a key after an epoch.

    Parameters:
        view: of a replica without process functions.
        data: the key, as JSON.
        states: the names of the keyed states that are read.
        rows: limit of the rows of each state, and of the timers: the first ones are returned.

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
        found[name] = StateOfKey(value, state.next_expiry(key), is_cut)
    pending = islice(view.timers(operator, key), rows + 1) if record.timers else ()
    timers = [timer for _, timer in pending]
    shard = next(number for number, own in enumerate(shards) if own.overlaps(group, group))
    return KeyFacts(
        key=keys.split(prefix)[0],
        key_group=group,
        shard=shard,
        states=found,
        timers=timers[:rows] if record.timers else None,
        timers_cut=len(timers) > rows,
    )
