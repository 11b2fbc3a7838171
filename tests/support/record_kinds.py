"""Kinds of record classes, each with an instance that its constructor alone would not make.

All have the fields `user`, `at` and `score`. A test compares what it reads with `content`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable
from types import GenericAlias
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import msgspec
import pydantic

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclasses.dataclass
class Plain:
    user: str
    at: dt.datetime
    score: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(slots=True)
class Slots:
    user: str
    at: dt.datetime
    score: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    user: str
    at: dt.datetime
    score: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    user: str
    at: dt.datetime
    score: int = dataclasses.field(init=False)


@dataclasses.dataclass(kw_only=True)
class KeywordOnly:
    score: int = dataclasses.field(default_factory=int, init=False)
    user: str
    at: dt.datetime


@dataclasses.dataclass
class Inherited(Plain):
    note: str = ""


@dataclasses.dataclass
class Filled:
    user: str
    at: dt.datetime
    score: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.score = len(self.user)


@dataclasses.dataclass
class Changing:
    user: str
    at: dt.datetime
    score: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.score += 1
        self.tags.append("made")


@dataclasses.dataclass
class Deriving:
    user: str
    at: dt.datetime
    score: int = 0

    def __post_init__(self) -> None:
        self.loud = self.user.upper()


@dataclasses.dataclass(init=False)
class OwnConstructor:
    user: str
    at: dt.datetime
    score: int

    def __init__(self, user: str, at: dt.datetime, score: int = 0) -> None:
        self.user, self.at, self.score = user + "!", at, score + 1


@dataclasses.dataclass
class Caching:
    user: str
    at: dt.datetime
    score: int = 0

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.score


class Tuple(NamedTuple):
    user: str
    at: dt.datetime
    score: int = 0


class OwnTuple(Tuple):
    def __new__(cls, user: str, at: dt.datetime, score: int = 0) -> OwnTuple:
        return super().__new__(cls, user + "!", at, score + 1)


class Struct(msgspec.Struct):
    user: str
    at: dt.datetime
    score: int = 0


class WithDict(msgspec.Struct, dict=True):
    user: str
    at: dt.datetime
    score: int = 0


class OnTheWire(
    msgspec.Struct, kw_only=True, tag="wire", rename="camel", omit_defaults=True, frozen=True
):
    score: int = 0
    user: str
    at: dt.datetime
    first_tag: str = "none"


class Array(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    user: str
    at: dt.datetime
    score: int = 0


class ChangingStruct(msgspec.Struct):
    user: str
    at: dt.datetime
    score: int = 0

    def __post_init__(self) -> None:
        self.score += 1


class Model(pydantic.BaseModel):
    user: str
    at: dt.datetime
    score: int = 0

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def doubled(self) -> int:
        return 2 * self.score


class Validating(pydantic.BaseModel):
    user: str
    at: dt.datetime
    score: int = 0

    @pydantic.field_validator("score")
    @classmethod
    def add(cls, score: int) -> int:
        return score + 1

    @pydantic.field_validator("user", mode="before")
    @classmethod
    def shout(cls, user: str) -> str:
        return user + "!"


class Aliased(pydantic.BaseModel):
    user: str
    at: dt.datetime
    score: int = pydantic.Field(0, alias="Score")
    other: int = pydantic.Field(0, validation_alias=pydantic.AliasChoices("one", "two"))


class PostInit(pydantic.BaseModel):
    user: str
    at: dt.datetime
    score: int = 0

    def model_post_init(self, _context: Any) -> None:
        self.score += 1


class FrozenModel(pydantic.BaseModel, frozen=True):
    user: str
    at: dt.datetime
    score: int = 0


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    user: str
    at: dt.datetime
    score: int = pydantic.Field(default=0, init=False)

    @pydantic.field_validator("user")
    @classmethod
    def shout(cls, user: str) -> str:
        return user + "!"


class Keys(TypedDict):
    user: str
    at: dt.datetime
    score: NotRequired[int]


KINDS: tuple[Any, ...] = (
    *(Plain, Slots, Frozen, FrozenSlots, KeywordOnly, Inherited, Filled, Changing, Deriving),
    *(OwnConstructor, Caching, Tuple, OwnTuple),
    *(Struct, WithDict, OnTheWire, Array, ChangingStruct),
    *(Model, Validating, Aliased, PostInit, FrozenModel, PydanticDataclass, Keys),
)

CONTAINERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda cls: cls, lambda one: one, lambda held: held),
    "optional": (lambda cls: cls | None, lambda one: one, lambda held: held),
    "list": (lambda cls: GenericAlias(list, (cls,)), lambda one: [one], lambda held: held[0]),
    "dict": (
        lambda cls: GenericAlias(dict, (str, cls)),
        lambda one: {"a": one},
        lambda held: held["a"],
    ),
    "tuple": (
        lambda cls: GenericAlias(tuple, (int, cls)),
        lambda one: (1, one),
        lambda held: held[1],
    ),
}
"""Types that contain a class: of the class, a value with an instance, and the instance of one."""


def made(cls: Any, user: str = "ann", score: int = 5) -> Any:
    """An instance with the score, which its constructor does not take or changes."""
    if cls is Keys:
        return {"user": user, "at": AT, "score": score}
    if issubclass(cls, Tuple):
        return tuple.__new__(cls, (user, AT, score))
    made = cls(user=user, at=AT)
    if isinstance(made, msgspec.Struct):
        msgspec.structs.force_setattr(made, "score", score)
    elif isinstance(made, pydantic.BaseModel):
        made.__dict__["score"] = score
    else:
        object.__setattr__(made, "score", score)
    if cls is Caching:
        made.doubled  # noqa: B018  computes it
    return made


def content(value: Any) -> dict[str, Any]:
    """The class of an instance, its fields, and what its class derives of them."""
    if isinstance(value, dict):
        return value
    names = (
        *("user", "at", "score", "note", "tags", "loud", "first_tag", "other"),
        *(("doubled",) if isinstance(value, Caching | Model) else ()),
    )
    shown: dict[str, Any] = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {"class": type(value), **shown}


# ------------------------------------------------------------------ instances that hold more


class NamedAndMore(NamedTuple):
    user: str
    at: dt.datetime
    score: int = 0


class MoreTuple(NamedAndMore):
    more: str


class _Hidden:
    __slots__ = ("more",)


@dataclasses.dataclass(slots=True)
class MoreSlots(_Hidden):
    user: str
    at: dt.datetime
    score: int = 0


@dataclasses.dataclass
class Longer(Plain):
    more: str = ""


class NotDeclared(Plain):  # its author forgot the decorator
    more: str = ""


HOLD_MORE: tuple[Any, ...] = (Plain, Frozen, Filled, Deriving, WithDict, MoreTuple, MoreSlots)
HOLD_MORE = (*HOLD_MORE, NotDeclared, Caching, OwnConstructor, PydanticDataclass)


def with_more(cls: Any) -> Any:
    """An instance with an attribute beside its fields."""
    one = cls(user="ann", at=AT)
    set_one = object.__setattr__ if cls is Frozen else setattr
    cast("Any", set_one)(one, "more", "kept?")
    return one
