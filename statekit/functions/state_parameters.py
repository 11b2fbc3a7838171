"""State parameters: their annotations, read and checked."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from statekit.codec.annotations import show
from statekit.codec.key_codec import key_codec
from statekit.codec.value_codec import PickleCodec, ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.shown import shown, shown_text
from statekit.state.base import State, StateSpec
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.operator_state import (
    BroadcastState,
    ObjectState,
    OperatorListState,
    OperatorState,
    is_checkpointed,
)
from statekit.state.options import TTL, Aggregate, Default, Redistribute, Reduce
from statekit.state.single_row_states import AggregatingState, ReducingState, ValueState

# The state types that an annotation may name.
_STATE_CLASSES: tuple[type[State], ...] = (
    ValueState,
    ListState,
    MapState,
    ReducingState,
    AggregatingState,
    OperatorState,
    OperatorListState,
    BroadcastState,
)

_EXAMPLES = {1: "[int]", 2: "[str, int]", 3: "[float, tuple[float, int], float]"}

_OPTIONS = (Default, Reduce, Aggregate, PickleCodec, TTL, Redistribute)


def _without_options(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotation into the annotation without `Annotated` options, and the options."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ()
    bare, *options = typing.get_args(annotation)
    return bare, tuple(options)


def state_class(annotation: Any) -> type[State] | None:
    """Return the class of state that an annotation declares; None if it declares none."""
    bare, _ = _without_options(annotation)
    origin = typing.get_origin(bare) or bare
    if is_checkpointed(origin):
        return ObjectState
    return origin if isinstance(origin, type) and issubclass(origin, State) else None


def state_spec(operator: str, name: str, annotation: Any) -> StateSpec:
    """Return the declaration of a state parameter."""
    where = f"{operator}, parameter {name!r}"
    bare, options = _without_options(annotation)
    state_cls = state_class(bare)
    if state_cls is ObjectState:
        return _object_spec(where, operator, name, bare, options)
    if state_cls not in _STATE_CLASSES:
        names = ", ".join(sorted(cls.__name__ for cls in _STATE_CLASSES))
        raise StateTypeError(
            f"{where}: {annotation_text(annotation)} is neither a state type ({names}), nor a "
            "class with snapshot_state and restore_state, nor Context; a parameter that is none of "
            "these needs a default"
        )
    if len(typing.get_args(bare)) != len(state_cls.type_parameters):
        example = _EXAMPLES[len(state_cls.type_parameters)]
        raise StateTypeError(f"{where}: give the types, as in {state_cls.__name__}{example}")
    types = dict(zip(state_cls.type_parameters, typing.get_args(bare), strict=True))
    given = _options(where, state_cls, options)

    codec = partial(_codec, where, given.get(PickleCodec))
    spec = StateSpec(
        operator=operator,
        name=name,
        state_class=state_cls,
        codec=codec(types["value"]),
        key_codec=with_place(where, lambda: key_codec(types["key"])) if "key" in types else None,
        added=codec(types["input"]) if "input" in types else None,
        default=given[Default].value if Default in given else None,
        reduce=given.get(Reduce),
        aggregate=given.get(Aggregate),
        ttl=given[TTL].record if TTL in given else None,
        redistribute=_redistribution(where, state_cls, given.get(Redistribute)),
    )
    if Default in given and not spec.codec.accepts(spec.default):
        raise StateTypeError(
            f"{where}: Default({shown(spec.default)}) does not fit {spec.codec.schema}: "
            f"{spec.codec.reason(spec.default)}"
        )
    if spec.default is not None:
        with_place(where, lambda: spec.codec.encode(spec.default))
    if spec.reduce is not None and spec.reduce.known == "count" and not spec.codec.accepts(1):
        raise StateTypeError(
            f"{where}: Reduce('count') returns an int, which {spec.codec.schema} does not allow: "
            "declare ReducingState[int]"
        )
    return spec


def _codec(where: str, pickled: PickleCodec | None, annotation: Any) -> ValueCodec[Any]:
    """Return the codec of a type, or a codec that pickles its values."""
    make = pickled.codec if pickled else value_codec
    return typing.cast("ValueCodec[Any]", with_place(where, lambda: make(annotation)))


def _redistribution(
    where: str, kind: type[State], declared: Redistribute | None
) -> Redistribute | None:
    """Return the declared redistribution after checking that it fits the kind of state."""
    if kind is BroadcastState:
        if declared is not None and declared.rule != "broadcast":
            raise StateTypeError(
                f"{where}: BroadcastState is the same in all shards, and can only be "
                'Redistribute("broadcast"), which needs not be said'
            )
        return Redistribute("broadcast")
    if declared and declared.rule in ("even", "union") and kind is not OperatorListState:
        raise StateTypeError(
            f'{where}: Redistribute("{declared.rule}") is for the elements of an '
            'OperatorListState: use Redistribute("broadcast"), or the functions split= and merge='
        )
    return declared


def _object_spec(
    where: str, operator: str, name: str, cls: type[Any], options: tuple[Any, ...]
) -> StateSpec:
    """Return the spec of a parameter annotated with a class of `Checkpointed` objects."""
    cls_of_object = typing.get_origin(cls) or cls
    given = _options(where, ObjectState, options)
    needed = [
        p.name
        for p in _parameters(cls_of_object)
        if p.default is p.empty and p.kind not in _VARIADIC
    ]
    if needed:
        raise StateTypeError(
            f"{where}: {cls_of_object.__name__} is made without arguments before its state is "
            f"restored, and needs {', '.join(needed)}: give its parameters defaults"
        )
    stored = next((option.annotation for option in options if isinstance(option, _StoredAs)), None)
    if stored is None and PickleCodec not in given:
        raise StateTypeError(
            f"{where}: annotate what {cls_of_object.__name__}.snapshot_state returns: that type is "
            "stored"
        )
    split, merge = (getattr(cls_of_object, hook, None) for hook in ("split_state", "merge_states"))
    declared = given.get(Redistribute)
    if declared is None and (split is not None or merge is not None):
        if split is None or merge is None:
            raise StateTypeError(
                f"{where}: {cls_of_object.__name__} has one of split_state and merge_states: "
                "define both"
            )
        declared = Redistribute(split=split, merge=merge)
    return StateSpec(
        operator=operator,
        name=name,
        state_class=ObjectState,
        codec=_codec(where, given.get(PickleCodec), object if stored is None else stored),
        redistribute=_redistribution(where, ObjectState, declared),
        made=cls_of_object,
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(cls: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters of a class; empty if Python cannot inspect them."""
    try:
        return list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class _StoredAs:
    """The stored type of an object's snapshot."""

    annotation: Any


def with_stored_type(annotation: Any, local_names: Mapping[str, Any]) -> Any:
    """Add the stored type to the annotation of a `Checkpointed` object; return others unchanged.

    The type is resolved where the function is decorated: a worker has the class, but not the names
    in its annotations.

    Parameters:
        local_names: where the function is decorated.

    Raises:
        StateTypeError: the annotation of `snapshot_state` cannot be resolved.
    """
    if state_class(annotation) is not ObjectState:
        return annotation
    bare, options = _without_options(annotation)
    cls = typing.get_origin(bare) or bare
    try:
        hints = typing.get_type_hints(cls.snapshot_state, None, local_names, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise StateTypeError(
            f"the annotations of {cls.__name__}.snapshot_state cannot be resolved "
            f"({shown_text(error)}): "
            "correct them, or define their names before the function that takes the object"
        ) from error
    if "return" not in hints:
        return annotation
    return Annotated[(bare, *options, _StoredAs(hints["return"]))]


def _options(where: str, state_cls: type[State], options: tuple[Any, ...]) -> dict[type, Any]:
    """Return the options of an annotation by class. Annotations of other tools are skipped."""
    given: dict[type, Any] = {}
    for option in options:
        if isinstance(option, type) and option in _OPTIONS:
            raise StateTypeError(f"{where}: write {option.__name__}(...), not the class itself")
        option_class = next((of for of in _OPTIONS if isinstance(option, of)), None)
        if option_class is None:
            continue
        name = option_class.__name__
        if option_class not in state_cls.options:
            raise StateTypeError(f"{where}: {name} is no option of {state_cls.__name__}")
        if option_class in given:
            raise StateTypeError(f"{where}: {name} is given twice")
        given[option_class] = option
    example = state_cls.required_option
    if example and not any(example.startswith(option.__name__) for option in given):
        raise StateTypeError(
            f"{where}: {state_cls.__name__} needs an option: "
            f"Annotated[{state_cls.__name__}[...], {example}]"
        )
    if Reduce in given:
        with_place(where, lambda: given[Reduce].combine)
    return given


def with_place(where: str, make: Callable[[], Any]) -> Any:
    """Return the result of `make`, and prepend the place `where` to its errors."""
    try:
        return make()
    except StateTypeError as error:
        raise StateTypeError(f"{where}: {shown_text(error)}") from None


def annotation_text(annotation: Any) -> str:
    """Return an annotation as text. The stored type of an object is left out."""
    is_object = state_class(annotation) is ObjectState
    return show(_without_options(annotation)[0] if is_object else annotation)
