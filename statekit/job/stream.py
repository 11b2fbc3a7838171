"""`Stream`: the operations on the records of a source or an operator."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, Self, overload

from typing_extensions import TypeVar, Unpack

from statekit.checkpoint.job_file import Clock
from statekit.errors import StateTypeError
from statekit.expressions.expression import Expression
from statekit.functions.failed_record import FailedRecord
from statekit.functions.process import NOTHING_RENAMED, Process
from statekit.functions.projection import Projection
from statekit.functions.stateless import Stateless, name_of
from statekit.job.declarations import Declaration, declares, is_described
from statekit.job.joins.join_declaration import DeclaredJoin, How
from statekit.job.joins.join_operator import JoinArguments, declared_join
from statekit.job.joins.lookup_operator import LookupArguments, LookupHow, declared_lookup
from statekit.job.notebook import plan_html
from statekit.job.per_key.aggregation import aggregation
from statekit.job.per_key.distinct import distinct
from statekit.job.per_key.ranked import ends, ranks
from statekit.job.plan import Operator, Output, Plan, Transform, check_name
from statekit.job.service_calls import ServiceArguments, service_operator
from statekit.job.windows.aggregated_result import Emit
from statekit.job.windows.field_aggregates import (
    Collect,
    Count,
    FieldAggregate,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    Top,
)
from statekit.job.windows.window_kind import Window
from statekit.job.windows.window_operator import Windowing
from statekit.job.windows.window_options import WindowOptions
from statekit.records.record_type import RecordType
from statekit.records.union import Records, records_of
from statekit.shown import shown
from statekit.sinks.protocol.frame_sinks import FrameSink, Target
from statekit.sinks.protocol.sink import Sink
from statekit.state.options import TTL

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
R = TypeVar("R", default=Any)  # the class of results: that of `into=`, if it is given


class Stream(Generic[T]):
    """A stream of records of type T in a job. Created by `Job.source`, `process` and `union`."""

    def __init__(self, job: Plan, *names: str) -> None:
        self._plan = job
        self._names = names

    def __repr__(self) -> str:
        types = " | ".join(dict.fromkeys(map(self._type_name, self._names)))
        return f"<Stream {self.name!r} of {types}>"

    def _repr_html_(self) -> str:
        """Return the plan of the job for a notebook."""
        return plan_html(repr(self)[1:-1], self._plan)

    @property
    def plan(self) -> Plan:
        """The plan of its job, as runtimes read it. Its names may change."""
        return self._plan

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources and operators whose records it has; several for a union."""
        return self._names

    @property
    def record_class(self) -> type[T]:
        """The class of the records.

        Raises:
            StateTypeError: it has records of several classes, or none.
        """
        cls: type[T] = self._single_type("record_class").cls
        return cls

    @property
    def name(self) -> str:
        """Name of the source or operator; for a union, all names."""
        return " | ".join(self._names)

    @overload
    def union(self, *others: Stream[T]) -> Stream[T]: ...
    @overload
    def union(self, other: Stream[U], /) -> Stream[T | U]: ...
    @overload
    def union(self, other: Stream[U], another: Stream[V], /) -> Stream[T | U | V]: ...
    def union(self, *others: Stream[Any]) -> Stream[Any]:
        """Merge this stream with others, for a process function that takes all their records.

        Its first parameter is annotated with all of their types, such as `Order | Payment`. Within
        an epoch a key sees the records of this stream first, then those of the others in turn.

        Raises:
            StateTypeError: a stream belongs to another job, or is in the union already.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> from statekit.functions.process import process
        >>> from statekit.state.single_row_states import ValueState
        >>> class Order(NamedTuple):
        ...     account: str
        ...     cents: int
        >>> class Payment(NamedTuple):
        ...     account: str
        ...     cents: int
        >>> @process(key="account")
        ... def settle(event: Order | Payment, open: ValueState[int]) -> Iterator[tuple[str, int]]:
        ...     cents = event.cents if isinstance(event, Order) else -event.cents
        ...     open.update((open.get() or 0) + cents)
        ...     yield event.account, open.get() or 0
        >>> job = Job("shop")
        >>> orders, payments = job.source("orders", Order), job.source("payments", Payment)
        >>> _ = orders.union(payments).process(settle).sink("open")
        >>> run = job.run({"orders": [Order("ada", 500)], "payments": [Payment("ada", 200)]})
        >>> run["open"]
        [('ada', 500), ('ada', 300)]
        """
        names = (*self._names, *_names_of(self._plan, "union()", others))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise StateTypeError(
                f"union(): {', '.join(map(repr, twice))} would be in it twice, and each record "
                "would be handled twice: name each stream once"
            )
        return Stream(self._plan, *names)

    @declares("stream.process")
    def process(
        self,
        declared: Process[T, ..., U] | Process[Iterator[T], ..., U],
        *,
        name: str | None = None,
        broadcast: Stream[Any] | Sequence[Stream[Any]] = (),
    ) -> OperatorStream[U, T]:
        """Feed these records to a process function.

        Parameters:
            name: of the operator; by default the function's. The checkpoint finds its state by this
                name.
            broadcast: streams whose records every shard handles, with the functions decorated with
                `@….on_broadcast`; within an epoch they come before all others, in the order given.

        Raises:
            StateTypeError: the function takes other records, or the name is taken.
        """
        if not isinstance(declared, Process):
            raise StateTypeError(
                f"process() takes a function decorated with @process, not {shown(declared)}"
            )
        given = (broadcast,) if isinstance(broadcast, Stream) else broadcast
        broadcasts = _names_of(self._plan, "process(broadcast=…)", given)
        if declared.traits.combiner is not None and len(self._names) > 1:
            raise StateTypeError(
                f"{declared.name} takes combined records of one stream, and {self.name} is a "
                "union: call window on the union itself"
            )
        self._check_fed(declared.name, declared.record_type, self._names)
        self._check_broadcast(declared, broadcasts)
        name = self._plan.free_name("operator", name or declared.name)
        at = declared.event_time
        times = () if at is None else tuple(self._plan.time_fields(at, self._names))
        self._plan.put_operator(Operator(name, declared, self._names, broadcasts, times))
        return OperatorStream(self._plan, name)

    @declares("stream.of")
    def of(self, cls: type[V], *, name: str | None = None) -> Stream[V]:
        """Select the records of one class from a stream of several.

        A process function declared `-> Iterator[A | B]` emits records of both classes, in one
        stream. Each class is a stream of its own, too, with its own columns on Spark. The function
        runs once, whatever reads them.

        Parameters:
            name: of the stream; by default the names of this one and of the class. A stream of one
                class alone is returned as it is, unless there is a name.

        Raises:
            StateTypeError: no record of this stream is of that class, or the name is taken.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> from statekit.functions.process import process
        >>> from statekit.state.single_row_states import ValueState
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> class Total(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> class Alert(NamedTuple):
        ...     customer: str
        >>> @process(key="customer")
        ... def watch(order: Order, total: ValueState[int]) -> Iterator[Total | Alert]:
        ...     total.update((total.get() or 0) + order.cents)
        ...     yield Total(order.customer, total.get() or 0)
        ...     if order.cents > 1000:
        ...         yield Alert(order.customer)
        >>> job = Job("shop")
        >>> watched = job.source("orders", Order).process(watch)
        >>> _ = watched.of(Total).sink("totals")
        >>> _ = watched.of(Alert).sink("alerts")
        >>> run = job.run({"orders": [Order("ada", 500), Order("ada", 2000)]})
        >>> run["totals"], run["alerts"]
        ([Total(customer='ada', cents=500), Total(customer='ada', cents=2500)], \
[Alert(customer='ada')])
        """
        if name is not None:
            self._check_single("of(…, name=…)")
        names = [own for stream in self._names for own in self._part(stream, cls, name)]
        if not names:
            types = " | ".join(dict.fromkeys(map(self._type_name, self._names)))
            raise StateTypeError(
                f"of({getattr(cls, '__name__', cls)}): stream {self.name!r} has {types}: give one "
                "of its classes"
            )
        return Stream(self._plan, *names)

    def _part(self, stream: str, cls: type, name: str | None) -> Iterator[str]:
        """Yield the name of the stream with a stream's records of one class, if it has that
        class.
        """
        records = self._plan.record_of(stream)
        if records is None or all(member.cls is not cls for member in records.members):
            return
        if len(records.members) == 1 and name is None:
            yield stream
            return
        name = name or f"{stream}.{cls.__name__}"
        transform = self._plan.transform(name)
        if transform is None or transform.function.fn is not cls or transform.input != stream:
            name = self._plan.free_name("stream", name)
            selection = Stateless.selection(records, cls)
            self._plan.put_transform(Transform(name, selection, stream))
        yield name

    @declares("stream.map")
    def map(
        self, fn: Callable[[T], V], *, into: type[V] | None = None, name: str | None = None
    ) -> Stream[V]:
        """Replace each record by the result of a function.

        The function sees no state, and runs in the same tasks as the operator that reads its
        outputs, where possible.

        Parameters:
            fn: an ordinary function of one record, annotated with what it returns.
            into: the type of its outputs, for a function without annotations, such as a lambda.
            name: of the stream; by default the function's.

        Raises:
            StateTypeError: the function takes other records, the type of its outputs is not known,
                or the name is taken.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> def doubled(order: Order) -> Order:
        ...     return order._replace(cents=2 * order.cents)
        >>> job = Job("shop")
        >>> orders = job.source("orders", Order).map(doubled)
        >>> print(orders)
        <Stream 'doubled' of Order>
        """
        return self._transformed("map", fn, into, name)

    @declares("stream.filter")
    def filter(
        self, fn: Callable[[T], object] | Expression | str, *, name: str | None = None
    ) -> Stream[T]:
        """Keep the records for which a condition is true, or a function returns a true value.

        For a condition no function is called: on Spark, the JVM drops rows before they are
        shuffled.

        Parameters:
            fn: a condition as SQL text or an expression, or an ordinary function of one record.
            name: of the stream; by default the function's, or that of this stream and "filtered".

        Raises:
            StateTypeError: the condition has an unknown field or types that do not fit, the
                function takes other records, or the name is taken.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> job = Job("shop")
        >>> orders = job.source("orders", Order)
        >>> print(orders.filter("cents > 1000 AND customer IN ('ada', 'bob')", name="large"))
        <Stream 'large' of Order>
        >>> print(orders.filter(lambda order: order.cents > 1000, name="larger"))
        <Stream 'larger' of Order>
        """
        if isinstance(fn, str | Expression) and len(self._names) == 1:
            name = name or f"{self.name}.filtered"
        return self._transformed("filter", fn, None, name)

    @declares("stream.flat_map")
    def flat_map(
        self,
        fn: Callable[[T], Iterable[V]],
        *,
        into: type[V] | None = None,
        name: str | None = None,
    ) -> Stream[V]:
        """Replace each record by all records that a function yields for it.

        Parameters:
            fn: an ordinary function of one record, annotated `-> Iterator[V]`, where V may be
                several classes: see `of`.
            into: the type of its outputs, for a function without annotations, such as a lambda.
            name: of the stream; by default the function's.

        Raises:
            StateTypeError: the function takes other records, the type of its outputs is not known,
                or the name is taken.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Line(NamedTuple):
        ...     text: str
        >>> class Word(NamedTuple):
        ...     word: str
        >>> def words(line: Line) -> Iterator[Word]:
        ...     yield from map(Word, line.text.split())
        >>> print(Job("words").source("lines", Line).flat_map(words))
        <Stream 'words' of Word>
        """
        return self._transformed("flat_map", fn, into, name)

    @declares("stream.select")
    def select(
        self,
        into: type[V],
        given: Mapping[str, str | Expression] = NOTHING_RENAMED,
        /,
        *,
        name: str | None = None,
        **fields: str | Expression,
    ) -> Stream[V]:
        """Replace each record by one of another class, with fields that are copied or computed.

        No function is called: on Spark, columns are selected.

        Parameters:
            into: the class of the new records.
            given: the same as `fields`, for a field that is called `name`.
            name: of the stream; by default the names of this one and of the class.
            fields: for fields of the new records, the name of the field that they get, "*" for the
                whole record, or an expression such as `col("cents") / 100` or
                `expr("cents / 100")`. Every other one gets the field of its own name.

        Raises:
            StateTypeError: there is no such field, it has another type, or the name is taken; or
                this stream has records of several types.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> from statekit.expressions.expression import col
        >>> class Bill(NamedTuple):
        ...     payer: str
        ...     euros: float
        >>> job = Job("shop")
        >>> orders = job.source("orders", Order)
        >>> print(orders.select(Bill, payer="customer", euros=col("cents") / 100))
        <Stream 'orders.Bill' of Bill>
        """
        where = f"select({getattr(into, '__name__', into)})"
        projection = Projection(self._single_type("select").cls, into, {**given, **fields}, where)
        function = Stateless.projection(projection, where)
        names: list[str] = []
        for stream in self._names:
            chosen = name or f"{stream}.{projection.into.name}"
            if name is not None and len(self._names) > 1:
                chosen = f"{name}.{stream}"
            names.append(self._plan.free_name("stream", chosen))
            self._plan.put_transform(Transform(names[-1], function, stream))
        return Stream(self._plan, *names)

    @overload
    def map_async(
        self,
        fn: Callable[Concatenate[T, ...], Awaitable[list[V]]],
        *,
        batch: None = None,
        **options: Unpack[ServiceArguments],
    ) -> OperatorStream[V, T]: ...
    @overload
    def map_async(
        self,
        fn: Callable[Concatenate[list[T], ...], Awaitable[list[V]]],
        *,
        batch: int,
        **options: Unpack[ServiceArguments],
    ) -> OperatorStream[V, T]: ...
    @overload
    def map_async(
        self,
        fn: Callable[Concatenate[T, ...], Awaitable[V | None]],
        *,
        batch: None = None,
        **options: Unpack[ServiceArguments],
    ) -> OperatorStream[V, T]: ...
    @declares("stream.map_async")
    def map_async(
        self, fn: Any, *, batch: int | None = None, **options: Unpack[ServiceArguments]
    ) -> OperatorStream[Any, T]:
        """Call a service for each record with an `async` function, many at a time.

        Answers of a committed epoch are not asked for again. An epoch that fails is run again, and
        asks for its answers again.

        Parameters:
            fn: takes one record, or a list of records with `batch`, and then the client, if there
                is one. Its annotation says what it returns: an output, or None for none; or a list
                of outputs.
            batch: call the function with lists of at most so many records. It returns a list with
                one result per record, in their order.
            options: see `ServiceArguments`: `concurrency`, `timeout`, `retries`, `ordered`,
                `client`, `on_error`, `max_errors`, `into`, `name`.

        Raises:
            StateTypeError: an option is not valid, the function takes other records, the type of
                its outputs is not known, or the name is taken.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        >>> class Scored(NamedTuple):
        ...     customer: str
        ...     risk: float
        >>> async def scored(order: Order) -> Scored:
        ...     return Scored(order.customer, 0.5)  # await http.post(…)
        >>> job = Job("shop")
        >>> _ = job.source("orders", Order).map_async(scored, concurrency=50).sink("scored")
        >>> job.run({"orders": [Order("ada")]})["scored"]
        [Scored(customer='ada', risk=0.5)]
        """
        found = [member.cls for of in self._names for member in self._records(of, "call").members]
        records = records_of(*dict.fromkeys(found), where="map_async")
        return self.process(service_operator(fn, records, batch, options))

    def _transformed(self, kind: Any, fn: Any, into: Any, name: str | None) -> Stream[Any]:
        """Add the same transform to each of these streams."""
        chosen = name or name_of(fn)
        if chosen == "<lambda>":
            raise StateTypeError(
                f"{kind}(): a lambda has no name for its stream: give {kind}(…, name=…)"
            )
        names: list[str] = []
        for stream in self._names:
            function = Stateless.of(kind, fn, self._records(stream, kind), into)
            single = len(self._names) == 1
            new = self._plan.free_name("stream", chosen if single else f"{chosen}.{stream}")
            self._plan.put_transform(Transform(new, function, stream))
            names.append(new)
        return Stream(self._plan, *names)

    def _check_broadcast(self, declared: Process[Any, ..., U], streams: tuple[str, ...]) -> None:
        """Check that each broadcast stream has a handler, and each handler a stream."""
        handled = declared.handlers.record_type
        if handled is None and streams:
            raise StateTypeError(
                f"{declared.name} handles no broadcast records, and {', '.join(streams)} would be "
                f"broadcast to it: decorate a function with @{declared.name}.on_broadcast"
            )
        if handled is not None and not streams:
            raise StateTypeError(
                f"{declared.name} handles broadcast records of {handled.name}, and no stream is "
                f"broadcast to it: give process({declared.name}, broadcast=…) the stream"
            )
        if len(set(streams)) != len(streams):
            raise StateTypeError(f"{declared.name}: broadcast={streams} must be different streams")
        if handled is not None:
            self._check_fed(f"{declared.name}.on_broadcast", handled, streams)

    def _check_fed(self, who: str, expected: Records, streams: tuple[str, ...]) -> None:
        """Check that the streams have exactly the record types of a function."""
        wanted = {member.cls: member.name for member in expected.members}
        fed = set()
        for stream in streams:
            given = self._plan.record_of(stream)
            if given is None or any(member.cls not in wanted for member in given.members):
                raise StateTypeError(
                    f"{who} takes {expected.name}; stream {stream!r} has {self._misfit(stream)}: "
                    "declare both with the same type"
                )
            fed |= {member.cls for member in given.members}
        missing = [name for cls, name in wanted.items() if cls not in fed]
        if missing:
            raise StateTypeError(
                f"{who} takes {expected.name}, and none of the streams {', '.join(streams)} has "
                f"{' or '.join(missing)}: add one, or take no such records"
            )

    def _type_name(self, stream: str) -> str:
        records = self._plan.record_of(stream)
        if records is not None:
            return records.name
        output = self._plan.output_of(stream)
        return "no records" if output is None else output.name

    def _misfit(self, stream: str) -> str:
        """Describe the record type of a stream, for messages that expect another type."""
        records, name = self._plan.record_of(stream), self._type_name(stream)
        is_record = records is not None or name == "no records"
        return name if is_record else f"{name}, which is not one type of records"

    @is_described("stream.window")
    def window(
        self,
        window: Window,
        *,
        key: str | tuple[str, ...] | list[str],
        event_time: str | None = None,
        lateness: dt.timedelta | str = dt.timedelta(0),
        allowed_lateness: dt.timedelta | str = dt.timedelta(0),
        emit: Literal["close", "change"] = "close",
        ordered: bool = False,
        early: dt.timedelta | str | None = None,
        early_clock: Clock | None = None,
        clock: Clock = "event",
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> Windowed[T]:
        """Group these records by key and window; call a method of the result for an operator, such
        as `aggregate`.

        Parameters:
            window: `tumbling`, `sliding`, `session` or `count_windows`.
            key, event_time, lateness, ordered, renamed: as for `@process`. With `key=()`, windows
                have all records. All but `count_windows` need event time.
            allowed_lateness: how long a window is kept for late records after it has fired. It
                fires again, with the updated result, in each epoch in which it gets any.
            emit: let a window fire once it is complete ("close"), or at each record ("change").
            early: fire open windows that have changed as often as this. Results have `is_final`.
            early_clock: whether "event" or "processing" time has to pass; by default as `clock`.
            clock: with "processing", windows have the records that are processed in their time.

        Raises:
            StateTypeError: an option is not valid; the message names it.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> from statekit.job.windows.sliding import tumbling
        >>> from statekit.job.windows.field_aggregates import Count, Sum
        >>> class Click(NamedTuple):
        ...     ad: str
        ...     cents: int
        ...     at: dt.datetime
        >>> job = Job("ads")
        >>> clicks = job.source("clicks", Click)
        >>> hours = clicks.window(tumbling("1 hour"), key="ad", event_time="at")
        >>> _ = hours.aggregate(clicks=Count(), cents=Sum("cents")).sink("hourly")
        >>> noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
        >>> run = job.run({"clicks": [Click("a", 5, noon), Click("a", 7, noon)]})
        >>> [(of.ad, f"{of.start:%H:%M}", of.clicks, of.cents) for of in run["hourly"]]
        [('a', '12:00', 2, 12)]
        """
        record = self._single_type("window")
        options = WindowOptions(
            key=key,
            event_time=event_time,
            lateness=lateness,
            allowed_lateness=allowed_lateness,
            emit=emit,
            ordered=ordered,
            early=early,
            early_clock=early_clock,
            clock=clock,
            combines=len(self._names) == 1,
            renamed=renamed,
        )
        return Windowed(self, Windowing(record, window, options))

    @declares("stream.aggregate")
    def aggregate(
        self,
        *,
        key: str | tuple[str, ...] | list[str],
        emit: Emit = "epoch",
        event_time: str | None = None,
        into: type[R] | None = None,
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
        **aggregates: FieldAggregate,
    ) -> OperatorStream[R, T]:
        """Keep aggregates of the records of each key.

        Built-in aggregates call no function per record, and records are combined before they are
        shuffled, unless an aggregate is `Collect` or `OwnAggregate`.
        Each epoch emits one result for every key with records, unless `emit` says otherwise: the
        key fields, and a field per aggregate. Each aggregate is a state of its name, for `get`,
        queries, savepoints and rescaling. An aggregate that is added later starts empty.

        Parameters:
            key: the field, or fields, that records are grouped by; `()` for all records together.
            emit: when a key has a result: once per epoch with records ("epoch"), for each record
                ("always"), once per epoch if the result differs from the one before ("change"), or
                once when event time has ended ("final"), which only a drain does.
            event_time: the field with the event time, for "final" alone. No record is late for it.
            into: a record class for the results, with fields of the same names; by default they are
                NamedTuples.
            ttl: how long the aggregates of a key are kept.
            name: of the operator; by default `aggregate_by_` and the key.
            renamed: as for `@process`.
            aggregates: `Count()`, `Sum(field)`, `Min(field)`, `Max(field)`, `Mean(field)`,
                `Top(count, by=…)`, `Last(field, by=…)`, `Collect(field)` or `OwnAggregate(…)`, by
                name.

        Raises:
            StateTypeError: there is no such field, or no such aggregate of it; or this is a union.

        >>> from typing import NamedTuple
        >>> from statekit.job.windows.field_aggregates import Count, Max
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> job = Job("shop")
        >>> orders = job.source("orders", Order)
        >>> of_customers = orders.aggregate(key="customer", orders=Count(), dearest=Max("cents"))
        >>> _ = of_customers.sink("customers")
        >>> run = job.run({"orders": [Order("ada", 500), Order("bob", 100), Order("ada", 200)]})
        >>> sorted(tuple(found) for found in run["customers"])
        [('ada', 2, 500), ('bob', 1, 100)]
        """
        self._check_single("aggregate")
        record = self._single_type("aggregate")
        options: dict[str, Any] = {"ttl": ttl, "into": into, "renamed": renamed}
        options |= {"emit": emit, "event_time": event_time}
        declared = aggregation(record, key=key, aggregates=aggregates, **options)
        return self.process(declared, name=name)

    @declares("stream.count")
    def count(
        self,
        *,
        on: str | tuple[str, ...] | list[str] = (),
        emit: Emit = "change",
        event_time: str | None = None,
        into: type[R] | None = None,
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> OperatorStream[R, T]:
        """Count the records of each key, as the state `count`. A result has the key fields and
        `count`.

        Parameters:
            on: the field, or fields, of the key; none for all records together.
            name: of the operator; by default `count_by_` and the fields.
            emit, event_time, into, ttl, renamed: as for `aggregate`.

        Raises:
            StateTypeError: there is no such field, or this is a union.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        >>> job = Job("shop")
        >>> _ = job.source("orders", Order).count(on="customer", emit="always").sink("orders")
        >>> run = job.run({"orders": [Order("ada"), Order("bob"), Order("ada")]})
        >>> sorted(tuple(found) for found in run["orders"])
        [('ada', 1), ('ada', 2), ('bob', 1)]
        """
        self._check_single("count")
        options: dict[str, Any] = {"ttl": ttl, "into": into, "renamed": renamed, "title": "count"}
        options |= {"emit": emit, "event_time": event_time, "aggregates": {"count": Count()}}
        return self.process(aggregation(self._single_type("count"), key=on, **options), name=name)

    @declares("stream.last")
    def last(
        self,
        *,
        by: str,
        on: str | tuple[str, ...] | list[str] = (),
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> OperatorStream[T, T]:
        """Keep the record of each key with the largest value of a field, as the state `last`. It is
        emitted, once per epoch, if it is another one than before.

        Of records with equal values it is the first by their other fields.

        Parameters:
            on: the field, or fields, of the key; none for all records together.
            by: the field whose largest value is last.
            ttl, renamed: as for `aggregate`.
            name: of the operator; by default `last_by_` and the fields of the key.

        Raises:
            StateTypeError: there is no such field, or this is a union.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     number: int
        >>> job = Job("shop")
        >>> _ = job.source("orders", Order).last(on="customer", by="number").sink("last")
        >>> job.run({"orders": [Order("ada", 3), Order("ada", 7), Order("ada", 5)]})["last"]
        [Order(customer='ada', number=7)]
        """
        return self._end("last", Last(by=by), on, ttl, renamed, name)

    @declares("stream.first")
    def first(
        self,
        *,
        by: str,
        on: str | tuple[str, ...] | list[str] = (),
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> OperatorStream[T, T]:
        """Keep the record of each key with the smallest value of a field, as the state `first`. It
        is emitted like that of `last`.

        Parameters:
            on: the field, or fields, of the key; none for all records together.
            by: the field whose smallest value is first.
            ttl, renamed: as for `aggregate`.
            name: of the operator; by default `first_by_` and the fields of the key.

        Raises:
            StateTypeError: there is no such field, or this is a union.
        """
        return self._end("first", First(by=by), on, ttl, renamed, name)

    def _end(
        self, title: str, of: Last, on: Any, ttl: TTL | None, renamed: Any, name: str | None
    ) -> OperatorStream[T, T]:
        self._check_single(title)
        declared = ends(self._single_type(title), of, title, on, ttl=ttl, renamed=renamed)
        return self.process(declared, name=name)

    @declares("stream.top")
    def top(
        self,
        count: int,
        by: str | tuple[str, ...],
        *,
        on: str | tuple[str, ...] | list[str] = (),
        ties: bool = False,
        into: type[R] | None = None,
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> OperatorStream[R, T]:
        """Keep the first records of each key in an order, as the state `top`, and emit the places
        that have changed.

        A result has the fields of the record, and its place from 1 on as `rank`. It replaces the
        result of the same key and rank that was emitted before.

        Parameters:
            count, by, ties: as for `Top`.
            on: the field, or fields, of the key; none for all records together.
            into: a class for the results, with fields of these names, or some of them.
            ttl, renamed: as for `aggregate`.
            name: of the operator; by default `top_`, the count, `_by_` and the fields of the key.

        Raises:
            StateTypeError: there is no such field, the records have a field `rank`, or this is a
                union.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Bid(NamedTuple):
        ...     auction: int
        ...     price: int
        >>> job = Job("auctions")
        >>> _ = job.source("bids", Bid).top(2, by="-price", on="auction").sink("top")
        >>> bids = [Bid(1, 5), Bid(1, 9), Bid(1, 7)]
        >>> [(found.rank, found.price) for found in job.run({"bids": bids}).outputs["top"]]
        [(1, 9), (2, 7)]
        """
        self._check_single("top")
        options: dict[str, Any] = {"into": into, "ttl": ttl, "renamed": renamed}
        declared = ranks(self._single_type("top"), Top(count, by, ties), on, **options)
        return self.process(declared, name=name)

    @declares("stream.distinct")
    def distinct(
        self,
        on: str | tuple[str, ...] | list[str],
        *,
        within: dt.timedelta | str | None = None,
        event_time: str | None = None,
        lateness: dt.timedelta | str = dt.timedelta(0),
        ttl: TTL | None = None,
        name: str | None = None,
        renamed: Mapping[str, str] = NOTHING_RENAMED,
    ) -> OperatorStream[T, T]:
        """Keep the first record of each value of some fields, in order of arrival.

        With `within`, a record is dropped if one with the same values was kept whose event time is
        at most that long before or after its own.

        Parameters:
            on: the field, or fields, by which records are the same.
            within: an interval of event time; None drops every later record.
            event_time, lateness, renamed: as for `@process`. The first two belong to `within`.
            ttl: how long a value is known without `within`, in processing time.
            name: of the operator; by default `distinct_by_` and the fields.

        Raises:
            StateTypeError: there is no such field, an option is not valid, or this is a union.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     number: int
        ...     cents: int
        >>> job = Job("shop")
        >>> _ = job.source("orders", Order).distinct("number").sink("once")
        >>> job.run({"orders": [Order(1, 500), Order(2, 100), Order(1, 500)]})["once"]
        [Order(number=1, cents=500), Order(number=2, cents=100)]
        """
        self._check_single("distinct")
        options: dict[str, Any] = {"within": within, "event_time": event_time, "ttl": ttl}
        options |= {"lateness": lateness, "renamed": renamed}
        return self.process(distinct(self._single_type("distinct"), on, **options), name=name)

    @overload
    def join(
        self,
        right: Stream[U],
        *,
        how: Literal["semi", "anti"],
        into: None = None,
        **options: Unpack[JoinArguments],
    ) -> OperatorStream[T, T | U]: ...
    @overload
    def join(
        self,
        right: Stream[U],
        *,
        how: How = "inner",
        into: type[R],
        **options: Unpack[JoinArguments],
    ) -> OperatorStream[R, T | U]: ...
    @overload
    def join(
        self,
        right: Stream[U],
        *,
        how: How = "inner",
        into: Callable[..., R],
        **options: Unpack[JoinArguments],
    ) -> OperatorStream[R, T | U]: ...
    @overload
    def join(
        self,
        right: Stream[U],
        *,
        how: How = "inner",
        into: None = None,
        **options: Unpack[JoinArguments],
    ) -> OperatorStream[Any, T | U]: ...
    @declares("stream.join")
    def join(
        self,
        right: Stream[U],
        *,
        how: How = "inner",
        into: Any = None,
        **options: Unpack[JoinArguments],
    ) -> OperatorStream[Any, Any]:
        """Join the records of this stream, the left side, with those of another one.

        Two records match if the fields of `on` are equal and neither is None, and the right one is
        in the interval, or in the same window. Their result is emitted when the later one arrives.
        A record without a match is emitted, if `how` says so, when the watermark shows that no
        match can follow. State is kept until then. With `emit="changes"` both sides are tables, and
        the changes of their join are emitted.

        Parameters:
            right: the right side. It may be this stream.
            how: "inner", "left", "right" or "full", as in SQL; "semi" for each left record at its
                first match, "anti" for each left record without a match.
            into: a record class for the results, or a function of both records, where None is in
                place of a record without a match. By default results are NamedTuples with the
                fields of both sides; with "semi" and "anti", the left records.
            options: see `JoinArguments`: `on`, `within`, `window`, `ttl`, `event_time`,
                `lateness`, `emit`, `key`, `deletes`, `fields`, `name`.

        Raises:
            StateTypeError: an option is not valid; both sides have a field, and the result does not
                say which; or a field of the results has another type.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     order: int
        ...     cents: int
        ...     at: dt.datetime
        >>> class Payment(NamedTuple):
        ...     order: int
        ...     method: str
        ...     paid: dt.datetime
        >>> class Paid(NamedTuple):
        ...     order: int
        ...     cents: int
        ...     method: str
        >>> job = Job("shop")
        >>> orders, payments = job.source("orders", Order), job.source("payments", Payment)
        >>> time = ("at", "paid")
        >>> paid = orders.join(payments, on="order", within="1 hour", event_time=time, into=Paid)
        >>> _ = paid.sink("paid")
        >>> noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
        >>> run = job.run({"orders": [Order(1, 500, noon)], "payments": [Payment(1, "card", noon)]})
        >>> run["paid"]
        [Paid(order=1, cents=500, method='card')]
        """
        records = self._single_type("join"), right._single_type("join")
        made = declared_join(records, (self.name, right.name), how, into, options)
        left_rows, right_rows = self._rows_of(made, right)
        joined = left_rows.union(right_rows).process(made.process, name=made.name)
        return joined if made.after is None else joined.process(made.after)

    @overload
    def lookup(
        self,
        table: Stream[U],
        *,
        how: Literal["semi", "anti"],
        into: None = None,
        **options: Unpack[LookupArguments],
    ) -> OperatorStream[T, T | U]: ...
    @overload
    def lookup(
        self,
        table: Stream[U],
        *,
        how: LookupHow = "left",
        into: type[R],
        **options: Unpack[LookupArguments],
    ) -> OperatorStream[R, T | U]: ...
    @overload
    def lookup(
        self,
        table: Stream[U],
        *,
        how: LookupHow = "left",
        into: Callable[..., R],
        **options: Unpack[LookupArguments],
    ) -> OperatorStream[R, T | U]: ...
    @overload
    def lookup(
        self,
        table: Stream[U],
        *,
        how: LookupHow = "left",
        into: None = None,
        **options: Unpack[LookupArguments],
    ) -> OperatorStream[Any, T | U]: ...
    @declares("stream.lookup")
    def lookup(
        self,
        table: Stream[U],
        *,
        how: LookupHow = "left",
        into: Any = None,
        **options: Unpack[LookupArguments],
    ) -> OperatorStream[Any, Any]:
        """Look each record up in a table that another stream keeps.

        The other stream replaces and deletes rows of the table. A record sees the row of its key
        that is there when it arrives; with `as_of=True` the row of its own event time, whatever
        arrives first.

        Parameters:
            table: the stream of the table's rows.
            how: "left" for all records, with None in place of a row that is not there; "inner" for
                those with a row; "semi" and "anti" for those with and without one, unchanged.
            into: as for `join`.
            options: see `LookupArguments`: `on`, `deletes`, `as_of`, `event_time`, `lateness`,
                `fields`, `name`.

        Raises:
            StateTypeError: as for `join`.

        >>> from typing import NamedTuple
        >>> from statekit.job.job import Job
        >>> class Order(NamedTuple):
        ...     customer: int
        ...     cents: int
        >>> class Customer(NamedTuple):
        ...     id: int
        ...     city: str
        >>> class Located(NamedTuple):
        ...     cents: int
        ...     city: str | None
        >>> job = Job("shop")
        >>> orders, customers = job.source("orders", Order), job.source("customers", Customer)
        >>> located = orders.lookup(customers, on=("customer", "id"), into=Located)
        >>> _ = located.sink("located")
        >>> records = {"orders": [Order(1, 500), Order(2, 70)], "customers": [Customer(1, "Rome")]}
        >>> sorted(job.run(records)["located"])
        [Located(cents=70, city=None), Located(cents=500, city='Rome')]
        """
        records = self._single_type("lookup"), table._single_type("lookup")
        made = declared_lookup(records, (self.name, table.name), how, into, options)
        left_rows, table_rows = self._rows_of(made, table)
        return table_rows.union(left_rows).process(made.process, name=made.name)

    def _rows_of(self, made: DeclaredJoin, right: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        """Return the rows of both sides of a join."""
        left_rows = self.select(made.left.cls, made.left.fields, name=f"{made.name}.left")
        rows = right.select(made.right.cls, made.right.fields, name=f"{made.name}.right")
        of_left, of_right = made.before
        return (
            left_rows if of_left is None else left_rows.process(of_left),
            rows if of_right is None else rows.process(of_right),
        )

    def _records(self, stream: str, doing: str) -> Records:
        """Return the record type, or types, of a stream.

        Parameters:
            doing: the method that needs records.
        """
        records = self._plan.record_of(stream)
        if records is None:
            misfit = self._misfit(stream)
            raise StateTypeError(f"stream {stream!r} has {misfit}: there is nothing to {doing}")
        return records

    def _single_type(self, doing: str) -> RecordType:
        """Return the single type of these records.

        Parameters:
            doing: the method that needs it: `window`, or `aggregate`.
        """
        types: dict[Any, RecordType] = {}
        for name in self._names:
            types |= {member.cls: member for member in self._records(name, doing).members}
        first, *others = types.values()
        if others:
            misfit = " | ".join(member.name for member in types.values())
            raise StateTypeError(
                f"{doing}: stream {self.name!r} has {misfit}, and this needs records of one type: "
                "select one with of(), or use a process function"
            )
        return first

    @property
    def late(self) -> Stream[Any]:
        """The late records of this operator, as they arrived.

        Without a sink or another operator they are dropped. They are counted in any case.

        Raises:
            StateTypeError: this is not an operator with event time.
        """
        self._check_single("late")
        declared = self._plan.process_of(self.name)
        if declared is None or declared.event_time is None:
            raise StateTypeError(
                f"stream {self.name!r} has no late records: only an operator with "
                "@process(event_time=...) has"
            )
        return Stream(self._plan, self._plan.operator(self.name).late)

    @property
    def errors(self) -> Stream[Any]:
        """The records that did not fit the type of a source, each as a `BadRecord`; or the records
        and timers for which the function of an operator failed, each as a `FailedRecord`.

        Without a sink or another operator they are only counted.

        Raises:
            StateTypeError: the source or the function is not declared with `on_error="collect"`.

        >>> from collections.abc import Iterator
        >>> from statekit.functions.process import process
        >>> from statekit.job.job import Job
        >>> @process(key="user", on_error="collect")
        ... def ratio(record: dict) -> Iterator[float]:
        ...     yield record["clicks"] / record["views"]
        >>> job = Job("ads")
        >>> ratios = job.source("views", dict).process(ratio).sink("ratios")
        >>> _ = ratios.errors.sink("bad")
        >>> views = [{"user": "a", "clicks": 1, "views": 0}, {"user": "a", "clicks": 1, "views": 2}]
        >>> run = job.run({"views": views})
        >>> run["ratios"], [failed.message for failed in run["bad"]]
        ([0.5], ['division by zero'])
        """
        self._check_single("errors")
        if (of_source := self._plan.errors_of(self.name)) is not None:
            return Stream(self._plan, of_source)
        declared = self._plan.process_of(self.name)
        if declared is None or declared.errors.on_error != "collect":
            raise StateTypeError(
                f"stream {self.name!r} does not collect errors: declare its source, or its "
                'function with @process, with on_error="collect"'
            )
        return Stream(self._plan, self._plan.operator(self.name).errors)

    @declares("stream.sink")
    def sink(self, name: str, target: Target | None = None) -> Self:
        """Emit these records from the job under a name. Return the stream itself.

        Parameters:
            name: of the sink. A run gives the records under it, or takes a target in `outputs=`.
            target: where the records go, such as `sinks.parquet(path)`. `outputs=` of a run goes
                before it.

        Raises:
            StateTypeError: the name is taken or not valid, or the target is none; or this is a
                union.

        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> class Order(NamedTuple):
        ...     customer: str
        >>> job = sk.Job("shop")
        >>> job.source("orders", Order).sink("archive", sk.sinks.parquet("/data/orders"))
        <Stream 'orders' of Order>
        """
        self._check_single("sink")
        if target is not None and not isinstance(target, Sink | FrameSink):
            raise StateTypeError(
                f"sink {name!r} goes to {shown(target)}: give a sink such as sinks.parquet(path), "
                "or a function in outputs= of the run"
            )
        if any(sink.name == name for sink in self._plan.sinks):
            raise StateTypeError(f"job {self._plan.name!r} has a sink {name!r} already")
        check_name("sink", name)
        self._plan.sinks.append(Output(name, self.name, target))
        return self

    def _check_single(self, what: str) -> None:
        if len(self._names) > 1:
            raise StateTypeError(
                f"{self.name} is a union, which can only be processed: use .{what} of each stream"
            )


class OperatorStream(Stream[U], Generic[U, T]):
    """The outputs of an operator: records of type U, from inputs of type T.

    Created by `Stream.process`, `Stream.aggregate` and the methods of `Windowed`.
    """

    @property
    def errors(self) -> Stream[FailedRecord]:
        """The records and timers for which the function of this operator failed.

        Without a sink or another operator they are only counted.

        Raises:
            StateTypeError: the function is not declared with `on_error="collect"`.
        """
        return super().errors

    @property
    def late(self) -> Stream[T]:
        """The late records of this operator, as they arrived.

        Without a sink or another operator they are dropped. They are counted in any case.

        Raises:
            StateTypeError: the operator has no event time.
        """
        return super().late


def _names_of(job: Plan, what: str, streams: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of streams to combine with one of `job`."""
    names: list[str] = []
    for stream in streams:
        if not isinstance(stream, Stream) or stream._plan is not job:
            raise StateTypeError(
                f"{what} takes streams of job {job.name!r}, not {stream!r}: give it what "
                "source() and process() of that job return"
            )
        names += stream._names
    return tuple(names)


class Windowed(Generic[T]):
    """Records grouped by key and window. Created by `Stream.window`; each method creates an
    operator.

    A result has the key fields, `start`, `end` and the aggregates by name. `into=` is a record
    class for the results, with fields of the same names; by default they are NamedTuples. `name=`
    is the name of the operator; the default describes the result. An invalid argument raises
    StateTypeError.
    """

    declaration: Declaration
    """The call of `Stream.window`."""

    def __init__(self, stream: Stream[T], windowing: Windowing) -> None:
        self._stream = stream
        self._windowing = windowing

    def __repr__(self) -> str:
        return f"<Windowed {self._stream.name!r}: {self._windowing}>"

    @property
    def plan(self) -> Plan:
        """The plan of the job of the records. Its names may change."""
        return self._stream.plan

    @declares("window.aggregate")
    def aggregate(
        self, *, name: str | None = None, into: type[R] | None = None, **aggregates: FieldAggregate
    ) -> OperatorStream[R, T]:
        """Keep any number of aggregates of each window, in one operator with one shuffle.

        Parameters:
            name: of the operator; by default `aggregate_by_` and the key.
            aggregates: as for `Stream.aggregate`.
        """
        return self._stream.process(self._windowing.operator(aggregates, into), name=name)

    @declares("window.count")
    def count(
        self, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Count the records of a window, as `count`."""
        return self._single("count", "count", Count(), name, into)

    @declares("window.sum")
    def sum(
        self, field: str, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Sum a field; the result field has its name. None is skipped. If all values are None, the
        sum is None.
        """
        return self._single(f"sum_{field}", field, Sum(field), name, into)

    @declares("window.min")
    def min(
        self, field: str, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Return the smallest value of a field; the result field has its name. None is skipped."""
        return self._single(f"min_{field}", field, Min(field), name, into)

    @declares("window.max")
    def max(
        self, field: str, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Return the largest value of a field; the result field has its name. None is skipped."""
        return self._single(f"max_{field}", field, Max(field), name, into)

    @declares("window.mean")
    def mean(
        self, field: str, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Return the mean of a field: a float for numbers; the result field has its name. None is
        skipped. If all values are None, the mean is None.
        """
        return self._single(f"mean_{field}", field, Mean(field), name, into)

    @declares("window.top")
    def top(
        self,
        count: int,
        by: str | tuple[str, ...],
        *,
        ties: bool = False,
        name: str | None = None,
        into: type[R] | None = None,
    ) -> OperatorStream[R, T]:
        """Keep the first `records` in an order.

        Parameters:
            count: how many.
            by: fields that are compared one after the other; "-price" from the largest to the
                smallest. Records that are equal in these are in the order of their other fields.
            ties: also those that are equal to the last of these in all of these fields.
        """
        return self._single(f"top_{count}", "records", Top(count, by, ties), name, into)

    @declares("window.last")
    def last(
        self,
        field: str | None = None,
        *,
        by: str | None = None,
        name: str | None = None,
        into: type[R] | None = None,
    ) -> OperatorStream[R, T]:
        """Return the last `record`, or a field of it under its name.

        Parameters:
            by: the field whose largest value is last; by default the event time.
        """
        last = Last(field, by=self._windowing.time_field if by is None else by)
        title = "last" if field is None else f"last_{field}"
        return self._single(title, field or "record", last, name, into)

    @declares("window.collect")
    def collect(
        self, field: str | None = None, *, name: str | None = None, into: type[R] | None = None
    ) -> OperatorStream[R, T]:
        """Collect all `records`, or the values of a field under its name, in order of time."""
        title = "collect" if field is None else f"collect_{field}"
        return self._single(title, field or "records", Collect(field), name, into)

    def _single(
        self, title: str, result: str, of: FieldAggregate, name: str | None, into: type[R] | None
    ) -> OperatorStream[R, T]:
        """Keep one aggregate.

        Parameters:
            title: the first part of the default name of the operator.
            result: the name of the field in a result.
        """
        return self._stream.process(self._windowing.operator({result: of}, into, title), name=name)
