"""`@process`: a user's function with its signature, validated and stored as data.

The decorator only reads and checks. Every fault of a declaration is an error when the module is
imported, with a message that names the parameter. No fault is found later on a cluster.
"""

from __future__ import annotations

import datetime as dt
import inspect
import typing
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

import pyarrow as pa

from statekit.backend.interface import Backend
from statekit.calls.service_call import ServiceCall
from statekit.checkpoint.job_file import EXPIRY, TIMERS, WAITING, Clock
from statekit.checkpoint.manifest import ShardPlan
from statekit.codec.value_codec import ValueCodec
from statekit.errors import ProcessError, StateTypeError
from statekit.functions.broadcast import Handlers
from statekit.functions.context import Context
from statekit.functions.failed_record import FAILS, ErrorPolicy, OnError
from statekit.functions.field_names import FieldNames, Renaming, checked_renamed
from statekit.functions.key_and_time import (
    check_event_time,
    check_order_by,
    codec_of_keys,
    codec_of_stored_types,
    codec_of_waiting,
)
from statekit.functions.migrate_hooks import Hooks, MigrateOption, checked_hooks, hooks_of
from statekit.functions.signature import Bound, Signature, hints_of
from statekit.functions.state_parameters import annotation_text
from statekit.number_faults import int_fault
from statekit.records.arrow_scalars import micros_of
from statekit.records.combined_rows import CombinedRows
from statekit.records.output_union import output_type_of
from statekit.records.preaggregate import Combiner, with_operator_name
from statekit.records.union import Records, records_of
from statekit.records.value_order import order_of_value
from statekit.shown import shown, shown_text
from statekit.state.base import State, StateSpec
from statekit.state.event_time_buffer import BufferedRecord, TieOrder, TieRule
from statekit.state.key_scope import KeyScope
from statekit.state.operator_state import ObjectState
from statekit.state.row_versions import RenamedFields
from statekit.state.timers import DUE, Timer, Timers
from statekit.timestamp import datetime_to_micros, lateness_to_micros
from statekit.watermark import BEGINNING

R = TypeVar("R")
U = TypeVar("U")
Emitted = TypeVar("Emitted")
P = ParamSpec("P")
Q = ParamSpec("Q")
B = TypeVar("B")

_Annotated = tuple[Callable[..., Any], dict[str, Any]]
"""A function and its annotations."""

NOTHING_RENAMED: Mapping[str, str] = MappingProxyType({})

_Packed = tuple[tuple[Any, ...], dict[str | None, _Annotated], list[_Annotated]]
"""The arguments of a process, of its timer callbacks, and of its broadcast handlers."""


@dataclass(frozen=True)
class Traits:
    """The properties of a process function that the runtime depends on. Functions of users have the
    defaults.

    Parameters:
        combiner: preaggregates records before they are routed, and the function takes the result;
            None calls it with each record.
        definition: returns options that may not change while there is state, by name: for
            functions that are made from options, such as windows. Its argument returns the name to
            write for each field.
        widths: the largest number of bits of numbers in states, by name, where types limit them.
            They may grow, and not shrink.
        takes_columns: it takes columns of many keys from its combiner, and not rows.
        takes_many: it takes records of many keys at a time, and yields lists of results.
        has_timers: it sets timers, and takes the due ones, of many keys at a time.
        fires: yields the results that are due, of many keys at a time. It is called with what is
            due and then as the function, before any timers fire, and the function gets all rows of
            a key together.
        fires_by: the clocks by which its results are due, in the order in which it is called.
        takes_parts: the records of a key may arrive in parts, if it takes all of them at once.
        timers_join: timers that are set or deleted while others fire take effect at once.
        outputs_at_once: how many outputs are gathered in Python before they become columns.
        holds_back_us: how far the event time of its results may lie before its watermark. The next
            operator waits so much longer.
        settles: an epoch without records follows when event time has advanced and the input ends.
        earliest_us: shards see this watermark in place of an earlier one or none.
        dropped_states: states that are dropped if the checkpoint has them and the function does not
            declare them.
        options_of: for functions that are made from options, which option declares a state, by the
            name of the state: for errors. Their users do not choose the names of states.
        made_of: what a function that is made from options does, as data: the runtime does not read
            it, and a model of the function in plain Python does.
        ties: the order of records of one key and time: by their inputs and values, or by epoch,
            input and arrival.
        calls: calls a service for records without a key, many at a time, in place of the function.
        concurrency: the largest number of open calls per task, of an `async` function.
    """

    combiner: Combiner | None = None
    definition: Callable[[Renaming], Mapping[str, str]] | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    takes_columns: bool = False
    takes_many: bool = False
    has_timers: bool = False
    fires: Callable[..., Iterator[list[Any]]] | None = None
    fires_by: tuple[Clock, ...] = ("event",)
    takes_parts: bool = False
    timers_join: bool = True
    outputs_at_once: int = 10_000
    holds_back_us: int = 0
    settles: bool = False
    earliest_us: int = BEGINNING
    dropped_states: frozenset[str] = frozenset()
    options_of: Mapping[str, str] = field(default_factory=dict)
    made_of: Any = None
    ties: TieRule = "values"
    calls: ServiceCall | None = None
    concurrency: int = 100


class EpochWatermarks(Protocol):
    """The watermarks of an epoch, for example in a plan."""

    @property
    def watermark_us(self) -> int:
        """The watermark of the epoch, in microseconds."""

    @property
    def reached_us(self) -> int:
        """The watermark of the previous epoch, in microseconds."""


class Process(Generic[R, P, U]):
    """A process function with all declarations of its signature.

    Created by `@process`. Calling it calls the function, so it can be tested like any other.

    Attributes:
        name: the function's name; the operator's unless the job gives another.
        key: the names of the key fields; none for an operator without a key.
        event_time: the name of the field with the event time; None without event time.
        lateness_us: how far records may lag behind the largest event time.
        ordered: the codec of buffered records; None if records are not buffered.
        order_by: the names of the fields that break ties between records of one key and time.
        renamed: the present names of fields by the names that they had before.
        record_type: of the first parameter; several types if that is annotated `A | B`.
        output_type: of its outputs, a union for `Iterator[A | B]`; None if it emits nothing.
        states: the declared states, in order.
        handlers: of broadcast records.
        errors: what happens if a call fails.
        traits: how the runtime treats it.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        key: tuple[str, ...],
        hints: dict[str, Any],
        event_time: str | None = None,
        lateness_us: int = 0,
        ordered: bool = False,
        order_by: tuple[str, ...] = (),
        hooks: Hooks | None = None,
        renamed: Mapping[str, str] | None = None,
        errors: ErrorPolicy = FAILS,
        traits: Traits | None = None,
    ) -> None:
        times = event_time, lateness_us, ordered, order_by
        self._arguments = fn, key, hints, *times, hooks, renamed, errors, traits
        self.fn = fn
        self.errors = errors
        self.traits = traits or Traits()
        self.name = fn.__name__
        self.key = key
        self.event_time = event_time
        self.lateness_us = lateness_us
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self.__wrapped__ = fn
        self.signature = signature = Signature(fn, hints, takes="record")
        where = f"{self.name}, parameter {signature.first!r}"
        self.record_type: Records = records_of(signature.given, where=where)
        emits = signature.emits
        self.output_type = (
            None if emits is None else output_type_of(emits, f"{self.name}, return annotation")
        )
        keyed = self.taken if self.is_global else self.record_type
        self.key_codec = codec_of_keys(self.name, keyed, key)
        signature.check_context(key, self.key_codec.schema)
        check_event_time(self.record_type, event_time)
        self.ordered: ValueCodec[Any] | None = None
        self._codecs_of_buffered: dict[Any, tuple[ValueCodec[Any], frozenset[type]]] = {}
        self.order_by = order_by
        if ordered:
            _check_takes_one(self)
            self.ordered = codec_of_waiting(self.record_type)
            check_order_by(self.record_type, order_by)
        used = filter(None, (*(() if self.is_global else key), event_time, *order_by))
        self.renamed = checked_renamed(self.name, renamed or {}, self.record_type, used)
        of_state = hooks_of(self.name, [spec.name for spec in signature.states], hooks or {})
        self.states: tuple[StateSpec, ...] = tuple(
            replace(spec, hooks=(*of_state[spec.name], *self._renaming_in(spec.codec)))
            for spec in signature.states
        )
        _check_states(self)
        if signature.is_async:
            _check_async(self)
        if errors.goes_on:
            _check_takes_back(self)
        self._callbacks: dict[str | None, Signature] = {}
        self.handlers = Handlers(signature)

    def __call__(self, record: R, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.fn(record, *args, **kwargs)

    @overload
    def on_timer(self, name: str, /) -> _TimerDecorator[U]: ...
    @overload
    def on_timer(
        self, fn: Callable[Concatenate[Timer, Q], None], /
    ) -> Callable[Concatenate[Timer, Q], None]: ...
    @overload
    def on_timer(
        self, fn: Callable[Concatenate[Timer, Q], Iterable[U]], /
    ) -> Callable[Concatenate[Timer, Q], Iterable[U]]: ...
    def on_timer(self, given: Any, /) -> Any:
        """Decorate the callback for due timers.

        `@fn.on_timer("name")` handles the timers of that name, `@fn.on_timer` all others. The first
        parameter takes the `Timer`. The others are states of the process function, as many as
        needed, and a `Context`.

        Raises:
            StateTypeError: the declaration is not valid; the message names the parameter.

        >>> import datetime as dt
        >>> from collections.abc import Iterator
        >>> from statekit.state.single_row_states import ValueState
        >>> from statekit.testing import Harness
        >>> @process(key="user", event_time="at")
        ... def visits(record: dict, ctx: Context, last: ValueState[str]) -> Iterator[str]:
        ...     last.update(record["page"])
        ...     ctx.timers.replace(record["at"] + dt.timedelta(minutes=30))
        ...     yield f"{ctx.key} opens {record['page']}"
        >>> @visits.on_timer
        ... def gone(timer: Timer, ctx: Context, last: ValueState[str]) -> Iterator[str]:
        ...     yield f"{ctx.key} left from {last.get()}"
        >>> noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
        >>> harness = Harness(visits)
        >>> harness.send({"user": "ada", "page": "/", "at": noon})
        ['ada opens /']
        >>> harness.advance_watermark(noon + dt.timedelta(hours=1))
        ['ada left from /']
        """
        if isinstance(given, str):
            return partial(self._take_callback, given)
        return self._take_callback(None, given)

    def _take_callback(self, name: str | None, fn: Any) -> Any:
        """Add the callback for timers of a name, or for all other timers, and return it."""
        if not inspect.isfunction(fn):
            raise StateTypeError(f"{self.name}.on_timer decorates a function, not {shown(fn)}")
        if not self.key:
            raise StateTypeError(
                f"{fn.__name__}: timers belong to keys, and {self.name} has none: declare "
                "@process(key=...)"
            )
        if name in self._callbacks:
            which = "all other timers" if name is None else f"timers named {name!r}"
            raise StateTypeError(
                f"{fn.__name__}: {self._callbacks[name].name} handles {which} of {self.name} "
                "already"
            )
        callback = Signature(fn, hints_of(fn), takes="timer")
        callback.check_declared_by(self.signature)
        callback.check_context(self.key, self.key_codec.schema)
        emits = callback.emits
        if emits is not None and emits != self.signature.emits:
            raise StateTypeError(
                f"{fn.__name__}: it yields {annotation_text(emits)}, and {self.name} "
                f"{annotation_text(self.signature.emits)}: yield the same type, or return None"
            )
        self._callbacks[name] = callback
        return fn

    def on_broadcast(
        self, fn: Callable[Concatenate[B, Q], None], /
    ) -> Callable[Concatenate[B, Q], None]:
        """Decorate the function that every shard calls with each record of a broadcast stream.

        The first parameter takes the record, and its type selects the records; there may be one
        function per type. The others are `BroadcastState` of the process function, which only these
        functions may change. All shards call them with the same records in the same order, so the
        state is equal in all shards.

        Raises:
            StateTypeError: the declaration is not valid; the message names the parameter.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from statekit.state.operator_state import BroadcastState
        >>> from statekit.testing import Harness
        >>> class Price(NamedTuple):
        ...     amount: float
        ...     currency: str
        >>> class Rate(NamedTuple):
        ...     currency: str
        ...     dollars: float
        >>> @process()
        ... def in_dollars(price: Price, rates: BroadcastState[str, float]) -> Iterator[float]:
        ...     yield price.amount * rates[price.currency]
        >>> @in_dollars.on_broadcast
        ... def new_rate(rate: Rate, rates: BroadcastState[str, float]) -> None:
        ...     rates[rate.currency] = rate.dollars
        >>> harness = Harness(in_dollars, parallelism=2)
        >>> harness.send(Price(3.0, "EUR"), Price(4.0, "EUR"), broadcast=[Rate("EUR", 1.5)])
        [4.5, 6.0]
        >>> harness.operator_state("rates")
        [{'EUR': 1.5}, {'EUR': 1.5}]
        """
        if not inspect.isfunction(fn):
            raise StateTypeError(f"{self.name}.on_broadcast decorates a function, not {shown(fn)}")
        self.handlers.take(Signature(fn, hints_of(fn), takes="broadcast record"))
        return fn

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The function, its timer callbacks and its handlers of broadcast records."""
        signatures = (*self._callbacks.values(), *self.handlers.signatures)
        return (self.fn, *(of.fn for of in signatures))

    @property
    def takes_runs(self) -> bool:
        """True if the function is called once per key and epoch, with an iterator over the key's
        records.
        """
        return self.signature.takes_runs

    @property
    def is_async(self) -> bool:
        """True if the function is `async`."""
        return self.signature.is_async

    def _renaming_in(self, codec: ValueCodec[Any]) -> tuple[RenamedFields, ...]:
        """Return the hook that reads stored records with former field names; empty without former
        names.
        """
        if not self.renamed:
            return ()
        return (RenamedFields.of(codec, self.field_names.renaming),)

    @property
    def field_names(self) -> FieldNames:
        """The present and former names of the fields of the records."""
        return FieldNames(self.record_type, self.renamed)

    @property
    def handles_timers(self) -> bool:
        """True if there is a callback for timers, or it takes those of many keys."""
        return bool(self._callbacks) or self.traits.has_timers

    def late_us(self, plan: EpochWatermarks) -> int:
        """Return the watermark that makes a record late."""
        return plan.watermark_us

    @property
    def has_event_timers(self) -> bool:
        """True if timers can be set by event time."""
        return self.event_time is not None

    @property
    def timer_names(self) -> tuple[str | None, ...]:
        """The names of timers with a callback. None is the last one if a callback handles all other
        timers.
        """
        return tuple(sorted(self._callbacks, key=lambda name: (name is None, name or "")))

    @property
    def reads_context(self) -> bool:
        """True if the function may read the context of a record."""
        return self.signature.context_parameter is not None

    @property
    def reads_clocks(self) -> bool:
        """True if the function may read a clock. A replay then has to use the same times."""
        if self.reads_context or self.handles_timers:
            return True
        return any(spec.ttl is not None and spec.ttl.clock == "processing" for spec in self.states)

    @property
    def families(self) -> tuple[str, ...]:
        """Names of all families with rows in a shard: states, timers, buffered records, indexes."""
        states = tuple(spec.name for spec in self.states)
        if any(spec.ttl is not None for spec in self.states):
            states += (EXPIRY,)
        if self.handles_timers:
            states += (TIMERS, DUE)
        return states if self.ordered is None else (*states, WAITING)

    @property
    def local_states(self) -> frozenset[str]:
        """Names of the operator states."""
        return frozenset(spec.name for spec in self.states if spec.kind.is_local)

    def families_in(self, plan: ShardPlan) -> tuple[str, ...]:
        """Return the families, with the indexes of states that had a TTL in earlier eras."""
        families = self.families
        return (*families, EXPIRY) if plan.eras and EXPIRY not in families else families

    def bind_timers(self, scope: KeyScope, backend: Backend, plan: ShardPlan) -> Timers | None:
        """Return the timers of the current key; None if the operator has no callback for them."""
        if not self.handles_timers:
            return None
        return Timers(
            scope,
            backend,
            handled=lambda name: name in self._callbacks or None in self._callbacks,
            has_event_time=self.has_event_timers,
            now_us=plan.now_us,
            joins=self.traits.timers_join,
        )

    def bind_callbacks(self, states: dict[str, State], context: Context) -> Callable[[str], Bound]:
        """Return a function from a timer's name to its callback, called as `callback(timer,
        *arguments)`.

        A timer whose callback was dropped at a start has none: it is deleted without a call.
        """
        bound = {name: of.bind(states, context) for name, of in self._callbacks.items()}
        others = bound.get(None, _nobody)
        return lambda name: bound.get(name, others)

    def hint(self, error: BaseException) -> str:
        """Return advice about an error of the function, as a sentence after a space; may be
        empty.
        """
        return ""

    def ended(self, context: Context) -> None:
        """Do nothing. A subclass can clean up here: called after all records and timers of an
        epoch.
        """

    @property
    def taken(self) -> Records:
        """The type of the records that are routed to the shards."""
        return self.record_type if self.traits.combiner is None else self.traits.combiner.combined

    @property
    def is_global(self) -> bool:
        """True if all records have one key, which only combined rows have."""
        return self.traits.combiner is not None and self.traits.combiner.is_global

    def combined(
        self, records: Sequence[Any] | pa.Table, plan: ShardPlan, *, restores: bool = False
    ) -> Sequence[Any]:
        """Return the combined rows of records, or the records themselves without a combiner.

        Parameters:
            records: records; with a combiner they may be a table.
            plan: of one of the shards.
            restores: whether the job wrote the rows of the table, as for `RecordType.reader`.

        Raises:
            ProcessError: a record does not fit its type.
        """
        if self.traits.combiner is None:
            return records
        with with_operator_name(plan.operator):
            return self.traits.combiner.combine(records, self.late_us(plan), restores=restores)

    def count_of(self, rows: Sequence[Any]) -> int:
        """Return the number of records behind these rows."""
        if self.traits.combiner is None:
            return len(rows)
        numbers = self.traits.combiner.number_at
        return sum(rows[numbers] if self.traits.takes_columns else map(itemgetter(numbers), rows))

    def key_of(self) -> Callable[[Any], Any]:
        """Return a function from a record to its key: a scalar, a tuple for several fields, or
        ().
        """
        if not self.key:
            return lambda record: ()
        return self.taken.getter(self.key)

    def key_of_record(self) -> Callable[[Any], Any]:
        """Return a function from a record that is not combined to its key, as `key_of`."""
        if self.is_global:
            return lambda record: True
        return self.record_type.getter(self.key) if self.key else lambda record: ()

    def times_of_input(self, records: Sequence[Any]) -> Sequence[int]:
        """Return the event times of routed records in microseconds.

        Raises:
            ProcessError: a record has none.
        """
        if isinstance(records, CombinedRows):
            return records.columns[-1]
        assert self.event_time is not None
        try:
            instants = list(map(self.record_type.getter((self.event_time,)), records))
        except KeyError:  # which the error of `time_of` names
            instants = []
        if {getattr(instant, "tzinfo", None) for instant in instants} == {dt.UTC}:
            return micros_of(instants)
        return list(map(self.time_of(), records))

    def time_of(self) -> Callable[[Any], int]:
        """Return a function from a record to its event time in microseconds.

        The function raises ProcessError for a record without one.
        """
        assert self.event_time is not None
        get, name = self.record_type.getter((self.event_time,)), self.event_time

        def time(record: Any) -> int:
            try:
                return datetime_to_micros(get(record))
            except KeyError as error:
                raise self.record_type.missing(error, record) from None
            except (StateTypeError, AttributeError, TypeError) as error:
                raise ProcessError(
                    f"{self.name}: event time {name!r} of {shown(record)} is no instant: "
                    f"{shown_text(error)}"
                ) from error

        return time

    def tie_order(self, plan: ShardPlan) -> TieOrder:
        """Return a function that puts buffered records of one key and time into their order.

        They are in the order of the fields of `order_by`, then of the declaration of their inputs,
        of the declaration of their types, and of their values; with ties by arrival, in that of
        their epochs, of the declaration of their inputs, and of their arrival.
        """
        names = plan.inputs
        ranks = [names.index(n) if n in names else len(names) for n in ("", *plan.buffered_inputs)]
        types = {member.cls: number for number, member in enumerate(self.record_type.members)}
        of_fields = self.record_type.getter(self.order_by) if self.order_by else None

        def declared(buffered: BufferedRecord) -> Any:
            record = buffered.record
            fields = () if of_fields is None else order_of_value(of_fields(record))
            return fields, ranks[buffered.input], types.get(type(record), 0)

        def arrived(buffered: BufferedRecord) -> Any:
            return buffered.epoch, ranks[buffered.input], buffered.number

        def by_arrival(ties: list[BufferedRecord]) -> list[BufferedRecord]:
            return sorted(ties, key=arrived)

        if self.traits.ties == "arrival":
            return by_arrival

        def in_order(ties: list[BufferedRecord]) -> list[BufferedRecord]:
            ties.sort(key=declared)
            ordered: list[BufferedRecord] = []
            for _, equal in groupby(ties, key=declared):
                same = list(equal)
                if len(same) > 1:  # to compare values takes ten times as long
                    same.sort(key=lambda buffered: order_of_value(buffered.record))
                ordered += same
            return ordered

        return in_order

    def codec_of_buffered(self, plan: ShardPlan) -> tuple[ValueCodec[Any], frozenset[type]]:
        """Return the codec of buffered records, and the substitute classes of records whose type is
        no longer declared.
        """
        assert self.ordered is not None
        names = plan.buffered_types
        if names not in self._codecs_of_buffered:
            codec, stand_ins = self.ordered, frozenset[type]()
            if names not in ((), tuple(member.brief for member in codec.schema.items)):
                codec, stand_ins = codec_of_stored_types(self.record_type, names)
            if self.renamed:
                codec = replace(codec, decode=self.field_names.renaming.reader(codec))
            self._codecs_of_buffered[names] = codec, stand_ins
        return self._codecs_of_buffered[names]

    def with_traits(self, traits: Traits) -> Self:
        """Return the same function with other traits and without callbacks."""
        return type(self)(*self._arguments[:-1], traits)

    def __getstate__(self) -> _Packed:
        """Return the parts for pickle. They are restored as state, because an object may be part of
        a cycle.
        """
        callbacks = {name: (of.fn, of.hints) for name, of in self._callbacks.items()}
        handlers = [(of.fn, of.hints) for of in self.handlers.signatures]
        return self._arguments, callbacks, handlers

    def __setstate__(self, packed: _Packed) -> None:
        self.__dict__["_packed"] = packed

    if not TYPE_CHECKING:  # else every attribute would be one of a process, to mypy

        def __getattr__(self, name: str) -> Any:
            """Assemble an unpickled process on its first use.

            Not before: its functions may refer to it and to each other, so while pickle still works
            they may lack their defaults, and its classes their fields.
            """
            packed = self.__dict__.pop("_packed", None)
            if packed is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            parts, callbacks, handlers = packed
            self.__init__(*parts)
            for timer, (fn, hints) in callbacks.items():
                self._callbacks[timer] = Signature(fn, hints, takes="timer")
            for fn, hints in handlers:
                self.handlers.take(Signature(fn, hints, takes="broadcast record"))
            return getattr(self, name)

    def __repr__(self) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        return f"<process {self.name}{by}: {[spec.name for spec in self.states]}>"

    def __get__(self, instance: object, owner: type | None = None) -> Process[R, P, U]:
        if instance is not None:
            raise StateTypeError(
                f"{self.name}: a process function cannot be a method; define it at module level"
            )
        return self


_nobody: Bound = (lambda timer: None, ())


class _TimerDecorator(Protocol[Emitted]):
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Timer, Q], None], /
    ) -> Callable[Concatenate[Timer, Q], None]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Timer, Q], Iterable[Emitted]], /
    ) -> Callable[Concatenate[Timer, Q], Iterable[Emitted]]: ...


class _Decorator(Protocol):
    @overload
    def __call__(
        self, fn: Callable[Concatenate[R, P], Awaitable[Iterable[U]]], /
    ) -> Process[R, P, U]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[R, P], AsyncIterable[U]], /
    ) -> Process[R, P, U]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[R, P], Awaitable[None]], /
    ) -> Process[R, P, Never]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[R, P], Iterable[U]], /) -> Process[R, P, U]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[R, P], None], /) -> Process[R, P, Never]: ...


def process(
    *decorated: Never,
    key: str | tuple[str, ...] | list[str] | None = None,
    event_time: str | None = None,
    lateness: dt.timedelta | str = dt.timedelta(0),
    ordered: bool = False,
    order_by: str | tuple[str, ...] | list[str] = (),
    migrate: MigrateOption = MappingProxyType({}),
    renamed: Mapping[str, str] = NOTHING_RENAMED,
    on_error: OnError = "fail",
    max_errors: int | None = None,
    concurrency: int | None = None,
) -> _Decorator:
    """Turn a function into a process function.

    The first parameter takes one record; it is annotated with a pydantic model, a dataclass, a
    NamedTuple, a msgspec Struct, a TypedDict or `dict`, or with several record classes, such as
    `Order | Payment`, for records of several streams (`Stream.union`). Parameters annotated with a
    state type become states named like the parameter; a parameter annotated `Context` gets the
    context. The return annotation is `Iterator[T]` for outputs of type T, or None.

    Annotated with an iterator, such as `Iterator[Order]`, the first parameter takes all records
    that an epoch has of a key, in their order, and the function is called once per key and epoch;
    without a key, once per shard. Records that it does not ask for are skipped. How many arrive
    together depends on how the input was cut into epochs, so results should not depend on it. Each
    record is read at its own event time. Code before the first record runs at its time, and code
    after the last one at the latest time of all.

    Parameters:
        key: the record field, or fields, that select the state. Without a key, records are
            distributed round robin over the shards, and there is only operator state:
            `OperatorState`, `OperatorListState`, `BroadcastState` and `Checkpointed` objects; and
            no timers.
        event_time: the record field with the time of the record, an aware datetime.
        lateness: how far records may lag behind the largest event time before they are late; a
            timedelta or a text such as "2 hours".
        ordered: buffer records, in state, until the watermark has passed them, and process each
            key's records and timers in order of time. The result is then the same for every order
            of arrival within the lateness, every cut into epochs and every parallelism. Records of
            one key and time are in the order of their inputs' declaration, then of their values,
            field by field: None, numbers, text by code point, times.
        order_by: with `ordered`, the field, or fields, that order records of one key and time
            before anything else does.
        migrate: per state a function, or several, that converts a value of an earlier type to the
            declared type. The annotation of its parameter names the earlier type; without one it
            gets what no other hook accepts, as plain data. It may be called again for the same
            value.
        renamed: the present names of record fields by the names that they had before, such as
            `{"buyer": "customer"}`. A checkpoint contains the names of the fields of `key` and
            `event_time`, and a start with other names is refused unless they are renamed.
        on_error: what happens if the function, or a timer callback of it, raises an error: "fail"
            ends the job, and nothing of the epoch is committed. "drop" and "collect" take back what
            the call has changed (states, timers and outputs), count the record, and go on with the
            next one. With "collect" the stream `errors` has the failed records.
        max_errors: with "drop" or "collect", the job ends with a ProcessError if more calls than
            this have failed in all epochs; None for no limit.
        concurrency: of an `async` function, the largest number of open calls per task; 100 by
            default. It is called for one record of a key after the other, and for many keys at a
            time, and returns a list of outputs, or yields them.

    Raises:
        StateTypeError: the declaration is not valid; the message names the parameter.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> from statekit.state.single_row_states import ValueState
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

    The same, with one read and one write of state for all orders of a customer in an epoch:

    >>> @process(key="customer")
    ... def totals(orders: Iterator[Order], total: ValueState[int]) -> Iterator[Total]:
    ...     cents = total.get() or 0
    ...     for order in orders:
    ...         cents += order.cents
    ...         yield Total(order.customer, cents)
    ...     total.update(cents)
    """
    if decorated:
        name = getattr(decorated[0], "__name__", "f")
        raise StateTypeError(
            f"@process was given {shown(decorated[0], 100)} by position: call it with options by "
            f'name, such as @process(key="customer") above def {name}; for an operator without a '
            "key, write @process()"
        )
    fields = () if key is None else _field_names("key", key)
    if event_time is None and lateness != dt.timedelta(0):
        raise StateTypeError(
            f"@process(lateness={shown(lateness)}): say which field has the event_time"
        )
    if ordered and event_time is None:
        raise StateTypeError("@process(ordered=True): say which field has the event_time")
    if ordered and key is None:
        raise StateTypeError("@process(ordered=True): say which field has the key to order by")
    ties = _field_names("order_by", order_by)
    if ties and not ordered:
        raise StateTypeError(f"@process(order_by={shown(order_by)}): declare ordered=True, too")
    lateness_us = lateness_to_micros(lateness, "lateness")
    errors = ErrorPolicy(on_error, max_errors)
    most = "give a number of open calls, 1 or more"
    if concurrency is not None and (fault := int_fault(concurrency, most, least=1)):
        raise StateTypeError(f"@process(concurrency={shown(concurrency)}){fault}")

    def decorate(fn: Callable[..., Any]) -> Process[Any, Any, Any]:
        if not inspect.isfunction(fn):
            raise StateTypeError(f"@process decorates a function, not {shown(fn)}")
        if (key is not None and not fields) or len(set(fields)) != len(fields):
            raise StateTypeError(f"{fn.__name__}: key={fields} must name different fields")
        hooks = checked_hooks(fn.__name__, migrate)
        hints, times = hints_of(fn), (event_time, lateness_us, ordered, ties)
        traits = None if concurrency is None else Traits(concurrency=concurrency)
        declared: Process[Any, Any, Any] = Process(
            fn, fields, hints, *times, hooks, renamed, errors, traits
        )
        if concurrency is not None and not declared.is_async:
            raise StateTypeError(
                f"{fn.__name__}: concurrency={concurrency} is for async functions: declare it with "
                "async def, or leave concurrency out"
            )
        return declared

    return typing.cast("_Decorator", decorate)


def _field_names(option: str, given: object) -> tuple[str, ...]:
    """Return the names that an option of `@process` has."""
    if not isinstance(given, str | tuple | list):
        raise StateTypeError(
            f"@process({option}={shown(given)}): give the name of a record field, or several"
        )
    return (given,) if isinstance(given, str) else tuple(given)


def _check_takes_one(declared: Process[Any, Any, Any]) -> None:
    """Check that an ordered function takes records one by one."""
    if declared.takes_runs:
        raise StateTypeError(
            f"{declared.name}, parameter {declared.signature.first!r}: with ordered=True a key's "
            f"records come one by one, with timers between them: annotate it with "
            f"{declared.record_type.name}"
        )


def _check_takes_back(declared: Process[Any, Any, Any]) -> None:
    """Check that the changes of a single call can be taken back."""
    option = f"on_error={declared.errors.on_error!r}"
    if declared.takes_runs:
        raise StateTypeError(
            f"{declared.name}, parameter {declared.signature.first!r}: with {option} the changes "
            "of one record are taken back, and this function takes all records of a key at once: "
            f"annotate it with {declared.record_type.name}, or leave on_error out"
        )
    for spec in declared.states:
        if issubclass(spec.state_class, ObjectState):
            raise StateTypeError(
                f"{declared.name}, parameter {spec.name!r}: with {option} the changes of one "
                "record are taken back, and those of a Checkpointed object cannot be: use "
                "OperatorState, or leave on_error out"
            )


def _check_async(declared: Process[Any, Any, Any]) -> None:
    """Check that an `async` function can be called for many keys at a time."""
    name = declared.name
    if not declared.key:
        raise StateTypeError(
            f"{name} is async and has no key, so that it would be called for one record after the "
            "other: declare @process(key=...), or call the service with stream.map_async"
        )
    if declared.takes_runs:
        raise StateTypeError(
            f"{name}, parameter {declared.signature.first!r}: an async function takes one record: "
            f"annotate it with {declared.record_type.name}"
        )
    if declared.ordered is not None:
        raise StateTypeError(
            f"{name} is async, and with ordered=True records are processed one after the other: "
            "call the service with stream.map_async, and give its answers to an ordinary function "
            "with ordered=True"
        )
    if declared.errors.goes_on:
        raise StateTypeError(
            f"{name} is async, and with on_error={declared.errors.on_error!r} the changes of a "
            "failed call are taken back, which is not possible beside other open calls: catch the "
            "error in the function, or call the service with stream.map_async, which has on_error, "
            "and give its answers to an ordinary function"
        )


def _check_states(declared: Process[Any, Any, Any]) -> None:
    """Check that the function has a key and the clocks, as far as its states need them."""
    for spec in declared.states:
        if not declared.key and not spec.kind.is_local:
            raise StateTypeError(
                f"{declared.name}, parameter {spec.name!r}: {spec.state_class.__name__} is kept by "
                "key: declare @process(key=...), or use operator state, such as OperatorState"
            )
        if spec.ttl is not None and spec.ttl.clock == "event" and declared.event_time is None:
            raise StateTypeError(
                f"{declared.name}, parameter {spec.name!r}: there is no event time to expire by: "
                'declare @process(event_time=...), or use TTL(..., clock="processing")'
            )
