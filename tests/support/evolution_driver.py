"""One job whose states change their types from run to run, and what they should hold.

Every type holds a whole number, in its own way, so that whatever the way that a value went, what
it should be is known from the number alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import statekit as sk

__all__ = ["TYPES", "Act", "Kind", "evolving", "meant", "number_of"]

Kind = Literal["int", "float", "text", "money", "noted"]


@dataclasses.dataclass
class Money:
    cents: int


@dataclasses.dataclass
class Noted:
    cents: int
    note: str = "none"


TYPES: dict[Kind, Any] = {"int": int, "float": float, "text": str, "money": Money, "noted": Noted}


class Act(NamedTuple):
    """What a record does at its key."""

    key: str
    what: Literal["set", "append", "put", "add", "clear", "nothing"]
    number: int = 0


def meant(kind: Kind, number: int) -> Any:
    """A number as a value of that kind."""
    return TYPES[kind](number)


def number_of(value: Any) -> int:
    """The number in a value of any kind, or in what a reader without classes shows of it."""
    if isinstance(value, Money | Noted):
        return value.cents
    return int(value["cents"] if isinstance(value, dict) else value)


def _hook(old: Kind, new: Kind) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return meant(new, number_of(value))

    convert.__name__ = f"{new}_of_{old}"
    convert.__annotations__ = {"value": TYPES[old]}
    return convert


def evolving(kind: Kind, *, ttl: bool = False, hooks: bool = True) -> sk.Process[Any, Any, Any]:
    """The job's function with all its states of that kind, and hooks from all kinds."""

    def evolve(act: Act, held: Any, listed: Any, mapped: Any, most: Any) -> Iterator[str]:
        value = meant(kind, act.number)
        match act.what:
            case "set":
                held.update(value)
            case "append":
                listed.append(value)
            case "put":
                mapped[str(act.number % 3)] = value
            case "add":
                most.add(value)
            case "clear":
                for state in (held, listed, mapped, most):
                    state.clear()
        yield act.key

    expires = [sk.TTL("1000 days")] if ttl else []
    of: Any = TYPES[kind]
    larger = sk.Reduce(lambda a, b: a if number_of(a) >= number_of(b) else b)
    states: dict[str, Any] = {
        "held": sk.ValueState[of],
        "listed": sk.ListState[of],
        "mapped": sk.MapState[str, of],
        "most": Annotated[sk.ReducingState[of], larger],
    }
    evolve.__annotations__ |= {
        name: Annotated[(state, *expires)] if expires else state for name, state in states.items()
    }
    # "noted" reads "money", and "float" reads "int": those need no hook of their own.
    sources: tuple[Kind, ...] = ("int", "float", "text", "noted")
    migrate = {name: [_hook(old, kind) for old in sources] for name in states} if hooks else {}
    if kind == "float":
        migrate = {name: given[1:] for name, given in migrate.items()}
    return sk.process(key="key", migrate=migrate)(evolve)
