"""`JobHarness`: a whole job under test, with real epochs and commits and no cluster."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError, StatekitError, StateTypeError
from statekit.job.job import Job
from statekit.job.plan import Operator, Plan
from statekit.job.progress import OutputCallback
from statekit.shown import shown
from statekit.state.timers import Timer
from statekit.testing.drivers.driver import Backend, JobDriver, stored_epochs
from statekit.testing.drivers.process_memory import ProcessMemory
from statekit.timestamp import instant
from statekit.watermark import BEGINNING
from statekit.working_copy.copies import WorkingCopies


class _Ended(StatekitError):  # noqa: N818 - it is no error
    """The process ended right before a commit. Errors of statekit are not those of a sink."""


class JobHarness(JobDriver):
    """Test driver of a job with any number of operators, sources and sinks: a call is an epoch.

    Parameters:
        job: the job, with a sink for each stream whose records you want to see.
        parallelism: shards per operator.
        backend: where rows are kept between epochs: "memory" or "rocksdb"; or working copies, which
            stay after a crash, such as `FaultyCopies`.
        checkpoint: a directory or an open repository to commit to, and to continue from if it has
            epochs; None keeps everything in memory.
        allow_dropped_state: continue although the code no longer declares a stored state.
        memory: the memory of the functions outside of states, as a new process has it; None takes
            it now.

    Attributes:
        outputs: the records of each sink so far.

    Raises:
        StateTypeError: this is no job.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[dict]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield {"word": record["word"], "count": seen.get()}
    >>> job = sk.Job("words")
    >>> counts = job.source("words", dict).process(count).sink("counts")
    >>> _ = counts.filter(lambda record: record["count"] == 2, name="twice").sink("twice")
    >>> harness = JobHarness(job, parallelism=3)
    >>> harness.send(words=[{"word": "a"}, {"word": "b"}, {"word": "a"}])["twice"]
    [{'word': 'a', 'count': 2}]
    >>> harness.state("count", "seen", "a")
    2
    """

    def __init__(
        self,
        job: Job,
        parallelism: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        checkpoint: str | Path | Repository | None = None,
        *,
        allow_dropped_state: bool = False,
        memory: ProcessMemory | None = None,
    ) -> None:
        if not isinstance(job, Job):
            raise StateTypeError(
                f"a JobHarness drives a Job, not {shown(job)}: give it the job, or a process "
                "function to a Harness"
            )
        self.job = job
        self.outputs: dict[str, list[Any]] = {sink.name: [] for sink in job.plan.sinks}
        super().__init__(
            job,
            parallelism,
            backend,
            checkpoint,
            allow_dropped_state=allow_dropped_state,
            memory=memory,
        )

    def send(self, **records: Iterable[Any]) -> dict[str, list[Any]]:
        """Run one epoch over the records of some sources, commit it, and return the records of each
        sink.

        An error restores the last committed epoch.

        Parameters:
            records: by the names of the sources. `send(**{"my-source": [...]})` takes any name.

        Raises:
            StateTypeError: there is no such source.
        """
        if unknown := [name for name in records if not self.job.plan.is_source(name)]:
            names = ", ".join(source.name for source in self.job.plan.sources)
            raise StateTypeError(
                f"job {self.job.name!r} has no source {shown(unknown[0])}: it has {names}"
            )
        return self._taken(self._epoch(records))

    def publish(
        self,
        records: Mapping[str, Iterable[Any]] | None,
        published: dict[str, list[Any]],
        *,
        watermark: dt.datetime | None = None,
    ) -> dict[str, list[Any]]:
        """Run one epoch whose records are published before the commit, as sinks do, and return the
        records of each sink.

        Parameters:
            records: as for `send`; None lets event time end, as `drain` does.
            published: gets the records of each sink, also if the commit then fails.
            watermark: the watermark of this epoch, as for `advance_watermark`.
        """
        outputs = self._callbacks(published)
        if watermark is not None:
            return self._epoch_at_watermark(watermark, self._timed_readers(), outputs=outputs)
        what = "drain" if records is None else "records"
        return self._epoch(records, outputs=outputs, what=what)

    def attempt(self, records: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
        """Run one epoch, and crash right before its commit. Return the records of each sink, which
        may have been published.

        Parameters:
            records: as for `send`.
        """
        published: dict[str, list[Any]] = {}
        callbacks = self._callbacks(published)
        for name in list(callbacks)[-1:]:
            callbacks[name] = partial(_put_last, published, name)
            with contextlib.suppress(_Ended):
                self._epoch(records, outputs=callbacks)
            self.crash()
        return published

    def drain(self) -> dict[str, list[Any]]:
        """Let event time end, as at the end of a bounded run: all windows and event-time timers
        fire, one operator of a chain after the other. Return the records of each sink.
        """
        found: dict[str, list[Any]] = {sink.name: [] for sink in self.job.plan.sinks}
        while not self.is_drained:
            for name, records in self._taken(self._epoch(what="drain")).items():
                found[name] += records
        return found

    def advance_watermark(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Run an epoch without records in which the watermark of all operators that read sources is
        `to`, and return the records of each sink. Operators behind them follow in later epochs.

        Raises:
            StateTypeError: no operator has event time, or `to` is not later than a watermark.
        """
        return self._taken(self._epoch_at_watermark(to, self._timed_readers()))

    def _timed_readers(self) -> list[str]:
        """Return the operators with event time that read sources.

        Raises:
            StateTypeError: there are none.
        """
        readers = timed_readers(self.job.plan)
        if not readers:
            raise StateTypeError(
                f"no operator of job {self.job.name!r} that reads a source has a watermark: "
                "declare @process(event_time=...)"
            )
        return readers

    def advance_processing_time(self, to: dt.datetime) -> dict[str, list[Any]]:
        """Run an epoch without records at `to`, and return the records of each sink.

        A harness starts at 1970-01-01 UTC, and only these calls advance its processing time.

        Raises:
            StateTypeError: `to` is not later than the processing time of the last epoch.
        """
        return self._taken(self._epoch_at_time(to))

    def state(self, operator: str, name: str, key: Any) -> Any:
        """Return the state of a key after the last epoch as plain Python: None, the value, a list
        or a dict.

        Raises:
            QueryError: there is no such operator, or no such state.
        """
        return self._state_of(self._operator(operator), name, key)

    def operator_state(self, operator: str, name: str) -> list[Any]:
        """Return operator state after the last epoch: one plain Python value per shard.

        Raises:
            QueryError: there is no such operator, or no such state.
        """
        return self._operator_state_of(self._operator(operator), name)

    def timers(self, operator: str, key: Any) -> Sequence[Timer]:
        """Return the timers of a key after the last epoch, soonest first.

        Raises:
            QueryError: there is no such operator.
        """
        return self._timers_of(self._operator(operator), key)

    def shard_of(self, operator: str, key: Any) -> int:
        """Return the shard of an operator that owns a key.

        Raises:
            StateTypeError: it is no key of the operator.
            QueryError: there is no such operator, or it has no key.
        """
        return self._shard_of(self._operator(operator), key)

    @property
    def has_watermark(self) -> bool:
        """True if an operator that reads a source has event time."""
        return bool(timed_readers(self.job.plan))

    @property
    def watermark(self) -> dt.datetime | None:
        """The largest watermark, after the last epoch, of the operators that read sources; None
        before event time begins.
        """
        coordinator = self._runner.coordinator
        coordinator.begin(at_us=self._now_us)  # records of the last epoch advance the next one's
        reached = [coordinator.watermarks_us[name] for name in timed_readers(self.job.plan)]
        latest = max(reached, default=BEGINNING)
        return None if latest == BEGINNING else instant(latest)

    @property
    def is_drained(self) -> bool:
        """True if event time has ended and nothing is left to do; also before the first epoch."""
        return self.epoch is None or self._runner.coordinator.is_drained

    @classmethod
    def restore(
        cls,
        job: Job,
        path: str | Path,
        parallelism: int | None = None,
        backend: Backend | WorkingCopies = "memory",
        *,
        allow_dropped_state: bool = False,
    ) -> JobHarness:
        """Return a harness that starts from a directory of `checkpoint`, or from a savepoint. The
        directory does not change.
        """
        functions = [operator.declared for operator in job.plan.operators]
        repository = stored_epochs(path, parallelism, job.key_groups, functions)
        return cls(job, parallelism, backend, repository, allow_dropped_state=allow_dropped_state)

    def _operator(self, name: str) -> Operator:
        for each in self.job.plan.operators:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.job.plan.operators)
        raise QueryError(f"job {self.job.name!r} has no operator {shown(name)}: it has {names}")

    def _callbacks(self, published: dict[str, list[Any]]) -> dict[str, OutputCallback]:
        return {sink.name: partial(_put, published, sink.name) for sink in self.job.plan.sinks}

    def _taken(self, emitted: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, records in emitted.items():
            self.outputs[name] += records
        return emitted


def timed_readers(job: Plan) -> list[str]:
    """Return the names of the operators that read sources and have event time."""
    return [
        operator.name
        for operator in job.operators
        if operator.declared.event_time is not None
        and all(job.is_source(job.origin_of(name)) for name in operator.inputs)
    ]


def _put(published: dict[str, list[Any]], sink: str, records: list[Any], _: int) -> None:
    published[sink] = records


def _put_last(published: dict[str, list[Any]], sink: str, records: list[Any], _: int) -> None:
    published[sink] = records
    raise _Ended
