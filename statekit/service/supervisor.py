"""The supervisor: on the leader, it makes all jobs what their records ask for.

On other servers it only reads what the leader has observed. It looks at all records once in a
while, and at once when this server has changed one.

    observed.json         the jobs as the leader sees them, for other servers
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from statekit.checkpoint.sealed_json import Sealed
from statekit.clock import now_us, stopwatch_s
from statekit.closing import Closing
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError
from statekit.service.job_record import SubmittedJob
from statekit.service.leadership import TERM_S, Leadership
from statekit.service.registry import JobRegistry
from statekit.service.submission_limits import SubmissionLimits
from statekit.service.supervised_job import ObservedJob, SupervisedJob

_logger = logging.getLogger("statekit.service")

_OBSERVED = "observed.json"

_STEP_S, _LIST_S, _REPORT_S = 0.25, 2.0, 5.0
"""Seconds between two steps of all jobs, two lists of the records, and two reports."""

_ENDS_WITHIN_S = 20.0
"""How long all jobs together have for their epochs when the server ends, in seconds."""


class ObservedJobs(Sealed):
    """All jobs as the leader saw them.

    Parameters:
        term: of the leader.
        at_us: when, in microseconds since 1970 UTC.
        jobs: by name.
    """

    title: ClassVar[str] = "a report of the leader"

    term: int
    at_us: int
    jobs: dict[str, ObservedJob]


class Supervisor(Closing):
    """Runs the jobs of a registry while this server is the leader. `close` stops them.

    Parameters:
        registry: the jobs, and what users want of them.
        directory: a local directory for locks, documents and logs. Servers on one machine with
            one registry have the same.
        limits: what documents may name.
        term_s: how long a leader may be silent, in seconds.
    """

    def __init__(
        self,
        registry: JobRegistry,
        directory: Path,
        limits: SubmissionLimits,
        term_s: float = TERM_S,
    ) -> None:
        self.registry, self._directory, self._limits = registry, directory, limits
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._leadership = Leadership(registry.store, term_s)
        self._jobs: dict[str, SupervisedJob] = {}
        self._records: Mapping[str, SubmittedJob] = {}
        self._observed: dict[str, ObservedJob] = {}
        self._earlier: dict[str, ObservedJob] | None = None
        self._reported: tuple[float, object] = (-_REPORT_S, None)
        self._listed_s = -_LIST_S
        self._has_news, self._ends = threading.Event(), threading.Event()
        self._acting = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start to look for the leader, and to run jobs."""
        self._leadership.start()
        for name, target in (("statekit jobs", self._run), ("statekit guard", self._guard)):
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    @property
    def is_leader(self) -> bool:
        """True if this server runs the jobs."""
        return self._leadership.is_leader

    @property
    def records(self) -> Mapping[str, SubmittedJob]:
        """The records of all jobs, as the leader has read them last."""
        return self._records

    def look(self) -> None:
        """Look at the records at once, because one of them has changed."""
        self._listed_s = -_LIST_S
        self._has_news.set()

    def observed(self) -> Mapping[str, ObservedJob]:
        """Return all jobs as the leader sees them.

        Raises:
            StorageError: the store cannot be reached.
        """
        return self._observed if self.is_leader else self._report_of_leader()

    def _report_of_leader(self) -> Mapping[str, ObservedJob]:
        """Return the last report of the leader; nothing if its report is damaged."""
        data = self.registry.store.read_if_there(_OBSERVED)
        try:
            return {} if data is None else ObservedJobs.from_bytes(data, _OBSERVED).jobs
        except (CorruptCheckpointError, RestoreError) as error:
            _logger.warning("the report of the leader cannot be read: %s", error)
            return {}

    def directory_of(self, job: str) -> Path:
        """Return the directory of the log of a job."""
        return self._directory / job

    # ------------------------------------------------------------------------------- threads

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with self._acting:
                    if self.is_leader and not self._ends.is_set():
                        self._step()
            except StatekitError as error:
                _logger.warning("the jobs cannot be looked at: %s", error)
            except Exception:
                _logger.exception("the jobs cannot be looked at")
            self._has_news.wait(_STEP_S)
            self._has_news.clear()

    def _step(self) -> None:
        if stopwatch_s() - self._listed_s >= _LIST_S:
            self._listed_s = stopwatch_s()
            self._records = self.registry.jobs()
            self._forget_removed()
        for name, record in self._records.items():
            if not self.is_leader:
                return
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = self._new(name)
            try:
                job.step(record)
            except (StatekitError, OSError) as error:
                _logger.warning("job %s cannot be started or stopped now: %s", name, error)
            self._observed[name] = job.observed(record)
        self._report()

    def _forget_removed(self) -> None:
        """Forget removed jobs: another one may have the name."""
        for name in [name for name, job in self._jobs.items() if job.is_removed]:
            del self._jobs[name]
            self._observed.pop(name, None)

    def _new(self, name: str) -> SupervisedJob:
        if self._earlier is None:
            self._earlier = dict(self._report_of_leader())
        # Once: a job that is submitted later may have the name of a removed one.
        directory, earlier = self.directory_of(name), self._earlier.pop(name, None)
        return SupervisedJob(name, self.registry, directory, self._limits, earlier)

    def _report(self) -> None:
        """Store the observed jobs, if they have changed."""
        at_s, last = self._reported
        if stopwatch_s() - at_s < _REPORT_S or last == self._observed:
            return
        term = self._leadership.term or 0
        jobs = ObservedJobs(term=term, at_us=now_us(), jobs=self._observed)
        self.registry.store.replace(_OBSERVED, jobs.to_bytes())
        self._reported = stopwatch_s(), dict(self._observed)
        for name in self._records:
            self.registry.collect(name)

    def _guard(self) -> None:
        """Kill all processes while this server is not the leader, whatever the other threads wait
        for.
        """
        while not self._ends.wait(_STEP_S):
            if not self.is_leader:
                self._kill()

    def _kill(self) -> None:
        for job in tuple(self._jobs.values()):
            job.kill()

    def close(self) -> None:
        """Stop all jobs after their epochs, and release the leadership. The records stay as they
        are: the next leader starts the jobs again.
        """
        if self._ends.is_set():
            return
        self._ends.set()
        self._has_news.set()
        for thread in self._threads:
            thread.join()
        until_s = stopwatch_s() + _ENDS_WITHIN_S
        for job in self._jobs.values():
            job.ask_to_end(_ENDS_WITHIN_S)
        for job in self._jobs.values():
            job.wait(max(0.0, until_s - stopwatch_s()))
        self._kill()
        self._leadership.close()
        for job in self._jobs.values():
            job.close()
