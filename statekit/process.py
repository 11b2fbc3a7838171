"""Process functions: what a user's signature says, validated and kept as data.

What lives here: `@process`, the `Process` it returns, and the `Context` a function may ask for.
What does not: running anything (`task`) or connecting anything (`job`).

A decorator only reads and checks. Everything wrong with a declaration is an error when the module
is imported, with a message that names the parameter; nothing is found out on a cluster.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from statekit.codec import PickleCodec, ValueCodec, value_codec
from statekit.errors import StateTypeError
from statekit.key_codec import KeyCodec, dynamic_key_codec, key_codec
from statekit.list_state import ListState
from statekit.map_state import MapState
from statekit.outputs import OutputType
from statekit.records import RecordType
from statekit.single_row_states import AggregatingState, ReducingState, ValueState
from statekit.state import State, StateSpec, Visit
from statekit.state_options import Aggregate, Default, Reduce

__all__ = ["Context", "Process", "process"]

R = TypeVar("R")
U = TypeVar("U")
P = ParamSpec("P")

KEY_TYPES = frozenset({"bool", "int", "str", "bytes", "date", "datetime"})
"""Schema kinds of key fields; a field may also be Optional."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_STATE_CLASSES: tuple[type[State], ...] = (
    ValueState,
    ListState,
    MapState,
    ReducingState,
    AggregatingState,
)
_OUTPUTS = (Iterator, Iterable, Generator, list)


class Context:
    """What a process function may know beside its record and its states.

    Declare a parameter of this type to get it.
    """

    __slots__ = ("_visit", "shard")

    def __init__(self, visit: Visit, shard: int) -> None:
        self._visit = visit
        self.shard = shard

    @property
    def key(self) -> Any:
        """The key being visited: a scalar, or a tuple when the key has several fields."""
        return self._visit.key

    @property
    def epoch(self) -> int:
        """The number of the epoch, the same when the epoch is replayed."""
        return self._visit.epoch

    @property
    def operator(self) -> str:
        """The name of the operator that runs."""
        return self._visit.operator


class Process(Generic[R, P, U]):
    """A process function with everything its signature says.

    Made by `@process`. Calling it calls the function, so it can be tested like any other.

    Attributes:
        name: the function's name; the operator's unless the job gives another.
        key: the names of the key fields.
        record_type: of the first parameter.
        output_type: of what it yields; None if it yields nothing.
        states: what it declares, in order.
    """

    def __init__(self, fn: Callable[..., Any], key: tuple[str, ...], hints: dict[str, Any]) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.key = key
        self._hints = hints
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self.__wrapped__ = fn
        parameters = list(inspect.signature(fn).parameters.values())
        record, *others = _checked_parameters(self.name, parameters, hints)
        self.record_parameter = record.name
        self.record_type = RecordType.of(
            hints[record.name], where=f"{self.name}, parameter {record.name!r}"
        )
        self.output_type = _output_type(self.name, hints)
        self.key_codec = _key_codec(self)
        self.states: tuple[StateSpec, ...] = tuple(
            _state_spec(self.name, p.name, hints[p.name]) for p in others if _is_state(hints, p)
        )
        self._others = tuple(p for p in others if p.name in hints)

    @property
    def context_parameter(self) -> str | None:
        """The name of the parameter that takes the context, if there is one."""
        return next((p.name for p in self._others if self._hints[p.name] is Context), None)

    def __call__(self, record: R, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.fn(record, *args, **kwargs)

    def bind(
        self, states: dict[str, State], context: Context
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What to call: `fn(record, *arguments)` with states and context in place."""
        given = {
            p.name: context if self._hints[p.name] is Context else states[p.name]
            for p in self._others
        }
        fn, names = self.fn, list(inspect.signature(self.fn).parameters)[1:]
        by_position = names[: len(given)] == list(given) and all(
            p.kind is not inspect.Parameter.KEYWORD_ONLY for p in self._others
        )
        if by_position:
            return fn, tuple(given.values())
        return (lambda record: fn(record, **given)), ()

    def key_of(self) -> Callable[[Any], Any]:
        """A function from a record to its key: a scalar, or a tuple for several fields."""
        return self.record_type.getter(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.fn, self.key, self._hints)

    def __repr__(self) -> str:
        keys = ", ".join(self.key)
        return f"<process {self.name} by {keys}: {[spec.name for spec in self.states]}>"

    def __get__(self, instance: object, owner: type | None = None) -> Process[R, P, U]:
        if instance is not None:
            raise StateTypeError(
                f"{self.name}: a process function cannot be a method; define it at module level"
            )
        return self


def _rebuilt(
    fn: Callable[..., Any], key: tuple[str, ...], hints: dict[str, Any]
) -> Process[Any, Any, Any]:
    return Process(fn, key, hints)


class _Decorator(Protocol):
    @overload
    def __call__(self, fn: Callable[Concatenate[R, P], Iterable[U]], /) -> Process[R, P, U]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[R, P], None], /) -> Process[R, P, Never]: ...


def process(*, key: str | tuple[str, ...] | list[str]) -> _Decorator:
    """Turn an ordinary function into a process function.

    The first parameter takes one record; it is annotated with a pydantic model, a dataclass, a
    NamedTuple, a msgspec Struct, a TypedDict or `dict`. Parameters annotated with a state type
    become states named like the parameter; a parameter annotated `Context` gets the context. The
    return annotation is `Iterator[T]` for outputs of type T, or None.

    Parameters:
        key: the record field, or fields, that say which state a record meets.

    Raises:
        StateTypeError: the declaration cannot be; the message names the parameter.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> class Total(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @process(key="customer")
    ... def totals(order: Order, total: ValueState[int]) -> Iterator[Total]:
    ...     total.update((total.get() or 0) + order.cents)
    ...     yield Total(order.customer, total.get() or 0)
    >>> totals
    <process totals by customer: ['total']>
    """
    if not isinstance(key, str | tuple | list):
        raise StateTypeError(f"@process(key={key!r}): give the name of a record field, or several")
    fields = (key,) if isinstance(key, str) else tuple(key)
    caller = sys._getframe(1).f_locals

    def decorate(fn: Callable[..., Any]) -> Process[Any, Any, Any]:
        if not inspect.isfunction(fn):
            raise StateTypeError(f"@process decorates a function, not {fn!r}")
        if not fields or len(set(fields)) != len(fields):
            raise StateTypeError(f"{fn.__name__}: key={fields} must name different fields")
        return Process(fn, fields, _hints(fn, caller))

    return typing.cast("_Decorator", decorate)


def _hints(fn: Callable[..., Any], caller: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a function, resolved one by one so that an error names its parameter."""
    hints: dict[str, Any] = {}
    for name, annotation in fn.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, fn.__globals__, caller, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            where = "return annotation" if name == "return" else f"parameter {name!r}"
            raise StateTypeError(
                f"{fn.__name__}, {where}: the annotation {annotation!r} cannot be resolved "
                f"({error}): correct it, or define its names before the function"
            ) from error
    return hints


def _is_state(hints: dict[str, Any], parameter: inspect.Parameter) -> bool:
    return parameter.name in hints and hints[parameter.name] is not Context


def _checked_parameters(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> list[inspect.Parameter]:
    """The parameters to be given at each call: the record first, then states and context."""
    if not parameters:
        raise StateTypeError(f"{name}: the first parameter takes the record; there is none")
    given = []
    for position, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise StateTypeError(f"{name}, parameter {parameter.name!r}: declare states one by one")
        hint = hints.get(parameter.name)
        needed = hint is Context or _state_class(hint) is not None
        if position and parameter.default is not parameter.empty and not needed:
            continue  # the function's own business
        if parameter.name not in hints:
            wanted = "a state type" if position else "the type of the records"
            raise StateTypeError(f"{name}, parameter {parameter.name!r}: annotate it with {wanted}")
        if position and hints[parameter.name] is not Context:
            _checked_state_name(name, parameter.name)
        given.append(parameter)
    first = hints[given[0].name]
    if first is Context or _state_class(first) is not None:
        raise StateTypeError(
            f"{name}, parameter {given[0].name!r}: the first parameter takes the record, "
            f"not {_annotation_text(first)}"
        )
    return given


def _checked_state_name(operator: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StateTypeError(
            f"{operator}, parameter {name!r}: state names start with a letter and have letters, "
            "digits and underscores; other names are reserved"
        )


def _output_type(name: str, hints: dict[str, Any]) -> OutputType | None:
    if "return" not in hints:
        raise StateTypeError(
            f"{name}: annotate what it returns: Iterator[T] for outputs of type T, or None"
        )
    hint = hints["return"]
    if hint is None or hint is type(None):
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if args and any(origin in (kind, typing.get_origin(kind[Any])) for kind in _OUTPUTS):
        return OutputType.of(args[0], where=f"{name}, return annotation")
    raise StateTypeError(
        f"{name}: the return annotation must be Iterator[T] for outputs of type T, or None; "
        f"it is {_annotation_text(hint)}"
    )


def _key_codec(declared: Process[Any, Any, Any]) -> KeyCodec[Any]:
    """The codec of the whole key: of the one field, or of a tuple of the fields."""
    fields = declared.record_type.fields
    if fields is None:
        return dynamic_key_codec()
    annotations = []
    for name in declared.key:
        if name not in fields:
            raise StateTypeError(
                f"{declared.name}, parameter {declared.record_parameter!r}: key field {name!r} is "
                f"not a field of {declared.record_type.name} (it has {', '.join(fields)})"
            )
        annotation = fields[name].annotation
        where = f"{declared.name}, key field {name!r}"
        codec = _explained(where, functools.partial(key_codec, annotation))
        schema = codec.schema.items[0] if codec.schema.kind == "optional" else codec.schema
        if schema.kind not in KEY_TYPES:
            raise StateTypeError(
                f"{where}: {codec.schema} cannot be a key: use bool, int, str, bytes, date or "
                "datetime, or Optional of one of them (floats never compare reliably)"
            )
        annotations.append(annotation)
    if len(annotations) == 1:
        return key_codec(annotations[0])
    return key_codec(tuple[tuple(annotations)])  # type: ignore[misc]


def _state_class(annotation: Any) -> type[State] | None:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    return origin if isinstance(origin, type) and issubclass(origin, State) else None


def _state_spec(operator: str, name: str, annotation: Any) -> StateSpec:
    """Read one state parameter."""
    where = f"{operator}, parameter {name!r}"
    options: tuple[Any, ...] = ()
    bare = annotation
    if typing.get_origin(annotation) is Annotated:
        bare, *found = typing.get_args(annotation)
        options = tuple(found)
    kind = _state_class(bare)
    if kind not in _STATE_CLASSES:
        known = ", ".join(sorted(cls.__name__ for cls in _STATE_CLASSES))
        raise StateTypeError(
            f"{where}: {_annotation_text(annotation)} is neither a state type ({known}) nor "
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
        return typing.cast("ValueCodec[Any]", _explained(where, lambda: made(annotation)))

    spec = StateSpec(
        operator=operator,
        name=name,
        kind=kind,
        codec=codec(args[1] if wanted > 1 else args[0]),
        key_codec=_explained(where, lambda: key_codec(args[0])) if kind is MapState else None,
        added=codec(args[0]) if wanted == 3 else None,
        default=given["default"].value if "default" in given else None,
        reduce=given.get("reduce"),
        aggregate=given.get("aggregate"),
    )
    if "default" in given and not spec.codec.accepts(spec.default):
        raise StateTypeError(
            f"{where}: Default({spec.default!r}) does not fit {spec.codec.schema}: "
            f"{spec.codec.reason(spec.default)}"
        )
    if spec.default is not None:
        _explained(where, lambda: spec.codec.encode(spec.default))
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
        _explained(where, lambda: given["reduce"].combine)
    return given


def _explained(where: str, make: Callable[[], Any]) -> Any:
    """What `make` returns; its errors say where."""
    try:
        return make()
    except StateTypeError as error:
        raise StateTypeError(f"{where}: {error}") from None


def _annotation_text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
