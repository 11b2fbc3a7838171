"""The service of jobs: requests of users are checked and answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from statekit.checkpoint.sealed_json import faults_of
from statekit.checkpoint.store_url import local_path
from statekit.clock import now_us, unique_id
from statekit.closing import Closing
from statekit.codec.json_form import instant_text
from statekit.documents.job_document import read_document
from statekit.documents.settings import with_settings
from statekit.errors import StateTypeError
from statekit.names import name_fault
from statekit.service.document_check import checked_document
from statekit.service.job_log import last_lines
from statekit.service.job_record import (
    PendingOperation,
    RunChoice,
    SubmittedJob,
    check_run,
    check_submitted_name,
)
from statekit.service.registry import Change, JobRegistry
from statekit.service.submission_limits import SubmissionLimits
from statekit.service.supervised_job import ObservedJob
from statekit.service.supervisor import Supervisor
from statekit.timestamp import duration_to_micros, instant

LOG_LINES_MAX = 10_000


@dataclass(frozen=True)
class Submission:
    """A job that a user submits.

    Parameters:
        name: of the job in the service.
        document: the job, as JSON.
        checkpoint: a directory or URL, or a path below the first allowed place; None for one of
            the name of the job.
        settings: as for `with_settings`.
        replace: continue a job of that name with this document.
        options: of the run, as the fields of `RunChoice`.
    """

    name: str
    document: str
    checkpoint: str | None
    settings: Sequence[str]
    replace: bool
    options: Mapping[str, Any]


class JobService(Closing):
    """Runs submitted jobs.

    Parameters:
        registry: the jobs.
        supervisor: runs them while this server is the leader.
        limits: what documents may name.
    """

    def __init__(
        self, registry: JobRegistry, supervisor: Supervisor, limits: SubmissionLimits
    ) -> None:
        self.registry, self.supervisor, self.limits = registry, supervisor, limits

    @classmethod
    def at(cls, place: str, work: Path | None, limits: SubmissionLimits) -> Self:
        """Return the service with its registry in a directory or at a URL.

        Parameters:
            work: a local directory for locks and logs; None for one in the registry.

        Raises:
            StateTypeError: the registry is in an object store, and there is no directory.
            StorageError: the registry cannot be reached.
        """
        home = local_path(place)
        if work is None and home is None:
            raise StateTypeError(
                f"{place} is in an object store: give --work, a local directory for the locks and "
                "the logs of jobs. All servers of this machine with this registry have the same"
            )
        registry = JobRegistry.at(place)
        directory = work or Path(home or "", "work")
        supervisor = Supervisor(registry, directory.absolute(), limits)
        return cls(registry, supervisor, limits)

    def close(self) -> None:
        self.supervisor.close()

    # -------------------------------------------------------------------------------- changes

    def submit(self, asked: Submission) -> dict[str, Any]:
        """Add a job, and return its description.

        Raises:
            StateTypeError: the document, the name, or an option is not valid or not allowed; or
                the job exists in another form. Nothing was changed.
            StorageError: the registry cannot be reached.
        """
        check_submitted_name(asked.name)
        self.limits.check_master(asked.options.get("spark"))
        run = self._run(asked)
        self.limits.check(read_document(asked.document))
        text = with_settings(asked.document, asked.settings)
        self.limits.check(read_document(text))
        text = checked_document(text, self.limits.modules, self.limits.secrets)
        self.limits.check(read_document(text))
        if asked.replace and asked.name in self.registry.jobs():
            return self._changed(asked.name, lambda job: job.replaced(text, run))
        record = self.registry.submit(asked.name, text, run)
        self.supervisor.look()
        return self._described(record, None)

    def _run(self, asked: Submission) -> RunChoice:
        checkpoint = self.limits.checkpoint(asked.name, asked.checkpoint)
        given = {name: of for name, of in asked.options.items() if of is not None}
        try:
            run = RunChoice.model_validate({**given, "checkpoint": checkpoint})
        except ValidationError as error:
            raise StateTypeError(f"{faults_of(error)}. Nothing was submitted") from error
        check_run(run)
        return run

    def start(self, name: str, *, anew: bool = False) -> dict[str, Any]:
        """Let a job run. One that runs already goes on.

        Parameters:
            anew: whether it may begin with another checkpoint than before, or an empty one.
        """
        return self._changed(name, SubmittedJob.begun_anew if anew else SubmittedJob.started)

    def restart(self, name: str) -> dict[str, Any]:
        """Let a job run in a new process."""
        return self._changed(name, SubmittedJob.restarted)

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a job after its epoch, until it is started."""
        return self._changed(name, SubmittedJob.stopped)

    def delete(self, name: str) -> dict[str, Any]:
        """Delete a job that was stopped, has failed or has ended, with its log. Its checkpoint
        stays where it is.

        Raises:
            StateTypeError: it is to run.
        """
        return self._changed(name, SubmittedJob.deleted)

    def rescale(self, name: str, parallelism: int) -> dict[str, Any]:
        """Give a job another parallelism. Its next start rescales the state: at once if it runs.

        Raises:
            StateTypeError: there is no such parallelism.
        """
        return self._changed(name, lambda job: job.rescaled(parallelism))

    def roll_back(self, name: str, epoch: int, id_: str | None) -> dict[str, Any]:
        """Continue a job from an earlier epoch.

        Parameters:
            id_: a unique id: a request that is sent twice is done once.
        """
        return self._operated(name, id_, kind="rollback", epoch=epoch)

    def save(self, name: str, savepoint: str, id_: str | None) -> dict[str, Any]:
        """Write a savepoint of a job, which may run meanwhile.

        Parameters:
            id_: as for `roll_back`.

        Raises:
            StateTypeError: the name is not valid.
        """
        if (fault := name_fault(savepoint)) is not None:
            raise StateTypeError(f"savepoint={savepoint!r:.200}: {fault}. Nothing was written")
        return self._operated(name, id_, kind="savepoint", savepoint=savepoint)

    def _operated(self, name: str, id_: str | None, **given: Any) -> dict[str, Any]:
        try:
            operation = PendingOperation(id=id_ or unique_id(), **given)
        except ValidationError as error:
            raise StateTypeError(f"{faults_of(error)}. Nothing was changed") from error
        return self._changed(name, lambda job: job.operated(operation))

    def _changed(self, name: str, change: Change) -> dict[str, Any]:
        record = self.registry.change(name, lambda job: change(job.kept()))
        self.supervisor.look()
        return self._described(record, self.supervisor.observed().get(name))

    # -------------------------------------------------------------------------------- answers

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return the descriptions of all jobs, by name."""
        observed = self.supervisor.observed()
        return {
            name: self._described(record, observed.get(name))
            for name, record in self.registry.jobs().items()
        }

    def known_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the descriptions of all jobs as this server knows them as the leader, without a
        request to the registry.
        """
        observed = self.supervisor.observed()
        records = self.supervisor.records
        return {name: self._described(own, observed.get(name)) for name, own in records.items()}

    def job(self, name: str) -> dict[str, Any]:
        """Return the description of a job.

        Raises:
            QueryError: there is no such job.
        """
        return self._described(self.registry.job(name), self.supervisor.observed().get(name))

    def document(self, name: str) -> str:
        """Return the document of a job.

        Raises:
            QueryError: there is no such job.
        """
        return self.registry.job(name).document

    def log(self, name: str, lines: int) -> list[str]:
        """Return the last lines that a job has printed on this machine.

        Raises:
            QueryError: there is no such job.
        """
        self.registry.job(name)
        return last_lines(self.supervisor.directory_of(name), min(lines, LOG_LINES_MAX))

    def _described(self, record: SubmittedJob, seen: ObservedJob | None) -> dict[str, Any]:
        """Return the description of a job for users."""
        seen = seen or ObservedJob(status="stopped" if record.desired == "stopped" else "starting")
        progress = seen.progress
        age_us = None if seen.progress_at_us is None else now_us() - seen.progress_at_us
        without_us = 0 if seen.since_us is None else now_us() - seen.since_us
        alert_us = duration_to_micros(record.run.alert_after, "alert_after")
        return {
            "name": record.name,
            "status": _status(record, seen),
            "desired": record.desired,
            "process": seen.process,
            **record.run.model_dump(),
            "epoch": progress and progress.epoch,
            "last_epoch_at": _at(seen.progress_at_us),
            "last_epoch_age_s": None if age_us is None else max(0, age_us // 1_000_000),
            "is_late": record.desired == "running" and without_us > alert_us,
            "records_per_second": progress and progress.records_per_second,
            "lag": progress.lag if progress else {},
            "state_rows": progress and progress.state_rows,
            "state_bytes": progress and progress.state_bytes,
            "failures": seen.failures,
            "last_failure": seen.last_failure,
            "last_failure_at": _at(seen.last_failure_at_us),
            "operation": record.operation and record.operation.kind,
            "done": record.done
            and {
                "operation": record.done.operation.kind,
                "id": record.done.operation.id,
                "error": record.done.error,
                "at": _at(record.done.at_us),
            },
        }


def _status(record: SubmittedJob, seen: ObservedJob) -> str:
    """Return the status of a job. The record may be newer than what the leader has seen."""
    if record.desired == "deleted":
        return "deleting"
    outcome = record.outcome if seen.process is None else None
    return outcome or seen.status


def _at(at_us: int | None) -> str | None:
    return None if at_us is None else instant_text(instant(at_us))
