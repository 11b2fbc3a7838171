"""`OperatorModels`: the operators of a job over plain Python, each with its records."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.job.windows.made_of import AggregatedFields, WindowedResult
from statekit.kv.store_operator import StoredOperations
from statekit.testing.aggregate_model import AggregateModel
from statekit.testing.process_model import KeyModel, ProcessModel
from statekit.testing.store_model import StoreModel
from statekit.testing.watermark_model import WatermarkModel
from statekit.testing.window_model import WindowModel
from statekit.timestamp import MAX_MICROS, datetime_to_micros, micros_to_datetime
from statekit.watermark import BEGINNING

OperatorModel = ProcessModel | WindowModel | AggregateModel


def model_of_operator(
    process: Process[Any, Any, Any], of_key: type[KeyModel] = KeyModel
) -> OperatorModel | None:
    """Return a model of an operator; None if the operator has no key, or has operator state, or is
    a processor of Spark by event time, whose records are late by the watermark of the epoch before.

    Parameters:
        of_key: the class of the keys of a function of the user.
    """
    match process.traits.made_of:
        case WindowedResult():
            return WindowModel(process)
        case AggregatedFields():
            return AggregateModel(process)
        case StoredOperations():
            return ProcessModel(process, StoreModel)
    if process.traits.settles:
        return None
    try:
        return ProcessModel(process, of_key)
    except StateTypeError:
        return None


class Marks(NamedTuple):
    """The watermarks of an epoch, in microseconds."""

    watermark_us: int
    reached_us: int


class OperatorModels:
    """Models of the operators of a job. They decide which records are late.

    The caller gives the records of an operator, also those that another operator emits. So each
    operator is compared on its own, and a fault is found in the operator that has it.

    Parameters:
        job: the job.
        of_key: the class of the keys of a function of the user.

    Attributes:
        of: the models of the operators, by name, of those that have one.
        late: the number of late records.
    """

    def __init__(self, job: Job, of_key: type[KeyModel] = KeyModel) -> None:
        self._job = job
        models = {each.name: model_of_operator(each.declared, of_key) for each in job.operators}
        self.of = {name: model for name, model in models.items() if model is not None}
        self.late = 0
        self._watermarks = WatermarkModel(job)
        self._reached: Mapping[str, int] = {}

    def run(
        self,
        given: Mapping[str, Sequence[Any]],
        now: dt.datetime,
        *,
        drains: bool = False,
        to: Mapping[str, int] | None = None,
    ) -> dict[str, list[Any]]:
        """Run one epoch, and return the records of each stream of an operator, late ones too.

        Parameters:
            given: the records of each stream that an operator reads.
            now: the processing time.
            drains: whether event time ends.
            to: the least watermarks of operators, in microseconds.
        """
        now_us = datetime_to_micros(now)
        watermarks = self._watermarks.begin(now_us, drains=drains, to=to)
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
            model = self.of.get(operator.name)
            if model is not None:
                found[operator.name] = _emitted(model, in_time, watermark, now)
        self._reached = watermarks
        return found

    def _marks(self, operator: Operator, watermark_us: int) -> Marks:
        reached_us = self._reached.get(operator.name, BEGINNING)
        return Marks(watermark_us, max(reached_us, operator.declared.traits.earliest_us))


def _emitted(
    model: OperatorModel, records: Sequence[tuple[Any, int]], watermark: int, now: dt.datetime
) -> list[Any]:
    """Run an epoch of a model, and return the emitted records."""
    match model:
        case WindowModel():
            return model.run(records, watermark)
        case AggregateModel():
            return model.run([record for record, _ in records], datetime_to_micros(now))
    at = None if watermark == BEGINNING else micros_to_datetime(min(watermark, MAX_MICROS))
    return model.run(records, at, now)["outputs"]
