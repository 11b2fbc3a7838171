"""Commit records: what tasks report to the driver through a Spark accumulator.

They come as updates of one of Spark's accumulators. A task sends its own with its end, and the
driver has them before the action returns: those of tasks that succeeded, of several attempts at a
shard if there were. So outputs need neither a column nor rows for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statekit.checkpoint.manifest import ShardReport
from statekit.clock import unique_id

_Told = list[tuple[str, str]]
"""Commit records as text, each behind the run that it is of."""


class _Appended(AccumulatorParam[_Told]):
    """Puts the records of one task behind those of others."""

    def zero(self, value: _Told) -> _Told:
        return []

    def addInPlace(self, value1: _Told, value2: _Told) -> _Told:
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class Reporter:
    """Where shards of one run report.

    Parameters:
        told: the accumulator.
        run: whose reports these are. Tasks of an attempt at an epoch that has failed may go on for
            a while, and report to the next one.
    """

    told: Accumulator[_Told]
    run: str

    def tell(self, report: ShardReport) -> None:
        """Send a report with the end of the task."""
        self.told.add([(self.run, report.model_dump_json())])


class Reports:
    """Where the reports of shards arrive in the driver, for one run after the other.

    Parameters:
        context: Spark's.
    """

    def __init__(self, context: SparkContext) -> None:
        self._told = context.accumulator([], _Appended())

    def begin(self) -> Reporter:
        """Expect the reports of a run, and forget those of others."""
        self._told.value = []
        return Reporter(self._told, unique_id())

    def of(self, reporter: Reporter) -> list[ShardReport]:
        """Those that have come of a run: of all tasks whose actions have returned."""
        told = [text for run, text in self._told.value if run == reporter.run]
        return [ShardReport.model_validate_json(text) for text in told]
