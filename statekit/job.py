"""A job as data: sources, process functions and sinks, connected.

What lives here: `Job` and `Stream`, which only collect and check. What does not: running a job
(`local`, `spark`); a plan can be read, drawn and compared without either.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from statekit.errors import StateTypeError
from statekit.expiry import ttl_text
from statekit.keygroup import DEFAULT_GROUPS, check_groups
from statekit.manifest import KeyFieldRecord, OperatorRecord, StateRecord
from statekit.process import Process
from statekit.records import RecordType, show
from statekit.rocks import RocksOptions
from statekit.running import OutputCallback, Run, RunningJob
from statekit.state import StateSpec
from statekit.state_options import Aggregate
from statekit.windowing import Windowing
from statekit.windows import Window

__all__ = ["Job", "Operator", "Sink", "Source", "Stream", "Windowed"]

T = TypeVar("T")
U = TypeVar("U")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Source:
    """Where records come in: a name that the runtime is given an input for."""

    name: str
    record_type: RecordType


@dataclass(frozen=True)
class Operator:
    """A process function in its place: named, and fed by a source or another operator."""

    name: str
    declared: Process[Any, Any, Any]
    input: str

    @property
    def late(self) -> str:
        """The name of the stream of records that came too late."""
        return f"{self.name}.late"

    def record(self) -> OperatorRecord:
        """What the checkpoint keeps of it: key and states with their types."""
        fields = self.declared.record_type.fields
        schema = self.declared.key_codec.schema
        whole = schema.to_json()
        parts = schema.items if len(self.declared.key) > 1 and fields is not None else ()
        waiting = self.declared.ordered
        types = [part.to_json() for part in parts] or [whole] * len(self.declared.key)
        return OperatorRecord(
            name=self.name,
            inputs=(self.input,),
            key=tuple(
                KeyFieldRecord(name=name, type=type_)
                for name, type_ in zip(self.declared.key, types, strict=True)
            ),
            states=tuple(_state_record(spec) for spec in self.declared.states),
            event_time=self.declared.event_time,
            lateness_us=self.declared.lateness_us,
            timers=self.declared.handles_timers,
            timer_names=self.declared.timer_names or None,
            ordered=waiting.schema.to_json() if waiting is not None else None,
            definition=self.declared.definition,
        )


@dataclass(frozen=True)
class Sink:
    """Where outputs leave: a name that the runtime is given an output for."""

    name: str
    stream: str


class Stream(Generic[T]):
    """Records of type T on their way through a job. Made by `Job.source` and `process`."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self.name = name

    def process(self, declared: Process[T, ..., U], *, name: str | None = None) -> Stream[U]:
        """Feed these records to a process function.

        Parameters:
            name: of the operator; by default the function's. State is found again by it.

        Raises:
            StateTypeError: the function takes other records, or the name is taken.
        """
        if not isinstance(declared, Process):
            raise StateTypeError(
                f"process() takes a function decorated with @process, not {declared!r}"
            )
        given, taken = self._job.record_of(self.name), declared.record_type
        if given is None or given.cls is not taken.cls:
            found = given.name if given else "no records"
            raise StateTypeError(
                f"{declared.name} takes {taken.name}; stream {self.name!r} has {found}: "
                "declare both with the same type"
            )
        operator = Operator(self._job.free_name(name or declared.name), declared, self.name)
        self._job.operators.append(operator)
        return Stream(self._job, operator.name)

    def window(
        self,
        window: Window,
        *,
        key: str | tuple[str, ...] | list[str],
        event_time: str,
        lateness: dt.timedelta | str = dt.timedelta(0),
        allowed_lateness: dt.timedelta | str = dt.timedelta(0),
        emit: Literal["close", "change"] = "close",
        ordered: bool = False,
    ) -> Windowed[T]:
        """Gather these records by key and window; then say what is to be known of each window.

        Parameters:
            window: `tumbling`, `sliding` or `session`.
            key, event_time, lateness, ordered: as for `@process`.
            allowed_lateness: how long a window that was put out stays for records that come later
                still; it is put out again in each epoch in which it gets any.
            emit: put a window out once it is complete ("close"), or at each record ("change").

        Raises:
            StateTypeError: an option cannot be; the message names it.

        >>> from typing import NamedTuple
        >>> from statekit.windows import tumbling
        >>> class Click(NamedTuple):
        ...     ad: str
        ...     at: dt.datetime
        >>> job = Job("ads")
        >>> clicks = job.source("clicks", Click)
        >>> _ = clicks.window(tumbling("1 hour"), key="ad", event_time="at").count().sink("hourly")
        >>> noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
        >>> run = job.run({"clicks": [Click("a", noon), Click("a", noon)]})
        >>> [(found.ad, f"{found.start:%H:%M}", found.count) for found in run["hourly"]]
        [('a', '12:00', 2)]
        """
        record = self._job.record_of(self.name)
        if record is None:
            raise StateTypeError(f"stream {self.name!r} has no records: there is nothing to window")
        options: dict[str, Any] = {"lateness": lateness, "allowed_lateness": allowed_lateness}
        options |= {"key": key, "event_time": event_time, "emit": emit, "ordered": ordered}
        return Windowed(self, Windowing(record, window, **options))

    @property
    def declared(self) -> Process[Any, ..., T] | None:
        """The process function that these records come from; None for those of a source."""
        found = next((op for op in self._job.operators if op.name == self.name), None)
        return None if found is None else found.declared

    @property
    def late(self) -> Stream[Any]:
        """The records that came too late for this operator, as they came in.

        Without a sink or another operator they are dropped, and counted in any case.

        Raises:
            StateTypeError: this is no operator with event time.
        """
        declared = self.declared
        if declared is None or declared.event_time is None:
            raise StateTypeError(
                f"stream {self.name!r} has no late records: only an operator with "
                "@process(event_time=...) has"
            )
        return Stream(self._job, self._job.operator(self.name).late)

    def sink(self, name: str) -> Stream[T]:
        """Let these records leave the job under a name; returns the stream itself."""
        if any(sink.name == name for sink in self._job.sinks):
            raise StateTypeError(f"job {self._job.name!r} has a sink {name!r} already")
        if not _NAME.fullmatch(name):
            raise StateTypeError(f"sink {name!r}: names have letters, digits, and any of _ . -")
        self._job.sinks.append(Sink(name, self.name))
        return self


class Windowed(Generic[T]):
    """Records by key and window. Made by `Stream.window`; each method makes an operator.

    A result has the key fields, `start`, `end` and a field for what was asked. `into=` gives a
    record class to make results of, by the names of its fields; without it they are NamedTuples.
    `name=` is that of the operator; by default the name says what it does. What cannot be is a
    StateTypeError that says why.
    """

    def __init__(self, stream: Stream[T], windowing: Windowing) -> None:
        self._stream = stream
        self._windowing = windowing

    @overload
    def count(self, *, name: str | None = None, into: type[U]) -> Stream[U]: ...
    @overload
    def count(self, *, name: str | None = None) -> Stream[Any]: ...
    def count(self, *, name: str | None = None, into: Any = None) -> Stream[Any]:
        """How many records a window has, as `count`."""
        return self._stream.process(self._windowing.count(into), name=name)

    @overload
    def sum(self, field: str, *, name: str | None = None, into: type[U]) -> Stream[U]: ...
    @overload
    def sum(self, field: str, *, name: str | None = None) -> Stream[Any]: ...
    def sum(self, field: str, *, name: str | None = None, into: Any = None) -> Stream[Any]:
        """The sum of a field, named like it. None is passed over, and the sum of nothing else."""
        return self._stream.process(self._windowing.fold("sum", field, into), name=name)

    @overload
    def min(self, field: str, *, name: str | None = None, into: type[U]) -> Stream[U]: ...
    @overload
    def min(self, field: str, *, name: str | None = None) -> Stream[Any]: ...
    def min(self, field: str, *, name: str | None = None, into: Any = None) -> Stream[Any]:
        """The least value of a field, named like it. None is passed over."""
        return self._stream.process(self._windowing.fold("min", field, into), name=name)

    @overload
    def max(self, field: str, *, name: str | None = None, into: type[U]) -> Stream[U]: ...
    @overload
    def max(self, field: str, *, name: str | None = None) -> Stream[Any]: ...
    def max(self, field: str, *, name: str | None = None, into: Any = None) -> Stream[Any]:
        """The largest value of a field, named like it. None is passed over."""
        return self._stream.process(self._windowing.fold("max", field, into), name=name)

    @overload
    def collect(
        self, field: str | None = None, *, name: str | None = None, into: type[U]
    ) -> Stream[U]: ...
    @overload
    def collect(self, field: str | None = None, *, name: str | None = None) -> Stream[Any]: ...
    def collect(
        self, field: str | None = None, *, name: str | None = None, into: Any = None
    ) -> Stream[Any]:
        """All `records`, or the values of a field, named like it, as a list in order of time."""
        return self._stream.process(self._windowing.collect(field, into), name=name)

    @overload
    def aggregate(
        self,
        aggregate: Aggregate[Any, Any, Any],
        *,
        accumulator: Any,
        result: Any,
        field: str | None = None,
        name: str | None = None,
        into: type[U],
    ) -> Stream[U]: ...
    @overload
    def aggregate(
        self,
        aggregate: Aggregate[Any, Any, Any],
        *,
        accumulator: Any,
        result: Any,
        field: str | None = None,
        name: str | None = None,
    ) -> Stream[Any]: ...
    def aggregate(
        self,
        aggregate: Aggregate[Any, Any, Any],
        *,
        accumulator: Any,
        result: Any,
        field: str | None = None,
        name: str | None = None,
        into: Any = None,
    ) -> Stream[Any]:
        """What an aggregate of your own makes of the records, or of a field of theirs.

        Parameters:
            aggregate: sessions need its `merge`.
            accumulator, result: the types of what it keeps per window, and of what comes out.
            field: what it adds; None adds whole records.
            name: of the operator, and of the field with the result, which is `result` otherwise.
        """
        made = self._windowing.aggregate(aggregate, accumulator, result, field, name, into)
        return self._stream.process(made, name=name)


class Job:
    """A job: what is computed from what. Nothing runs until `start` or `run`.

    Parameters:
        name: kept in the checkpoint; a checkpoint belongs to one job.
        key_groups: how finely state can ever be split over shards, 1 to 32768; fixed once a
            checkpoint exists. None takes what the checkpoint has, or 128.

    >>> from collections.abc import Iterator
    >>> from statekit.process import process
    >>> from statekit.single_row_states import ValueState
    >>> @process(key="word")
    ... def count(record: dict, seen: ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> job = Job("words")
    >>> _ = job.source("lines", dict).process(count).sink("counts")
    >>> print(job)
    job words
    └── source lines: dict
        └── operator count by word → tuple[str, int]
            ├── state seen: value[int]
            └── sink counts
    >>> run = job.run({"lines": [{"word": "a"}, {"word": "b"}, {"word": "a"}]})
    >>> sorted(run["counts"])
    [('a', 1), ('a', 2), ('b', 1)]
    """

    def __init__(self, name: str, *, key_groups: int | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise StateTypeError(f"job {name!r}: names have letters, digits, and any of _ . -")
        self.name = name
        self.key_groups = None if key_groups is None else check_groups(key_groups)
        self.sources: list[Source] = []
        self.operators: list[Operator] = []
        self.sinks: list[Sink] = []

    def source(self, name: str, record_type: type[T]) -> Stream[T]:
        """Declare an input of records of a type."""
        made = RecordType.of(record_type, where=f"job {self.name!r}, source {name!r}")
        self.sources.append(Source(self.free_name(name), made))
        return Stream(self, name)

    def free_name(self, name: str) -> str:
        """`name`, if no stream of this job has it."""
        taken = {source.name for source in self.sources}
        taken |= {name for op in self.operators for name in (op.name, op.late)}
        if name in taken:
            raise StateTypeError(
                f"job {self.name!r} has a stream {name!r} already: give another name="
            )
        if not _NAME.fullmatch(name):
            raise StateTypeError(f"stream {name!r}: names have letters, digits, and any of _ . -")
        return name

    def record_of(self, stream: str) -> RecordType | None:
        """The type of a stream's records; None if it carries none."""
        for source in self.sources:
            if source.name == stream:
                return source.record_type
        for operator in self.operators:
            if operator.late == stream:
                return operator.declared.record_type
        output = self.operator(stream).declared.output_type
        return output.record_type if output is not None else None

    def operator(self, name: str) -> Operator:
        """The operator of that name."""
        return next(found for found in self.operators if found.name == name)

    def sinks_of(self, stream: str) -> list[Sink]:
        """The sinks that a stream leaves by."""
        return [sink for sink in self.sinks if sink.stream == stream]

    def consumers_of(self, stream: str) -> list[Operator]:
        """The operators that a stream feeds."""
        return [operator for operator in self.operators if operator.input == stream]

    def is_source(self, stream: str) -> bool:
        """Whether a stream comes from outside of the job."""
        return any(source.name == stream for source in self.sources)

    def wants_late(self, operator: Operator) -> bool:
        """Whether anything takes the late records of an operator."""
        return bool(self.sinks_of(operator.late) or self.consumers_of(operator.late))

    def check_names(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Make sure that there is an input for each source and an output for each sink.

        Raises:
            StateTypeError: one is missing, or belongs to nothing.
        """
        for kind, declared, given in (
            ("source", [source.name for source in self.sources], inputs),
            ("sink", [sink.name for sink in self.sinks], outputs),
        ):
            if set(declared) != set(given):
                word = "inputs" if kind == "source" else "outputs"
                raise StateTypeError(
                    f"job {self.name!r} has the {kind}s {sorted(declared)}; {word}= has "
                    f"{sorted(given)}: give each {kind} its own"
                )

    def describe(self) -> dict[str, Any]:
        """The whole plan as JSON-able data."""
        return {
            "name": self.name,
            "key_groups": self.key_groups or DEFAULT_GROUPS,
            "sources": [
                {"name": source.name, "record": source.record_type.name} for source in self.sources
            ],
            "operators": [
                {**operator.record().model_dump(mode="json"), "output": _output_text(operator)}
                for operator in self.operators
            ],
            "sinks": [{"name": sink.name, "input": sink.stream} for sink in self.sinks],
        }

    def __str__(self) -> str:
        lines = [f"job {self.name}"]
        for position, source in enumerate(self.sources):
            last = position == len(self.sources) - 1
            corner = "└" if last else "├"
            lines.append(f"{corner}── source {source.name}: {source.record_type.name}")
            self._draw(source.name, "    " if last else "│   ", lines, states=())
        return "\n".join(lines)

    def _draw(
        self, stream: str, indent: str, lines: list[str], *, states: tuple[StateSpec, ...]
    ) -> None:
        below: list[tuple[str, Operator | None]] = [
            (f"state {spec.name}: {_state_text(spec)}", None) for spec in states
        ]
        below += [(f"sink {sink.name}", None) for sink in self.sinks_of(stream)]
        for operator in self.consumers_of(stream):
            key = ", ".join(operator.declared.key)
            title = f"operator {operator.name} by {key} → {_output_text(operator)}"
            below.append((title, operator))
        for position, (title, child) in enumerate(below):
            last = position == len(below) - 1
            lines.append(f"{indent}{'└' if last else '├'}── {title}")
            if child is not None:
                deeper = indent + ("    " if last else "│   ")
                self._draw(child.name, deeper, lines, states=child.declared.states)
                if self.wants_late(child):
                    lines.append(f"{deeper}late records of {child.name}")
                    self._draw(child.late, deeper, lines, states=())

    def run(
        self,
        inputs: Mapping[str, Iterable[Any]],
        *,
        outputs: Mapping[str, OutputCallback] | None = None,
        checkpoint: str | Path | None = None,
        parallelism: int | None = None,
        epoch_size: int = 1000,
        backend: Literal["memory", "rocksdb"] = "memory",
        working_directory: str | Path | None = None,
        allow_dropped_state: bool = False,
        drain: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> Run:
        """Run in this process over iterables, without Spark. See `statekit.local.run`."""
        return _runtime("statekit.local", "run")(  # type: ignore[no-any-return]
            self,
            inputs,
            outputs=outputs,
            checkpoint=checkpoint,
            parallelism=parallelism,
            epoch_size=epoch_size,
            backend=backend,
            working_directory=working_directory,
            allow_dropped_state=allow_dropped_state,
            drain=drain,
            clock=clock,
        )

    def start(
        self,
        spark: Any,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | Path,
        parallelism: int | None = None,
        trigger: Mapping[str, Any] | str | None = None,
        query_name: str | None = None,
        allow_dropped_state: bool = False,
        working_directory: str | Path | None = None,
        rocksdb: RocksOptions | None = None,
        heartbeat: dt.timedelta | str | None = None,
        drain: bool | None = None,
        clock: Callable[[], int] | None = None,
    ) -> RunningJob:
        """Run on Spark, over a DataFrame per source. See `statekit.spark.start`."""
        return _runtime("statekit.spark", "start")(  # type: ignore[no-any-return]
            self,
            spark,
            inputs,
            outputs,
            checkpoint=checkpoint,
            parallelism=parallelism,
            trigger=trigger,
            query_name=query_name,
            allow_dropped_state=allow_dropped_state,
            working_directory=working_directory,
            rocksdb=rocksdb,
            heartbeat=heartbeat,
            drain=drain,
            clock=clock,
        )


def _runtime(module: str, name: str) -> Callable[..., Any]:
    """A runtime, found by name when it is asked for.

    A plan does not depend on what runs it, and `import statekit` must not need PySpark.
    """
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _state_record(spec: StateSpec) -> StateRecord:
    types = {"value": spec.codec.schema.to_json()}
    fingerprint = spec.codec.schema.fingerprint
    if spec.key_codec is not None:
        types["key"] = spec.key_codec.schema.to_json()
        fingerprint = f"{spec.key_codec.schema.fingerprint}-{fingerprint}"
    return StateRecord(
        name=spec.name,
        kind=spec.kind.kind_name,
        codec=spec.codec.name,
        types=types,
        fingerprint=fingerprint,
        ttl=spec.ttl,
        era=0 if spec.ttl is None else 1,
    )


def _state_text(spec: StateSpec) -> str:
    key = f"{spec.key_codec.schema} → " if spec.key_codec is not None else ""
    expires = "" if spec.ttl is None else f", {ttl_text(spec.ttl)}"
    return f"{spec.kind.kind_name}[{key}{spec.codec.schema}]{expires}"


def _output_text(operator: Operator) -> str:
    output = operator.declared.output_type
    return "nothing" if output is None else show(output.annotation)
