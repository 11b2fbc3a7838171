"""Records of submitted jobs: their documents, options and desired state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from statekit.checkpoint.sealed_json import Count, Record, Sealed
from statekit.documents.job_document import BYTES_MAX
from statekit.errors import StateTypeError
from statekit.job.restarts import Restarts
from statekit.keygroup import MAX_GROUPS
from statekit.names import StoredId, StoredName, StoredText, name_fault
from statekit.timestamp import duration_to_micros

RESTART = "10 in 10 minutes"
"""How often a job is started again after failures by default."""

ALERT_AFTER = "5 minutes"
"""The age of the last epoch from which it is shown as too old by default."""

REASON_MAX = 2_000
"""The longest stored reason of a failure, in characters."""


class RunChoice(Record):
    """How a job is run.

    Parameters:
        checkpoint: a directory or URL.
        spark: the master of Spark; None to run in the process itself.
        parallelism: shards per operator; None for that of the checkpoint.
        follow: whether streams are read until the job is stopped.
        restart: how often it is started again after failures, as "5 in 10 minutes".
        trigger: the shortest time between epochs, as "10 seconds"; None for the default.
        heartbeat: the longest time between epochs, as "1 minute"; None for no limit.
        alert_after: the age of the last epoch from which it is shown as too old.
    """

    checkpoint: StoredText
    spark: StoredText | None = None
    parallelism: Annotated[int, Field(ge=1, le=MAX_GROUPS)] | None = None
    follow: bool = True
    restart: StoredText = RESTART
    trigger: StoredText | None = None
    heartbeat: StoredText | None = None
    alert_after: StoredText = ALERT_AFTER


class PendingOperation(Record):
    """An operation that the leader has yet to do.

    Parameters:
        kind: "rollback" stops the job first, "savepoint" does not.
        epoch: of a rollback: the epoch to go back to.
        savepoint: the name of a savepoint.
        id: a unique id.
    """

    kind: Literal["rollback", "savepoint"]
    id: StoredId
    epoch: Count | None = None
    savepoint: StoredName | None = None


class DoneOperation(Record):
    """The last operation that was done.

    Parameters:
        operation: what was to be done.
        error: why it failed; None if it did not.
        at_us: when it ended, in microseconds since 1970 UTC.
    """

    operation: PendingOperation
    error: str | None
    at_us: int


class JobEnd(Record):
    """The end of a job that is not started again by itself.

    Parameters:
        generation: that has ended.
        failed: whether it failed; otherwise all its input was read.
        reason: why it failed.
        at_us: when, in microseconds since 1970 UTC.
    """

    generation: Count
    failed: bool
    reason: str
    at_us: int


class SubmittedJob(Sealed):
    """A job that was submitted, and the wishes of its users.

    Parameters:
        name: of the job in the service.
        version: of this record. Each change creates the next one.
        change: a unique id of the change.
        document: the job, as JSON.
        run: how it is run.
        desired: whether it is to run. A deleted job is removed once it has no process.
        is_removed: whether its name is free. The record stays, without the document, so that a
            slow change of the job cannot bring it back.
        generation: grows with each change for which a running process has to be replaced.
        operation: what is to be done with its checkpoint.
        done: the last operation that was done.
        end: of its last generation; None while it is to run on.
        checkpoint_id: of the checkpoint, once an epoch was committed: a start with another or an
            empty one is refused.
    """

    title: ClassVar[str] = "a submitted job"

    name: StoredName
    version: Count
    change: StoredId
    document: Annotated[str, Field(max_length=BYTES_MAX)]
    run: RunChoice
    desired: Literal["running", "stopped", "deleted"] = "running"
    is_removed: bool = False
    generation: Count = 0
    operation: PendingOperation | None = None
    done: DoneOperation | None = None
    end: JobEnd | None = None
    checkpoint_id: StoredId | None = None

    @property
    def outcome(self) -> Literal["failed", "ended"] | None:
        """Whether the present generation has failed for good or has read all its input; None if it
        has not ended.
        """
        if self.end is None or self.end.generation != self.generation:
            return None
        return "failed" if self.end.failed else "ended"

    @property
    def has_ended(self) -> bool:
        """True if the present generation has an outcome."""
        return self.outcome is not None

    def stopped(self) -> SubmittedJob:
        """Return the record of the job when it is not to run."""
        return self.model_copy(update={"desired": "stopped"})

    def started(self) -> SubmittedJob:
        """Return the record when it is to run. A job that runs already goes on."""
        if self.desired == "running" and not self.has_ended:
            return self
        return self.restarted()

    def restarted(self) -> SubmittedJob:
        """Return the record when a new process is to run it."""
        return self.model_copy(update={"desired": "running", "generation": self.generation + 1})

    def begun_anew(self) -> SubmittedJob:
        """Return the record when a new process is to run it with whatever checkpoint it finds."""
        return self.restarted().model_copy(update={"checkpoint_id": None})

    def continued(self, checkpoint_id: str, generation: int) -> SubmittedJob:
        """Return the record after an epoch of a generation was observed.

        Parameters:
            checkpoint_id: to which it was committed.
        """
        if (self.generation, self.checkpoint_id) != (generation, None):
            return self
        return self.model_copy(update={"checkpoint_id": checkpoint_id})

    def deleted(self) -> SubmittedJob:
        """Return the record when it is to be deleted.

        Raises:
            StateTypeError: it may run.
        """
        if self.desired == "running" and not self.has_ended:
            raise StateTypeError(
                f"job {self.name} is to run, and was not deleted: stop it first. Its checkpoint "
                "stays where it is"
            )
        return self.model_copy(update={"desired": "deleted"})

    def kept(self) -> SubmittedJob:
        """Return the record, if users may change it.

        Raises:
            StateTypeError: it is to be deleted.
        """
        if self.desired == "deleted":
            raise StateTypeError(
                f"job {self.name} is deleted once its process has ended, and was not changed: "
                "submit it again after that"
            )
        return self

    def removed(self) -> SubmittedJob:
        """Return the record of a deleted job whose name is free."""
        return self.model_copy(update={"is_removed": True, "document": "{}"})

    def after_removed(self, removed: SubmittedJob) -> SubmittedJob:
        """Return the first record of a job that has the name of a removed one."""
        after = {"version": removed.version + 1, "generation": removed.generation + 1}
        return self.model_copy(update=after)

    def rescaled(self, parallelism: int) -> SubmittedJob:
        """Return the record with another parallelism. The next start of the job rescales its state.

        Raises:
            StateTypeError: there is no such parallelism.
        """
        if not 1 <= parallelism <= MAX_GROUPS:
            raise StateTypeError(f"parallelism={parallelism}: give a number from 1 to {MAX_GROUPS}")
        run = self.run.model_copy(update={"parallelism": parallelism})
        return self.model_copy(update={"run": run, "generation": self.generation + 1})

    def replaced(self, document: str, run: RunChoice) -> SubmittedJob:
        """Return the record with another document, or run in another way.

        Raises:
            StateTypeError: the checkpoint is another one.
        """
        if run.checkpoint != self.run.checkpoint:
            raise StateTypeError(
                f"job {self.name} has the checkpoint {self.run.checkpoint}, and a new document "
                "continues it: leave the checkpoint out, or submit it with another name"
            )
        same = (
            run if run.parallelism else run.model_copy(update={"parallelism": self.run.parallelism})
        )
        return self.model_copy(update={"document": document, "run": same}).restarted()

    def operated(self, operation: PendingOperation) -> SubmittedJob:
        """Return the record with an operation to do, unless it is known already.

        Raises:
            StateTypeError: another operation is not done yet.
        """
        done = None if self.done is None else self.done.operation
        if operation.id in {own.id for own in (self.operation, done) if own is not None}:
            return self
        if self.operation is not None:
            raise StateTypeError(
                f"the {self.operation.kind} of job {self.name} is not done yet: wait until it is"
            )
        return self.model_copy(update={"operation": operation})

    def after(self, done: DoneOperation) -> SubmittedJob:
        """Return the record after its operation. After a rollback, a job that had failed is to run
        again.
        """
        if self.operation is None or self.operation.id != done.operation.id:
            return self
        after = self.model_copy(update={"operation": None, "done": done})
        is_other_state = done.operation.kind == "rollback" and done.error is None
        return after.restarted() if is_other_state and self.desired == "running" else after

    def ended(self, end: JobEnd) -> SubmittedJob:
        """Return the record after the end of a generation."""
        return self.model_copy(update={"end": end}) if end.generation == self.generation else self


def check_submitted_name(name: object) -> None:
    """Check the name of a job in the service.

    Raises:
        StateTypeError: it is not valid.
    """
    fault = name_fault(name) if isinstance(name, str) else "give a text"
    if fault is not None:
        raise StateTypeError(f"a job cannot be named {name!r:.200}: {fault}. Nothing was submitted")


def check_run(run: RunChoice) -> None:
    """Check how a job is to be run.

    Raises:
        StateTypeError: an option is not valid.
    """
    Restarts.of(run.restart)
    for name, given in (
        ("trigger", run.trigger),
        ("heartbeat", run.heartbeat),
        ("alert_after", run.alert_after),
    ):
        if given is not None:
            duration_to_micros(given, name)
