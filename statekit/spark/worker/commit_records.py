"""Commit records: reports from tasks to the driver, beside the outputs.

The driver has the records of all tasks that succeeded, which may be several attempts at one shard,
before the action returns. So outputs need neither a column nor rows for reports. There are two
carriers:

- **An accumulator of Spark**: a task sends its records when it ends.
- **The checkpoint**, for Spark Connect, which has no accumulators: a task creates one file below
  `tmp/` with its records as its last step. The driver lists them. A task that fails after that
  leaves its file: its records count as those of one more attempt.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import BaseModel, TypeAdapter
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from typing_extensions import TypeVar

from statekit.checkpoint.manifest import Report
from statekit.checkpoint.paths import TMP, report_path, reports_of
from statekit.checkpoint.store import Store, in_parallel
from statekit.clock import unique_id
from statekit.spark.worker.worker_process import opened_repository

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


class Reporter(ABC):
    """Sends reports of tasks to the driver, for one run.

    Tasks of a failed attempt may continue for a while, and report during the next run.
    """

    run: str

    @abstractmethod
    def report(self, report: BaseModel) -> None:
        """Add a report to those of this task."""

    def send(self) -> None:  # noqa: B027 - an accumulator is sent by Spark
        """Send the reports of this task. Every step calls it once, as its last act."""


@dataclass(frozen=True)
class _AccumulatedReporter(Reporter):
    """Sends reports through an accumulator. They arrive when the task ends."""

    records: Accumulator[_Records]
    run: str

    def report(self, report: BaseModel) -> None:
        self.records.add([(self.run, report.model_dump_json())])


@dataclass(frozen=True)
class _StoredReporter(Reporter):
    """Sends the reports of a task as one file of the checkpoint."""

    url: str
    run: str
    texts: list[str] = field(default_factory=list)

    def report(self, report: BaseModel) -> None:
        self.texts.append(report.model_dump_json())

    def send(self) -> None:
        if self.texts:
            data = json.dumps(self.texts).encode()
            self.texts.clear()
            opened_repository(self.url).create(report_path(self.run), data)


class _Accumulated:
    """Carries the reports of tasks in an accumulator."""

    def __init__(self, context: SparkContext) -> None:
        self._records = context.accumulator([], _Appended())

    def begin(self) -> Reporter:
        self._records.value = []
        return _AccumulatedReporter(self._records, unique_id())

    def of(self, run: str) -> Iterator[str]:
        return (text for own, text in self._records.value if own == run)

    def close(self) -> None:
        pass


class _Stored:
    """Carries the reports of tasks in files of the checkpoint. The driver deletes them when the
    next run begins; a garbage collection deletes those of killed drivers.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, list[str]] = {}

    def begin(self) -> Reporter:
        self.close()
        return _StoredReporter(self._store.url, unique_id())

    def of(self, run: str) -> Iterator[str]:
        begin = reports_of(run)
        paths = sorted(path for path in self._store.names(TMP) if path.startswith(begin))
        new = [path for path in paths if path not in self._read]
        for path, data in zip(new, in_parallel(self._store.read, new), strict=True):
            self._read[path] = json.loads(data)
        return (text for path in paths for text in self._read[path])

    def close(self) -> None:
        for path in self._read:
            self._store.discard(path)
        self._read.clear()


class Reports(Generic[R]):
    """Receives the reports of tasks in the driver, for one run after the other.

    Parameters:
        through: what carries them: Spark's context, or the checkpoint for Spark Connect.
        report: the type of the reports.
    """

    def __init__(self, through: SparkContext | Store, report: Any = Report) -> None:
        self._report: TypeAdapter[R] = TypeAdapter(report)
        self._carrier = _Stored(through) if isinstance(through, Store) else _Accumulated(through)

    def begin(self) -> Reporter:
        """Expect the reports of a run, and forget those of earlier runs."""
        return self._carrier.begin()

    def of(self, reporter: Reporter) -> list[R]:
        """Return the reports of a run, from all tasks whose actions have returned."""
        return [self._report.validate_json(text) for text in self._carrier.of(reporter.run)]

    def close(self) -> None:
        """Forget all reports."""
        self._carrier.close()
