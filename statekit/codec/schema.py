"""Types as data: the schema of an annotation, which is stored and compared.

A schema says everything that is needed to read stored bytes without the user's classes.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import json
import typing
from collections.abc import Iterator
from typing import Any

import pydantic
import xxhash

from statekit.codec.annotations import (
    SCALARS,
    generic_hint,
    show,
    struct_fields,
    struct_flavour,
    union_members,
    unwrap,
)
from statekit.codec.kept_fields import check_class
from statekit.codec.schema_tree import LEVELS_MAX, tree_fault
from statekit.errors import StateTypeError

Literals = tuple[tuple[str, bool | int | str | None], ...]
"""Named values: the members of an enum, or the values of a Literal with their reprs as names."""

_SCALARS: dict[object, str] = {None: "null", **{cls: kind for kind, cls in SCALARS.items()}}
_CONTAINERS: dict[object, str] = {list: "list", dict: "dict", set: "set", frozenset: "frozenset"}
_INSTEAD: dict[object, str] = {
    list: "use list[int], with the type of the elements",
    dict: "use dict[str, int], with the types of the keys and values",
    set: "use set[int], with the type of the elements",
    frozenset: "use frozenset[int], with the type of the elements",
    tuple: "use tuple[str, int] or tuple[int, ...]",
    bytearray: "use bytes",
    memoryview: "use bytes",
    dt.time: "use a datetime, a timedelta or an int",
    pydantic.NaiveDatetime: "a time without a zone is no instant: use datetime or AwareDatetime",
    complex: "use tuple[float, float]",
    collections.abc.Mapping: "use dict[str, int]",
    collections.abc.MutableMapping: "use dict[str, int]",
    collections.OrderedDict: "use dict[str, int]: it keeps its order",
    collections.defaultdict: "use dict[str, int]",
    collections.Counter: "use dict[str, int]",
    collections.deque: "use list[int]",
    collections.abc.Sequence: "use list[int] or tuple[int, ...]",
    collections.abc.Iterable: "use list[int]",
    collections.abc.Set: "use frozenset[int]",
    collections.abc.MutableSet: "use set[int]",
}
_OTHERWISE = (
    "use a NamedTuple, a dataclass, a msgspec Struct, a pydantic model or built-in types,"
    " or ask for Annotated[..., PickleCodec()]"
)


@dataclasses.dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct: its name, its type, and whether a row may lack it.

    Parameters:
        name: the field's name in code and in stored rows.
        schema: the type of the field.
        required: a row without the field cannot be read.
        default: the class has a default for rows without the field.
    """

    name: str
    schema: Schema
    required: bool = True
    default: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """A type as data: frozen, hashable and the same in every process.

    Parameters:
        kind: "int", "list", "struct", …; "ref" names an enclosing struct.
        items: element types; for a dict the key and the value.
        name: of a struct, an enum, a referenced struct or a pickled class.
        flavour: of a struct: dataclass, namedtuple, typeddict, msgspec or pydantic.
        fields: of a struct.
        values: of an enum or a literal.
        annotation: the class of a struct, a ref or an enum, or the Literal that it was read from; a
            stored schema has none. Schemas are compared without it.

    >>> schema_of(dict[str, list[int] | None])
    Schema('dict[str, list[int] | None]')
    >>> schema_of(dict[str, int]).fingerprint
    '9b9be973e909d405'
    """

    kind: str
    items: tuple[Schema, ...] = ()
    name: str = ""
    flavour: str = ""
    fields: tuple[StructField, ...] = ()
    values: Literals = ()
    annotation: Any = dataclasses.field(default=None, compare=False)

    def to_json(self) -> str | dict[str, Any]:
        """Return the schema as str, dict, list, int, bool and None. `from_json` is the inverse.

        >>> schema_of(list[int]).to_json()
        {'kind': 'list', 'items': ['int']}
        """
        out: dict[str, Any] = {"kind": self.kind}
        if self.name:
            out["name"] = self.name
        if self.flavour:
            out["flavour"] = self.flavour
        if self.items:
            out["items"] = [item.to_json() for item in self.items]
        if self.kind == "struct":
            out["fields"] = [
                {
                    "name": field.name,
                    "type": field.schema.to_json(),
                    "required": field.required,
                    "default": field.default,
                }
                for field in self.fields
            ]
        if self.values:
            out["values"] = [[name, value] for name, value in self.values]
        return self.kind if len(out) == 1 else out

    @classmethod
    def from_json(cls, data: object) -> Schema:
        """Return the schema of JSON data. This is the inverse of `to_json`.

        Raises:
            StateTypeError: `data` is not a schema.

        >>> Schema.from_json({"kind": "list", "items": ["int"]}) == schema_of(list[int])
        True
        """
        if (fault := tree_fault(data, is_part=True)) is not None:
            raise StateTypeError(
                f"{data!r:.200} is not a schema: {fault}. Give what Schema.to_json returns"
            )
        return _from_json(data)

    @property
    def parts(self) -> tuple[Schema, ...]:
        """The types directly inside of this one: its items, or the types of its fields."""
        return (*self.items, *(field.schema for field in self.fields))

    def walk(self) -> Iterator[Schema]:
        """Yield the type and all types inside of it, each before its parts."""
        yield self
        for part in self.parts:
            yield from part.walk()

    @property
    def fingerprint(self) -> str:
        """16 hex digits that identify the schema (XXH3-64 of the JSON)."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_64_hexdigest(text.encode())

    @property
    def brief(self) -> str:
        """The type by name. Unlike `str`, it leaves out the fields of structs.

        >>> schema_of(list[int | None]).brief
        'list[int | None]'
        """
        return _text(self, brief=True)

    def __str__(self) -> str:
        return _text(self, brief=False)

    def __repr__(self) -> str:
        return f"Schema({str(self)!r})"


def _from_json(data: Any) -> Schema:
    if isinstance(data, str):
        data = {"kind": data}
    return Schema(
        kind=data["kind"],
        items=tuple(_from_json(item) for item in data.get("items", ())),
        name=data.get("name", ""),
        flavour=data.get("flavour", ""),
        fields=tuple(
            StructField(
                field["name"], _from_json(field["type"]), field["required"], field["default"]
            )
            for field in data.get("fields", ())
        ),
        values=tuple((name, value) for name, value in data.get("values", ())),
    )


def _text(schema: Schema, *, brief: bool) -> str:
    inner = [_text(item, brief=brief) for item in schema.items]
    match schema.kind:
        case "null":
            return "None"
        case "list" | "dict" | "set" | "frozenset":
            return f"{schema.kind}[{', '.join(inner)}]"
        case "tuple":
            return f"tuple[{', '.join(inner) or '()'}]"
        case "variadic":
            return f"tuple[{inner[0]}, ...]"
        case "optional":
            return f"{inner[0]} | None"
        case "union":
            return " | ".join(inner)
        case "literal":
            return f"Literal[{', '.join(name for name, _ in schema.values)}]"
        case "enum" if not brief:
            members = ", ".join(f"{name}={value!r}" for name, value in schema.values)
            return f"{schema.name}({members})"
        case "struct" if not brief:
            fields = ", ".join(f"{field.name}: {field.schema}" for field in schema.fields)
            return f"{schema.name}{{{fields}}}"
        case "struct" | "enum" | "ref":
            return schema.name
        case "pickle":
            return f"pickle[{schema.name}]"
    return schema.kind


# ------------------------------------------------------------------ reading annotations


def schema_of(annotation: object) -> Schema:
    """Return the schema of a type.

    Parameters:
        annotation: scalars, bytes, dates, UUID, Decimal, Enum, Literal, tuples, list, dict, set,
            frozenset, unions, dataclasses, NamedTuples, TypedDicts, msgspec Structs, pydantic
            models, and any nesting of those. `Annotated`, `NewType` and aliases are seen through.

    Raises:
        StateTypeError: a part of it is not supported; the message names it and what to use.

    >>> from typing import NamedTuple
    >>> class Leg(NamedTuple):
    ...     origin: str
    ...     minutes: float = 0.0
    >>> str(schema_of(list[Leg]))
    'list[Leg{origin: str, minutes: float}]'
    >>> schema_of(bytearray)
    Traceback (most recent call last):
        ...
    statekit.errors.StateTypeError: bytearray is not supported: use bytes
    """
    schema = _Reader(annotation).read(annotation)
    if (fault := tree_fault(schema.to_json())) is not None:
        raise StateTypeError(f"{show(annotation):.200} is not supported: {fault}")
    return schema


class _Reader:
    """Reads an annotation. Remembers the enclosing structs."""

    def __init__(self, annotation: object) -> None:
        self.whole = annotation
        self.open: list[type] = []
        self.named: dict[str, type] = {}
        self.level = -1

    def refuse(self, part: Any, instead: str = _OTHERWISE) -> StateTypeError:
        name = show(part)
        where = "" if part is self.whole else f" (in {show(self.whole)})"
        return StateTypeError(f"{name}{where} is not supported: {instead}")

    def read(self, annotation: Any) -> Schema:
        if self.level == LEVELS_MAX:  # an alias that contains itself never ends
            raise StateTypeError(
                f"a type is nested more than {LEVELS_MAX} levels deep: use a class that contains "
                "itself, or flatter types"
            )
        self.level += 1
        schema = self.read_level(annotation)
        self.level -= 1
        return schema

    def read_level(self, annotation: Any) -> Schema:
        annotation = unwrap(annotation)
        if isinstance(annotation, typing.TypeVar):
            raise self.refuse(
                annotation,
                "it is the type variable of a generic class: derive a class with types from it, "
                "as in class IntBox(Box[int])",
            )
        if isinstance(annotation, str | typing.ForwardRef):
            raise self.refuse(annotation, "use the type itself, not a name for one")
        if annotation is Any or annotation is object:
            raise self.refuse(annotation, f"a stored type must be definite; {_OTHERWISE}")
        if _hashable(annotation):
            if annotation in _SCALARS:
                return Schema(_SCALARS[annotation])
            if annotation in _INSTEAD:
                raise self.refuse(annotation, _INSTEAD[annotation])
        if (members := union_members(annotation)) is not None:
            return self.read_union(members)
        origin = typing.get_origin(annotation)
        if origin is not None:
            return self.read_generic(annotation, origin, typing.get_args(annotation))
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return self.read_enum(annotation)
        if struct_flavour(annotation) is not None:
            return self.read_struct(annotation)
        raise self.refuse(annotation)

    def read_generic(self, annotation: Any, origin: Any, args: tuple[Any, ...]) -> Schema:
        if origin is typing.Literal:
            return self.read_literal(annotation, args)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return Schema("variadic", (self.read(args[0]),))
            return Schema("tuple", tuple(self.read(arg) for arg in args))
        if origin in _CONTAINERS:
            return Schema(_CONTAINERS[origin], tuple(self.read(arg) for arg in args))
        if struct_flavour(origin) is not None:
            raise self.refuse(annotation, generic_hint(annotation))
        raise self.refuse(annotation, _INSTEAD.get(origin, _OTHERWISE))

    def read_union(self, members: tuple[Any, ...]) -> Schema:
        others = [self.read(member) for member in members if member is not type(None)]
        names = [member.brief for member in others]
        if len(set(names)) < len(names):
            raise self.refuse(self.whole, "two members of a union have one name: rename one")
        inner = others[0] if len(others) == 1 else Schema("union", tuple(others))
        return Schema("optional", (inner,)) if len(others) < len(members) else inner

    def read_literal(self, annotation: Any, args: tuple[Any, ...]) -> Schema:
        for value in args:
            if type(value) not in (bool, int, str, type(None)):
                raise self.refuse(annotation, "a Literal may name str, int, bool and None")
        values = tuple((repr(value), value) for value in args)
        return Schema("literal", values=values, annotation=annotation)

    def read_enum(self, cls: type[enum.Enum]) -> Schema:
        members = tuple(cls.__members__.items())
        kinds = {type(member.value) for _, member in members}
        if issubclass(cls, enum.Flag) or kinds not in ({int}, {str}):
            raise self.refuse(cls, "an Enum must have members that are all str or all int")
        return Schema(
            "enum",
            name=cls.__name__,
            values=tuple((name, member.value) for name, member in members),
            annotation=cls,
        )

    def read_struct(self, cls: type) -> Schema:
        if self.named.setdefault(cls.__name__, cls) is not cls:
            raise self.refuse(cls, f"two classes are named {cls.__name__}: rename one of them")
        if cls in self.open:
            return Schema("ref", name=cls.__name__, annotation=cls)
        flavour = struct_flavour(cls) or ""
        check_class(cls)
        self.open.append(cls)
        fields = tuple(self.read_fields(cls, flavour))
        self.open.pop()
        return Schema("struct", (), cls.__name__, flavour, fields, annotation=cls)

    def read_fields(self, cls: type, flavour: str) -> Iterator[StructField]:
        for field in struct_fields(cls):
            try:
                schema = self.read(field.annotation)
            except StateTypeError as error:
                raise StateTypeError(f"{cls.__name__}.{field.name}: {error}") from None
            default = not field.required and flavour != "typeddict"
            yield StructField(field.name, schema, field.required, default)


def _hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True
