"""Subject of a check: a job, or one function as a job, and its runs."""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import chain, cycle, repeat
from typing import Any, Literal, NamedTuple, cast

from statekit.checkpoint.job_file import Clock
from statekit.checkpoint.repository import Repository
from statekit.errors import StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.stream import Stream
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.records import by_value
from statekit.shown import shown_text
from statekit.state.base import StateSpec
from statekit.testing.drivers.driver import Backend, memory_of
from statekit.testing.drivers.harness import job_of, process_of
from statekit.testing.drivers.job_harness import JobHarness, timed_readers
from statekit.testing.drivers.processes import KilledHarness
from statekit.testing.runs.observed import FAR_FUTURE, INSTANT, Observed, Step
from statekit.testing.runs.source_records import DISTANCE_MAX, History, SourceRecords
from statekit.working_copy.copies import WorkingCopies

DRAINS_MAX = 1_000
"""Number of epochs without records after which timers are taken to set each other without end."""

_EPOCH = dt.timedelta(minutes=10)
"""Processing time between two epochs, for functions that use it."""

_STEPS = [dt.timedelta(hours=1), dt.timedelta(days=1)]
_JUMPS_MAX, _LEAPS_MAX, _PART = 40, 60, 16
"""Event time advances by `_STEPS` beyond the soonest timer, and then from timer to timer. After
`_JUMPS_MAX` jumps, it advances further each time, by one part in `_PART` of the time since the
first jump. If timers are left after `_LEAPS_MAX` leaps, some 1,500 timers later, they set each
other without end.
"""

_FEW_JUMPS = 5
"""Number of jumps if it is known that timers set each other without end."""

_TIMERS_MAX = 10
"""Number of epochs after the last record, each at the time of the soonest processing-time timer."""

_LATER = [dt.timedelta(days=days) for days in (1, 40, 4_000, 4_000)]
"""Steps of processing time after these epochs, in which values expire."""

_WINDOWS_MAX = 2
"""Number of window ends at which event time stops: right before the end, and at it."""

AT_ONCE = dt.timedelta(0)
"""Processing time between two epochs if it stands still until the last record."""

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


Disturb = Callable[[JobHarness, int], JobHarness]
"""A function that is called before each epoch, with the harness and the number of the epoch. It may
crash or rescale the job, and returns the harness for the next epochs.
"""


class _Plain(NamedTuple):
    """A run that was not disturbed.

    Parameters:
        how: the processing time between epochs, and whether runs without end were stopped early.
        outcome: its result, or its error.
    """

    history: History
    how: tuple[dt.timedelta | None, bool]
    outcome: Observed | StatekitError


class Subject:
    """A job under check; one process function is checked as a job.

    Parameters:
        given: a process function, the output stream of an operator, or a job.
        killed_in: an existing directory for runs in processes of their own, which crashes kill;
            None runs in this process.

    Attributes:
        given: the argument of the user.
        job: the job.
        variable: the name of the subject in a written test.
        has_no_end: whether timers set each other without end in a run.
        is_cut_short: whether runs without end are stopped early, because one is known.
        runs: the number of plain runs with records.
        failed: their errors.
        growing: the operators and states that are known to grow without end.
        memory: the memory of the functions outside of states, as it is before the first run.
        sources: the records of its sources.
    """

    def __init__(
        self, given: Process[Any, Any, Any] | Stream[Any] | Job, *, killed_in: str | None = None
    ) -> None:
        self.given, self._killed_in = given, killed_in
        self.has_no_end = self.is_cut_short = False
        self.runs, self.failed = 0, list[StatekitError]()
        self._plain: _Plain | None = None
        self.growing = set[tuple[str, str]]()
        if isinstance(given, Job):
            self.job, self.variable = given, "job"
            if not given.plan.operators:
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
        self.sources = SourceRecords(self.job.plan, self.memory.constants)

    @property
    def name(self) -> str:
        """The name of the function or job."""
        return self.job.name

    @property
    def functions(self) -> list[Process[Any, Any, Any]]:
        """The process functions of all operators."""
        return [operator.declared for operator in self.job.plan.operators]

    @property
    def has_event_time(self) -> bool:
        """True if an operator has event time."""
        return any(each.event_time is not None for each in self.functions)

    @property
    def undivided(self) -> str | None:
        """Reason why the job cannot be rescaled; None if it can."""
        for declared in self.functions:
            for spec in declared.states:
                is_broadcast = spec.kind.name == "broadcast"
                if spec.kind.is_local and not is_broadcast and spec.redistribute is None:
                    return f"no rule redistributes operator state {spec.name!r} of {declared.name}"
        return None

    @cached_property
    def pickled(self) -> bytes:
        """The pickled job, for other processes. If it is read before the first run, it contains no
        changes that runs make outside of states.

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
        """Reason why the job cannot be sent to other processes; None if it can."""
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
        """Return a new harness. Nothing is left of earlier runs, as in a new process.

        Parameters:
            parallelism, backend, checkpoint: as for `JobHarness`.
        """
        if self._killed_in is not None and isinstance(backend, str) and checkpoint is None:
            killed = KilledHarness(self.job, parallelism, backend, self.memory, self._killed_in)
            return cast(JobHarness, killed)
        self.memory.restore()
        return JobHarness(self.job, parallelism, backend, checkpoint, memory=self.memory)

    def times_of(self, source: str) -> Callable[[Any], Any]:
        """Return a function that returns the event time of a record of a source. It returns 0 if
        there is no event time, or if the record alone does not determine it.
        """
        for operator in self.job.plan.operators:
            if operator.declared.event_time is None:
                continue
            time_of = operator.declared.time_of()
            for stream in operator.inputs:  # records of a broadcast have no event time
                if (maps := self._maps_between(source, stream)) is not None:
                    return lambda record: time_of(reduce(lambda made, fn: fn(made), maps, record))
        return lambda _: 0

    def _maps_between(self, source: str, stream: str) -> Sequence[Callable[[Any], Any]] | None:
        """Return the functions of `map` between a source and a stream. None if anything else is
        between them, except for filters after the maps.
        """
        maps: list[Callable[[Any], Any]] = []
        while stream != source:
            transform = self.job.plan.transform(stream)
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
        every: dt.timedelta | None = None,
    ) -> Observed:
        """Run a history, then advance time until nothing is left to happen, and return the result
        of both.

        Parameters:
            disturb: disturbs the job before each epoch; None disturbs nothing.
            harness: a new harness that runs the epochs; None for one shard in memory.
            every: the processing time between two epochs, as for `steps`.
        """
        harness = harness or self.harness()
        observed = Observed()
        for step in self.steps(history, observed, every=every):
            if step.has_nothing_to_do(harness):
                continue
            if disturb is not None:
                harness.set_clock(step.at)
                harness = disturb(harness, len(observed.epochs))
            observed.add(step.run(harness), harness)
        return observed

    def found(self, find: Callable[[Subject, History, Any], Any], *given: Any) -> Any:
        """Return the difference that a property finds; None if there is none.

        Parameters:
            find: the function of the property.
            given: the history, and the disturbance of its run.
        """
        return find(self, *given)

    def count_run(self, history: History) -> None:
        """Count a plain run, unless its history has no records."""
        self.runs += any(chain.from_iterable(epoch.values() for epoch in history))

    def plain_run(self, history: History, every: dt.timedelta | None = None) -> Observed | None:
        """Return the result of an undisturbed run; None if the run fails. Its error is then in
        `failed`. The result must not be changed.

        Parameters:
            every: the processing time between two epochs, as for `steps`.
        """
        outcome = self.plain_outcome(history, every)
        return None if isinstance(outcome, StatekitError) else outcome

    def plain_outcome(
        self, history: History, every: dt.timedelta | None = None
    ) -> Observed | StatekitError:
        """Return the result of an undisturbed run, or its error, which is then in `failed`.

        Properties that are checked on the same history one after the other share a run. Its result
        must not be changed.
        """
        how = every if self._has_processing_time else None, self.is_cut_short
        if self._plain is None or self._plain.history is not history or self._plain.how != how:
            self.count_run(history)
            outcome: Observed | StatekitError
            try:
                outcome = self.run(history, every=every)
            except StatekitError as error:
                self.failed.append(error)
                outcome = error
            self._plain = _Plain(history, how, outcome)
        return self._plain.outcome

    def steps(
        self, history: History, observed: Observed, *, every: dt.timedelta | None = None
    ) -> Iterator[Step]:
        """Yield the epochs of a history, and of the time after it.

        Epochs in which event time ends may have nothing to do.

        Parameters:
            observed: the result of the steps so far, which the caller extends after each step.
                Nothing is added for a step with nothing to do.
            every: the processing time between two epochs with records; None for that of
                `_pauses`.
        """
        now = _START
        pauses = self._pauses() if every is None else repeat(every)
        for records, pause in zip(history, pauses, strict=False):
            yield Step("records", now, records)
            now += pause
        can_advance = bool(timed_readers(self.job.plan))
        if self.has_timers and can_advance:
            yield from self._while_timers(now, observed)
            if observed.is_endless:
                return
        if can_advance:
            yield from self._around_ends_of_windows(now, observed)
        if self._has_ttl("event") and can_advance:
            for number, _ in enumerate(self.job.plan.operators):  # each follows those before it
                yield Step("watermark", now, watermark=FAR_FUTURE + number * _EPOCH)
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

    def _pauses(self) -> Iterator[dt.timedelta]:
        """Return the processing times between epochs with records. If results may depend on it: ten
        minutes; then until right before a value of the last epoch expires; then one instant, at
        which it expires. Otherwise 0.
        """
        if not self._has_processing_time:
            return repeat(AT_ONCE)
        ttls = [spec.ttl for _, spec in self._specs() if spec.ttl is not None]
        of = [dt.timedelta(microseconds=t.duration_us) for t in ttls if t.clock == "processing"]
        around = [(each - INSTANT, INSTANT) for each in dict.fromkeys(of) if each < DISTANCE_MAX]
        return cycle([_EPOCH, *chain.from_iterable(around)])

    @property
    def _has_processing_time(self) -> bool:
        """True if results may depend on processing time: by timers, or values that expire."""
        if self._has_ttl("processing") or self.has_timers:
            return True
        of_functions = (each.traits.made_of for each in self.functions)
        windows = [of for of in of_functions if isinstance(of, AggregatedResult)]
        clocks = {of.clock for of in windows} | {of.early.clock for of in windows if of.early}
        return "processing" in clocks

    @property
    def has_timers(self) -> bool:
        """True if a function of the user has timers."""
        timed = (each for each in self.functions if each.traits.definition is None)
        return any(each.handles_timers for each in timed)

    def _while_timers(self, now: dt.datetime, observed: Observed) -> Iterator[Step]:
        """Yield epochs that advance event time while timers are left, in small steps at first. At
        the end of event time, timers that set each other would never stop firing.
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
            if soonest + step >= FAR_FUTURE:
                return
            yield Step("watermark", now, watermark=soonest + step)
        observed.is_endless = observed.next_timer("event") is not None
        self.has_no_end |= observed.is_endless

    def _around_ends_of_windows(self, now: dt.datetime, observed: Observed) -> Iterator[Step]:
        """Yield epochs whose watermark is right before the end of a window, and then at it. At the
        end of event time, all windows would fire at once.
        """
        reached = dt.datetime.min.replace(tzinfo=dt.UTC)
        for _ in range(_WINDOWS_MAX):
            ends = (end for end in self._ends_of_windows(observed) if end > reached)
            if (soonest := min(ends, default=None)) is None:
                return
            yield Step("watermark", now, watermark=soonest - INSTANT)
            yield Step("watermark", now, watermark=soonest)
            reached = soonest

    def _ends_of_windows(self, observed: Observed) -> Iterator[dt.datetime]:
        """Yield the watermarks at which open windows of operators that read sources fire or are
        removed.
        """
        if not observed.contents:
            return
        contents = observed.contents[-1]
        for name in timed_readers(self.job.plan):
            made_of = self.job.plan.operator(name).declared.traits.made_of
            if not isinstance(made_of, AggregatedResult) or made_of.window is None:
                continue
            window, leads = made_of.window, {dt.timedelta(0), made_of.allowed_lateness}
            for rows in contents.states[name, "windows"].values():
                for row, stored in rows.items():
                    end = window.end_of(row, stored)
                    yield from (end - lead - INSTANT for lead in leads)

    @property
    def local_states(self) -> Iterator[tuple[str, StateSpec]]:
        """The operator states that have a rule for other shards, by operator."""
        for operator in self.job.plan.operators:
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
        for operator in self.job.plan.operators:
            for spec in operator.declared.states:
                if not spec.kind.is_local:
                    yield operator.name, spec
