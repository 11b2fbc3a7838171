"""Annotations without their wrappers, and the fields of record classes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import operator
import types
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import msgspec
import pydantic
import typing_extensions

from statekit.errors import StateTypeError
from statekit.shown import shown_text

SCALARS: dict[str, type] = {
    "null": types.NoneType,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "date": dt.date,
    "datetime": dt.datetime,
    "timedelta": dt.timedelta,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
"""The scalar types, by their name in a schema."""

IMMUTABLE = frozenset({*SCALARS.values(), complex, dt.time})
"""Classes with immutable values."""

_WRAPPERS = (
    typing.Annotated,
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing_extensions.ReadOnly,
)
_ALIASES = tuple(
    {
        typing_extensions.TypeAliasType,
        getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
    }
)
_UNIONS = (typing.Union, types.UnionType)
_CONTAINERS = (list, tuple, dict, set, frozenset)

Flavour = Literal["pydantic", "msgspec", "typeddict", "namedtuple", "dataclass"]


def unwrap(annotation: Any) -> Any:
    """Return the annotation without `Annotated`, `NewType`, `Required`, `ReadOnly`, `Final` and
    aliases.

    >>> unwrap(typing.Annotated[int, "minutes"])
    <class 'int'>
    """
    return with_metadata(annotation)[0]


def with_metadata(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the annotation like `unwrap`, with the metadata of all `Annotated` around it."""
    metadata: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            metadata = (*annotation.__metadata__, *metadata)
        if origin in _WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, _ALIASES):
            annotation = annotation.__value__
        elif annotation is pydantic.AwareDatetime:
            annotation, metadata = dt.datetime, (msgspec.Meta(tz=True), *metadata)
        else:
            return annotation, metadata


def union_members(annotation: Any) -> tuple[Any, ...] | None:
    """Return the members of a union, nested unions and aliases flattened; None if it is not a
    union.

    >>> union_members(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    annotation = unwrap(annotation)
    if typing.get_origin(annotation) not in _UNIONS:
        return None
    flat: list[Any] = []
    for member in typing.get_args(annotation):
        for part in union_members(member) or (unwrap(member),):
            if part not in flat:
                flat.append(part)
    return tuple(flat)


def peel(annotation: Any) -> tuple[tuple[Any, ...], bool, tuple[Any, ...]]:
    """Return the union members without None, whether None is allowed, and the metadata of an
    annotation.

    >>> peel(typing.Annotated[int | None, "meta"])
    ((<class 'int'>,), True, ('meta',))
    """
    annotation, metadata = with_metadata(annotation)
    if annotation is None or annotation is types.NoneType:
        return (), True, metadata
    if annotation is Any or annotation is object:
        return (Any,), True, metadata
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and None in arguments:
        values = tuple(value for value in arguments if value is not None)
        return ((Literal[values],) if values else ()), True, metadata
    if origin not in _UNIONS:
        return (annotation,), False, metadata
    parts = [peel(member) for member in arguments]
    members = tuple(member for part in parts for member in part[0])
    inner = tuple(note for part in parts for note in part[2])
    return members, any(part[1] for part in parts), (*inner, *metadata)


def show(annotation: Any) -> str:
    """Return an annotation as in source code.

    >>> show(int), show(typing.Optional[int]), show(list[float | None])
    ('int', 'int | None', 'list[float | None]')
    """
    if isinstance(annotation, str):
        return repr(annotation)
    if annotation is types.NoneType:
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:  # whose own texts depend on the version of Python
        return " | ".join(map(show, arguments))
    if isinstance(annotation, type) and not arguments:
        return annotation.__name__
    if isinstance(annotation, types.GenericAlias) and origin in _CONTAINERS:
        parts = ", ".join("..." if each is Ellipsis else show(each) for each in arguments)
        return f"{origin.__name__}[{parts}]"
    return str(annotation).replace("typing.", "")


# ------------------------------------------------------------------ classes with fields


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a class.

    Parameters:
        name: its name.
        annotation: its type, resolved.
        required: it has no default, and a TypedDict may not lack it.
        init: the constructor takes it.
    """

    name: str
    annotation: Any
    required: bool
    init: bool = True


def struct_flavour(cls: object) -> Flavour | None:
    """Return the kind of struct of a class; None if it is no struct.

    >>> struct_flavour(int) is None
    True
    """
    if not isinstance(cls, type):
        return None
    if issubclass(cls, pydantic.BaseModel):
        return "pydantic"
    if issubclass(cls, msgspec.Struct):
        return "msgspec"
    if typing_extensions.is_typeddict(cls):
        return "typeddict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    return "dataclass" if dataclasses.is_dataclass(cls) else None


def struct_fields(cls: Any) -> tuple[Field, ...]:
    """Return the fields of a struct class, in order. An untyped field of a `namedtuple` has the
    type Any.

    Raises:
        StateTypeError: an annotation cannot be resolved.

    >>> from typing import NamedTuple
    >>> class Leg(NamedTuple):
    ...     minutes: float = 0.0
    >>> struct_fields(Leg)
    (Field(name='minutes', annotation=<class 'float'>, required=False, init=True),)
    """
    flavour = struct_flavour(cls)
    if flavour == "pydantic":
        return _pydantic_fields(cls)
    hints = class_hints(cls)
    if flavour == "msgspec":
        declared = msgspec.structs.fields(cls)
        return tuple(Field(field.name, hints[field.name], field.required) for field in declared)
    if flavour == "typeddict":
        return tuple(
            _typeddict_field(name, hint, name in cls.__required_keys__)
            for name, hint in hints.items()
        )
    if flavour == "namedtuple":
        return tuple(
            Field(name, hints.get(name, Any), name not in cls._field_defaults)
            for name in cls._fields
        )
    return tuple(
        Field(
            field.name,
            hints[field.name],
            field.default is field.default_factory,  # both are MISSING without a default
            field.init,
        )
        for field in dataclasses.fields(cls)
    )


def plain_defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of the fields of a struct class, without those that a factory makes.

    >>> @dataclasses.dataclass
    ... class Leg:
    ...     minutes: float = 0.0
    ...     stops: list[str] = dataclasses.field(default_factory=list)
    >>> plain_defaults(Leg)
    {'minutes': 0.0}
    """
    match struct_flavour(cls):
        case "namedtuple":
            return dict(cls._field_defaults)
        case "pydantic":
            infos = cls.model_fields.items()
            return {
                name: info.default
                for name, info in infos
                if not info.is_required() and info.default_factory is None
            }
        case "typeddict":
            return {}
        case flavour:
            of_struct = flavour == "msgspec"
            fields = msgspec.structs.fields(cls) if of_struct else dataclasses.fields(cls)
            none = msgspec.NODEFAULT if of_struct else dataclasses.MISSING
            return {field.name: field.default for field in fields if field.default is not none}


def _pydantic_fields(cls: type[pydantic.BaseModel]) -> tuple[Field, ...]:
    if not cls.__pydantic_complete__ and cls.model_rebuild(raise_errors=False) is False:
        raise StateTypeError(
            f"an annotation of {cls.__name__} cannot be resolved: define the types it names"
            " at the top of a module"
        )
    fields = []
    for name, info in cls.model_fields.items():
        annotation: Any = info.annotation
        if info.metadata:
            noted = (annotation, *info.metadata)
            annotation = operator.getitem(cast("Any", typing.Annotated), noted)
        fields.append(Field(name, annotation, info.is_required()))
    return tuple(fields)


def _typeddict_field(name: str, hint: Any, required: bool) -> Field:
    """Return a field of a TypedDict, without `Required` and `NotRequired`.

    `__required_keys__` is wrong under `from __future__ import annotations`: NotRequired is still a
    part of a text when the class is made.
    """
    inner = hint
    while (origin := typing.get_origin(inner)) in _WRAPPERS:
        if origin in (typing.Required, typing.NotRequired):
            required = origin is typing.Required
        is_outermost = inner is hint
        inner = typing.get_args(inner)[0]
        if is_outermost and origin is not typing.Annotated:
            hint = inner
    return Field(name, hint, required)


def class_hints(cls: Any) -> Mapping[str, Any]:
    """Return the resolved annotations of a class, with the types of generic bases.

    >>> from typing import Generic
    >>> T = typing.TypeVar("T")
    >>> Box = dataclasses.make_dataclass("Box", [("items", list[T])], bases=(Generic[T],))
    >>> class IntBox(Box[int]): ...
    >>> class_hints(IntBox)
    {'items': list[int]}
    """
    try:
        hints = typing_extensions.get_type_hints(cls, include_extras=True)
        types_ = _types_of_fields(cls, {})
        return {name: _with_types(hint, types_.get(name, {})) for name, hint in hints.items()}
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise StateTypeError(
            f"an annotation of {cls.__name__} cannot be resolved ({shown_text(error)}): define "
            "the types it"
            " names at the top of a module, not inside of a function or under TYPE_CHECKING"
        ) from error


def generic_hint(annotation: Any) -> str:
    """Return advice to replace a generic class with types, such as Box[int]; empty for any other
    annotation.
    """
    origin = typing.get_origin(annotation)
    if origin is None or struct_flavour(origin) is None:
        return ""
    name, given = origin.__name__, show(annotation).replace(f"{origin.__module__}.", "")
    return f"derive a class from it, as in class My{name}({given}), and use that"


def _types_of_fields(cls: Any, types_: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
    """Return the types for the type variables of the class that declares each field.

    Parameters:
        cls: a class that has the fields.
        types_: those of its own type variables.
    """
    of_bases: dict[str, Mapping[Any, Any]] = {}
    for base in reversed(vars(cls).get("__orig_bases__", cls.__bases__)):
        origin = typing.get_origin(base) or base
        if isinstance(origin, type):
            arguments = (_with_types(each, types_) for each in typing.get_args(base))
            variables = getattr(origin, "__parameters__", ())
            of_bases |= _types_of_fields(origin, dict(zip(variables, arguments, strict=False)))
    own = dict.fromkeys(inspect.get_annotations(cls), types_)
    # A TypedDict repeats the fields of its bases.
    return own | of_bases if typing_extensions.is_typeddict(cls) else of_bases | own


def _with_types(annotation: Any, types_: Mapping[Any, Any]) -> Any:
    """Return an annotation whose type variables are replaced by types."""
    if isinstance(annotation, typing.TypeVar):
        return types_.get(annotation, annotation)
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation
    variables = getattr(annotation, "__parameters__", ())
    if not variables or not types_:
        return annotation
    return annotation[tuple(types_.get(each, each) for each in variables)]


# ------------------------------------------------------------------ what can change


def is_frozen(cls: Any) -> bool:
    """Return whether the fields of a struct class are read-only. Their values may be mutable."""
    match struct_flavour(cls):
        case "namedtuple":
            return True
        case "msgspec":
            return bool(cls.__struct_config__.frozen)
        case "pydantic":
            return bool(cls.model_config.get("frozen")) and not cls.__private_attributes__
        case "dataclass":
            return bool(cls.__dataclass_params__.frozen)
    return False


def is_immutable(annotation: Any) -> bool:
    """Return whether all values of an annotation are immutable.

    >>> is_immutable(tuple[str, int | None]), is_immutable(list[int])
    (True, False)
    """
    return all(map(_is_immutable_outside, members_within(annotation)))


def _is_immutable_outside(member: Any) -> bool:
    """Return whether values are immutable if their parts are."""
    origin = typing.get_origin(member)
    if origin is Literal or member in IMMUTABLE:
        return True
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return True
    if struct_flavour(member) is not None:
        return is_frozen(member)
    return origin in (tuple, frozenset) and bool(typing.get_args(member))


def members_within(annotation: Any, outer: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the union members of an annotation without None, and those of all parts and fields
    inside of them, each before its parts.

    Parameters:
        outer: the struct classes that the annotation is inside of. Their fields are not visited
            again.
    """
    for member in peel(annotation)[0]:
        yield member
        if struct_flavour(member) is None:
            parts = () if typing.get_origin(member) is Literal else typing.get_args(member)
            for part in parts:
                if part is not Ellipsis:
                    yield from members_within(part, outer)
        elif member not in outer:
            for field in struct_fields(member):
                yield from members_within(field.annotation, (*outer, member))
