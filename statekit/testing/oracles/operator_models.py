"""`OperatorModels`: all operators of a job over plain Python, with watermarks of their own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statekit.errors import StatekitError
from statekit.job.job import Job
from statekit.job.plan import Operator, Transform
from statekit.job.windows.made_of import AggregatedFields, WindowedResult
from statekit.kv.store_operator import StoredOperations
from statekit.testing.drivers.driver import EpochContents
from statekit.testing.drivers.job_harness import JobHarness, timed_readers
from statekit.testing.oracles.aggregate_model import AggregateModel
from statekit.testing.oracles.function_models import FunctionModels
from statekit.testing.oracles.store_model import StoreModel
from statekit.testing.oracles.watermark_model import WatermarkModel
from statekit.testing.oracles.window_model import WindowModel
from statekit.testing.process_model import KeyModel, ProcessModel
from statekit.testing.runs.observed import Step
from statekit.timestamp import MAX_MICROS, datetime_to_micros, micros_to_datetime
from statekit.watermark import BEGINNING

OtherModel = WindowModel | AggregateModel


class Marks(NamedTuple):
    """The watermarks of an epoch, in microseconds."""

    watermark_us: int
    reached_us: int


class OperatorModels(FunctionModels):
    """Models of all operators of a job. They decide which records are late.

    Attributes:
        others: the models of windows and aggregates, by operator.
        late: the number of late records.
    """

    def __init__(self, job: Job, of_key: type[KeyModel] = KeyModel) -> None:
        super().__init__(job, of_key)
        self.others: dict[str, OtherModel] = {}
        for operator in job.operators:
            match operator.declared.traits.made_of:
                case WindowedResult():
                    self.others[operator.name] = WindowModel(operator.declared)
                case AggregatedFields():
                    self.others[operator.name] = AggregateModel(operator.declared)
                case StoredOperations():
                    self.of[operator.name] = ProcessModel(operator.declared, StoreModel)
        self.late = 0
        self._watermarks = WatermarkModel(job)
        self._reached: Mapping[str, int] = {}
        self._to: Mapping[str, int] = {}

    def begin(self, step: Step, harness: JobHarness) -> None:
        self._to = {}
        if step.what == "watermark":
            micros = datetime_to_micros(step.reached(harness))
            self._to = dict.fromkeys(timed_readers(self._job), micros)

    def run(
        self, given: Mapping[str, Sequence[Any]], step: Step, harness: JobHarness
    ) -> dict[str, list[Any]]:
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
            if operator.name in self.of or operator.name in self.others:
                found[operator.name] = self._emitted(operator, in_time, watermark, step)
        self._reached = watermarks
        for transform in self._job.transforms:
            found |= _transformed(transform, given)
        return found

    def differs(self, contents: EpochContents) -> str | None:
        if contents.late != self.late:
            return f"the number of late records: {contents.late}, and {self.late} in the model,"
        return super().differs(contents)

    def _marks(self, operator: Operator, watermark_us: int) -> Marks:
        reached_us = self._reached.get(operator.name, BEGINNING)
        return Marks(watermark_us, max(reached_us, operator.declared.traits.earliest_us))

    def _emitted(
        self, operator: Operator, records: list[tuple[Any, int]], watermark: int, step: Step
    ) -> list[Any]:
        """Run an epoch of a model, and return the emitted records."""
        match self.others.get(operator.name):
            case WindowModel() as windows:
                return windows.run(records, watermark)
            case AggregateModel() as aggregates:
                now_us = datetime_to_micros(step.at)
                return aggregates.run([record for record, _ in records], now_us)
        at = None if watermark == BEGINNING else micros_to_datetime(min(watermark, MAX_MICROS))
        return self.of[operator.name].run(records, at, step.at)["outputs"]


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
