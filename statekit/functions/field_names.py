"""Present and former names of the fields that a function uses: `renamed=`.

A checkpoint contains the names of key fields and of the field with the event time. A start compares
them with the declared ones. A field that has another name now is the same field only if `renamed=`
says so: from the types alone, another field of the same type looks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from statekit.codec.field_renaming import FieldRenaming
from statekit.errors import StateTypeError
from statekit.records.union import Records
from statekit.shown import shown

Renaming = Callable[[str], str]
"""A function from the present name of a field to another name."""


class FieldNames:
    """The fields of a function's records, by their present and former names.

    Parameters:
        records: the type, or types, of the records.
        renamed: the present names of fields by their former names.

    >>> from typing import NamedTuple
    >>> from statekit.records.union import records_of
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     seller: str
    >>> names = FieldNames(records_of(Order, where="spent"), {"buyer": "customer"})
    >>> names.present("buyer"), names.present("seller"), names.present("shop")
    ('customer', 'seller', None)
    >>> [former("customer") for former in names.formers()]
    ['customer', 'buyer']
    """

    def __init__(self, records: Records, renamed: Mapping[str, str]) -> None:
        self.records = records.name
        self.renamed = dict(renamed)
        self._classes = frozenset(getattr(member.cls, "__name__", "") for member in records.members)
        members = [member.fields for member in records.members]
        # Plain dicts do not declare their fields.
        self._fields = None if None in members else {name for of in members for name in of or ()}

    def is_field(self, name: str) -> bool:
        """Return whether records have a field of this name. False if their fields are unknown."""
        return self._fields is not None and name in self._fields

    def present(self, stored: str) -> str | None:
        """Return the present name of a stored field; None if records have no such field.

        A plain dict may have any field, so its fields keep their names unless they were renamed.
        """
        if self.is_field(stored):
            return stored
        return self.renamed.get(stored, stored if self._fields is None else None)

    @property
    def renaming(self) -> FieldRenaming:
        """The renaming that readers apply to stored records with former names."""
        return FieldRenaming(self._classes, self.renamed)

    def formers(self) -> Iterator[Renaming]:
        """Yield functions from the present name of a field to the one that may be stored: first to
        the present name itself, then to former ones.
        """
        candidates: dict[str, list[str]] = {}
        for former, now in self.renamed.items():
            candidates.setdefault(now, [now]).append(former)
        for stored in product(*candidates.values()):
            names = dict(zip(candidates, stored, strict=True))
            yield lambda name, names=names: names.get(name, name)  # type: ignore[misc]


def checked_renamed(
    operator: str, given: object, records: Records, used: Iterable[str]
) -> Mapping[str, str]:
    """Check and return `renamed=`.

    Parameters:
        used: the names of fields that the function declares.

    Raises:
        StateTypeError: it is not a dict of names, a former name is still a field, or a present one
            is none.
    """
    renamed = checked_names(operator, given)
    names, used = FieldNames(records, renamed), {*used}
    for former, now in renamed.items():
        where = f"{operator}: renamed={{{former!r}: {now!r}}}"
        if names.is_field(former) or former in used:
            raise StateTypeError(
                f"{where}: {names.records} still has a field {former!r}, so that it has not "
                "another name now. Leave the entry out. It is not needed once a start has stored "
                f"{now!r}"
            )
        if now in renamed:
            raise StateTypeError(
                f"{where}: {now!r} has another name now, too: give the present name of the field, "
                f"{renamed[now]!r}, for both"
            )
        if names.present(now) is None:
            raise StateTypeError(
                f"{where}: {now!r} is no field of {names.records}: give the present name of the "
                "field"
            )
    return renamed


def checked_names(operator: str, given: object) -> dict[str, str]:
    """Check that `renamed=` is a dict of names, and return it.

    Raises:
        StateTypeError: it is not.
    """
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) for pair in given.items() for name in pair
    ):
        raise StateTypeError(
            f"{operator}: renamed={shown(given)}: give a dict of names, as in "
            'renamed={"old": "new"}'
        )
    return dict(given)
