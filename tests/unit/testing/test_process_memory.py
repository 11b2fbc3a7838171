"""A simulated crash loses what the functions of the user keep in the memory of the process."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import random
import sqlite3
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import statekit as sk
from statekit.functions.process import Process
from statekit.testing import Harness, check
from statekit.testing.drivers.process_memory import ProcessMemory
from tests.support import forgetful
from tests.support.forgetful import counted


class Order(NamedTuple):
    customer: str
    cents: int


number = 0
first_used: int
SEEN: dict[str, int] = {}
BY_KEY: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
IN_ORDER: collections.OrderedDict[int, int] = collections.OrderedDict()
COUNTED: collections.Counter[str] = collections.Counter()
LISTED: list[int] = []
MEMBERS: set[int] = set()
RECENT: collections.deque[int] = collections.deque(maxlen=100)
DATA = bytearray()
NESTED: tuple[dict[str, list[int]], ...] = ({"a": []},)
LOCAL = threading.local()
SPACE = types.SimpleNamespace(calls=0)
CALLS: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)
CHANCE = random.Random(1)


def rebound() -> int:
    global number
    number += 1
    return number


def added_global() -> int:
    global first_used
    try:
        first_used += 1
    except NameError:
        first_used = 1
    return first_used


def in_dict() -> int:
    SEEN["orders"] = SEEN.get("orders", 0) + 1
    return SEEN["orders"]


def in_default_dict() -> int:
    BY_KEY["a"].append(1)
    return len(BY_KEY["a"])


def in_ordered_dict() -> int:
    IN_ORDER[len(IN_ORDER)] = 1
    return len(IN_ORDER)


def in_counter() -> int:
    COUNTED.update(["a"])
    return COUNTED["a"]


def in_list() -> int:
    LISTED.append(1)
    return len(LISTED)


def in_set() -> int:
    MEMBERS.add(len(MEMBERS))
    return len(MEMBERS)


def in_deque() -> int:
    RECENT.append(1)
    return len(RECENT)


def in_bytes() -> int:
    DATA.append(1)
    return len(DATA)


def nested() -> int:
    NESTED[0]["a"].append(1)
    return len(NESTED[0]["a"])


def in_thread() -> int:
    LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
    return int(LOCAL.calls)


def in_namespace() -> int:
    SPACE.calls += 1
    return int(SPACE.calls)


def in_context() -> int:
    CALLS.set(CALLS.get() + 1)
    return CALLS.get()


def drawn() -> int:
    return CHANCE.randrange(10**9)


class Cache:
    calls = 0
    kept: dict[str, int] = {}  # noqa: RUF012 - the fault

    def __init__(self) -> None:
        self.own = 0

    @classmethod
    def of_class(cls) -> int:
        cls.calls += 1
        return cls.calls

    @staticmethod
    def in_class() -> int:
        Cache.kept["a"] = Cache.kept.get("a", 0) + 1
        return Cache.kept["a"]

    def of_instance(self) -> int:
        self.own += 1
        return self.own

    def new_attribute(self) -> int:
        type(self).added = getattr(self, "added", 0) + 1  # type: ignore[attr-defined]
        return int(type(self).added)  # type: ignore[attr-defined]


class Slotted:
    __slots__ = ("calls",)

    def __call__(self) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


@dataclass
class Data:
    calls: list[int] = field(default_factory=list)


class Struct(msgspec.Struct):
    calls: int = 0


class Model(pydantic.BaseModel):
    calls: int = 0


INSTANCE, SLOTTED, DATACLASS, STRUCT, MODEL = Cache(), Slotted(), Data(), Struct(), Model()


def in_dataclass() -> int:
    DATACLASS.calls.append(1)
    return len(DATACLASS.calls)


def in_struct() -> int:
    STRUCT.calls += 1
    return STRUCT.calls


def in_model() -> int:
    MODEL.calls += 1
    return MODEL.calls


def closed_over() -> Callable[[], int]:
    calls, kept = 0, list[int]()

    def called() -> int:
        nonlocal calls
        calls += 1
        kept.append(calls)
        return calls + len(kept)

    return called


def with_default(kept: list[int] = [], *, more: dict[str, int] = {}) -> int:  # noqa: B006
    kept.append(1)
    more[str(len(more))] = 1
    return len(kept) + len(more)


def with_attribute() -> int:
    with_attribute.calls = getattr(with_attribute, "calls", 0) + 1  # type: ignore[attr-defined]
    return int(with_attribute.calls)  # type: ignore[attr-defined]


@functools.lru_cache
def remembered(key: str) -> int:
    return next(NUMBERS)


@functools.cache
def kept_list(key: str) -> list[int]:
    return []


def in_cached() -> int:
    kept_list("a").append(1)
    return len(kept_list("a"))


def memoised(function: Callable[[], int]) -> Callable[[], int]:
    calls: list[int] = []

    @functools.wraps(function)
    def wrapper() -> int:
        calls.append(function())
        return len(calls)

    return wrapper


@memoised
def decorated() -> int:
    return 1


def of_module() -> int:
    forgetful.CALLS.append(1)
    forgetful.count += 1
    return len(forgetful.CALLS) + forgetful.count


NUMBERS = itertools.count()

KEEPING: list[Callable[[], int]] = [
    *(rebound, added_global, in_dict, in_default_dict, in_ordered_dict, in_counter, in_list),
    *(in_set, in_deque, in_bytes, nested, in_thread, in_namespace, in_context, drawn),
    *(Cache.of_class, Cache.in_class, INSTANCE.of_instance, INSTANCE.new_attribute, SLOTTED),
    *(in_dataclass, in_struct, in_model, closed_over(), with_default, with_attribute, in_cached),
    *(decorated, functools.partial(with_default, more={}), of_module, counted),
]


def calling(keeps: Callable[[], int]) -> Process[Any, Any, Any]:
    @sk.process(key="customer")
    def called(order: Order) -> Iterator[int]:
        yield keeps()

    return called


@pytest.mark.parametrize("keeps", KEEPING, ids=lambda keeps: getattr(keeps, "__name__", None))
def test_a_crash_loses_what_is_kept_outside_of_states(keeps: Callable[[], int]) -> None:
    harness = Harness(calling(keeps))
    (one,), (other,) = harness.send(Order("ada", 1)), harness.send(Order("ada", 1))
    assert one != other
    harness.crash()
    assert harness.send(Order("ada", 1), Order("ada", 1)) == [one, other]
    harness.rescale(2)
    assert harness.send(Order("ada", 1)) == [one]


def test_what_was_there_before_the_harness_stays() -> None:
    SEEN["orders"] = 5
    harness = Harness(calling(in_dict))
    assert harness.send(Order("ada", 1)) == [6]
    harness.crash()
    assert SEEN == {"orders": 5}
    SEEN.clear()


def test_names_that_functions_do_not_bind_stay() -> None:
    """A test may define names, and replace functions, after it has made a harness."""
    memory = ProcessMemory([calling(in_dict)])
    globals()["in_list"], before = in_set, in_list
    try:
        memory.restore()
        assert in_list is in_set
    finally:
        globals()["in_list"] = before


def test_large_containers_are_compared_by_size() -> None:
    kept = dict.fromkeys(range(20_000), 0)

    def changes() -> int:
        kept[len(kept)] = 1
        return len(kept)

    memory = ProcessMemory([calling(changes)])
    changes()
    memory.restore()
    assert len(kept) == 20_000


def in_sqlite() -> int:
    (found,) = CONNECTION.execute("insert into calls values (1) returning rowid").fetchone()
    return int(found)


CONNECTION = sqlite3.connect(":memory:", check_same_thread=False)
CONNECTION.execute("create table calls (number int)")
GENERATED = (each for each in range(10**6))


@sk.process(key="customer")
def from_iterator(order: Order) -> Iterator[int]:
    yield next(NUMBERS)


def generated() -> int:
    return next(GENERATED)


@sk.process(key="customer")
def from_generator(order: Order) -> Iterator[int]:
    yield generated()


@sk.process(key="customer")
def from_extension(order: Order) -> Iterator[int]:
    yield in_sqlite()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "name"),
    [(from_iterator, "processes"), (from_generator, "restarts"), (from_extension, "restarts")],
    ids=["iterator", "generator", "extension"],
)
def test_what_python_cannot_look_into_is_lost_in_new_processes(
    given: Process[Any, Any, Any], name: str
) -> None:
    with pytest.raises(AssertionError, match=f"'{name}' does not hold") as caught:
        check(given, holds=[name], depth="quick")
    assert str(caught.value).count("Order(") == 2, "each process begins with the same record"


REGISTERED: list[str] = []


def register() -> None:
    """Create a table once in each process, which is right: it is not set back, and the list is."""
    if not REGISTERED:
        CONNECTION.execute("create table metrics (number int)")
        REGISTERED.append("metrics")


@sk.process(key="customer")
def metered(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    register()
    total.update((total.get() or 0) + order.cents)
    yield total.get() or 0


def test_what_is_set_back_only_in_part_causes_no_false_alarm() -> None:
    report = check(metered, holds=["errors", "restarts"], depth="quick")
    found = {each.name: each.only_here for each in report.properties}
    assert "table metrics already exists" in (found["errors"] or "")
    assert found["restarts"] is None
    assert "fails in this process and not in new ones" in str(report)
