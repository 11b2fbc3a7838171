"""The signature of a process function or of a timer callback: read and checked."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from functools import partial
from typing import Annotated, Any, Literal

from statekit.calls.emitted import one_by_one
from statekit.codec.key_codec import dynamic_key_codec, key_codec
from statekit.codec.schema import Schema
from statekit.errors import StateTypeError
from statekit.functions.context import Context, is_context
from statekit.functions.state_parameters import (
    annotation_text,
    state_class,
    state_spec,
    with_place,
    with_stored_type,
)
from statekit.names import name_fault
from statekit.shown import shown_text
from statekit.state.base import State, StateSpec
from statekit.state.timers import Timer

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DYNAMIC_KEY = dynamic_key_codec().schema
_OUTPUTS = (Iterator, Iterable, Generator, list, AsyncIterator, AsyncIterable, AsyncGenerator)
_SEVERAL = (Iterable, Generator, Collection, Sequence, Set, list, tuple, set, frozenset, deque)


Bound = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its arguments after the first one."""

Given = Literal["record", "timer", "broadcast record"]
"""The type of the first argument."""


class Signature:
    """A function, with the parameters that statekit passes.

    Parameters:
        fn: the function.
        hints: its resolved annotations.
        takes: what its first parameter is, for messages.

    Attributes:
        name: the function's.
        first: the name of the first parameter.
        given: its annotation; of `Iterator[Event]`, `Event`.
        takes_runs: whether it takes an iterator.
        is_async: whether it is an `async` function.
        states: the declared states, in order.

    Raises:
        StateTypeError: a parameter is not valid; the message names it.
    """

    def __init__(self, fn: Callable[..., Any], hints: dict[str, Any], *, takes: Given) -> None:
        self.fn = fn
        self.hints = hints
        self.name = fn.__name__
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
        if self.is_async and takes != "record":
            raise StateTypeError(
                f"{self.name} is async, and takes a {takes}: leave async out. Only the process "
                "function itself may be async"
            )
        parameters = list(inspect.signature(fn).parameters.values())
        first, *others = _checked_parameters(self.name, parameters, hints, takes)
        self.first = first.name
        self.takes_runs, self.given = False, hints[first.name]
        if takes == "record":
            where = f"{self.name}, parameter {first.name!r}"
            self.takes_runs, self.given = _records_given(self.given, where)
        self.states: tuple[StateSpec, ...] = tuple(
            state_spec(self.name, p.name, hints[p.name]) for p in others if _is_state(hints, p)
        )
        self._others = tuple(p for p in others if p.name in hints)

    @property
    def context_parameter(self) -> str | None:
        """The name of the parameter for the context; None without one."""
        return next((p.name for p in self._others if is_context(self.hints[p.name])), None)

    def check_context(self, key: tuple[str, ...], schema: Schema) -> None:
        """Check that `Context[K]` declares the type of the operator's keys.

        Parameters:
            key: the names of the key fields.
            schema: of the keys.

        Raises:
            StateTypeError: it declares another type.
        """
        name = self.context_parameter
        if name is None or schema == _DYNAMIC_KEY:
            return
        for declared in typing.get_args(self.hints[name]):
            where = f"{self.name}, parameter {name!r}"
            if with_place(where, partial(key_codec, declared)).schema == schema:
                continue
            fields = ", ".join(map(repr, key))
            raise StateTypeError(
                f"{where}: Context[{annotation_text(declared)}] does not fit "
                + (f"the key {fields}, which is {schema}: " if key else "an operator without key: ")
                + f"declare {f'Context[{schema}]' if key else 'Context'}"
            )

    def bind(self, states: dict[str, State], context: Context) -> Bound:
        """Return the function and its arguments, for calls of the form `fn(first, *arguments)`.

        A call of an `async` function waits for its outputs.
        """
        fn, arguments = self.bind_async(states, context)
        return (one_by_one(fn), arguments) if self.is_async else (fn, arguments)

    def bind_async(self, states: dict[str, State], context: Context) -> Bound:
        """Return the function itself and its arguments: calls of an `async` one do not wait."""
        given = {
            p.name: context if is_context(self.hints[p.name]) else states[p.name].handle
            for p in self._others
        }
        fn, names = self.fn, list(inspect.signature(self.fn).parameters)[1:]
        by_position = names[: len(given)] == list(given) and all(
            p.kind is not inspect.Parameter.KEYWORD_ONLY for p in self._others
        )
        if by_position:
            return fn, tuple(given.values())
        return (lambda first: fn(first, **given)), ()

    def check_declared_by(self, declared: Signature) -> None:
        """Check that the process function declares the states of this callback.

        Raises:
            StateTypeError: it does not, or it declares others under that name.
        """
        for spec in self.states:
            hint = declared.hints.get(spec.name)
            if hint != self.hints[spec.name]:
                raise StateTypeError(
                    f"{self.name}, parameter {spec.name!r}: {declared.name} has no such state: "
                    "declare it there, too"
                    if hint is None
                    else f"{self.name}, parameter {spec.name!r}: {declared.name} declares "
                    f"{annotation_text(hint)} of that name"
                )

    @property
    def emits(self) -> Any:
        """The type of its outputs; None if it is declared to return None.

        Raises:
            StateTypeError: the return annotation is missing, or neither Iterator[T] nor None.
        """
        if "return" not in self.hints:
            raise StateTypeError(
                f"{self.name}: annotate what it returns: Iterator[T] for outputs of type T, or None"
            )
        hint = self.hints["return"]
        if hint is None or hint is type(None):
            return None
        return outputs_annotation(self.name, hint)


def outputs_annotation(name: str, hint: Any) -> Any:
    """Return the T of a return annotation `Iterator[T]`.

    Parameters:
        name: of the function.

    Raises:
        StateTypeError: the annotation is another one.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if args and any(origin in (kind, typing.get_origin(kind[Any])) for kind in _OUTPUTS):
        return args[0]
    raise StateTypeError(
        f"{name}: the return annotation must be Iterator[T] for outputs of type T, or "
        f"None; it is {annotation_text(hint)}"
    )


def declare(given: Any, name: str, hints: dict[str, Any]) -> Any:
    """Give a function or method of statekit the name, parameters and annotations of a user
    function.

    Parameters:
        given: the function.
        hints: the annotation of each parameter, in order, and of "return".
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in hints if name != "return"]
    function = given
    if isinstance(given, types.MethodType):  # it has no attributes of its own
        function = lambda *arguments: given(*arguments)  # noqa: E731
    function.__name__ = function.__qualname__ = name
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(parameters)
    return function


def _names_at_declaration() -> Mapping[str, Any]:
    """Return the local names where a function of the user is declared.

    With `from __future__ import annotations` Python keeps annotations as text. A class that is
    defined in a function is then a name which neither the globals nor the closure of a nested
    function has, if only its annotations use it. So the names are those of the first caller outside
    of statekit. Nothing else reads the frame of a caller.
    """
    frame = inspect.currentframe()
    package = __name__.partition(".")[0]
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations of a function where it is declared.

    Raises:
        StateTypeError: one cannot be resolved; the message names the parameter.
    """
    hints: dict[str, Any] = {}
    local_names = _names_at_declaration()
    for name, annotation in fn.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            resolved = typing.get_type_hints(
                alone, fn.__globals__, local_names, include_extras=True
            )
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            where = "return annotation" if name == "return" else f"parameter {name!r}"
            raise StateTypeError(
                f"{fn.__name__}, {where}: the annotation {annotation!r} cannot be resolved "
                f"({shown_text(error)}): correct it, or define its names before the function"
            ) from error
        where = f"{fn.__name__}, parameter {name!r}"
        hints[name] = with_place(where, partial(with_stored_type, resolved[name], local_names))
    return hints


def _records_given(hint: Any, where: str) -> tuple[bool, Any]:
    """Return whether an annotation is an iterator over records, and the annotation of the records.

    Raises:
        StateTypeError: it is a collection of records, and no such iterator.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and typing.get_origin(args[0]) is Iterator:
        return _records_given(args[0], where)
    if origin is Iterator and args:
        return True, args[0]
    is_bare = not args and (origin or hint) in (Iterator, *_SEVERAL)
    if is_bare or any(typing.get_origin(arg) is Iterator for arg in args):
        raise StateTypeError(
            f"{where}: {annotation_text(hint)} is not supported: for all records of a key annotate "
            "it with Iterator[Event], where Event is their type, or Iterator[Order | Payment]"
        )
    if origin in _SEVERAL and args:
        raise StateTypeError(
            f"{where}: {annotation_text(hint)} is not supported: for all records of a key annotate "
            f"it with Iterator[{annotation_text(args[0])}], for one with "
            f"{annotation_text(args[0])}"
        )
    return False, hint


def _is_state(hints: dict[str, Any], parameter: inspect.Parameter) -> bool:
    return parameter.name in hints and not is_context(hints[parameter.name])


def _checked_parameters(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], takes: str
) -> list[inspect.Parameter]:
    """Check the parameters of each call, and return them: first the record or timer, then states
    and context.
    """
    if not parameters:
        raise StateTypeError(f"{name}: the first parameter takes the {takes}, and is missing")
    given = []
    for position, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise StateTypeError(f"{name}, parameter {parameter.name!r}: declare states one by one")
        hint = hints.get(parameter.name)
        needed = is_context(hint) or state_class(hint) is not None
        if position and parameter.default is not parameter.empty and not needed:
            continue  # the function's own business
        if parameter.name not in hints:
            first = "Timer" if takes == "timer" else "the type of the records"
            wanted = "a state type" if position else first
            raise StateTypeError(f"{name}, parameter {parameter.name!r}: annotate it with {wanted}")
        if position and not is_context(hints[parameter.name]):
            _checked_state_name(name, parameter.name)
        given.append(parameter)
    first = hints[given[0].name]
    is_state = is_context(first) or state_class(first) is not None
    if is_state or (takes == "timer") != (first is Timer):
        raise StateTypeError(
            f"{name}, parameter {given[0].name!r}: the first parameter takes the {takes}, "
            f"not {annotation_text(first)}"
        )
    return given


def _checked_state_name(operator: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StateTypeError(
            f"{operator}, parameter {name!r}: state names start with a letter and have letters, "
            "digits and underscores; other names are reserved"
        )
    if (fault := name_fault(name)) is not None:
        raise StateTypeError(f"{operator}, parameter {name[:200]!r}: {fault}")
