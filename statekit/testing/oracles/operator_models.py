"""`OperatorModels`: all operators of a job over plain Python, with watermarks of their own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statekit.calls.service_call import ServiceCall
from statekit.errors import StatekitError, StateTypeError
from statekit.job.joins.join_operator import JoinedResult
from statekit.job.joins.lookup_operator import LookedUp
from statekit.job.joins.moves import MovingRows
from statekit.job.joins.net_changes import KeyedChanges
from statekit.job.joins.table_join_operator import JoinedTables
from statekit.job.per_key.distinct import DistinctRecords
from statekit.job.plan import Operator, Plan, Transform
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.kv.store_operator import StoredOperations
from statekit.shown import shown
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.job_harness import JobHarness, timed_readers
from statekit.testing.oracles.aggregate_model import AggregateModel
from statekit.testing.oracles.call_model import CallModel
from statekit.testing.oracles.distinct_model import DistinctModel
from statekit.testing.oracles.join_model import JoinModel
from statekit.testing.oracles.lookup_model import LookupModel
from statekit.testing.oracles.store_model import StoreModel
from statekit.testing.oracles.table_join_model import MovesModel, NetChangesModel, TableJoinModel
from statekit.testing.oracles.window_model import WindowModel
from statekit.testing.process_model import KeyModel, ProcessModel
from statekit.testing.runs.comparison import is_same
from statekit.testing.runs.observed import Step
from statekit.timestamp import MAX_MICROS, datetime_to_micros, micros_to_datetime
from statekit.watermark import BEGINNING, END

_Model = (
    WindowModel
    | AggregateModel
    | DistinctModel
    | CallModel
    | JoinModel
    | LookupModel
    | TableJoinModel
    | MovesModel
    | NetChangesModel
)


class Marks(NamedTuple):
    """The watermarks of an epoch, in microseconds."""

    watermark_us: int
    reached_us: int


class OperatorModels:
    """Models of the operators of a job that have a key and no operator state, or call a service.

    A model gets the records that its operator got in the run, so that each operator is compared on
    its own. Which records are late follows from watermarks that are modelled, too.

    Parameters:
        job: the job.
        of_key: the class of the keys of a process function.
        built_in: model windows, aggregates, calls of services and key-value stores, too.

    Attributes:
        functions: the models of process functions and key-value stores, by operator.
        others: the models of windows, aggregates, distinct records and calls of services, by
            operator.
        late: the number of late records.
    """

    def __init__(
        self, job: Plan, of_key: type[KeyModel] = KeyModel, *, built_in: bool = True
    ) -> None:
        self._job = job
        self.functions: dict[str, ProcessModel] = {}
        self.others: dict[str, _Model] = {}
        for operator in job.operators:
            traits = operator.declared.traits
            if traits.made_of is not None and not built_in:
                continue
            match traits.made_of:
                case AggregatedResult(window=None):
                    self.others[operator.name] = AggregateModel(operator.declared)
                case AggregatedResult():
                    self.others[operator.name] = WindowModel(operator.declared)
                case DistinctRecords():
                    self.others[operator.name] = DistinctModel(operator.declared)
                case ServiceCall():
                    self.others[operator.name] = CallModel(operator.declared)
                case JoinedResult():
                    self.others[operator.name] = JoinModel(operator.declared)
                case LookedUp():
                    self.others[operator.name] = LookupModel(operator.declared)
                case JoinedTables():
                    self.others[operator.name] = TableJoinModel(operator.declared)
                case MovingRows():
                    self.others[operator.name] = MovesModel(operator.declared)
                case KeyedChanges():
                    self.others[operator.name] = NetChangesModel(operator.declared)
                case StoredOperations():
                    self.functions[operator.name] = ProcessModel(operator.declared, StoreModel)
                case None if not traits.settles:  # else late by the watermark before
                    with contextlib.suppress(StateTypeError):
                        self.functions[operator.name] = ProcessModel(operator.declared, of_key)
        self.late = 0
        self._watermarks = WatermarkModel(job)
        self._reached: Mapping[str, int] = {}
        self._to: Mapping[str, int] = {}

    def begin(self, step: Step, harness: JobHarness) -> None:
        """Begin an epoch that the harness has not run yet."""
        self._to = {}
        if step.what == "watermark":
            micros = datetime_to_micros(step.reached(harness))
            self._to = dict.fromkeys(timed_readers(self._job), micros)

    def run(self, given: Mapping[str, Sequence[Any]], step: Step) -> dict[str, list[Any]]:
        """Run the epoch, and return the records of each stream that has a model, late ones too.

        Parameters:
            given: the records of each stream of the job in the run.
        """
        now_us, drains = datetime_to_micros(step.at), step.what in ("end", "after")
        watermarks = self._watermarks.begin(now_us, drains=drains, to=self._to)
        found: dict[str, list[Any]] = {}
        for operator in self._job.operators:
            records = [(r, n) for n, stream in enumerate(operator.inputs) for r in given[stream]]
            watermark = watermarks.get(operator.name, BEGINNING)
            in_time = records
            if operator.declared.event_time is not None:
                time_of = operator.declared.time_of()
                times = {name: list(map(time_of, given[name])) for name in operator.inputs}
                self._watermarks.read(operator, now_us, times)
                late_us = operator.declared.late_us(self._marks(operator, watermark))
                in_time = [each for each in records if time_of(each[0]) > late_us]
                found[operator.late] = [r for r, _ in records if time_of(r) <= late_us]
                self.late += len(records) - len(in_time)
            if operator.name in self.functions or operator.name in self.others:
                found[operator.name] = self._emitted(operator, in_time, watermark, step)
        self._reached = watermarks
        for transform in self._job.transforms:
            found |= _transformed(transform, given)
        return found

    def differs(self, contents: EpochContents) -> str | None:
        """Return the first state, or timers, that differ from those of a model, or the numbers of
        late records; None if all are the same.
        """
        if contents.late != self.late:
            return f"the number of late records: {contents.late}, and {self.late} in the model,"
        for operator in self._job.operators:
            if (model := self.functions.get(operator.name)) is not None:
                what = _in_states(operator, model, contents)
                if what := what or _in_timers(operator, model, contents):
                    return what
        return None

    def _marks(self, operator: Operator, watermark_us: int) -> Marks:
        reached_us = self._reached.get(operator.name, BEGINNING)
        return Marks(watermark_us, max(reached_us, operator.declared.traits.earliest_us))

    def _emitted(
        self, operator: Operator, records: list[tuple[Any, int]], watermark: int, step: Step
    ) -> list[Any]:
        """Run an epoch of a model, and return the emitted records."""
        match self.others.get(operator.name):
            case LookupModel() as lookup:
                return lookup.run(records, watermark)
            case WindowModel() | JoinModel() as model:
                return model.run(records, watermark, datetime_to_micros(step.at))
            case AggregateModel() as aggregates:
                now_us, ends = datetime_to_micros(step.at), watermark == END
                return aggregates.run([record for record, _ in records], now_us, ends=ends)
            case DistinctModel() as distinct:
                now_us = datetime_to_micros(step.at)
                return distinct.run([record for record, _ in records], now_us)
            case CallModel() | TableJoinModel() | MovesModel() | NetChangesModel() as others:
                return others.run([record for record, _ in records])
        at = None if watermark == BEGINNING else micros_to_datetime(min(watermark, MAX_MICROS))
        return self.functions[operator.name].run(records, at, step.at)["outputs"]


def _in_states(operator: Operator, model: ProcessModel, contents: EpochContents) -> str | None:
    """Return the first state of a key that differs; None if all are the same."""
    for spec in operator.declared.states:
        values = contents.states.get((operator.name, spec.name))
        if values is None or not model.has_state(spec.name):
            continue
        for key in dict.fromkeys([*values, *model.keys]):
            again = model.state(spec.name, key)
            if not (is_same(values.get(key), again) or (key not in values and not again)):
                if key not in values and is_same(again, spec.default):
                    continue
                held = values.get(key)
                where = f"state {spec.name!r} of {operator.name} at the key {shown(key)}"
                return f"{where}, {shown(held)} and {shown(again)} in the model,"
    return None


def _in_timers(operator: Operator, model: ProcessModel, contents: EpochContents) -> str | None:
    """Return the first key whose timers differ; None if all are the same."""
    if not operator.declared.handles_timers:
        return None
    for key in dict.fromkeys([*contents.timers[operator.name], *model.keys]):
        if set(contents.timers[operator.name].get(key, ())) != set(model.timers(key)):
            return f"the timers of {operator.name} at the key {shown(key)}"
    return None


def _transformed(
    transform: Transform, emitted: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Return the records that a transform emits, by the name of its stream."""
    fn, given = transform.function.fn, copy.deepcopy(emitted[transform.input])
    match transform.function.kind:
        case "of":
            made = [record for record in given if type(record) is fn]
        case "filter":
            kept = copy.deepcopy(given)  # what the filter does to its record is seen nowhere
            made = [record for record, own in zip(kept, given, strict=True) if fn(own)]
        case "flat_map":
            made = [copy.deepcopy(each) for record in given for each in fn(record)]
        case _:
            made = [copy.deepcopy(fn(record)) for record in given]
    with contextlib.suppress(StatekitError):  # then they differ
        made = transform.function.output_type.stored(made)
    return {transform.name: made}


# ------------------------------------------------------------------------------------- watermarks


class WatermarkModel:
    """Model of event time in a job, epoch by epoch.

    The watermark of an epoch depends on earlier epochs only. It is the largest event time of the
    records that an operator has read from a source, or the watermark of the operator before it,
    less its lateness.

    Parameters:
        job: the job whose watermarks they are.

    Attributes:
        reached: the watermark of each operator with event time, in microseconds.
    """

    def __init__(self, job: Plan) -> None:
        self._job = job
        self._operators = {operator.name: operator for operator in job.operators}
        self.reached: dict[str, int] = {
            operator.name: BEGINNING
            for operator in job.operators
            if operator.declared.event_time is not None
        }
        self._before = self.reached
        self._largest: dict[tuple[str, str], int] = {}
        self._active: dict[tuple[str, str], int] = {}

    def begin(
        self, now_us: int, *, drains: bool = False, to: Mapping[str, int] | None = None
    ) -> Mapping[str, int]:
        """Return the watermarks of a new epoch.

        Parameters:
            now_us: the processing time.
            drains: whether event time ends.
            to: the least watermarks of operators.
        """
        self._before = self.reached
        following = {}
        for name, before in self._before.items():
            operator = self._operators[name]
            times = [
                self._time_at(self._job.origin_of(stream), (name, stream), drains=drains)
                for stream in operator.inputs
                if drains or not self._is_idle((name, stream), now_us)
            ]
            seen = min(times, default=BEGINNING)
            if seen not in (BEGINNING, END):
                seen -= operator.declared.lateness_us
            following[name] = max(before, seen, (to or {}).get(name, BEGINNING))
        self.reached = following
        return following

    def read(self, operator: Operator, now_us: int, of_inputs: Mapping[str, Sequence[int]]) -> None:
        """Add the records that an operator has read in an epoch.

        Parameters:
            now_us: the processing time.
            of_inputs: the event times of the records, by input.
        """
        for stream, times in of_inputs.items():
            place = operator.name, stream
            if times or place not in self._active:
                self._active[place] = now_us
            if in_time := [at for at in times if at > self.reached[operator.name]]:
                self._largest[place] = max(self._largest.get(place, BEGINNING), *in_time)

    def _time_at(self, origin: str, place: tuple[str, str], *, drains: bool) -> int:
        """Return the event time that an input has reached, in microseconds.

        Parameters:
            origin: a source, an operator, or a stream of late or of failed records.
            place: an operator and its input.
        """
        above = self._job.emitter_of(origin)
        if above is None:
            late_for = origin.removesuffix(".late")
            has_ended = origin == late_for or self._before.get(late_for) == END
            return END if drains and has_ended else self._largest.get(place, BEGINNING)
        if above.declared.event_time is not None:
            reached = self._before[above.name]
            if reached in (BEGINNING, END):
                return reached
            return max(reached - above.declared.traits.holds_back_us, BEGINNING)
        origins = map(self._job.origin_of, above.inputs)
        return min(self._time_at(each, place, drains=drains) for each in origins)

    def _is_idle(self, place: tuple[str, str], now_us: int) -> bool:
        """Return whether an input has had no records for so long that the watermark does not wait
        for it.
        """
        idle_after_us = self._job.idle_after_us(place[1])
        if idle_after_us is None or place not in self._active:
            return False
        return now_us - self._active[place] >= idle_after_us
