"""The plan of a job: sources, operators and sinks, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from statekit.checkpoint.job_file import KeyFieldRecord, OperatorRecord, StateRecord
from statekit.checkpoint.sealed_json import faults_of
from statekit.codec.annotations import show
from statekit.errors import StateTypeError
from statekit.expressions.compiled import CompiledExpression
from statekit.functions.failed_record import FailedRecord, OnError
from statekit.functions.process import Process
from statekit.functions.projection import Projection
from statekit.functions.stateless import Stateless
from statekit.job.declarations import Declaration
from statekit.names import name_fault
from statekit.records.output_type import OutputType
from statekit.records.output_union import AnyOutput, OutputUnion
from statekit.records.union import Records, records_of
from statekit.sinks.protocol.frame_sinks import Target
from statekit.sources.spark import AnySource
from statekit.state.base import StateSpec
from statekit.stored_types import state_text
from statekit.watermark import BEGINNING

RESERVED = "__statekit"
"""The prefix of columns that statekit adds to frames. Inputs are columns there too."""

FAILED_RECORDS = OutputType(FailedRecord, "stream of failed records")
"""The type of the failed records of every operator."""


@dataclass(frozen=True)
class Input:
    """A named input of records.

    Parameters:
        idle_after_us: after so much processing time without records, it does not hold back event
            time; None if it always does.
        source: where its records come from; None if each run says it.
        on_error: what is done with records that do not fit the type.
        max_errors: with more of them, in all epochs, the job ends; None for any number.
        errors_of: of an input of bad records, the name of the input that they were read from.
    """

    name: str
    record_type: Records
    idle_after_us: int | None = None
    source: AnySource | None = None
    on_error: OnError = "fail"
    max_errors: int | None = None
    errors_of: str | None = None


@dataclass(frozen=True)
class TimeField:
    """The field that supplies the event time of selected records.

    Parameters:
        input: the name of the input with the selected records.
        name: of the field of the records that they are selected from.
        others: the names of all fields of these.
    """

    input: str
    name: str
    others: frozenset[str]


@dataclass(frozen=True)
class Operator:
    """A process function in a job, with a name and its input streams.

    Parameters:
        inputs: names of the keyed input streams.
        broadcasts: names of the broadcast input streams.
        times: for inputs with selected records, where their event time is taken from.
    """

    name: str
    declared: Process[Any, Any, Any]
    inputs: tuple[str, ...]
    broadcasts: tuple[str, ...] = ()
    times: tuple[TimeField, ...] = ()

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of all input streams. The number of an input is its position in this tuple."""
        return self.inputs + self.broadcasts

    @property
    def emits(self) -> tuple[str, str, str]:
        """Names of its streams of outputs, late records and failed records."""
        return self.name, self.late, self.errors

    @property
    def late(self) -> str:
        """Name of the stream of late records."""
        return late_name(self.name)

    @property
    def errors(self) -> str:
        """Name of the stream of failed records."""
        return errors_name(self.name)

    def record(self) -> OperatorRecord:
        """Return the operator's part of the job file: key, states and types.

        Raises:
            StateTypeError: a name or a type in it could not be read back.
        """
        try:
            return self._record()
        except ValidationError as error:
            raise StateTypeError(
                f"operator {self.name!r} cannot be stored: {faults_of(error)}. Correct what it is "
                "about: a name, or an option of the operator"
            ) from error

    def _record(self) -> OperatorRecord:
        fields = self.declared.record_type.members[0].fields
        schema = self.declared.key_codec.schema
        tree = schema.to_json()
        parts = schema.items if len(self.declared.key) > 1 and fields is not None else ()
        waiting = self.declared.ordered
        types = [part.to_json() for part in parts] or [tree] * len(self.declared.key)
        definition = self.declared.traits.definition
        return OperatorRecord(
            name=self.name,
            inputs=self.inputs,
            broadcasts=self.broadcasts,
            key=tuple(
                KeyFieldRecord(name=name, type=type_)
                for name, type_ in zip(self.declared.key, types, strict=True)
            ),
            states=tuple(_state_record(spec) for spec in self.declared.states),
            event_time=self.declared.event_time,
            time_fields={of.input: of.name for of in self.times},
            lateness_us=self.declared.lateness_us,
            timers=self.declared.handles_timers,
            timer_names=self.declared.timer_names or None,
            ordered=waiting.schema.to_json() if waiting is not None else None,
            buffered_inputs=self.inputs if waiting is not None else (),
            definition=None if definition is None else dict(definition(str)),
            widths=dict(self.declared.traits.widths),
        )


@dataclass(frozen=True)
class Transform:
    """A stateless function in a job, with a name and one input stream."""

    name: str
    function: Stateless
    input: str


def applied(transforms: Iterable[Transform], records: list[Any], epoch: int) -> list[Any]:
    """Return the outputs of transforms, in the stored form that the next function receives.

    Parameters:
        records: of the first transform.
        epoch: of the records, for messages.

    Raises:
        ProcessError: a function failed, or an output does not fit the declared type.
    """
    for transform in transforms:
        function = transform.function
        records = function.apply(records, transform.name, epoch)
        if not function.keeps_records:
            records = function.output_type.stored(records)
    return records


@dataclass(frozen=True)
class Output:
    """A named output of the job.

    Parameters:
        name: of the sink.
        stream: whose records it has.
        target: where they go; None if each run says it.
    """

    name: str
    stream: str
    target: Target | None = None


class Plan:
    """The plan of a job: sources, operators and sinks, and the connections between them.

    Attributes:
        name: of the job.
        key_groups: the declared number; None uses that of the checkpoint.
        sources, operators, transforms, sinks: each operator and each transform comes after those
            that feed it.
        declarations: the calls that added all of these, in their order.
        is_declaring: whether such a call has not ended.
    """

    def __init__(self, name: str, key_groups: int | None) -> None:
        self.name = name
        self.key_groups = key_groups
        self.sources: list[Input] = []
        self.sinks: list[Output] = []
        self.declarations: list[Declaration] = []
        self.is_declaring = False
        self._operators: list[Operator] = []
        self._transforms: dict[str, Transform] = {}
        self._grown: dict[str, Callable[[], Process[Any, Any, Any]]] = {}
        """Operators with inputs that their functions do not take yet, and what returns functions
        that do."""

    @property
    def operators(self) -> list[Operator]:
        """The operators, each after those that feed it."""
        self._assemble()
        return self._operators

    @property
    def transforms(self) -> list[Transform]:
        """The transforms, each after those that feed it."""
        self._assemble()
        return list(self._transforms.values())

    def free_name(self, kind: Literal["source", "operator", "stream"], name: str) -> str:
        """Check and return the name of a new source, operator or transform. For an operator, also
        check the names of its late stream and of its stream of failed records.

        Raises:
            StateTypeError: another stream has one of the names, or it is not a valid name.
        """
        check_name(kind, name)
        streams = _streams_of(name) if kind == "operator" else {name: f"{kind} {name!r}"}
        if name.startswith(RESERVED):
            raise StateTypeError(
                f"{kind} {name!r}: columns of statekit itself begin with {RESERVED!r}. "
                f"The {kind} was not added. Choose another name"
            )
        taken = self._stream_names()
        by_case = {other.casefold(): other for other in taken}
        for stream, new in streams.items():
            other = by_case.get(stream.casefold(), stream)
            if other != stream:
                raise StateTypeError(
                    f"job {self.name!r}: the names of {new} and of {self._described(other)} "
                    "differ in case "
                    f"alone, which some file systems ignore. The {kind} was not added. Choose "
                    "another name"
                )
            if stream in taken:
                raise StateTypeError(
                    f"job {self.name!r}: {new} would have the same name as "
                    f"{self._described(stream)}. The {kind} was not added. Choose another name "
                    f"for the {kind}: sources, operators and their streams share one namespace"
                )
        return name

    def has_stream(self, name: str) -> bool:
        """Return whether there is a source, operator or transform whose stream has a name."""
        return name in self._stream_names()

    def _stream_names(self) -> set[str]:
        emitted = (stream for operator in self._operators for stream in operator.emits)
        return {*(source.name for source in self.sources), *self._transforms, *emitted}

    def _described(self, stream: str) -> str:
        """Return the name of a stream with its kind, for errors."""
        if self.is_source(stream):
            return f"source {stream!r}"
        operators = (_streams_of(operator.name) for operator in self._operators)
        return next((of[stream] for of in operators if stream in of), f"stream {stream!r}")

    def put_operator(self, operator: Operator) -> None:
        """Add an operator, which nothing reads yet."""
        self._operators.append(operator)

    def put_transform(self, transform: Transform) -> None:
        """Add a transform, which nothing reads yet."""
        self._transforms[transform.name] = transform

    def select_class(self, operator: str, cls: Any, name: str, *, late: bool = False) -> None:
        """Add a stream with the records of one class from the outputs of an operator, or from its
        late records. Unlike `Stream.of`, it does not need the function of the operator, which may
        grow.

        Raises:
            StateTypeError: the name is taken or not valid, or it is no class of records.
        """
        selection = Stateless.selection(records_of(cls, where=operator), cls)
        stream = late_name(operator) if late else operator
        self.put_transform(Transform(self.free_name("stream", name), selection, stream))

    def grow_operator(
        self, name: str, streams: tuple[str, ...], grown: Callable[[], Process[Any, Any, Any]]
    ) -> None:
        """Feed an operator with more streams, so that a part of a job can add inputs and outputs to
        its operator while the job is declared.

        The function is not replaced now, but once, when the plan is read. So a part with many
        inputs is declared in a time that is linear in their number.

        Parameters:
            streams: the new inputs.
            grown: returns the function that takes all inputs. It emits all classes of the former
                one.

        Raises:
            StateTypeError: the operator would be fed by its own outputs.
        """
        place = next(at for at, each in enumerate(self._operators) if each.name == name)
        operator = self._operators[place]
        event_time = operator.declared.event_time
        times = () if event_time is None else self.time_fields(event_time, streams)
        operator = replace(
            operator, inputs=operator.inputs + streams, times=(*operator.times, *times)
        )
        operators = [*self._operators[:place], operator, *self._operators[place + 1 :]]
        origins = {self.origin_of(stream) for stream in streams}
        is_fed_later = any(not origins.isdisjoint(each.emits) for each in operators[place:])
        self._operators = self._in_order(operators) if is_fed_later else operators
        self._grown[name] = grown

    def _assemble(self) -> None:
        """Replace the functions of operators that have grown, and all selections of their records
        by class.
        """
        while self._grown:
            name, grown = next(iter(self._grown.items()))
            declared = grown()
            del self._grown[name]
            place = next(at for at, each in enumerate(self._operators) if each.name == name)
            operator = replace(self._operators[place], declared=declared)
            self._operators[place] = operator
            for stream in (operator.name, operator.late):
                if (records := self.record_of(stream)) is not None:
                    self._select_again(stream, records)

    def _select_again(self, stream: str, records: Records) -> None:
        """Replace the selections by class of a stream by those of its present record types."""
        for each in self._transforms.values():
            if each.input == stream and each.function.kind == "of":
                function = Stateless.selection(records, each.function.fn)
                self._transforms[each.name] = replace(each, function=function)

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Remove the operators and transforms that are added before an error is raised."""
        before = [*self._operators], {**self._transforms}, {**self._grown}
        try:
            yield
        except Exception:
            self._operators, self._transforms, self._grown = before
            raise

    def _in_order(self, operators: Iterable[Operator]) -> list[Operator]:
        """Sort operators so that each follows the operators that feed it. The order is otherwise
        kept.

        Raises:
            StateTypeError: some feed each other.
        """
        ordered, waiting = [], list(operators)
        while waiting:
            missing = {stream for each in waiting for stream in each.emits}
            fed = (op for op in waiting if missing.isdisjoint(map(self.origin_of, op.streams)))
            following = next(fed, None)
            if following is None:
                raise StateTypeError(
                    f"job {self.name!r}: the outputs of {' and '.join(op.name for op in waiting)} "
                    "would be fed back to their own inputs, and a job has no cycles. Nothing was "
                    "changed. Keep in state what an operator needs of its own outputs"
                )
            ordered.append(following)
            waiting.remove(following)
        return ordered

    def record_of(self, stream: str) -> Records | None:
        """Return the record type, or types, of a stream; None if it has no records."""
        for source in self.sources:
            if source.name == stream:
                return source.record_type
        if (transform := self._transforms.get(stream)) is not None:
            return transform.function.output_type.record_type
        for operator in self.operators:
            if operator.late == stream:
                return operator.declared.record_type
        output = self.output_of(stream)
        return output.record_type if output is not None else None

    def output_of(self, stream: str) -> AnyOutput | None:
        """Return the output type of a transform, an operator or its failed records; None if it
        emits nothing.
        """
        if (transform := self._transforms.get(stream)) is not None:
            return transform.function.output_type
        if any(operator.errors == stream for operator in self.operators):
            return FAILED_RECORDS
        return self.operator(stream).declared.output_type

    def idle_after_us(self, stream: str) -> int | None:
        """Return the time after which the source of a stream counts as idle; None for all other
        streams.
        """
        origin = self.origin_of(stream)
        of_sources = (each.idle_after_us for each in self.sources if each.name == origin)
        return next(of_sources, None)

    def transform(self, name: str) -> Transform | None:
        """Return the transform that emits a stream; None if no transform does."""
        self._assemble()
        return self._transforms.get(name)

    def transforms_of(self, stream: str) -> list[Transform]:
        """Return the transforms that a stream feeds."""
        return [transform for transform in self.transforms if transform.input == stream]

    def condition_of(self, stream: str) -> CompiledExpression | None:
        """Return the condition that is all that reads a stream; None if there is none, or if it
        needs records.
        """
        readers = self.transforms_of(stream)
        if self.reads_of(stream) != 1 or not readers:
            return None
        function = readers[0].function
        if isinstance(function.fn, CompiledExpression) and function.selects_columns:
            return function.fn
        return None

    def origin_of(self, stream: str) -> str:
        """Return the stream at the start of a chain of transforms; the stream itself if no
        transform emits it.
        """
        while (transform := self._transforms.get(stream)) is not None:
            stream = transform.input
        return stream

    def time_fields(self, event_time: str, streams: Iterable[str]) -> Iterator[TimeField]:
        """Yield the source fields of the event time of streams with selected records.

        There is none for records that a function makes.
        """
        for stream in streams:
            origin, name = self._selected_from(stream, event_time)
            records = self.record_of(origin) if origin != stream else None
            fields = [] if records is None else [member.fields or {} for member in records.members]
            others = frozenset(other for of in fields for other in of)
            if name in others:
                yield TimeField(stream, name, others)

    def _selected_from(self, stream: str, field: str) -> tuple[str, str]:
        """Return the stream and field that a field of selected records is copied from; the stream
        and field themselves if the records are not selected, or a function creates them.
        """
        origin, name = stream, field
        while (transform := self._transforms.get(origin)) is not None:
            function, origin = transform.function, transform.input
            if isinstance(function.fn, Projection):
                name = function.fn.copied_fields.get(name, "")
            elif not function.keeps_records:
                return stream, field
        return origin, name

    def operators_before(self, streams: Iterable[str]) -> set[str]:
        """Return the operators that directly supply the records of some streams."""
        names = set()
        for origin in map(self.origin_of, streams):
            late_of = next((each for each in self.operators if each.late == origin), None)
            if late_of is not None:  # late records are found among the inputs
                names |= self.operators_before(late_of.inputs)
            elif (emitter := self.emitter_of(origin)) is not None:
                names.add(emitter.name)
        return names

    def reads_of(self, stream: str) -> int:
        """Return the number of operators, transforms and sinks that read a stream."""
        operators = sum(operator.streams.count(stream) for operator in self.operators)
        return operators + len(self.transforms_of(stream)) + len(self.sinks_of(stream))

    def is_only_combined(self, stream: str) -> bool:
        """Return whether nothing reads a stream but an operator that combines its records."""
        readers = [operator for operator in self.operators if stream in operator.inputs]
        if self.reads_of(stream) != 1 or not readers:
            return False
        return readers[0].declared.traits.combiner is not None and not self.wants_late(readers[0])

    def emitter_of(self, stream: str) -> Operator | None:
        """Return the operator whose outputs or failed records a stream has; None for all other
        streams.
        """
        return next((each for each in self.operators if stream in (each.name, each.errors)), None)

    def operator(self, name: str) -> Operator:
        """Return the operator of that name."""
        return next(operator for operator in self.operators if operator.name == name)

    def process_of(self, stream: str) -> Process[Any, Any, Any] | None:
        """Return the process function whose outputs a stream has; None for all other streams."""
        return next((each.declared for each in self.operators if each.name == stream), None)

    def sinks_of(self, stream: str) -> list[Output]:
        """Return the sinks of a stream."""
        return [sink for sink in self.sinks if sink.stream == stream]

    def consumers_of(self, stream: str) -> list[Operator]:
        """Return the operators that a stream feeds, broadcast or not."""
        return [operator for operator in self.operators if stream in operator.streams]

    def errors_of(self, source: str) -> str | None:
        """Return the name of the input with the bad records of a source; None if it has none."""
        return next((each.name for each in self.sources if each.errors_of == source), None)

    def is_source(self, stream: str) -> bool:
        """Return whether a stream is a source."""
        return any(source.name == stream for source in self.sources)

    def has_given_rows(self, stream: str) -> bool:
        """Return whether a stream has the rows of a source, whose class creates records from them.
        The job itself has created and written the rows of all other streams.
        """
        transform = self.transform(stream)
        if transform is not None:
            function = transform.function
            keeps_rows = function.keeps_records or function.selects_columns
            return keeps_rows and self.has_given_rows(transform.input)
        late_of = next((each for each in self.operators if each.late == stream), None)
        if late_of is not None:
            return any(map(self.has_given_rows, late_of.inputs))
        return self.is_source(stream)

    def is_operator(self, stream: str) -> bool:
        """Return whether a stream is the output of an operator."""
        return any(operator.name == stream for operator in self._operators)

    def wants_late(self, operator: Operator) -> bool:
        """Return whether the late records of an operator are consumed."""
        return self.reads_of(operator.late) > 0

    def wants_errors(self, operator: Operator) -> bool:
        """Return whether the failed records of an operator are consumed."""
        return self.reads_of(operator.errors) > 0

    def targets(self, outputs: Mapping[str, object]) -> dict[str, object]:
        """Return the target of each sink that has one: that of the run, or else that of the job.

        Parameters:
            outputs: targets of the run.
        """
        declared = {sink.name: sink.target for sink in self.sinks if sink.target is not None}
        return {**declared, **outputs}

    def origins(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Return where each input of the job comes from: as the run says, or else the job.

        Parameters:
            inputs: of the run.
        """
        declared = {each.name: each.source for each in self.sources if each.source is not None}
        return {**declared, **inputs}

    def check_names(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Check that there is one input per source and one output per sink.

        Raises:
            StateTypeError: one is missing, or is not in the job.
        """
        named = [source.name for source in self.sources if source.errors_of is None]
        for kind, declared, given in (
            ("source", named, inputs),
            ("sink", [sink.name for sink in self.sinks], outputs),
        ):
            if set(declared) != set(given):
                word = "inputs" if kind == "source" else "outputs"
                raise StateTypeError(
                    f"job {self.name!r} has the {kind}s {sorted(declared)}; {word}= has "
                    f"{sorted(given)}: give each {kind} its own"
                )

    def __str__(self) -> str:
        sources = [
            (f"source {each.name}: {each.record_type.name}", each.name) for each in self.sources
        ]
        return "\n".join([f"job {self.name}", *self._drawn(sources)])

    def _drawn(self, parts: Sequence[tuple[str, str | None]]) -> Iterator[str]:
        """Yield the lines of parts, each with its title and the stream to draw below it."""
        for position, (title, stream) in enumerate(parts):
            last = position == len(parts) - 1
            yield f"{'└' if last else '├'}── {title}"
            for line in () if stream is None else self._below(stream):
                yield f"{'    ' if last else '│   '}{line}"

    def _below(self, stream: str) -> Iterator[str]:
        """Yield the lines of all readers of a stream, and of the states of its operator."""
        of = next((each for each in self.operators if each.name == stream), None)
        states = () if of is None else of.declared.states
        parts: list[tuple[str, str | None]] = [
            (f"state {spec.name}: {state_text(_state_record(spec))}", None) for spec in states
        ]
        parts += [(f"sink {sink.name}", None) for sink in self.sinks_of(stream)]
        parts += [(_transform_text(each), each.name) for each in self.transforms_of(stream)]
        for operator in self.consumers_of(stream):
            parts += _drawn_under(operator, stream)
        yield from self._drawn(parts)
        if of is not None and self.wants_late(of):
            yield f"late records of {of.name}"
            yield from self._below(of.late)
        if of is not None and self.wants_errors(of):
            yield f"failed records of {of.name}"
            yield from self._below(of.errors)


def _streams_of(operator: str) -> dict[str, str]:
    """Return the streams of an operator by name, with descriptions for errors."""
    late, errors = late_name(operator), errors_name(operator)
    return {
        operator: f"operator {operator!r}",
        late: f"the late stream {late!r} of operator {operator!r}",
        errors: f"the stream {errors!r} of failed records of operator {operator!r}",
    }


def late_name(operator: str) -> str:
    """Return the name of an operator's stream of late records."""
    return f"{operator}.late"


def errors_name(stream: str) -> str:
    """Return the name of the stream of records that a source or an operator could not handle."""
    return f"{stream}.errors"


def check_name(what: str, name: str) -> str:
    """Return a name after checking that it is valid.

    Raises:
        StateTypeError: it is not: names become parts of paths.
    """
    if not isinstance(name, str):
        raise StateTypeError(f"{what} {name!r:.200}: a name is a text")
    if (fault := name_fault(name)) is not None:
        raise StateTypeError(f"{what} {name[:200]!r}: {fault}")
    return name


def _state_record(spec: StateSpec) -> StateRecord:
    types = {"value": spec.codec.schema.to_json()}
    fingerprint = spec.codec.schema.fingerprint
    if spec.key_codec is not None:
        types["key"] = spec.key_codec.schema.to_json()
        fingerprint = f"{spec.key_codec.schema.fingerprint}-{fingerprint}"
    combining = spec.reduce or spec.aggregate
    return StateRecord(
        name=spec.name,
        kind=spec.kind.name,
        codec=spec.codec.name,
        types=types,
        fingerprint=fingerprint,
        ttl=spec.ttl,
        era=0 if spec.ttl is None else 1,
        since_us=None if spec.ttl is None else BEGINNING,
        redistribute=None if spec.redistribute is None else spec.redistribute.known,
        reducer=None if combining is None else combining.stored_name,
    )


def _transform_text(transform: Transform) -> str:
    function = transform.function
    return f"{function.kind} {transform.name} → {function.output_type.name}"


def _drawn_under(operator: Operator, stream: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of an operator to draw under a stream that feeds it: all parts under the
    first stream, a reference under others.
    """
    for number, name in enumerate(operator.inputs):
        if name == stream and number == 0:
            key = ", ".join(operator.declared.key)
            by = f" by {key}" if key else ""
            yield f"operator {operator.name}{by} → {_output_text(operator)}", operator.name
        elif name == stream:
            yield f"operator {operator.name}: input {number + 1} of {len(operator.inputs)}", None
    if stream in operator.broadcasts:
        yield f"operator {operator.name}: broadcast", None


def _output_text(operator: Operator) -> str:
    output = operator.declared.output_type
    if isinstance(output, OutputUnion):
        return output.name
    return "nothing" if output is None else show(output.annotation)
