"""A state as a parameter declares it: its annotation read and checked.

What lives here: from `Annotated[ReducingState[float], Reduce(max)]` to a `StateSpec`. What does
not: the rest of a signature (`signature`), and the states themselves.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Annotated, Any

from statekit.codec import PickleCodec, ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.key_codec import key_codec
from statekit.list_state import ListState
from statekit.map_state import MapState
from statekit.single_row_states import AggregatingState, ReducingState, ValueState
from statekit.state import State, StateSpec
from statekit.state_options import TTL, Aggregate, Default, Reduce

__all__ = ["annotation_text", "explained", "state_class", "state_spec"]

_STATE_CLASSES: tuple[type[State], ...] = (
    ValueState,
    ListState,
    MapState,
    ReducingState,
    AggregatingState,
)


def state_class(annotation: Any) -> type[State] | None:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    return origin if isinstance(origin, type) and issubclass(origin, State) else None


def state_spec(operator: str, name: str, annotation: Any) -> StateSpec:
    """Read one state parameter."""
    where = f"{operator}, parameter {name!r}"
    options: tuple[Any, ...] = ()
    bare = annotation
    if typing.get_origin(annotation) is Annotated:
        bare, *found = typing.get_args(annotation)
        options = tuple(found)
    kind = state_class(bare)
    if kind not in _STATE_CLASSES:
        known = ", ".join(sorted(cls.__name__ for cls in _STATE_CLASSES))
        raise StateTypeError(
            f"{where}: {annotation_text(annotation)} is neither a state type ({known}) nor "
            "Context; a parameter that is neither needs a default"
        )
    args = typing.get_args(bare)
    wanted = {MapState: 2, AggregatingState: 3}.get(kind, 1)
    if len(args) != wanted:
        example = {1: "[int]", 2: "[str, int]", 3: "[float, tuple[float, int], float]"}[wanted]
        raise StateTypeError(f"{where}: give the types, as in {kind.__name__}{example}")
    given = _options(where, kind, options)

    def codec(annotation: Any) -> ValueCodec[Any]:
        pickled = given.get("pickle")
        made = pickled.codec if pickled else value_codec
        return typing.cast("ValueCodec[Any]", explained(where, lambda: made(annotation)))

    spec = StateSpec(
        operator=operator,
        name=name,
        kind=kind,
        codec=codec(args[1] if wanted > 1 else args[0]),
        key_codec=explained(where, lambda: key_codec(args[0])) if kind is MapState else None,
        added=codec(args[0]) if wanted == 3 else None,
        default=given["default"].value if "default" in given else None,
        reduce=given.get("reduce"),
        aggregate=given.get("aggregate"),
        ttl=given["ttl"].record if "ttl" in given else None,
    )
    if "default" in given and not spec.codec.accepts(spec.default):
        raise StateTypeError(
            f"{where}: Default({spec.default!r}) does not fit {spec.codec.schema}: "
            f"{spec.codec.reason(spec.default)}"
        )
    if spec.default is not None:
        explained(where, lambda: spec.codec.encode(spec.default))
    if spec.reduce is not None and spec.reduce.known == "count" and not spec.codec.accepts(1):
        raise StateTypeError(
            f"{where}: Reduce('count') makes an int, and {spec.codec.schema} cannot hold one: "
            "declare ReducingState[int]"
        )
    return spec


_OPTION_KINDS: dict[type, tuple[str, tuple[type[State], ...]]] = {
    Default: ("default", (ValueState,)),
    Reduce: ("reduce", (ReducingState,)),
    Aggregate: ("aggregate", (AggregatingState,)),
    PickleCodec: ("pickle", _STATE_CLASSES),
    TTL: ("ttl", _STATE_CLASSES),
}


def _options(where: str, kind: type[State], options: tuple[Any, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in options:
        if isinstance(option, type) and option in _OPTION_KINDS:
            raise StateTypeError(f"{where}: write {option.__name__}(...), not the class itself")
        name, kinds = _OPTION_KINDS.get(type(option), ("", ()))
        if not name:
            continue  # Annotated may carry what belongs to other tools
        if kind not in kinds:
            raise StateTypeError(
                f"{where}: {type(option).__name__} is no option of {kind.__name__}"
            )
        if name in given:
            raise StateTypeError(f"{where}: {type(option).__name__} is given twice")
        given[name] = option
    for needed, option_class in (("reduce", Reduce), ("aggregate", Aggregate)):
        if kind in _OPTION_KINDS[option_class][1] and needed not in given:
            example = "Reduce(max)" if needed == "reduce" else "Aggregate(create, add, result)"
            raise StateTypeError(
                f"{where}: {kind.__name__} needs to know how: "
                f"Annotated[{kind.__name__}[...], {example}]"
            )
    if "reduce" in given:
        explained(where, lambda: given["reduce"].combine)
    return given


def explained(where: str, make: Callable[[], Any]) -> Any:
    """What `make` returns; its errors say where."""
    try:
        return make()
    except StateTypeError as error:
        raise StateTypeError(f"{where}: {error}") from None


def annotation_text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
