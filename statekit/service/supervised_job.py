"""A job under supervision: one process at a time, which is started, stopped and replaced until it
is what the record of the job asks for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path
from typing import Literal

from statekit.checkpoint.paths import SAVEPOINT, SAVEPOINTS
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Record
from statekit.clock import now_us, stopwatch_s
from statekit.errors import QueryError, StatekitError
from statekit.job.restarts import Restarts
from statekit.service.job_log import JobLog
from statekit.service.job_process import ChildProcess, taken_lock
from statekit.service.job_record import DoneOperation, JobEnd, PendingOperation, SubmittedJob
from statekit.service.registry import JobRegistry
from statekit.service.run_report import JobProgress, reported_error
from statekit.service.submission_limits import SubmissionLimits

_logger = logging.getLogger("statekit.service")

STOPS_WITHIN_S = 60.0
"""How long a job has for its current epoch when it is stopped. Then its process is killed, and the
next start repeats the epoch.
"""

_NEVER_MENDED = (2, 3)
"""Exit codes of a run after which a restart does not help."""

Status = Literal[
    "starting",
    "running",
    "stopping",
    "stopped",
    "waiting",
    "failed",
    "ended",
    "working",
    "deleting",
]
"""The state of a job. "waiting" is the pause before a restart, "working" a rollback."""


class ObservedJob(Record):
    """A job as its supervisor sees it.

    Parameters:
        status: what it does.
        process: the id of its process; None if it has none.
        failures: how often its process has failed since the supervisor has known it.
        last_failure: why it failed last; None if it did not.
        last_failure_at_us: when, in microseconds since 1970 UTC.
        progress: the last epoch; None if none is known.
        progress_at_us: when that was, in microseconds since 1970 UTC.
        since_us: since when the job is to run without an epoch, in microseconds since 1970 UTC:
            the time of the last epoch, or of the start if that was later; None if it is not to run.
    """

    status: Status
    process: int | None = None
    failures: int = 0
    last_failure: str | None = None
    last_failure_at_us: int | None = None
    progress: JobProgress | None = None
    progress_at_us: int | None = None
    since_us: int | None = None


class SupervisedJob:
    """The process of a job, and its operations. One thread calls `step`.

    Parameters:
        name: of the job.
        registry: gets the ends of the job and of its operations.
        directory: of its lock, document and log.
        limits: what its document may name.
        earlier: the job as the leader before this one saw it; None if it is not known.

    Attributes:
        is_removed: whether it was deleted, and its name is free.
    """

    def __init__(
        self,
        name: str,
        registry: JobRegistry,
        directory: Path,
        limits: SubmissionLimits,
        earlier: ObservedJob | None = None,
    ) -> None:
        self._name, self._registry, self._limits = name, registry, limits
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._log = JobLog(directory)
        self._process: ChildProcess | None = None
        self._generation = -1
        self._work: tuple[PendingOperation, ChildProcess] | None = None
        self._restarts: Restarts | None = None
        self._starts_at_s = 0.0
        # The record that `step` gets may be older than the last change that was made here.
        self._ended_generation = -1
        self._done_id = ""
        self._continued: tuple[int, str] | None = None
        self.is_removed = False
        self._failures = 0
        self._last_failure: tuple[str, int] | None = None
        self._last_progress: tuple[JobProgress, int | None] | None = None
        self._started_us = now_us()
        if earlier is not None:
            self._failures = earlier.failures
            if earlier.last_failure is not None and earlier.last_failure_at_us is not None:
                self._last_failure = earlier.last_failure, earlier.last_failure_at_us
            if earlier.progress is not None:
                self._last_progress = earlier.progress, earlier.progress_at_us

    # ------------------------------------------------------------------------------- observed

    def observed(self, record: SubmittedJob) -> ObservedJob:
        """Return the job as it is now."""
        reason, at_us = self._last_failure or (None, None)
        progress, progress_at_us = self._progress() or (None, None)
        is_to_run = record.desired == "running" and not record.has_ended
        return ObservedJob(
            status=self._status(record),
            process=None if self._process is None else self._process.id,
            failures=self._failures,
            last_failure=reason,
            last_failure_at_us=at_us,
            progress=progress,
            progress_at_us=progress_at_us,
            since_us=max(self._started_us, progress_at_us or 0) if is_to_run else None,
        )

    def _progress(self) -> tuple[JobProgress, int | None] | None:
        if self._process is not None and self._process.progress is not None:
            return self._process.progress, self._process.progress_at_us
        return self._last_progress

    def _status(self, record: SubmittedJob) -> Status:
        if self._process is not None:
            return "stopping" if self._process.is_asked else "running"
        if record.desired == "deleted":
            return "deleting"
        if self._work is not None and self._work[0].kind == "rollback":
            return "working"
        if record.outcome is not None:
            return record.outcome
        if record.desired == "stopped":
            return "stopped"
        return "waiting" if self._failures else "starting"

    # ------------------------------------------------------------------------------ what to do

    def step(self, record: SubmittedJob) -> None:
        """Do the next thing that makes the job what its record asks for. It does not wait.

        Raises:
            StatekitError: the registry cannot be changed. The next step tries again.
        """
        if self.is_removed:
            return  # the record is of before
        self._note_checkpoint(record)
        if self._process is not None and (code := self._process.exit_code) is not None:
            self._note_end(self._process, code, record)
        if self._work is not None:
            self._note_work()
        elif record.desired == "deleted":
            self._remove(record)
        elif record.operation is not None and record.operation.id != self._done_id:
            self._begin_work(record.operation, record)
        if self._process is not None:
            if self._is_to_stop(record):
                self._process.ask_to_end(STOPS_WITHIN_S)
        elif self._is_to_start(record):
            self._start(record)

    def _note_checkpoint(self, record: SubmittedJob) -> None:
        """Store which checkpoint the job has, when its first epoch is observed."""
        progress = None if self._process is None else self._process.progress
        if progress is None or progress.checkpoint is None or record.checkpoint_id is not None:
            return
        own = self._generation, progress.checkpoint
        if own != self._continued:
            generation, id_ = own
            self._registry.change(self._name, lambda last: last.continued(id_, generation))
            self._continued = own

    def _is_to_stop(self, record: SubmittedJob) -> bool:
        is_other = self._generation != record.generation
        return record.desired != "running" or is_other or _needs_no_process(record)

    def _is_to_start(self, record: SubmittedJob) -> bool:
        if record.desired != "running" or record.has_ended or _needs_no_process(record):
            return False
        if self._generation != record.generation:
            return True
        has_ended = self._ended_generation == record.generation
        return not has_ended and stopwatch_s() >= self._starts_at_s

    def _start(self, record: SubmittedJob) -> None:
        if (lock := taken_lock(self.directory / "lock")) is None:
            return  # a process of the server before this one is ending
        if (fault := self._fault(record)) is not None:
            os.close(lock)
            self._generation = record.generation
            self._fail(record, fault)
            return
        if self._generation != record.generation or self._restarts is None:
            self._restarts = Restarts.of(record.run.restart)
            self._started_us = now_us()
        self._generation = record.generation
        document = self.directory / "document.json"
        document.write_text(record.document)
        words = self._words(record, document)
        self._process = ChildProcess(words, self._log, lock, self._limits.secrets, reports=True)

    def _fault(self, record: SubmittedJob) -> str | None:
        """Return what this server does not allow of a job that another one has taken; None if it
        allows all.
        """
        try:
            self._limits.check_record(record)
        except StatekitError as error:
            return reported_error(error)
        return None

    def _words(self, record: SubmittedJob, document: Path) -> list[str]:
        run = record.run
        words = ["run", str(document), f"--checkpoint={run.checkpoint}", "--ends-with-input"]
        words += ["--follow"] if run.follow else []
        own = record.checkpoint_id
        if own is None and self._continued is not None:
            generation, noted = self._continued
            own = noted if generation == record.generation else None
        words += [] if own is None else [f"--continues={own}"]
        words += [f"--module={module}" for module in self._limits.modules]
        for name, given in (
            ("parallelism", run.parallelism),
            ("spark", run.spark),
            ("trigger", run.trigger),
            ("heartbeat", run.heartbeat),
        ):
            words += [] if given is None else [f"--{name}={given}"]
        return words

    def _note_end(self, process: ChildProcess, code: int, record: SubmittedJob) -> None:
        if not process.is_asked:
            if code == 0 and not record.run.follow:
                self._end(record, failed=False, reason="")
            else:
                self._note_failure(process.reason, code, record)
        self._last_progress = self._progress()
        self._process = None

    def _note_failure(self, reason: str, code: int, record: SubmittedJob) -> None:
        assert self._restarts is not None, "it was started"
        pause_s = None if code in _NEVER_MENDED else self._restarts.next_pause_s()
        if pause_s is not None:
            self._starts_at_s = stopwatch_s() + pause_s
        self._fail(record, reason, for_good=pause_s is None)

    def _fail(self, record: SubmittedJob, reason: str, *, for_good: bool = True) -> None:
        if for_good:
            self._end(record, failed=True, reason=reason)
        self._failures += 1
        self._last_failure = reason, now_us()
        _logger.warning("job %s has failed: %s", self._name, reason)

    def _end(self, record: SubmittedJob, *, failed: bool, reason: str) -> None:
        end = JobEnd(generation=self._generation, failed=failed, reason=reason, at_us=now_us())
        self._registry.change(record.name, lambda last: last.ended(end))
        self._ended_generation = self._generation

    def _remove(self, record: SubmittedJob) -> None:
        """Delete the log of a deleted job, and free its name, once it has no process."""
        self.directory.mkdir(exist_ok=True)  # if the registry could not be reached the last time
        if self._process is not None or (lock := taken_lock(self.directory / "lock")) is None:
            return  # it ends, or one of the server before this one does
        try:
            self._log.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            with contextlib.suppress(QueryError):  # the leader before this one has done it
                self._registry.remove(record.name)
        finally:
            os.close(lock)
        self.is_removed = True

    # ----------------------------------------------------------------------------- operations

    def _begin_work(self, operation: PendingOperation, record: SubmittedJob) -> None:
        if _needs_no_process(record):
            if self._process is not None:
                return  # it is asked to end
            name, words = "lock", ["rollback", f"--to={operation.epoch}"]
        else:
            name, words = "savepoint.lock", ["savepoint"]
        if (lock := taken_lock(self.directory / name)) is None:
            return
        fault = self._fault(record)
        if fault is not None or self._is_saved(operation, record):
            os.close(lock)
            self._done(DoneOperation(operation=operation, error=fault, at_us=now_us()))
            return
        words += ["--", record.run.checkpoint]
        words += [operation.savepoint] if operation.savepoint else []
        self._work = operation, ChildProcess(words, self._log, lock, self._limits.secrets)

    def _is_saved(self, operation: PendingOperation, record: SubmittedJob) -> bool:
        """Return whether the savepoint was written already, by a leader that was killed then."""
        if operation.savepoint is None:
            return False
        return has_savepoint(record.run.checkpoint, operation.savepoint)

    def _note_work(self) -> None:
        assert self._work is not None, "the caller has looked"
        operation, process = self._work
        if (code := process.exit_code) is None:
            return
        if process.is_asked:  # this server was not the leader for a while, and has killed it
            self._work = None
            return
        error = None if code == 0 else process.reason
        self._done(DoneOperation(operation=operation, error=error, at_us=now_us()))
        self._work = None

    def _done(self, done: DoneOperation) -> None:
        self._registry.change(self._name, lambda last: last.after(done))
        self._done_id = done.operation.id

    # ------------------------------------------------------------------------------ the server

    def ask_to_end(self, within_s: float) -> None:
        """Let the process end after its epoch, because the server ends."""
        if self._process is not None:
            self._process.ask_to_end(within_s)

    def kill(self) -> None:
        """Kill all processes, and wait for their end."""
        for process in (self._process, self._work and self._work[1]):
            if process is not None and process.exit_code is None:
                process.kill()
                process.wait(1.0)

    def wait(self, within_s: float) -> bool:
        """Wait until the process has ended, and return whether it has."""
        return self._process is None or self._process.wait(within_s)

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def has_savepoint(checkpoint: str, name: str) -> bool:
    """Return whether a checkpoint has a savepoint of a name.

    Raises:
        StorageError: the store cannot be reached.
    """
    try:
        repository = Repository(checkpoint, create=False)
    except StatekitError:
        return False
    return repository.exists(f"{SAVEPOINTS}/{name}/{SAVEPOINT}")


def _needs_no_process(record: SubmittedJob) -> bool:
    return record.operation is not None and record.operation.kind == "rollback"
