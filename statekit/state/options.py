"""Options of a state, declared by the user inside `Annotated`."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, ClassVar, Generic, Literal, TypeVar

from statekit.checkpoint.job_file import Clock, TtlRecord
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


@declarable("Default")
@dataclass(frozen=True)
class Default:
    """The value of an absent `ValueState`: `Annotated[ValueState[int], Default(0)]`.

    Parameters:
        value: of the declared type. Each read gets a copy of it.
    """

    value: Any


@declarable("TTL")
@dataclass(frozen=True)
class TTL:
    """The lifetime of state: `Annotated[ValueState[int], TTL("30 days")]`.

    A value, each list element and each map entry expires on its own, once the clock reaches
    `written + duration`. An expired value is never read again, and is removed in small steps, epoch
    by epoch.

    Parameters:
        duration: more than 0; a timedelta or a text such as "30 days".
        clock: "processing" uses the processing time of the epoch. "event" uses the watermark of the
            operator, and in a timer's callback the time of the timer. A value is then written at
            the event time of its record or timer, or at the time of the previous write if that is
            later.
        refresh: with "write", each write restarts the time. With "read", each `get` and each
            element or entry that an iterator returns does so too. `exists`, `in` and `len` read
            nothing.
        downtime: whether the time counts during which the job does not run: from the last epoch of
            a run to the first epoch of the next run. Only for processing time.

    Raises:
        StateTypeError: an option is not valid.

    >>> TTL("1 minute", clock="event").record
    TtlRecord(duration_us=60000000, clock='event', refresh='write', downtime=True)
    """

    duration: dt.timedelta | str
    clock: Clock = "processing"
    refresh: Literal["write", "read"] = "write"
    downtime: bool = True

    def __post_init__(self) -> None:
        if self.clock not in ("processing", "event"):
            raise StateTypeError(f'TTL(clock={shown(self.clock)}): use "processing" or "event"')
        if self.refresh not in ("write", "read"):
            raise StateTypeError(f'TTL(refresh={shown(self.refresh)}): use "write" or "read"')
        if not isinstance(self.downtime, bool):
            raise StateTypeError(f"TTL(downtime={shown(self.downtime)}): use True or False")
        if self.clock == "event" and not self.downtime:
            raise StateTypeError(
                'TTL(clock="event", downtime=False): event time does not advance while the job '
                "does not run, so no downtime counts: leave out downtime="
            )
        if duration_to_micros(self.duration, "TTL(duration)") == 0:
            raise StateTypeError(
                f"TTL({shown(self.duration)}) would keep nothing: give a longer duration"
            )

    @property
    def record(self) -> TtlRecord:
        """The TTL in the form of the job file."""
        micros = duration_to_micros(self.duration, "TTL(duration)")
        return TtlRecord(
            duration_us=micros, clock=self.clock, refresh=self.refresh, downtime=self.downtime
        )


def ttl_fault(ttl: object) -> str | None:
    """Return why an option is no TTL; None for a TTL, or without one.

    >>> print(ttl_fault("30 days"))
    ttl='30 days': give a TTL, as in ttl=sk.TTL("30 days")
    """
    if ttl is None or isinstance(ttl, TTL):
        return None
    return f'ttl={shown(ttl)}: give a TTL, as in ttl=sk.TTL("30 days")'


# The built-in reducers by name: how they may also be given, and the function of two arguments.
# `min` and `max` return the first of equal values, which is the present one.
_REDUCERS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "sum": (sum, operator.add),
    "min": (min, min),
    "max": (max, max),
    "count": ("count", lambda current, added: current + 1),
}


_OF_PYTHON = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, type)


def _function_name(fn: object) -> str | None:
    """Return the name of a function of Python, such as `operator.mul`; None for any other function.

    A function of the user is not compared with a former one: its body may change under its name.
    """
    known = (name for name, of in _REDUCERS.items() if fn == name or fn in of)
    if (name := next(known, None)) is not None:
        return name
    if not isinstance(fn, _OF_PYTHON):
        return None
    module = str(getattr(fn, "__objclass__", fn).__module__).removeprefix("_")
    if module not in ("builtins", "operator", "math"):
        return None
    return fn.__qualname__ if module == "builtins" else f"{module}.{fn.__qualname__}"


@declarable("Reduce")
@dataclass(frozen=True)
class Reduce:
    """The combination of a `ReducingState` value with an added one.

    Parameters:
        fn: `fn(current, added) -> combined`; or one of the built-in reducers `sum`, `min`, `max`
            (the builtins, or their names) and `"count"`, which counts the added values.

    >>> Reduce(max).combine(2, 3), Reduce(sum).combine(2, 3), Reduce("count").combine(2, "x")
    (3, 5, 3)
    """

    fn: Callable[[Any, Any], Any] | Literal["sum", "min", "max", "count"]

    @property
    def known(self) -> str | None:
        """`sum`, `min`, `max` or `count` for a built-in reducer; otherwise None."""
        known = (name for name, (fn, _) in _REDUCERS.items() if self.fn is fn or self.fn == name)
        return next(known, None)

    @property
    def stored_name(self) -> str | None:
        """The name of the reducer in the checkpoint, such as "max" or "operator.mul"; None for a
        function of the user.
        """
        return _function_name(self.fn)

    @property
    def combine(self) -> Callable[[Any, Any], Any]:
        """The function of two arguments."""
        if self.known is not None:
            return _REDUCERS[self.known][1]
        if not callable(self.fn):
            raise StateTypeError(
                f"Reduce({shown(self.fn)}) is not a reducer: pass a function of two arguments, or "
                "one of sum, min, max, 'count'"
            )
        return self.fn


@declarable("Aggregate")
@dataclass(frozen=True)
class Aggregate(Generic[In, Acc, Out]):
    """The functions of an `AggregatingState`.

    Parameters:
        create: returns an empty accumulator.
        add: `add(accumulator, added) -> accumulator`.
        result: returns the result of `get` for an accumulator.
        merge: combines two accumulators; used when windows merge.

    Raises:
        StateTypeError: one of them is not a function.
    """

    create: Callable[[], Acc]
    add: Callable[[Acc, In], Acc]
    result: Callable[[Acc], Out]
    merge: Callable[[Acc, Acc], Acc] | None = None

    keeps_parts: ClassVar[bool] = False
    """Whether an accumulator has only parts of the accumulator before and of what was added."""

    def __post_init__(self) -> None:
        for name in ("create", "add", "result", "merge"):
            given = getattr(self, name)
            if not callable(given) and not (name == "merge" and given is None):
                raise StateTypeError(f"Aggregate({name}={shown(given)}): give a function")

    @property
    def stored_name(self) -> str | None:
        """The name of the function `add` in the checkpoint, such as "max" or "operator.mul"; None
        for a function of the user.
        """
        return _function_name(self.add)


Rule = Literal["even", "union", "broadcast", "hooks"]
"""The redistribution of operator state. "hooks" stands for functions of the user."""


@declarable("Redistribute")
@dataclass(frozen=True)
class Redistribute:
    """The redistribution of operator state to another number of shards.

    Parameters:
        rule: "even" gives each shard an equal part of all elements, "union" gives every shard all
            elements, both for lists; "broadcast" gives shard i the state of the old shard i % p.
        split: `split(state, n) -> list of n states`, for more shards; instead of a rule.
        merge: `merge(list of states) -> state`, for fewer shards; comes with `split`.

    The functions get the state as plain Python values, and must not change it.

    Raises:
        StateTypeError: neither a rule nor both functions are given.

    >>> Redistribute("union").known
    'union'
    >>> Redistribute(split=lambda total, n: [total] + [0] * (n - 1), merge=sum).known
    'hooks'
    """

    rule: Literal["even", "union", "broadcast"] | None = None
    split: Callable[[Any, int], Any] | None = None
    merge: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.rule is None:
            if not (callable(self.split) and callable(self.merge)):
                raise StateTypeError(
                    "Redistribute() needs a rule, such as Redistribute('even'), or both functions: "
                    "Redistribute(split=..., merge=...)"
                )
        elif self.rule not in ("even", "union", "broadcast"):
            raise StateTypeError(
                f'Redistribute({shown(self.rule)}): use "even", "union" or "broadcast", or the '
                "functions split= and merge="
            )
        elif self.split is not None or self.merge is not None:
            raise StateTypeError(
                f"Redistribute({shown(self.rule)}): give a rule, or the functions split= and "
                "merge=, "
                "and not both"
            )

    @property
    def known(self) -> Rule:
        """The rule as stored in the checkpoint."""
        return "hooks" if self.rule is None else self.rule
