"""Combined rows as columns: rows of a `Combiner` that become records only when one is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload


class CombinedRows(Sequence[Any]):
    """The combined rows of a batch of records.

    Parameters:
        make: the class of a row, called with the value of each field.
        columns: the values of each field of all rows; those of the key come first.
        key_size: how many fields the key has.

    >>> rows = CombinedRows(lambda *values: values, [["ada", "bob"], [2, 1]], key_size=1)
    >>> rows[1], rows.keys(), rows.taken([1, 0]).columns
    (('bob', 1), ['ada', 'bob'], [['bob', 'ada'], [1, 2]])
    """

    def __init__(
        self, make: Callable[..., Any], columns: Sequence[Sequence[Any]], key_size: int
    ) -> None:
        self._make, self.columns, self._key_size = make, columns, key_size

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return list(map(self._make, *(column[place] for column in self.columns)))
        return self._make(*(column[place] for column in self.columns))

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, *self.columns)

    def keys(self) -> Sequence[Any]:
        """Return the key of each row: a scalar, or a tuple of several fields."""
        if self._key_size == 1:
            return self.columns[0]
        return list(zip(*self.columns[: self._key_size], strict=True))

    def taken(self, order: Sequence[int]) -> CombinedRows:
        """Return the rows with these numbers."""
        columns = [list(map(column.__getitem__, order)) for column in self.columns]
        return CombinedRows(self._make, columns, self._key_size)

    def followed_by(self, others: Sequence[CombinedRows]) -> CombinedRows:
        """Return these rows and those of the same combiner in `others`."""
        columns = zip(self.columns, *(each.columns for each in others), strict=True)
        joined = [[value for part in parts for value in part] for parts in columns]
        return CombinedRows(self._make, joined, self._key_size)
