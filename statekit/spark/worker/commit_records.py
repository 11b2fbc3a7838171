"""Commit records: reports from tasks to the driver through a Spark accumulator.

A task sends its records when it ends, and the driver has them before the action returns: those of
all tasks that succeeded, which may be several attempts at one shard. So outputs need neither a
column nor rows for reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from pydantic import BaseModel, TypeAdapter
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from typing_extensions import TypeVar

from statekit.checkpoint.manifest import Report
from statekit.clock import unique_id

R = TypeVar("R", default=Report)

_Records = list[tuple[str, str]]
"""Pairs of a run and a commit record as JSON."""


class _Appended(AccumulatorParam[_Records]):
    """Accumulator parameter that appends the records of a task to those of other tasks."""

    def zero(self, value: _Records) -> _Records:
        return []

    def addInPlace(self, value1: _Records, value2: _Records) -> _Records:
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class Reporter:
    """Sends reports of tasks to the driver.

    Parameters:
        records: the accumulator.
        run: the run that the reports belong to. Tasks of a failed attempt may continue for a while,
            and report during the next one.
    """

    records: Accumulator[_Records]
    run: str

    def report(self, report: BaseModel) -> None:
        """Send a report. It arrives when the task ends."""
        self.records.add([(self.run, report.model_dump_json())])


class Reports(Generic[R]):
    """Receives the reports of tasks in the driver, for one run after the other.

    Parameters:
        context: Spark's.
        report: the type of the reports.
    """

    def __init__(self, context: SparkContext, report: Any = Report) -> None:
        self._report: TypeAdapter[R] = TypeAdapter(report)
        self._records = context.accumulator([], _Appended())

    def begin(self) -> Reporter:
        """Expect the reports of a run, and forget those of earlier runs."""
        self._records.value = []
        return Reporter(self._records, unique_id())

    def of(self, reporter: Reporter) -> list[R]:
        """Return the reports of a run, from all tasks whose actions have returned."""
        records = [text for run, text in self._records.value if run == reporter.run]
        return [self._report.validate_json(text) for text in records]
