"""When aggregates by key are emitted: folds of combined rows into states, for each `emit`.

A fold gets many keys, each with a row, and the states. Its columns have the key fields first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, compress, groupby, islice, repeat
from operator import itemgetter
from typing import Any

from statekit.backend.interface import Rows
from statekit.functions.context import Context, Due
from statekit.job.per_key.kept_aggregates import exact_sums
from statekit.job.windows.field_aggregates import Added
from statekit.keygroup import GROUP_BYTES, key_fields
from statekit.records.keyed_batch import KeyColumns
from statekit.watermark import END

Fold = Callable[..., list[Any]]
"""A function that adds the combined rows of many keys to their states and returns the results."""

Made = Callable[..., list[Any]]
"""A function that creates results from columns of key fields and values."""

_ROWS_AT_ONCE = 8_192


def once_per_epoch(key_size: int, added: Sequence[Added], results: Made) -> Fold:
    """Return a fold with a result for each key.

    Parameters:
        key_size: number of key fields.
        added: for each state, from the columns of rows to the values to add.
        results: creates results from columns of keys and values.
    """

    def fold(keys: KeyColumns, *states: Any) -> list[Any]:
        with exact_sums():
            values = [
                state.add_all(keys.prefixes, added_to(keys.columns))
                for state, added_to in zip(states, added, strict=True)
            ]
        return results(*keys.columns[:key_size], *values)

    return fold


def at_change(key_size: int, added: Sequence[Added], results: Made) -> Fold:
    """Return a fold with a result for each key whose result differs from the one before.

    Parameters: as for `once_per_epoch`.
    """

    def fold(keys: KeyColumns, *states: Any) -> list[Any]:
        with exact_sums():
            changes = [
                state.change_all(keys.prefixes, added_to(keys.columns))
                for state, added_to in zip(states, added, strict=True)
            ]
            changed = _differ(*zip(*changes, strict=True))
            before, after = (
                [
                    state.results(list(compress(values, changed)))
                    for state, values in zip(states, side, strict=True)
                ]
                for side in zip(*changes, strict=True)
            )
        columns = [list(compress(column, changed)) for column in keys.columns[:key_size]]
        differs = _differ(before, after)  # a mean may be the same of another sum
        return results(*(list(compress(column, differs)) for column in [*columns, *after]))

    return fold


def at_each_record(
    key_size: int, place: int, added: Sequence[Callable[[Sequence[Any]], list[Any]]], results: Made
) -> Fold:
    """Return a fold with a result for each record, in order of arrival for each key.

    Parameters:
        key_size: number of key fields.
        place: the index of the list of all records in a row.
        added: for each state, from the records of a key to the values to add one by one.
        results: creates results from columns of keys and values.
    """

    def fold(keys: KeyColumns, *states: Any) -> list[Any]:
        lists = keys.columns[place]
        with exact_sums():
            values = [
                state.add_each(keys.prefixes, list(map(added_by, lists)))
                for state, added_by in zip(states, added, strict=True)
            ]
        sizes = list(map(len, lists))
        columns = [
            list(chain.from_iterable(map(repeat, column, sizes)))
            for column in keys.columns[:key_size]
        ]
        return results(*columns, *(list(chain.from_iterable(of)) for of in values))

    return fold


@dataclass(frozen=True)
class AtEnd:
    """Emits a result for each key once event time has ended. The states stay.

    Parameters:
        added: for each state, from the columns of rows to the values to add.
        results: creates results from columns of keys and values.
    """

    added: Sequence[Added]
    results: Made

    def fold(self, keys: KeyColumns, ctx: Context, *states: Any) -> list[Any]:
        """Add the rows of many keys to their states."""
        with exact_sums():
            for state, added_to in zip(states, self.added, strict=True):
                state.add_all(keys.prefixes, added_to(keys.columns))
        ctx.timers.wakes_at(END)
        return []

    def fire(self, due: Due, _: Context, *states: Any) -> Iterator[list[Any]]:
        """Yield the results of all keys that have not expired, if event time has ended."""
        if due.now_us < END:  # a shard that was written anew looks at once
            due.wakes_at(END)
            return
        rows = [
            _numbered(number, of.rows_of_groups(due.groups)) for number, of in enumerate(states)
        ]
        by_key = groupby(merge(*rows), key=itemgetter(0))
        found = ((key, {number: row for _, number, row in of}) for key, of in by_key)
        decode = due.key_codec.decode
        while some := list(islice(found, _ROWS_AT_ONCE)):
            keys = [key_fields(decode(row_key, GROUP_BYTES)[0]) for row_key, _ in some]
            values = [
                state.results(state.values_of_rows([of.get(number) for _, of in some]))
                for number, state in enumerate(states)
            ]
            columns = [*zip(*keys, strict=True), *values]
            is_kept = [any(of is not None for of in row) for row in zip(*values, strict=True)]
            yield self.results(*(list(compress(column, is_kept)) for column in columns))


def _numbered(number: int, rows: Rows) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the rows of a state with its number."""
    return ((row_key, number, row) for row_key, row in rows)


def _differ(before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> list[bool]:
    """Return, for each key, whether a value of it differs.

    Parameters:
        before, after: the values of all keys, for each state.
    """
    of_states = [map(_is_other, was, now) for was, now in zip(before, after, strict=True)]
    return list(map(any, zip(*of_states, strict=True)))


def _is_other(was: Any, now: Any) -> bool:
    """Return whether two values differ. NaN is like NaN."""
    return was is not now and bool(was != now) and (was == was or now == now)
