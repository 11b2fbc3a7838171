"""Annotations and classes that are created while a job is declared."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Union


def named_class(name: str, fields: Mapping[str, Any]) -> Any:
    """Return a NamedTuple with fields of these types."""
    return NamedTuple(identifier_of(name), list(fields.items()))


def identifier_of(name: str) -> str:
    """Convert the name of a stream to the name of a class.

    >>> identifier_of("balances.get.queries"), identifier_of("class")
    ('balances_get_queries', 'class_')
    """
    identifier = "".join(letter if letter.isalnum() else "_" for letter in name)
    return f"{identifier}_" if keyword.iskeyword(identifier) else identifier


def one_of(classes: Iterable[Any]) -> Any:
    """Return the union of some classes."""
    return Union[tuple(classes)]  # noqa: UP007  built at run time


def optional(of: Any) -> Any:
    """Return the union of a type and None."""
    return Union[of, None]  # noqa: UP007  also for texts and types of other libraries


def list_of(of: Any) -> Any:
    """Return the type of lists of a type."""
    return list[of]


def pair_of(of: Any) -> Any:
    """Return the type of pairs of a type."""
    return tuple.__class_getitem__((of, of))


def iterator_of(of: Any) -> Any:
    """Return the type of iterators over a type."""
    return Iterator[of]
