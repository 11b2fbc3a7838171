"""The stored part of an instance of a class with fields: the values of the fields, and nothing
else.

A class whose instances always hold more is refused when it is declared. An instance that holds more
is refused when it is written. A row is read by setting each field to its value.
docs/guide/records.md describes the rule for users.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from statekit.codec.annotations import (
    class_hints,
    is_immutable,
    members_within,
    struct_fields,
    struct_flavour,
)
from statekit.errors import StateTypeError

Restore = Callable[[dict[str, Any]], Any]
"""Returns an instance with these field values. A missing field gets its default."""

_HEAP_TYPE = 1 << 9  # the flag of classes that Python code defines


def check_class(cls: Any) -> None:
    """Check that the fields of a class can be the complete content of its instances.

    Raises:
        StateTypeError: they cannot; the message says what to do.
    """
    flavour = struct_flavour(cls)
    config = cls.model_config if flavour == "pydantic" else getattr(cls, "__pydantic_config__", {})
    if config.get("extra") == "allow":
        raise StateTypeError(
            f'{cls.__name__} allows extra fields, which have no type: set extra="ignore"'
            " or add a field of type dict[str, str]"
        )
    if flavour == "pydantic" and cls.__private_attributes__:
        names = ", ".join(cls.__private_attributes__)
        raise StateTypeError(
            f"{cls.__name__} has the private attributes {names}, which no row keeps: make them "
            "fields (with Field(exclude=True), if dumps must not have them), or compute them in "
            "a property or functools.cached_property"
        )
    for field in struct_fields(cls):
        if _has_type_variable(field.annotation):
            raise StateTypeError(
                f"{cls.__name__}.{field.name} is of the type variable of a generic class: derive a "
                "class with types from it, as in class IntBox(Box[int])"
            )
    if flavour == "dataclass":
        _check_dataclass(cls)


def _has_type_variable(annotation: Any) -> bool:
    """Return whether an annotation is or contains a type variable, as `list[T]` does."""
    has_types = typing.get_origin(annotation) is not None
    open_types = getattr(annotation, "__parameters__", ()) if has_types else ()
    return isinstance(annotation, typing.TypeVar) or bool(open_types)


def _check_dataclass(cls: Any) -> None:
    for name, hint in class_hints(cls).items():
        if isinstance(hint, dataclasses.InitVar):
            raise StateTypeError(
                f"{cls.__name__}.{name} is an InitVar, which is not kept: use a field"
            )
    base = cls
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    if base is not object:
        raise StateTypeError(
            f"{cls.__name__} is a {base.__name__} too, and no row keeps that part of it: use a "
            f"dataclass of its own, with a field for the {base.__name__}"
        )


# ------------------------------------------------------------------ beside the fields


def only_fields(cls: Any) -> Callable[[Any], bool] | None:
    """Return a check that an instance of a class contains only its fields; None if every instance
    does.

    >>> @dataclasses.dataclass
    ... class Click:
    ...     user: str
    >>> check, click = only_fields(Click), Click("ann")
    >>> check(click)
    True
    >>> click.page = "/"
    >>> check(click)
    False
    """
    has_slots = any(name not in _field_names(cls) for name in slot_names(cls))
    if struct_flavour(cls) == "typeddict" or not (cls.__dictoffset__ or has_slots):
        return None
    names = _field_names(cls)

    def check(value: Any) -> bool:
        if not has_slots and names.issuperset(value.__dict__):
            return True
        return not beside_fields(cls, value)

    return check


def all_only_fields(cls: Any) -> Callable[[Collection[Any]], bool] | None:
    """Return a check that all instances contain only their fields; None if every instance does."""
    check = only_fields(cls)
    if check is None:
        return None
    count = _attribute_count(cls)

    def check_all(values: Collection[Any]) -> bool:
        return set(map(len, map(vars, values))) <= {count} or all(map(check, values))

    return (lambda values: all(map(check, values))) if count is None else check_all


def quick_condition(cls: Any) -> str:
    """Return a condition on `value`, as source text, that implies `only_fields`."""
    count = _attribute_count(cls)
    return "False" if count is None else f"len(value.__dict__) == {count}"


def _attribute_count(cls: Any) -> int | None:
    """Return the number of attributes of an instance that contains only its fields; None if the
    number alone proves nothing.
    """
    names, slots = _field_names(cls), set(slot_names(cls))
    if struct_flavour(cls) == "pydantic":
        return len(names)
    if not cls.__dictoffset__ or not slots <= names:
        return None
    if struct_flavour(cls) != "dataclass":
        return 0
    fields = [field for field in dataclasses.fields(cls) if field.name not in slots]
    is_set = (field.init or field.default is dataclasses.MISSING for field in fields)
    return len(fields) if all(is_set) else None  # a default may be an attribute of the class


def beside_fields(cls: Any, value: Any) -> dict[str, Any]:
    """Return the attributes of an instance that are no fields, by name. No row stores them.

    Values of `functools.cached_property` are not among them: they are computed again. Nor are
    attributes that reading makes again from the fields, by `__post_init__` or a descriptor.

    Parameters:
        cls: whose fields the row has.
        value: an instance of the class, or of a subclass.
    """
    names, own = _field_names(cls), type(value)
    held = {name: getattr(value, name) for name in slot_names(own) if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    beside = {
        name: item for name, item in held.items() if name not in names and not _is_cached(own, name)
    }
    return _not_made_again(cls, value, beside) if beside else beside


def _not_made_again(cls: Any, value: Any, beside: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that another instance with the same fields would not have."""
    try:
        fields = {name: getattr(value, name) for name in _field_names(cls)}
        made = vars(restorer(cls)(copy.deepcopy(fields)))
        return {
            name: item for name, item in beside.items() if name not in made or made[name] != item
        }
    except Exception:  # noqa: BLE001  of the user's class: it does not make them again
        return beside


def why_beside(cls: Any, value: Any) -> str:
    """Return the reason why an instance with attributes other than its fields is refused; empty if
    it has none.
    """
    names = ", ".join(map(repr, beside_fields(cls, value)))
    return names and (
        f"it has {names} beside the fields of {cls.__name__}, and rows keep fields only: declare "
        "a field for it, or compute it in a property or functools.cached_property"
    )


@functools.cache
def _field_names(cls: Any) -> frozenset[str]:
    return frozenset(field.name for field in struct_fields(cls))


def slot_names(cls: Any) -> Iterator[str]:
    """Yield the names of the slots of a class and its bases."""
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                yield f"_{base.__name__.lstrip('_')}{name}"
            elif not name.startswith("__"):
                yield name


def _is_cached(cls: Any, name: str) -> bool:
    bases = (vars(base) for base in cls.__mro__)
    return any(isinstance(of.get(name), functools.cached_property) for of in bases)


# ------------------------------------------------------------------ from rows to instances


def runs_code(cls: Any) -> bool:
    """Return whether reading an instance calls a method of its class."""
    match struct_flavour(cls):
        case "pydantic":
            return cls.__pydantic_post_init__ is not None
        case "dataclass" | "msgspec":
            return hasattr(cls, "__post_init__")
    return False


def only_stores(cls: Any) -> bool:
    """Return whether the constructor of a class sets each field to the given value and has no other
    effect.

    >>> only_stores(dataclasses.make_dataclass("Click", ["user"]))
    True
    """
    match struct_flavour(cls):
        case "typeddict":
            return True
        case "msgspec":
            return not runs_code(cls)
        case "namedtuple":
            # The constructor that `collections.namedtuple` makes only calls this.
            is_made = getattr(_code(cls.__new__), "co_names", None) == ("_tuple_new",)
            return is_made and cls.__init__ is object.__init__ and type(cls) is type
        case "dataclass":
            return (
                not runs_code(cls)
                and getattr(_code(cls.__init__), "co_qualname", "").startswith("__create_fn__")
                and cls.__new__ is object.__new__
                and (cls.__setattr__ is object.__setattr__ or cls.__dataclass_params__.frozen)
                and type(cls).__call__ is type.__call__
            )
    return False


def _code(method: Any) -> Any:
    return getattr(method, "__code__", None)


def is_restored(cls: Any) -> Callable[[Any], bool] | None:
    """Return a check that an instance equals its restored form; None if every instance does.

    A pydantic model knows which of its fields were set. All are set in one that was restored.
    """
    if struct_flavour(cls) != "pydantic":
        return None
    size = len(cls.model_fields)
    return lambda model: len(model.__pydantic_fields_set__) == size


def holds_models(annotation: Any) -> bool:
    """Return whether values of an annotation can be, or contain, pydantic models."""
    return "pydantic" in map(struct_flavour, members_within(annotation))


def as_restored(value: Any) -> Any:
    """Return a value in which all fields of pydantic models count as set, like those of restored
    models.

    The value itself stays as it is: a default of a class may be shared.

    >>> import pydantic
    >>> class Click(pydantic.BaseModel):
    ...     user: str
    ...     page: str = ""
    >>> sorted(as_restored([Click(user="ann")])[0].model_fields_set)
    ['page', 'user']
    """
    cls, flavour = type(value), struct_flavour(type(value))
    if cls in (list, tuple, set, frozenset):
        return cls(map(as_restored, value))
    if cls is dict:
        return {as_restored(key): as_restored(item) for key, item in value.items()}
    if flavour == "namedtuple":
        return tuple.__new__(cls, map(as_restored, value))
    if flavour is None:
        return value
    own = copy.copy(value)
    assign = msgspec.structs.force_setattr if flavour == "msgspec" else _set
    for field in struct_fields(cls):
        assign(own, field.name, as_restored(getattr(value, field.name)))
    if flavour == "pydantic":
        _set(own, "__pydantic_fields_set__", set(cls.model_fields))
    return own


def restorer(cls: Any) -> Restore:
    """Return a function that creates an instance from the values of its fields.

    Neither the constructor nor validators are called. `__post_init__` and `model_post_init` are,
    since they may make attributes beside the fields, or fields that a row does not have yet. The
    fields of the row then have its values again, whatever the method has changed.

    >>> @dataclasses.dataclass
    ... class Counted:
    ...     times: int
    ...     def __post_init__(self) -> None:
    ...         self.times += 1
    >>> restorer(Counted)({"times": 1})
    Counted(times=1)
    """
    make: Restore
    assign: Callable[[Any, str, Any], None] = object.__setattr__
    match struct_flavour(cls):
        case "typeddict":
            return lambda values: values
        case "namedtuple":
            return _tuple_maker(cls)
        case "pydantic":
            make = _model_maker(cls)
        case "msgspec":
            make, assign = (lambda values: cls(**values)), msgspec.structs.force_setattr
        case _:
            make = _dataclass_maker(cls)
    if not runs_code(cls):
        return make
    is_mutable = not all(is_immutable(field.annotation) for field in struct_fields(cls))

    def restore(values: dict[str, Any]) -> Any:
        instance = make(copy.deepcopy(values) if is_mutable else values)
        for name, value in values.items():
            assign(instance, name, value)
        return instance

    return restore


_set = object.__setattr__


def _tuple_maker(cls: Any) -> Restore:
    names, defaults = cls._fields, cls._field_defaults
    make = functools.partial(tuple.__new__, cls)
    return lambda values: make([values[n] if n in values else defaults[n] for n in names])


def _dataclass_maker(cls: Any) -> Restore:
    fields = dataclasses.fields(cls)
    post_init = getattr(cls, "__post_init__", None)

    def make(values: dict[str, Any]) -> Any:
        instance = object.__new__(cls)
        for field in fields:
            if field.name in values:
                _set(instance, field.name, values[field.name])
            elif field.default_factory is not dataclasses.MISSING:
                _set(instance, field.name, field.default_factory())
            elif field.default is not dataclasses.MISSING:
                _set(instance, field.name, field.default)
        if post_init is not None:
            post_init(instance)
        return instance

    return make


def _model_maker(cls: Any) -> Restore:
    """Return a function like `model_construct` that skips the search for aliases if no field is
    missing.

    All fields of the model count as set: which were given when it was made is not in its values.
    """
    size, has_post_init = len(cls.model_fields), runs_code(cls)

    def make(values: dict[str, Any]) -> Any:
        if len(values) < size:
            model = cls.model_construct(**values)
            _set(model, "__pydantic_fields_set__", set(cls.model_fields))
            return model
        model = cls.__new__(cls)
        _set(model, "__dict__", dict(values))
        _set(model, "__pydantic_fields_set__", set(values))
        _set(model, "__pydantic_extra__", None)
        _set(model, "__pydantic_private__", None)
        if has_post_init:
            model.model_post_init(None)
        return model

    return make
