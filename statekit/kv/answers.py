"""The classes of answers, and how they are made of requests and results."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Self

from statekit.errors import StateTypeError
from statekit.kv.annotations import named_class
from statekit.kv.operations import Results


class AnswerClass:
    """The class of the answers of one operation.

    Parameters:
        cls: the class.
        fields: what an answer may have, in order: the parts of the request, then the results.
    """

    def __init__(self, cls: Any, fields: dict[str, Any]) -> None:
        self.cls = cls
        self._places = [list(fields).index(name) for name in typing.get_type_hints(cls)]
        self._has_all = self._places == list(range(len(fields)))

    @classmethod
    def of(cls, name: str, fields: dict[str, Any], into: Any) -> Self:
        """Return a class of all fields, or that of the user with some of them.

        Parameters:
            name: of the operation.

        Raises:
            StateTypeError: the user's class has a field that answers do not have.
        """
        if into is None:
            return cls(named_class(name, fields), fields)
        if not isinstance(into, type):
            raise StateTypeError(f"{name}: into={into!r} must be a class of records")
        wanted = typing.get_type_hints(into, include_extras=True)
        for field, of in wanted.items():
            if field not in fields:
                raise StateTypeError(
                    f"{name}: answers have no {field!r} for {into.__name__} (they have "
                    f"{', '.join(fields)})"
                )
            if of != fields[field]:
                raise StateTypeError(
                    f"{name}: {into.__name__}.{field} is {of}, and that of answers is "
                    f"{fields[field]}: declare it with the same type"
                )
        return cls(into, fields)

    def of_results(self, handle: Results) -> Callable[[Any, Any], Any]:
        """Return a function from a request and the states of its key to the answer."""
        cls, places = self.cls, self._places
        if self._has_all and issubclass(cls, tuple):
            return lambda request, states: cls(*request, *handle(request, states))
        names = list(typing.get_type_hints(cls))

        def answer(request: Any, states: Any) -> Any:
            found = (*request, *handle(request, states))
            return cls(**{name: found[at] for name, at in zip(names, places, strict=True)})

        return answer
