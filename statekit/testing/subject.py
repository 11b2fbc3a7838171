"""What is checked: a job, or one function as a job; histories of its sources; and what a run of it
comes to.
"""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from statekit.checkpoint.job_file import Clock
from statekit.checkpoint.repository import Repository
from statekit.codec.annotations import struct_fields
from statekit.errors import StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.plan import Operator, Source
from statekit.job.stream import Stream
from statekit.job.windows.definitions import Session, Sliding
from statekit.job.windows.made_of import WindowedResult
from statekit.records import by_value
from statekit.records.record_type import RecordType
from statekit.shown import shown, shown_text
from statekit.state.base import StateSpec
from statekit.state.options import Redistribute
from statekit.testing.driver import Backend, EpochContents, memory_of
from statekit.testing.harness import job_of, process_of
from statekit.testing.job_harness import JobHarness, timed_readers
from statekit.testing.killed_harness import killed_harness
from statekit.working_copy.copies import WorkingCopies

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from statekit.testing.histories import Edges, Generated, Given

History = list[dict[str, list[Any]]]
"""The records of each source, epoch by epoch."""

Events = Any
"""A strategy of records, or records as examples; of a job with several sources, by their names."""

DRAINS_MAX = 1_000
"""After so many epochs without records, timers are taken to set each other without end."""

_INSTANT = dt.timedelta(microseconds=1)

_EPOCH = dt.timedelta(minutes=10)
"""Processing time between two epochs, for functions that use it."""

_STEPS = [dt.timedelta(hours=1), dt.timedelta(days=1)]
_JUMPS_MAX, _LEAPS_MAX, _PART = 40, 60, 16
"""Event time goes on by these steps behind the soonest timer, and then from timer to timer. After
so many jumps it goes further each time, by a part of the time since the first of them. If there
are timers after so many leaps, which is some 1,500 timers later, they set each other without end.
"""

_FEW_JUMPS = 5
"""So many, if there is no end anyway."""

_TIMERS_MAX = 10
"""So many timers fire one after the other after the last record."""

_LATER = [dt.timedelta(days=days) for days in (1, 40, 4_000, 4_000)]
"""Steps of processing time after them: all other timers fire, and values expire."""

_DISTANCE_MAX = dt.timedelta(days=400)
"""Longer durations are not tried: time would leave the years of histories."""

_WINDOWS_MAX = 2
"""Event time stops before the ends of so many windows."""

_NOW = dt.timedelta(0)

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

_FAR_FUTURE = dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
"""The watermark with which values expire in event time."""


@dataclass(frozen=True)
class Step:
    """What is run as one epoch.

    Parameters:
        what: "records"; or without any, "watermark" for an event time that goes on, "end" for its
            end, or "after" for a processing time that goes on after it.
        at: the processing time.
        records: by source.
        watermark: of "watermark".
    """

    what: Literal["records", "watermark", "end", "after"]
    at: dt.datetime
    records: dict[str, list[Any]] = field(default_factory=dict)
    watermark: dt.datetime = _FAR_FUTURE

    def has_nothing_to_do(self, harness: JobHarness) -> bool:
        """Return whether no epoch is run, since event time has ended in all operators."""
        return self.what == "end" and harness.is_drained

    def run(self, harness: JobHarness) -> dict[str, list[Any]]:
        """Run the epoch, and return the records of each sink."""
        harness.set_clock(self.at)
        match self.what:
            case "end" | "after":
                return harness.drain_once(also_ended=self.what == "after") or {}
            case "watermark":
                return harness.advance_watermark(self.reached(harness))
            case _:
                return harness.send(**self.records)

    def reached(self, harness: JobHarness) -> dt.datetime:
        """Return the watermark of the epoch, before it is run. It is later than that to which the
        records before it have led.
        """
        before = harness.watermark
        if before is None or self.watermark > before:
            return self.watermark
        return before + _INSTANT

    def publish(self, harness: JobHarness, published: dict[str, list[Any]]) -> None:
        """Run the epoch, and publish its records before the commit."""
        harness.set_clock(self.at)
        watermark = self.reached(harness) if self.what == "watermark" else None
        records = self.records if self.what == "records" else None
        harness.publish(records, published, watermark=watermark)


@dataclass
class Observed:
    """What a run over a history comes to.

    Parameters:
        epochs: the records of each sink, epoch by epoch. The last epochs are those in which event
            time ends.
        contents: what is stored after each epoch.
        is_endless: whether timers of event time set each other without end.
    """

    epochs: list[dict[str, list[Any]]] = field(default_factory=list)
    contents: list[EpochContents] = field(default_factory=list)
    is_endless: bool = False

    def add(self, emitted: dict[str, list[Any]], harness: JobHarness) -> None:
        """Add an epoch, or nothing if what is stored cannot be read."""
        contents = harness.contents()
        self.epochs.append(emitted)
        self.contents.append(contents)

    def next_timer(self, clock: Clock) -> dt.datetime | None:
        """The time of the soonest timer by a clock; None if there is none."""
        if not self.contents:
            return None
        of_keys = (timers for keys in self.contents[-1].timers.values() for timers in keys.values())
        return min((each.at for each in chain(*of_keys) if each.clock == clock), default=None)

    @property
    def has_come_to_rest(self) -> bool:
        """Whether no timer was left to fire, so that time went on until all values had expired."""
        return not self.is_endless and self.next_timer("processing") is None

    @property
    def late(self) -> int:
        """How many records were late."""
        return self.contents[-1].late if self.contents else 0


Disturb = Callable[[JobHarness, int], JobHarness]
"""Called before each epoch with its number: may crash or rescale a job, or return another one."""


class _Plain(NamedTuple):
    """A run that was not disturbed.

    Parameters:
        how: whether processing time stood, and whether runs without end were stopped soon.
        outcome: what came of it, or its error.
    """

    history: History
    how: tuple[bool, bool]
    outcome: Observed | StatekitError


class Subject:
    """A job that is checked.

    Parameters:
        given: a process function, the output stream of an operator, or a job.
        is_killed: whether runs are in processes of their own, which crashes kill.

    Attributes:
        given: what the user gave.
        job: the job.
        variable: what a test calls the subject.
        has_no_end: whether timers set each other without end in a run.
        is_cut_short: whether runs without end are stopped soon: it is known that there are some.
        runs: how many plain runs there were.
        failed: their errors.
        growing: the operators and states that are known to grow without end.
        memory: what functions keep outside of states, as it is before the first run.
    """

    def __init__(
        self, given: Process[Any, Any, Any] | Stream[Any] | Job, *, is_killed: bool = False
    ) -> None:
        self.given, self._is_killed = given, is_killed
        self.has_no_end = self.is_cut_short = False
        self.runs, self.failed = 0, list[StatekitError]()
        self._plain: _Plain | None = None
        self.growing = set[tuple[str, str]]()
        if isinstance(given, Job):
            self.job, self.variable = given, "job"
            if not given.operators:
                raise StateTypeError(
                    f"job {given.name!r} has no operator: there is nothing to check"
                )
        else:
            process = process_of(given, "check() takes a job,")
            self.job = job_of(process)
            self.variable = self.job.name if inspect.isfunction(process.fn) else "process"
            if isinstance(given, Stream):
                self.variable = "stream"
        self.memory = memory_of(self.job)

    @property
    def name(self) -> str:
        """The name of the function or job."""
        return self.job.name

    @property
    def functions(self) -> list[Process[Any, Any, Any]]:
        """The process functions of all operators."""
        return [operator.declared for operator in self.job.operators]

    @property
    def has_event_time(self) -> bool:
        """Whether an operator has event time."""
        return any(each.event_time is not None for each in self.functions)

    @property
    def undivided(self) -> str | None:
        """Why it cannot be rescaled; None if it can."""
        for declared in self.functions:
            for spec in declared.states:
                is_broadcast = spec.kind.name == "broadcast"
                if spec.kind.is_local and not is_broadcast and spec.redistribute is None:
                    return f"no rule redistributes operator state {spec.name!r} of {declared.name}"
        return None

    @cached_property
    def pickled(self) -> bytes:
        """The job as other processes get it. If it is taken before the first run, what functions
        keep outside of the states is not in it.

        Raises:
            StateTypeError: a function refers to something that cannot be sent.
        """
        try:
            return by_value.dumps(self.job, keeps_files=True)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise StateTypeError(
                f"{self.name} cannot be sent to another process, as Spark does with it "
                f"({shown_text(error)}): "
                "make such an object inside of the function, or keep it in a module"
            ) from error

    @property
    def not_sent(self) -> str | None:
        """Why other processes cannot get the job; None if they can."""
        try:
            return None if self.pickled else ""
        except StateTypeError as error:
            return str(error)

    def harness(
        self,
        parallelism: int = 1,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: Repository | None = None,
    ) -> JobHarness:
        """Return a harness in a new process: nothing is left of runs before.

        Parameters:
            parallelism, backend, checkpoint: as for `JobHarness`.
        """
        if self._is_killed and isinstance(backend, str) and checkpoint is None:
            return killed_harness(self.job, parallelism, backend)
        self.memory.restore()
        return JobHarness(self.job, parallelism, backend, checkpoint, memory=self.memory)

    def times_of(self, source: str) -> Callable[[Any], Any]:
        """Return a function from a record of a source to its event time; to 0 without, or where
        that is not known from the record alone.
        """
        for operator in self.job.operators:
            if operator.declared.event_time is None:
                continue
            time_of = operator.declared.time_of()
            for stream in operator.inputs:  # records of a broadcast have no event time
                if (maps := self._maps_between(source, stream)) is not None:
                    return lambda record: time_of(reduce(lambda made, fn: fn(made), maps, record))
        return lambda _: 0

    def _maps_between(self, source: str, stream: str) -> Sequence[Callable[[Any], Any]] | None:
        """Return the functions of `map` between a source and a stream; None if the stream has other
        records than one for each of the source, or for those that a filter takes.
        """
        maps: list[Callable[[Any], Any]] = []
        while stream != source:
            transform = self.job.transform(stream)
            kind = None if transform is None else transform.function.kind
            if transform is None or kind not in ("map", "filter") or (maps and kind == "filter"):
                return None  # a function may fail for records that a filter before it refuses
            if kind == "map":
                maps.insert(0, transform.function.fn)
            stream = transform.input
        return maps

    def run(
        self,
        history: History,
        disturb: Disturb | None = None,
        *,
        harness: JobHarness | None = None,
        stands: bool = False,
        every: dt.timedelta | None = None,
    ) -> Observed:
        """Run a history, then let time go on until nothing is left to happen, and return what comes
        of both.

        Parameters:
            disturb: what happens between epochs.
            harness: a new one that runs them; None for one shard in memory.
            stands: whether processing time stands until the last record.
            every: the processing time between two epochs, as for `steps`.
        """
        harness = harness or self.harness()
        observed = Observed()
        for step in self.steps(history, observed, stands=stands, every=every):
            if step.has_nothing_to_do(harness):
                continue
            if disturb is not None:
                harness.set_clock(step.at)
                harness = disturb(harness, len(observed.epochs))
            observed.add(step.run(harness), harness)
        return observed

    def count_run(self, history: History) -> None:
        """Count a plain run, unless its history has no records."""
        self.runs += any(chain.from_iterable(epoch.values() for epoch in history))

    def plain_run(
        self,
        history: History,
        watch: Disturb | None = None,
        *,
        harness: JobHarness | None = None,
        stands: bool = False,
    ) -> Observed | None:
        """Return what comes of a run that is not disturbed; None if it fails, which is noted.

        Parameters:
            watch: is called between epochs.
        """
        if watch is None and harness is None:
            outcome = self.plain_outcome(history, stands=stands)
        else:
            outcome = self._counted_run(history, watch, harness, stands)
        return None if isinstance(outcome, StatekitError) else outcome

    def plain_outcome(self, history: History, *, stands: bool = False) -> Observed | StatekitError:
        """Return what comes of a run that is not disturbed, or its error, which is noted.

        Properties that are tried on the same history one after the other share a run. What it came
        to must not be changed.
        """
        how = stands and self._has_processing_time, self.is_cut_short
        if self._plain is None or self._plain.history is not history or self._plain.how != how:
            outcome = self._counted_run(history, None, None, stands)
            self._plain = _Plain(history, how, outcome)
        return self._plain.outcome

    def _counted_run(
        self, history: History, watch: Disturb | None, harness: JobHarness | None, stands: bool
    ) -> Observed | StatekitError:
        self.count_run(history)
        try:
            return self.run(history, watch, harness=harness, stands=stands)
        except StatekitError as error:
            self.failed.append(error)
            return error

    def steps(
        self,
        history: History,
        observed: Observed,
        *,
        stands: bool = False,
        every: dt.timedelta | None = None,
    ) -> Iterator[Step]:
        """Yield the epochs of a history, and of the time after it.

        Those in which event time ends may have nothing to do.

        Parameters:
            observed: what came of the steps before. Nothing is added for a step with nothing to do.
            stands: whether processing time stands until the last record.
            every: the processing time between two epochs with records; None for that of
                `_pauses`.
        """
        now = _START
        pauses = self._pauses(stands) if every is None else repeat(every)
        for records, pause in zip(history, pauses, strict=False):
            yield Step("records", now, records)
            now += pause
        can_advance = bool(timed_readers(self.job))
        if self.has_timers and can_advance:
            yield from self._while_timers(now, observed)
            if observed.is_endless:
                return
        if can_advance:
            yield from self._around_ends_of_windows(now, observed)
        if self._has_ttl("event") and can_advance:
            for number, _ in enumerate(self.job.operators):  # each follows those before it
                yield Step("watermark", now, watermark=_FAR_FUTURE + number * _EPOCH)
        if self.has_event_time:
            for _ in range(DRAINS_MAX):
                before = len(observed.epochs)
                yield Step("end", now)
                if len(observed.epochs) == before:
                    break  # it had nothing to do
        if self._has_processing_time:
            what: Literal["after", "records"] = "after" if self.has_event_time else "records"
            for _ in range(_TIMERS_MAX):
                if (soonest := observed.next_timer("processing")) is None:
                    break
                now = max(now, soonest)
                yield Step(what, now)
            if observed.next_timer("processing") is None and self._has_ttl("processing"):
                for step in _LATER:
                    now += step
                    yield Step(what, now)

    def _pauses(self, stands: bool) -> Iterator[dt.timedelta]:
        """Return the processing times between epochs with records: some minutes, if results may
        depend on it; then to the instant before a value of the last epoch expires, and to the one
        at which it does.
        """
        if stands or not self._has_processing_time:
            return repeat(_NOW)
        ttls = [spec.ttl for _, spec in self._specs() if spec.ttl is not None]
        of = [dt.timedelta(microseconds=t.duration_us) for t in ttls if t.clock == "processing"]
        around = [(each - _INSTANT, _INSTANT) for each in dict.fromkeys(of) if each < _DISTANCE_MAX]
        return cycle([_EPOCH, *chain.from_iterable(around)])

    @property
    def _has_processing_time(self) -> bool:
        """Whether results may depend on processing time: by timers, or values that expire."""
        return self._has_ttl("processing") or self.has_timers

    @property
    def has_timers(self) -> bool:
        """Whether a function of the user has timers."""
        timed = (each for each in self.functions if each.traits.definition is None)
        return any(each.handles_timers for each in timed)

    def _while_timers(self, now: dt.datetime, observed: Observed) -> Iterator[Step]:
        """Yield epochs in which event time goes on, a little at first: at its end, timers that set
        each other would never stop firing.
        """
        first: dt.datetime | None = None  # of those that are jumped to
        most = _FEW_JUMPS if self.is_cut_short else _JUMPS_MAX + _LEAPS_MAX
        for jump in range(-len(_STEPS), most):
            soonest = observed.next_timer("event")
            if soonest is None:
                return
            step = dt.timedelta(0)
            if jump < 0:
                step = _STEPS[jump]
            elif first is None:
                first = soonest
            elif jump > _JUMPS_MAX:
                step = (soonest - first) / _PART
            if soonest + step >= _FAR_FUTURE:
                return
            yield Step("watermark", now, watermark=soonest + step)
        observed.is_endless = observed.next_timer("event") is not None
        self.has_no_end |= observed.is_endless

    def _around_ends_of_windows(self, now: dt.datetime, observed: Observed) -> Iterator[Step]:
        """Yield epochs in which event time is right before a window is complete, and then there: at
        the end of event time, all windows fire at once.
        """
        reached = dt.datetime.min.replace(tzinfo=dt.UTC)
        for _ in range(_WINDOWS_MAX):
            ends = (end for end in self._ends_of_windows(observed) if end > reached)
            if (soonest := min(ends, default=None)) is None:
                return
            yield Step("watermark", now, watermark=soonest - _INSTANT)
            yield Step("watermark", now, watermark=soonest)
            reached = soonest

    def _ends_of_windows(self, observed: Observed) -> Iterator[dt.datetime]:
        """Yield when open windows of operators that read sources fire or are removed."""
        if not observed.contents:
            return
        contents = observed.contents[-1]
        for name in timed_readers(self.job):
            made_of = self.job.operator(name).declared.traits.made_of
            if not isinstance(made_of, WindowedResult):
                continue
            window, leads = made_of.window, {_NOW, made_of.allowed_lateness}
            for rows in contents.states[name, "windows"].values():
                for start, held in rows.items():
                    end = held[1] if isinstance(window, Session) else start + window.size
                    yield from (end - lead - _INSTANT for lead in leads)

    @property
    def redistributed(self) -> Iterator[tuple[str, str, Redistribute]]:
        """The operator states that functions of the user split and merge: operator, name, rule."""
        for operator in self.job.operators:
            for spec in operator.declared.states:
                if spec.redistribute is not None and spec.redistribute.split is not None:
                    yield operator.name, spec.name, spec.redistribute

    @property
    def local_states(self) -> Iterator[tuple[str, StateSpec]]:
        """The operator states that have a rule for other shards, by operator."""
        for operator in self.job.operators:
            for spec in operator.declared.states:
                if spec.kind.is_local and spec.redistribute is not None:
                    yield operator.name, spec

    @property
    def expiring_states(self) -> list[tuple[str, str]]:
        """The states whose values expire, by operator and name."""
        return [(operator, spec.name) for operator, spec in self._specs() if spec.ttl is not None]

    def _has_ttl(self, clock: Clock) -> bool:
        return any(spec.ttl is not None and spec.ttl.clock == clock for _, spec in self._specs())

    def _specs(self) -> Iterator[tuple[str, StateSpec]]:
        """Yield the keyed states, by operator."""
        for operator in self.job.operators:
            for spec in operator.declared.states:
                if not spec.kind.is_local:
                    yield operator.name, spec

    # ---------------------------------------------------------------------------------- histories

    def histories(self, events: Events = None) -> SearchStrategy[History]:
        """Return a strategy of histories.

        Parameters:
            events: records of the sources; None makes them of their types.

        Raises:
            StateTypeError: a source has records of unknown fields, or there is no such source.
        """
        from statekit.testing.histories import histories_of

        return histories_of(self.records(events), epochs_min=1)

    def records(self, events: Events = None) -> dict[str, Sequence[Generated | Given]]:
        """Return what the records of each source are made of, as for `histories`."""
        given = self._by_source(events)
        return {source.name: self._members(source, given) for source in self.job.sources}

    def _by_source(self, events: Events) -> dict[str, Any]:
        names = [source.name for source in self.job.sources]
        if events is None:
            return {}
        if not isinstance(events, Mapping):
            if len(names) > 1:
                raise StateTypeError(
                    f"events={shown(events, 100)}: {self.name!r} has the sources "
                    f"{', '.join(names)}: "
                    f"give a dict, as events={{{names[0]!r}: [...]}}"
                )
            return {names[0]: events}
        self.check_sources("events", events)
        return dict(events)

    def check_sources(self, argument: str, given: Iterable[str]) -> None:
        """Check that names are those of sources.

        Parameters:
            argument: that has the names.

        Raises:
            StateTypeError: there is no such source.
        """
        names = [source.name for source in self.job.sources]
        if unknown := [name for name in given if name not in names]:
            raise StateTypeError(
                f"{argument}= names {shown(unknown[0])}: the sources of {self.name!r} are "
                f"{', '.join(names)}"
            )

    def check_records(self, argument: str, epoch: Mapping[str, Iterable[Any]]) -> None:
        """Check that the records of an epoch are those of the sources.

        Parameters:
            argument: that has them.

        Raises:
            StateTypeError: one is not of the type of its source.
        """
        for source in self.job.sources:
            for record in epoch.get(source.name, ()):
                _record_of(argument, source, record)

    def _members(self, source: Source, given: Mapping[str, Any]) -> Sequence[Generated | Given]:
        """Return the records of a source, of each of its types."""
        from hypothesis import strategies as st

        from statekit.testing.histories import Given

        if source.name not in given:
            return [self._generated(source, record) for record in source.record_type.members]
        records = given[source.name]
        if isinstance(records, st.SearchStrategy):
            return [Given(records.map(partial(_record_of, "events", source)))]
        return [Given(st.sampled_from(self._examples(source, records)))]

    def _examples(self, source: Source, given: Any) -> list[Any]:
        """Return examples of records.

        Raises:
            StateTypeError: they are no list, there are none, or one is not of the source's type.
        """
        if not isinstance(given, Sequence | Set) or isinstance(given, str | bytes):
            raise StateTypeError(
                f"events={shown(given, 100)}: give a list of records, as events=[...]"
            )
        if hasattr(given, "_fields"):
            raise StateTypeError(f"events={shown(given, 100)}: give a list of records, also of one")
        if not given:
            raise StateTypeError(
                f"events={shown(given)}: give at least one record, or leave it out"
            )
        return [_record_of("events", source, record) for record in given]

    def _generated(self, source: Source, record: RecordType) -> Generated:
        """Return generated records of a type, with the key and the event time of an operator that
        reads them.
        """
        from statekit.testing.histories import Generated

        if record.fields is None:
            raise StateTypeError(
                f"source {source.name!r} of {self.name!r} has dicts, which do not say which fields "
                "they have: give examples with events=[...], or annotate the parameter with a "
                "NamedTuple, a dataclass, a TypedDict or the like"
            )
        fields = [own.name for own in struct_fields(record.cls)]
        key: tuple[str, ...] = ()
        event_time: str | None = None
        late_us = 0
        for operator in self._readers(source):
            declared = operator.declared
            if not key and set(declared.key) <= set(fields):
                key = declared.key
            if event_time is None and declared.event_time in fields:
                event_time = declared.event_time
                late_us = declared.lateness_us
        late = dt.timedelta(microseconds=late_us)
        return Generated(
            record.cls,
            key,
            event_time,
            late,
            distances=self._distances(source),
            edges=self._edges(source),
            constants=self.memory.constants,
        )

    def _distances(self, source: Source) -> list[dt.timedelta]:
        """Return durations of the operators that read a source, of windows, TTLs and lateness; and
        those in the code of the functions.
        """
        micros: list[int] = []
        found: list[dt.timedelta] = []
        for operator in self._readers(source):
            window = getattr(operator.declared.traits.made_of, "window", None)
            names = ("size", "every", "gap")
            found += [getattr(window, name) for name in names if hasattr(window, name)]
            micros.append(operator.declared.lateness_us)
            micros += [spec.ttl.duration_us for spec in operator.declared.states if spec.ttl]
        found += [dt.timedelta(microseconds=each) for each in micros]
        of_code = [each for each in self.memory.constants if isinstance(each, dt.timedelta)]
        found += [each for each in of_code if abs(each) <= _DISTANCE_MAX]
        return [each for each in dict.fromkeys(found) if each]

    def _edges(self, source: Source) -> list[Edges]:
        """Return where windows of the operators that read a source begin and end."""
        from statekit.testing.histories import Edges

        windows = [
            made_of.window
            for operator in self._readers(source)
            if isinstance(made_of := operator.declared.traits.made_of, WindowedResult)
            and isinstance(made_of.window, Sliding)
        ]
        found = [
            Edges(window.every, offset % window.every)
            for window in windows
            for offset in (window.offset, window.offset + window.size)
        ]
        return list(dict.fromkeys(found))

    def _readers(self, source: Source) -> list[Operator]:
        """Return the operators that take the records of a source, perhaps behind transforms."""
        return [
            operator
            for operator in self.job.operators
            if any(self.job.origin_of(stream) == source.name for stream in operator.streams)
        ]


def _record_of(argument: str, source: Source, given: Any) -> Any:
    """Return what an argument has for a source, after checking that it is a record of it.

    Raises:
        StateTypeError: it is none.
    """
    try:
        source.record_type.coerce(given)
    except StatekitError as error:
        raise StateTypeError(f"{argument}= has {shown(given, 100)}: {error}") from error
    return given
