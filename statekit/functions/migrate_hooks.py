"""Migration hooks: `@process(migrate={"last": from_text})`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statekit.codec.value_codec import PickleCodec, ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.functions.signature import hints_of
from statekit.functions.state_parameters import with_place
from statekit.shown import shown
from statekit.state.row_versions import Hook

MigrateOption = Mapping[str, Callable[[Any], Any] | Sequence[Callable[[Any], Any]]]
"""The type of `migrate=`: one function or several, per state."""

Hooks = dict[str, tuple[tuple[Callable[[Any], Any], Any], ...]]
"""The functions of each state, each with the resolved annotation of its parameter; None without an
annotation.
"""


def checked_hooks(operator: str, migrate: object) -> Hooks:
    """Check the functions of `migrate=`, and return them with the types of their parameters.

    Raises:
        StateTypeError: it is not a mapping from names of states to functions of one argument.
    """
    if not isinstance(migrate, Mapping):
        raise StateTypeError(
            f"{operator}: migrate={shown(migrate)}: give a dict from names of states to functions"
        )
    return {
        name: tuple(_checked(f"{operator}, migrate[{name!r}]", fn) for fn in _listed(given))
        for name, given in migrate.items()
    }


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _checked(where: str, fn: object) -> tuple[Callable[[Any], Any], Any]:
    if not inspect.isfunction(fn):
        raise StateTypeError(
            f"{where}: a hook is a function that takes an old value and returns a new one, not "
            f"{shown(fn)}"
        )
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [p for p in parameters if p is not positional[0]] if positional else parameters
    if not positional or any(p.default is p.empty and p.kind != p.VAR_KEYWORD for p in others):
        raise StateTypeError(
            f"{where}: {fn.__name__}{inspect.signature(fn)} must be callable with one argument, "
            "the old value"
        )
    hints: dict[str, Any] = with_place(where, lambda: hints_of(fn))
    annotation = hints.get(positional[0].name)
    return fn, None if annotation in (Any, object) else annotation


def hooks_of(operator: str, states: Sequence[str], given: Hooks) -> dict[str, tuple[Hook, ...]]:
    """Return the hooks of each state.

    Raises:
        StateTypeError: there is no such state, or its values cannot have an annotated type.
    """
    for name in given:
        if name not in states:
            raise StateTypeError(
                f"{operator}: migrate has {name!r}, which is no state of it (it has "
                f"{', '.join(states) or 'none'})"
            )
    return {
        name: tuple(_hook(operator, name, *declared) for declared in given.get(name, ()))
        for name in states
    }


def _hook(operator: str, state: str, fn: Callable[[Any], Any], annotation: Any) -> Hook:
    parameter = next(iter(inspect.signature(fn).parameters))
    where = f"{operator}, migrate[{state!r}], parameter {parameter!r} of {fn.__name__}"
    return Hook(fn, with_place(where, lambda: _codec(annotation)))


def _codec(annotation: Any) -> ValueCodec[Any] | None:
    """Return the codec of the annotated type. It unpickles only if the annotation asks for it."""
    if annotation is None:
        return None
    notes = typing.get_args(annotation)[1:] if hasattr(annotation, "__metadata__") else ()
    pickled = next((note for note in notes if isinstance(note, PickleCodec)), None)
    return value_codec(annotation) if pickled is None else pickled.codec(annotation)
