"""Net changes of a join of tables whose rows move.

A row that moves leaves the matches of its old value of `on` and joins those of the new one. Both
change the same row of the join, or two rows that a sink may have under one key. Two shards emit
them, in no order. So changes are shuffled once more, by the key of the join's rows, and one change
of each row of the join is emitted, deleted rows first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Optional, cast

from statekit.functions.process import Process, Traits, process
from statekit.functions.signature import declare

ChangeKey = Literal["left", "right", "both"]
"""What identifies a row of the join: the key of one side, or of both."""

_OPTIONAL: Any = Optional
_ITERATOR: Any = Iterator


class SideKey(NamedTuple):
    """The key of the rows of a side.

    Parameters:
        types: of its fields.
        of: returns its values of a row, as a tuple.
    """

    types: Sequence[Any]
    of: Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class KeyedChanges:
    """Creates changes of a join's rows with what identifies them.

    Parameters:
        row: the class of a change: the keys of both sides, which sides there are, the values of
            `on`, whether the row was there before, whether it is deleted, and the result.
        left, right: the keys of both sides.
        on_count: the number of fields of `on`, which are the first ones of all rows.
    """

    row: type[Any]
    left: SideKey
    right: SideKey
    on_count: int

    @classmethod
    def declared(
        cls, left: SideKey, right: SideKey, on: Sequence[Any], into: type[Any]
    ) -> KeyedChanges:
        """Return an object for changes with results of a class.

        Parameters:
            on: the types of the fields of `on`.
        """
        names = (*_names("left", left), *_names("right", right))
        keys = zip(names, (*left.types, *right.types), strict=True)
        types = {name: _OPTIONAL[annotation] for name, annotation in keys}
        types["sides"] = str  # a key of None is not the same as no row
        types |= {f"on_{number}": annotation for number, annotation in enumerate(on)}
        fields = [*types.items(), ("was", bool), ("deleted", bool), ("result", into)]
        return cls(cast("Any", NamedTuple)("Change", fields), left, right, len(on))

    def of(
        self,
        left: Sequence[Any] | None,
        right: Sequence[Any] | None,
        results: Sequence[Any],
        was: Iterable[bool],
        *,
        deleted: bool,
    ) -> list[Any]:
        """Return the change of each row of the join.

        Parameters:
            left, right: the rows of each side, in parallel; None if there are none.
            results: the results of both.
            was: whether each row of the join was there before.
            deleted: whether they are deleted.
        """
        keys = [
            repeat((None,) * len(key.types)) if rows is None else map(key.of, rows)
            for key, rows in ((self.left, left), (self.right, right))
        ]
        if left is None:
            rows, sides = cast("Sequence[Any]", right), "right"
        else:
            rows, sides = left, "left" if right is None else "both"
        on = [row[: self.on_count] for row in rows]
        return [
            self.row._make((*of_left, *of_right, sides, *values, before, deleted, result))
            for of_left, of_right, values, before, result in zip(
                *keys, on, was, results, strict=False
            )
        ]

    @property
    def identity(self) -> int:
        """How many fields of a change identify the row of the join."""
        return len(self.left.types) + len(self.right.types) + 1

    def net(self, changes: Iterator[Any]) -> Iterator[Any]:
        """Yield the last result of each row of the join, deleted ones first.

        A row of the join has one value of `on` before an epoch and one after it. So it is there if
        it is there at one of those that have changed it. Otherwise it is deleted if it was there
        at one. It may come and go at a third one, if that gets the records of an epoch in parts.

        Parameters:
            changes: all changes of some rows in an epoch. Those of a row and a value of `on` are in
                order.
        """
        rows: dict[Any, dict[Any, tuple[bool, Any]]] = {}
        end = self.identity
        for change in changes:
            of_row, on = rows.setdefault(change[:end], {}), change[end:-3]
            was, _ = of_row.get(on, (change.was, None))
            of_row[on] = was, change
        remaining = list[Any]()
        for of_row in rows.values():
            there = [change.result for _, change in of_row.values() if not change.deleted]
            gone = [change.result for was, change in of_row.values() if was]
            if there:
                remaining += there
            else:
                yield from gone
        yield from remaining

    def operator(self, by: ChangeKey, into: type[Any], name: str) -> Process[Any, ..., Any]:
        """Return the process function that emits net changes.

        Parameters:
            by: the key of the rows of the join.
            into: the class of the results.
            name: of the operator.
        """
        names = {"left": _names("left", self.left), "right": _names("right", self.right)}
        key = names["left"] + names["right"] if by == "both" else names[by]
        hints = {"changes": _ITERATOR[self.row], "return": _ITERATOR[into]}
        declared: Process[Any, ..., Any] = process(key=key)(declare(self.net, name, hints))
        return declared.with_traits(Traits(made_of=self))


def fields_at(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of a row at some places.

    >>> fields_at([2])("abc"), fields_at([2, 0])("abc")
    (('c',), ('c', 'a'))
    """
    if len(places) == 1:
        value_of = itemgetter(places[0])
        return lambda row: (value_of(row),)
    return itemgetter(*places)


def _names(side: str, key: SideKey) -> tuple[str, ...]:
    """Return the names of the fields of a change with the key of a side."""
    return tuple(f"{side}_{number}" for number in range(len(key.types)))
