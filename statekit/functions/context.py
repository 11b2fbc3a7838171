"""`Context`: the information about a call of a process function, in addition to its record and
states. `Due`: the argument of functions that fire many keys at a time.
"""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from statekit.checkpoint.job_file import Clock
from statekit.codec.key_codec import KeyCodec
from statekit.errors import StateTypeError
from statekit.keygroup import GROUP_BYTES
from statekit.state.key_scope import KeyScope
from statekit.state.timers import Timers
from statekit.timestamp import instant

K_co = TypeVar("K_co", covariant=True, default=object)


class Context(Generic[K_co]):
    """The context of a call: key, epoch, clocks and timers.

    Declare a parameter of this type to get it. `Context[str]` says which type the keys of the
    operator have, for type checkers; the declaration is compared with the key fields.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="customer")
    ... def shouted(order: Order, ctx: sk.Context[str]) -> Iterator[str]:
    ...     yield ctx.key.upper()
    >>> @sk.process(key="customer")
    ... def misread(order: Order, ctx: sk.Context[int]) -> None: ...
    Traceback (most recent call last):
    statekit.errors.StateTypeError: misread, parameter 'ctx': Context[int] does not fit the key \
'customer', which is str: declare Context[str]
    """

    __slots__ = ("_scope", "_timers", "shard")

    def __init__(self, scope: KeyScope, shard: int, timers: Timers | None) -> None:
        self._scope = scope
        self._timers = timers
        self.shard = shard

    @property
    def key(self) -> K_co:
        """The current key: a scalar, or a tuple when the key has several fields.

        Its static type is that of `Context[K]`; `object` if the annotation is `Context` alone.
        """
        key: K_co = self._scope.key
        return key

    @property
    def epoch(self) -> int:
        """The number of the epoch. It is the same in a replay."""
        return self._scope.epoch

    @property
    def operator(self) -> str:
        """The name of the running operator."""
        return self._scope.operator

    @property
    def watermark(self) -> dt.datetime:
        """The watermark. Records with this event time or an earlier one are no longer processed.

        It is the same for all keys of an epoch. Before any record was committed it is the first
        instant of the year 1. After the end of event time it is the last instant of 9999.
        """
        return instant(self._scope.clocks.watermark_us)

    @property
    def processing_time(self) -> dt.datetime:
        """The processing time of the epoch. It is the same in a replay."""
        return instant(self._scope.clocks.processing_time_us)

    @property
    def event_time(self) -> dt.datetime:
        """The event time of the current record, or the time of the current timer.

        If a function takes all records of a key at once, it is the event time of the last one that
        the function took: before it took any, of the first one; after the last one, the latest of
        all.

        Raises:
            StateTypeError: the operator has no event time, or a processing-time timer is firing.
        """
        if self._scope.clocks.event_us is None:
            raise StateTypeError(
                f"operator {self._scope.operator!r} has no event time here: declare "
                "@process(event_time=...); a processing-time timer has none in any case"
            )
        return instant(self._scope.clocks.event_us)

    @property
    def input(self) -> str:
        """The name of the input of the current record.

        That is the name of a source, an operator or another stream, as in `job.source(name, …)`. So
        a function can tell apart the records of two inputs of the same class.

        Raises:
            StateTypeError: there is no current record, as in a timer; or the record was buffered by
                an earlier version of statekit, which did not store its input.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> class Reading(NamedTuple):
        ...     sensor: str
        ...     value: float
        >>> @sk.process(key="sensor")
        ... def label(reading: Reading, ctx: sk.Context) -> Iterator[str]:
        ...     yield f"{ctx.input}: {reading.value}"
        >>> job = sk.Job("plant")
        >>> inside, outside = job.source("inside", Reading), job.source("outside", Reading)
        >>> _ = inside.union(outside).process(label).sink("labels")
        >>> readings = {"inside": [Reading("a", 20.5)], "outside": [Reading("a", 3.0)]}
        >>> job.run(readings)["labels"]
        ['inside: 20.5', 'outside: 3.0']
        """
        if self._scope.input is None:
            raise StateTypeError(
                f"operator {self._scope.operator!r} has no input here: only a record has one, and "
                "one that an earlier version of statekit buffered has none either"
            )
        return self._scope.input

    @property
    def timers(self) -> Timers:
        """The timers of this key.

        Raises:
            StateTypeError: the operator has no callback for timers.
        """
        if self._timers is None:
            raise StateTypeError(
                f"operator {self._scope.operator!r} handles no timers: decorate a function with "
                f"@{self._scope.operator}.on_timer"
            )
        return self._timers


def is_context(annotation: Any) -> bool:
    """Return whether an annotation is `Context` or `Context[K]`."""
    return (typing.get_origin(annotation) or annotation) is Context


class Due(NamedTuple):
    """The part of a shard's state in which something is due.

    Parameters:
        groups: first and last key group.
        now_us: the time of the clock: of event time, the watermark.
        key_codec: of the keys.
        wakes_at: notes the time of what is due next by the clock.
        at_key: notes the key that an error is about: its prefix in row keys, and the key.
        clock: by which something is due.
    """

    groups: tuple[int, int]
    now_us: int
    key_codec: KeyCodec[Any]
    wakes_at: Callable[[int], None]
    at_key: Callable[[bytes, Any], None]
    clock: Clock = "event"

    def note_key(self, prefix: bytes) -> None:
        """Note the key that an error is about, by its prefix."""
        self.at_key(prefix, self.key_codec.decode(prefix, GROUP_BYTES)[0])
