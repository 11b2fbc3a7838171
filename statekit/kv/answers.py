"""Answer classes: the classes of answers, and their creation from requests and results."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from statekit.codec.annotations import show
from statekit.errors import StateTypeError
from statekit.kv.annotations import named_class
from statekit.kv.operations import Results
from statekit.shown import shown


def entry_class(
    name: str, fields: dict[str, Any], into: Any, lists: int = 1, field: str = "entries"
) -> Any:
    """Return the class of the entries of a scan: the class of `entries` in the user's class of
    answers, or a new one.

    Parameters:
        name: of the operation.
        fields: of an entry.
        into: the user's class of answers; None if there is none.
        lists: 2 for answers with a list of entries for each range.
        field: of the answers that has the entries.

    Raises:
        StateTypeError: the user's entries have other fields.
    """
    hints = typing.get_type_hints(into, include_extras=True) if isinstance(into, type) else {}
    if field not in hints:
        return named_class("Entry" if field == "entries" else "Version", fields)
    given = hints[field]
    for _ in range(lists):
        (given,) = typing.get_args(given) if typing.get_origin(given) is list else (None,)
    declared = typing.get_type_hints(given, include_extras=True) if isinstance(given, type) else {}
    if declared != fields:
        wanted = ", ".join(f"{name}: {show(of)}" for name, of in fields.items())
        raise StateTypeError(
            f"{name}: {into.__name__}.{field} is {show(hints[field])}: declare it as a "
            f"list of {'lists of ' * (lists - 1)}records with the fields {wanted}"
        )
    return given


def _own_class(name: str, fields: dict[str, Any]) -> Any:
    """Return a NamedTuple of all fields. Its property `key` is a tuple of all parts of the key."""
    made = named_class(name, fields)
    parts = sum(field.startswith("key_") for field in fields)
    if parts:
        made.key = property(lambda answer: tuple(answer[:parts]))
    return made


class AnswerClass:
    """The class of the answers of one operation.

    Parameters:
        cls: the class.
        fields: all possible fields, in order: the parts of the request, then the results.
        is_own: True if it is a NamedTuple of all fields that was created for the operation.
    """

    def __init__(self, cls: Any, fields: dict[str, Any], *, is_own: bool) -> None:
        self.cls = cls
        self._places = [list(fields).index(name) for name in typing.get_type_hints(cls)]
        self._is_own = is_own

    @classmethod
    def of(cls, name: str, fields: dict[str, Any], into: Any) -> Self:
        """Return the user's class with some of the fields; without one, a new class of all fields.

        Parameters:
            name: of the operation.

        Raises:
            StateTypeError: the user's class has a field that answers do not have.
        """
        if into is None:
            return cls(_own_class(name, fields), fields, is_own=True)
        wanted = typing.get_type_hints(into, include_extras=True) if isinstance(into, type) else {}
        if not wanted:
            raise StateTypeError(f"{name}: into={shown(into)} must be a class of records")
        for field, of in wanted.items():
            if field not in fields:
                raise StateTypeError(
                    f"{name}: answers have no {field!r} for {into.__name__} (they have "
                    f"{', '.join(fields)})"
                )
            if of != fields[field]:
                raise StateTypeError(
                    f"{name}: {into.__name__}.{field} is {show(of)}, and that of answers "
                    f"is {show(fields[field])}: declare it with the same type"
                )
        return cls(into, fields, is_own=False)

    def of_results(self, handle: Results) -> Callable[[Any, Any], Any]:
        """Return a function that computes the answer from a request and the states of its key."""
        cls, places = self.cls, self._places
        if self._is_own:
            make = partial(tuple.__new__, cls)  # in half the time of the constructor
            return lambda request, states: make(request + handle(request, states))
        names = list(typing.get_type_hints(cls))

        def answer(request: Any, states: Any) -> Any:
            found = (*request, *handle(request, states))
            return cls(**{name: found[at] for name, at in zip(names, places, strict=True)})

        return answer
