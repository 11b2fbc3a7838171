"""Types as they are and as they become, with values: for tests that change declarations.

Types are drawn as schemas, made into real classes, and changed a little, for better or worse.
`expected` says what a person expects an old value to read as, and shares nothing with the codecs.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, NotRequired

import msgspec
import pydantic
from hypothesis import reject
from hypothesis import strategies as st
from typing_extensions import TypedDict

from statekit.codec.schema import Literals, Schema, StructField

__all__ = ["Declared", "changed", "expected", "plain", "schemas", "values"]

SCALARS = ("bool", "int", "float", "str", "bytes")
FLAVOURS = ("dataclass", "namedtuple", "typeddict", "msgspec", "pydantic")
COLORS: Literals = (("RED", "r"), ("GREEN", "g"), ("BLUE", "b"))
LEVELS: Literals = (("'a'", "a"), ("1", 1), ("True", True), ("2", 2))

_PYTHON: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "bytes": bytes}
_DEFAULTS: dict[str, Any] = {"bool": True, "int": 7, "float": 7.5, "str": "seven", "bytes": b"7"}


# ------------------------------------------------------------------------------- drawing types


def _struct(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    @st.composite
    def make(draw: st.DrawFn) -> Schema:
        flavour = draw(st.sampled_from(FLAVOURS))
        names = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=3, unique=True))
        fields = [field_of(name, draw(inner), flavour, draw(st.booleans())) for name in names]
        return settled(Schema("struct", (), draw(st.sampled_from("AB")), flavour, tuple(fields)))

    return make()


def field_of(name: str, schema: Schema, flavour: str, required: bool) -> StructField:
    return StructField(name, schema, required, not required and flavour != "typeddict")


def settled(struct: Schema) -> Schema:
    """The struct as Python allows it: fields with a default come last, if it is positional."""
    fields = sorted(struct.fields, key=lambda field: not field.required)
    return dataclasses.replace(struct, fields=tuple(fields))


def _inside(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def of(kind: str, count: int) -> st.SearchStrategy[Schema]:
        return st.tuples(*[inner] * count).map(lambda items: Schema(kind, items))

    keys = st.sampled_from([Schema("str"), Schema("int"), Schema("tuple", (Schema("int"),))])
    return st.one_of(
        of("list", 1),
        of("variadic", 1),
        of("tuple", 2),
        of("union", 2),
        of("union", 3),
        of("optional", 1),
        st.tuples(keys, inner).map(lambda items: Schema("dict", items)),
        keys.map(lambda item: Schema("frozenset", (item,))),
        _struct(inner),
        _struct(inner),
    )


_LEAVES = st.one_of(
    st.sampled_from(SCALARS).map(Schema),
    st.sampled_from(SCALARS).map(Schema),
    st.lists(st.sampled_from(COLORS), min_size=1, unique=True).map(
        lambda values: Schema("enum", name="Color", values=tuple(values))
    ),
    st.lists(st.sampled_from(LEVELS), min_size=1, unique_by=str).map(
        lambda values: Schema("literal", values=tuple(values))
    ),
)


def normal(schema: Schema) -> Schema:
    """The type as Python sees it: unions flat, and None moved to the outside."""
    items = tuple(map(normal, schema.items))
    fields = tuple(dataclasses.replace(f, schema=normal(f.schema)) for f in schema.fields)
    schema = dataclasses.replace(schema, items=items, fields=fields)
    if schema.kind == "optional" and items[0].kind == "optional":
        return items[0]
    if schema.kind != "union":
        return schema
    bare = [item.items[0] if item.kind == "optional" else item for item in items]
    flat = [part for item in bare for part in (item.items if item.kind == "union" else (item,))]
    members = tuple(dict.fromkeys(flat))
    union = members[0] if len(members) == 1 else Schema("union", members)
    return Schema("optional", (union,)) if bare != list(items) else union


schemas = st.recursive(_LEAVES, _inside, max_leaves=5).map(normal)


# ------------------------------------------------------------------------------ changing types


def changed(schema: Schema) -> st.SearchStrategy[Schema]:
    """The type after one change somewhere in it, be it a good one or not."""
    return _changed(schema).map(normal)


@st.composite
def _changed(draw: st.DrawFn, schema: Schema) -> Schema:
    parts = len(schema.items) + len(schema.fields)
    if parts and draw(st.integers(0, 3)):
        at = draw(st.integers(0, parts - 1))
        if at < len(schema.items):
            items = list(schema.items)
            items[at] = draw(_changed(items[at]))
            return dataclasses.replace(schema, items=tuple(items))
        fields = list(schema.fields)
        field = fields[at - len(schema.items)]
        new = dataclasses.replace(field, schema=draw(_changed(field.schema)))
        fields[at - len(schema.items)] = new
        return dataclasses.replace(schema, fields=tuple(fields))
    return draw(st.one_of([st.just(made) for made in _changes(draw, schema)]))


def _changes(draw: st.DrawFn, schema: Schema) -> list[Schema]:
    """What the type itself could become."""
    other = draw(schemas)
    found = [other, Schema("optional", (schema,)), Schema("union", (schema, other))]
    found += [Schema("union", (other, schema)), Schema("list", (schema,))]
    match schema.kind:
        case "int":
            found += [Schema("float")] * 4
        case "float":
            found.append(Schema("int"))
        case "optional":
            found.append(schema.items[0])
        case "union":
            found.append(dataclasses.replace(schema, items=schema.items[::-1]))
            found += [dataclasses.replace(schema, items=(*schema.items, other))] * 3
            found.append(dataclasses.replace(schema, items=schema.items[1:]))
        case "enum" | "literal":
            pool = COLORS if schema.kind == "enum" else LEVELS
            values = draw(st.lists(st.sampled_from(pool), min_size=1, unique_by=str))
            found.append(dataclasses.replace(schema, values=tuple(values)))
            more = [value for value in pool if value[0] not in dict(schema.values)]
            found.append(dataclasses.replace(schema, values=(*schema.values, *more)))
        case "struct":
            found += _changed_structs(draw, schema, other) * 2
    return found


def _changed_structs(draw: st.DrawFn, schema: Schema, other: Schema) -> list[Schema]:
    flavour = draw(st.sampled_from(FLAVOURS))
    fields = tuple(field_of(f.name, f.schema, flavour, f.required) for f in schema.fields)
    name = draw(st.sampled_from([n for n in "uvwxyz" if n not in {f.name for f in fields}]))
    required = draw(st.integers(0, 3)) == 0
    added = field_of(name, other, schema.flavour, required)
    return [
        settled(dataclasses.replace(schema, fields=fields, flavour=flavour)),
        settled(dataclasses.replace(schema, fields=(*schema.fields, added))),
        settled(dataclasses.replace(schema, fields=schema.fields[::-1])),
        dataclasses.replace(schema, fields=schema.fields[1:]),
        dataclasses.replace(schema, name=draw(st.sampled_from("ABC"))),
    ]


# -------------------------------------------------------------------------------- making types


class Declared:
    """A schema as Python types.

    Attributes:
        annotation: the type.
        classes: the class of each struct and enum in it.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.classes: dict[Schema, Any] = {}
        self.annotation = self._annotation(schema)

    def _annotation(self, schema: Schema) -> Any:
        inner = [self._annotation(item) for item in schema.items]
        match schema.kind:
            case "list":
                return list[inner[0]]  # type: ignore[valid-type]
            case "frozenset":
                return frozenset[inner[0]]  # type: ignore[valid-type]
            case "dict":
                return dict[inner[0], inner[1]]  # type: ignore[valid-type]
            case "tuple":
                return tuple[tuple(inner)]  # type: ignore[misc]
            case "variadic":
                return tuple[inner[0], ...]  # type: ignore[valid-type]
            case "optional":
                return typing.Optional[inner[0]]  # noqa: UP045  built at run time
            case "union":
                return typing.Union[tuple(inner)]  # noqa: UP007  built at run time
            case "literal":
                return Literal[tuple(value for _, value in schema.values)]
            case "enum" | "struct":
                if schema not in self.classes:
                    make = _enum if schema.kind == "enum" else self._struct
                    self.classes[schema] = make(schema)
                return self.classes[schema]
        return _PYTHON[schema.kind]

    def _struct(self, schema: Schema) -> Any:
        types = {field.name: self._annotation(field.schema) for field in schema.fields}
        defaults = {f.name: self.default(f.schema) for f in schema.fields if f.default}
        if schema.flavour == "typeddict":
            required = {field.name for field in schema.fields if field.required}
            return _typeddict(schema.name, types, required)
        make: dict[str, Callable[..., Any]] = {
            "dataclass": _dataclass,
            "namedtuple": _namedtuple,
            "msgspec": _struct_class,
            "pydantic": _model,
        }
        return make[schema.flavour](schema.name, types, defaults)

    def default(self, schema: Schema) -> Any:
        """A value that tests know to be the default of fields of that type."""
        match schema.kind:
            case "optional":
                return None
            case "list":
                return []
            case "dict":
                return {}
            case "variadic":
                return ()
            case "frozenset":
                return frozenset()
            case "tuple":
                return tuple(map(self.default, schema.items))
            case "union":
                return self.default(schema.items[0])
            case "literal":
                return schema.values[0][1]
            case "enum":
                return next(iter(self._annotation(schema)))
            case "struct":
                fields = {f.name: self.default(f.schema) for f in schema.fields if f.required}
                return self._annotation(schema)(**fields)
        return _DEFAULTS[schema.kind]


def _enum(schema: Schema) -> Any:
    return enum.Enum(schema.name, dict(schema.values))


def _itself(value: Any) -> Any:
    return value


def _dataclass(name: str, types: dict[str, Any], defaults: dict[str, Any]) -> Any:
    fields: list[Any] = []
    for field, annotation in types.items():
        if field in defaults:
            held = dataclasses.field(default_factory=partial(_itself, defaults[field]))
            fields.append((field, annotation, held))
        else:
            fields.append((field, annotation))
    return dataclasses.make_dataclass(name, fields)


def _namedtuple(name: str, types: dict[str, Any], defaults: dict[str, Any]) -> Any:
    made: Any = NamedTuple(name, list(types.items()))  # type: ignore[misc]
    made.__new__.__defaults__ = tuple(defaults.values())
    made._field_defaults = defaults
    return made


def _typeddict(name: str, types: dict[str, Any], required: set[str]) -> Any:
    held = {n: t if n in required else NotRequired[t] for n, t in types.items()}
    return TypedDict(name, held)  # type: ignore[operator]


def _struct_class(name: str, types: dict[str, Any], defaults: dict[str, Any]) -> Any:
    fields: list[Any] = []
    for field, annotation in types.items():
        if field in defaults:
            held = msgspec.field(default_factory=partial(_itself, defaults[field]))
            fields.append((field, annotation, held))
        else:
            fields.append((field, annotation))
    return msgspec.defstruct(name, fields)


def _model(name: str, types: dict[str, Any], defaults: dict[str, Any]) -> Any:
    given: dict[str, Any] = {
        field: (annotation, defaults.get(field, ...)) for field, annotation in types.items()
    }
    allowed = pydantic.ConfigDict(arbitrary_types_allowed=True)  # of msgspec
    return pydantic.create_model(name, __config__=allowed, **given)


# ------------------------------------------------------------------------------- drawing values


def values(declared: Declared, schema: Schema | None = None) -> st.SearchStrategy[Any]:
    """Values of the type."""
    schema = declared.schema if schema is None else schema
    inner = [values(declared, item) for item in schema.items]
    match schema.kind:
        case "list":
            return st.lists(inner[0], max_size=2)
        case "variadic":
            return st.lists(inner[0], max_size=2).map(tuple)
        case "frozenset":
            return st.frozensets(inner[0], max_size=2)
        case "dict":
            return st.dictionaries(inner[0], inner[1], max_size=2)
        case "tuple":
            return st.tuples(*inner)
        case "optional":
            return st.none() | inner[0]
        case "union":
            return st.one_of(inner)
        case "literal":
            return st.sampled_from([value for _, value in schema.values])
        case "enum":
            return st.sampled_from(list(declared.classes[schema]))
        case "struct":
            return _structs(declared, schema)
    return {
        "bool": st.booleans(),
        "int": st.integers(-(2**53), 2**53),
        "float": st.floats(allow_nan=False),
        "str": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
    }[schema.kind]


def _structs(declared: Declared, schema: Schema) -> st.SearchStrategy[Any]:
    given = {field.name: values(declared, field.schema) for field in schema.fields}
    optional = {f.name for f in schema.fields if schema.flavour == "typeddict" and not f.required}
    sure = {name: held for name, held in given.items() if name not in optional}
    maybe = {name: given[name] for name in optional}
    cls = declared.classes[schema]
    make = getattr(cls, "model_construct", cls)  # without a validation that changes values
    return st.fixed_dictionaries(sure, optional=maybe).map(lambda found: make(**found))


# -------------------------------------------------------------------------------- what to expect


class Misread(Exception):
    """Nobody could say what the value should be."""


def expected(old: Declared, new: Declared, value: Any) -> Any:
    """What a value of the old type should be as one of the new type, in the form of `plain`."""
    return _expected(old, new, old.schema, new.schema, value)


def _expected(old: Declared, new: Declared, stored: Schema, declared: Schema, value: Any) -> Any:
    if declared.kind == "optional":
        if value is None and stored.kind == "optional":
            return None
        return _expected(old, new, stored, declared.items[0], value)
    if stored.kind == "optional":
        return _expected(old, new, stored.items[0], declared, value)
    if stored.kind == "union":
        return _expected(old, new, _member(old, stored, value), declared, value)
    if declared.kind == "union":
        return _expected(old, new, stored, _heir(stored, declared), value)
    if (stored.kind, declared.kind) == ("int", "float"):
        return float(value)
    if stored.kind != declared.kind:
        raise Misread
    pairs = list(zip(stored.items, declared.items, strict=True))
    match stored.kind:
        case "list" | "variadic":
            made = [_expected(old, new, *pairs[0], part) for part in value]
            return made if stored.kind == "list" else tuple(made)
        case "tuple":
            return tuple(
                _expected(old, new, *p, part) for p, part in zip(pairs, value, strict=True)
            )
        case "dict":
            return {k: _expected(old, new, *pairs[1], part) for k, part in value.items()}
        case "enum":
            return ("member", value.name)
        case "struct":
            return _expected_struct(old, new, stored, declared, value)
    return value


def _expected_struct(
    old: Declared, new: Declared, stored: Schema, declared: Schema, value: Any
) -> Any:
    before = {field.name: field.schema for field in stored.fields}
    held = value if isinstance(value, dict) else {n: getattr(value, n) for n in before}
    made = {}
    for field in declared.fields:
        if field.name in held:
            part = held[field.name]
            made[field.name] = _expected(old, new, before[field.name], field.schema, part)
        elif field.default:
            made[field.name] = plain(new.default(field.schema))
    return made if declared.flavour == "typeddict" else (declared.name, made)


def _member(old: Declared, union: Schema, value: Any) -> Schema:
    """The member that a value was meant as."""
    found = [member for member in union.items if _is_meant(old, member, value)]
    if len(found) != 1:
        reject()  # a dict may be a TypedDict, and an empty list one of anything
    return found[0]


def _is_meant(old: Declared, member: Schema, value: Any) -> bool:
    if member.kind == "literal":
        return any(type(value) is type(held) and value == held for _, held in member.values)
    if member.kind == "enum" or (member.kind == "struct" and member.flavour != "typeddict"):
        return type(value) is old.classes[member]
    kind = {"variadic": "tuple", "struct": "dict"}.get(member.kind, member.kind)
    return kind == type(value).__name__


def _heir(stored: Schema, union: Schema) -> Schema:
    """The member that stands for what was stored: of its name, else the only one of its kind."""
    named = [member for member in union.items if member.brief == stored.brief]
    alike = [member for member in union.items if member.kind == stored.kind]
    wider = [member for member in union.items if (stored.kind, member.kind) == ("int", "float")]
    for found in (named, alike, wider):
        if found:
            return found[0]
    raise Misread


def plain(value: Any) -> Any:
    """A value without classes: structs as their name and fields, enum members by name."""
    match value:
        case enum.Enum():
            return ("member", value.name)
        case list():
            return [plain(part) for part in value]
        case dict():
            return {key: plain(part) for key, part in value.items()}
    cls: Any = type(value)
    fields = getattr(cls, "__struct_fields__", getattr(cls, "_fields", None))
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, pydantic.BaseModel):
        fields = cls.model_fields
    if fields is not None:
        return (cls.__name__, {name: plain(getattr(value, name)) for name in fields})
    return tuple(map(plain, value)) if isinstance(value, tuple) else value
