"""Declarations of a job: the calls that added its parts, in their order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from statekit.declared_call import arguments_of

M = TypeVar("M", bound=Callable[..., Any])

RECORDED: dict[str, Callable[..., Any]] = {}
"""The methods that add to a job, by the name of their call in a document."""


@dataclass(frozen=True)
class Declaration:
    """A call of a method that added to a job, or made the windows of another call.

    Parameters:
        call: its name, such as "stream.join".
        receiver: the object whose method was called.
        arguments: by parameter, as they were given.
    """

    call: str
    receiver: Any
    arguments: Mapping[str, Any]


def declares(call: str) -> Callable[[M], M]:
    """Decorate a method that adds to a job, so that the job keeps its call.

    Calls of other such methods within it are not kept: it makes them again. Nothing is kept if it
    fails.

    Parameters:
        call: the name of the call in a document.
    """

    def decorate(method: Any) -> Any:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def declaring(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            plan = self.plan
            if plan is None or plan.is_declaring:
                return method(self, *args, **kwargs)
            plan.is_declaring = True
            try:
                made = method(self, *args, **kwargs)
            finally:
                plan.is_declaring = False
            plan.declarations.append(_declaration(call, signature, self, args, kwargs))
            return made

        RECORDED[call] = declaring
        return declaring

    return decorate


def is_described(call: str) -> Callable[[M], M]:
    """Decorate a method whose result keeps its call as `declaration`, and that adds nothing."""

    def decorate(method: Any) -> Any:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def describing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            made = method(self, *args, **kwargs)
            made.declaration = _declaration(call, signature, self, args, kwargs)
            return made

        RECORDED[call] = describing
        return describing

    return decorate


def _declaration(
    call: str, signature: inspect.Signature, receiver: Any, args: Any, kwargs: Mapping[str, Any]
) -> Declaration:
    arguments = arguments_of(signature, (receiver, *args), kwargs)
    arguments.pop(next(iter(signature.parameters)))
    return Declaration(call, receiver, arguments)
