"""The coordinator: the driver's side of the epoch protocol. It plans and commits epochs in
order.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Self

from statekit.checkpoint.gc.collector import BackgroundCollection
from statekit.checkpoint.gc.readers import LeaseHeadroom
from statekit.checkpoint.job_file import Clock, JobFile, OperatorRecord
from statekit.checkpoint.last_failure import failure_of, store_failure, store_unwritten_failure
from statekit.checkpoint.manifest import (
    EpochManifest,
    EpochNote,
    EpochOffsets,
    OperatorEpoch,
    Report,
    ShardPlan,
    ShardPlans,
    ShardState,
)
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import check_retention, still_kept
from statekit.checkpoint.rollback import for_start
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_layout import blank_shards, rescaled
from statekit.clock import now_us, unique_id
from statekit.errors import (
    CALL_FAILURES,
    CorruptCheckpointError,
    FencedError,
    ProcessError,
    RestoreError,
    StatekitError,
    StateTypeError,
)
from statekit.foreign import foreign_hint
from statekit.job.compatibility import check_job_name, continued_job_file, without_empty_buffers
from statekit.job.expiry import begun_expiry, begun_states, continued_expiry
from statekit.job.options import RunOptions
from statekit.job.plan import Operator, Plan
from statekit.keygroup import DEFAULT_GROUPS, check_parallelism
from statekit.metrics.run_metrics import RunMetrics
from statekit.recording.recorder import check_recorder
from statekit.recording.recording import KeptRecordings
from statekit.runtime.guarded_calls import check_failed
from statekit.runtime.held_back import HeldBackOperators, has_been_idle
from statekit.runtime.shard_reports import OperatorReports
from statekit.shown import shown, shown_error, type_name
from statekit.sources.history import is_in_history
from statekit.state.redistribution import redistributed
from statekit.timestamp import MAX_MICROS, MIN_MICROS
from statekit.watermark import BEGINNING, END, advanced

_log = logging.getLogger("statekit.run")

_OF_ANOTHER_CHECKPOINT = ("savepoint", "transform", "import")
"""Causes of first epochs that have the number of an epoch of another checkpoint."""


@dataclass(frozen=True)
class StartPoint:
    """The start of a run.

    Parameters:
        last: the manifest of the epoch that the run follows; None for a new checkpoint.
        job_file: the job file in force.
        reference: of the job file.
        parallelism: shards per operator.
        layout: `last` with the shards of that parallelism.
    """

    last: EpochManifest | None
    job_file: JobFile
    reference: FileRef
    parallelism: int
    layout: EpochManifest | None


class Coordinator:
    """Plans the epochs of a run and commits them, in the driver. Created by `Coordinator.open`.

    Parameters:
        job: the job that runs.
        repository: its checkpoint.
        start: where the run starts.
        options: of the run.

    Attributes:
        recorder: which records are kept, if any.
        metrics: of the run. Whoever runs the epochs counts them, with their duration.
    """

    def __init__(
        self, job: Plan, repository: Repository, start: StartPoint, options: RunOptions
    ) -> None:
        self.job = job
        self.repository = repository
        self.writer = unique_id()
        self.last = start.last
        self.job_file, self._reference = start.job_file, start.reference
        self._before = start.job_file
        """The job file before the next epoch. New eras of expiry may begin in that epoch."""
        self.key_groups = start.job_file.key_groups
        self.parallelism = start.parallelism
        self.layout = start.layout
        """The layout of shards from which the next epoch starts."""
        self.note: EpochNote | None = None
        """The note of an earlier attempt at the next epoch; None if there is none."""
        self._has_run = False  # whether an epoch of this run took its time from the clock
        self.processing_time_us = BEGINNING
        self.watermarks_us: dict[str, int] = {}
        may_be_idle = any(source.idle_after_us is not None for source in job.sources)
        self.notes_beginnings = may_be_idle or any(
            operator.declared.reads_clocks for operator in job.operators
        )
        """True if each epoch is noted before it runs, so that a replay has the same processing
        time.
        """
        self._note_writer: ThreadPoolExecutor | None = None
        self._noted: Future[None] | None = None
        self._now_us = now_us if options.clock is None else partial(_instant_of, options.clock)
        self.guarantees: dict[str, str] = {}
        """The guarantees of the sinks of this run, by name."""
        self.recorder = options.record
        self._recordings = None if options.record is None else KeptRecordings(options.record)
        self._collection: BackgroundCollection | None = None
        if options.retention is not None:
            self._collection = BackgroundCollection(repository, options.retention)
        self._drains = False
        self._held_back = HeldBackOperators(job)
        self._by_name = {operator.name: operator for operator in job.operators}
        self.metrics = RunMetrics(job.name, start.last, self._now_us, self._leases)

    def _leases(self) -> Sequence[LeaseHeadroom]:
        """Return the leases that were read by the last garbage collection."""
        return () if self._collection is None else self._collection.leases

    @classmethod
    def open(cls, job: Plan, repository: Repository, options: RunOptions | None = None) -> Self:
        """Check and prepare a checkpoint for a job, as `open_checkpoint` does, and return its
        coordinator.

        Parameters:
            options: of the run; None keeps all epochs and uses the checkpoint's parallelism, or 1.

        Raises:
            RestoreError: the checkpoint belongs to another job, or cannot go back to that epoch.
            RescaleError: the parallelism or the number of key groups is not possible.
            StateSchemaError: stored and declared state do not match.
            CorruptCheckpointError: the last manifest or the job file cannot be read.
        """
        if not job.operators:
            raise RestoreError(
                f"job {job.name!r} has no operator, and so no state: add one with process(), "
                "window() or an aggregate. For functions alone, use Spark's own select and "
                "mapInArrow"
            )
        options = options or RunOptions()
        check_retention(options.retention)
        if options.record is not None:
            check_recorder(options.record, [operator.name for operator in job.operators])
        coordinator = cls(job, repository, open_checkpoint(job, repository, options), options)
        coordinator.note = repository.read_note(coordinator.epoch)
        return coordinator

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return 0 if self.last is None else self.last.epoch + 1

    def begin(
        self,
        *,
        what: str = "records",
        to: Mapping[str, int] | None = None,
        at_us: int | None = None,
        offsets: EpochOffsets | None = None,
    ) -> None:
        """Fix the clocks of the next epoch, and where it ends in each input.

        Parameters:
            what: the input of the epoch, as in `EpochNote`: a replay needs the same. "drain"
                advances event time to its end, one operator of a chain after the other.
            to: watermarks that operators advance to at least.
            at_us: the processing time; None uses that of an earlier attempt, or the clock.
            offsets: where it ends in each input.

        Raises:
            RestoreError: event time has ended in an earlier epoch, or the epoch was begun with
                other input.
        """
        drain = self._drains = what == "drain"
        if self.last is not None and self.last.drained and not drain and self.has_event_time:
            raise RestoreError(
                f"{self.repository.url} was drained in epoch {self.last.epoch}: event time has "
                "ended, and all further records would be late. Start with a new checkpoint; to "
                "continue after a bounded run, run it with drain=False"
            )
        self.metrics.begun()
        instant_us = self._instant(what, offsets or {}) if at_us is None else at_us
        self.processing_time_us = self._not_before(instant_us)
        self.watermarks_us = self._watermarks(drain, to or {}, self.processing_time_us)
        # Whoever gives the time lets it pass while the job runs, as a harness does.
        self._begin_expiry(has_downtime=at_us is None)

    def _begin_expiry(self, *, has_downtime: bool) -> None:
        """Record the eras of expiry that begin in the next epoch, and the downtime before it."""
        new_run = not self._has_run if self.note is None else self.note.begins_run
        new_run = new_run and has_downtime
        job_file = begun_expiry(self._before, self.last, self._times, new_run=new_run)
        if job_file != self.job_file:
            self.job_file, self._reference = self.repository.ensure_job_file(job_file)

    def _times(self, operator: str) -> dict[Clock, int]:
        """Return the times of the next epoch that determine the expiry of an operator's rows."""
        watermark_us = self.watermarks_us.get(operator, BEGINNING)
        if watermark_us == END:
            before_us = self._watermark(operator)
            watermark_us = BEGINNING if before_us is None else before_us
        return {"event": watermark_us, "processing": self.processing_time_us}

    def _not_before(self, processing_time_us: int) -> int:
        """Return a processing time that is not before the last one, because the clock may be set
        back.
        """
        before = BEGINNING if self.last is None else self.last.processing_time_us
        return max(processing_time_us, before)

    def _instant(self, what: str, offsets: EpochOffsets) -> int:
        """Return the wall clock time; in a replay, the time of the first attempt."""
        if not self.notes_beginnings:
            return self._now_us()
        if self.note is None:
            now = self._now_us()
            # Whoever gives an iterable again may append to it. What is behind a source grows by
            # itself, and sinks may keep what an earlier attempt has published.
            reads_sources = any(isinstance(offset, dict) for offset in offsets.values())
            self.note = EpochNote(
                epoch=self.epoch,
                what=what,
                processing_time_us=now,
                begins_run=not self._has_run,
                offsets=offsets if reads_sources else {},
            )
            self._has_run = True
            self._write_note(self.note)
        elif self.note.what not in (what, "records"):
            raise RestoreError(
                f"epoch {self.epoch} of {self.repository.url} was begun as {self.note.what!r} and "
                f"would be run again as {what!r}: run it as it was begun, so that sinks see the "
                "same again"
            )
        return self.note.processing_time_us

    def write_notes_beside(self) -> None:
        """Write the note of an epoch while the epoch runs: it is there when `check_owner` returns,
        before outputs are published. It is removed while the next epoch runs.
        """
        self._note_writer = ThreadPoolExecutor(1, "statekit notes")

    def _write_note(self, note: EpochNote) -> None:
        if self._note_writer is None:
            self.repository.write_note(note)
        else:
            self._noted = self._note_writer.submit(self.repository.write_note, note)

    def _remove_note(self, epoch: int) -> None:
        """Remove the note of a committed epoch, which nobody reads."""
        if self._note_writer is None:
            self.repository.remove_note(epoch)
        else:
            self._note_writer.submit(self.repository.remove_note, epoch)

    def _await_note(self) -> None:
        """Wait for the note of the epoch, and raise its error."""
        noted, self._noted = self._noted, None
        if noted is not None:
            noted.result()

    def _watermarks(
        self, drain: bool, to: Mapping[str, int], processing_time_us: int
    ) -> dict[str, int]:
        watermarks: dict[str, int] = {}
        for operator in self.job.operators:
            declared = operator.declared
            if declared.event_time is None:
                continue
            before = self._operator_epoch(operator.name)
            current = self._watermark(operator.name)
            current = BEGINNING if current is None else current
            times = (
                self._event_time_of(name, before.largest_of(name) if before else None, drain=drain)
                for name in operator.inputs
                if drain
                or self._is_in_history(name)
                or not has_been_idle(self.job, before, name, processing_time_us)
            )
            reached = advanced(current, min(times, default=None), declared.lateness_us)
            watermarks[operator.name] = max(reached, to.get(operator.name, BEGINNING))
        return watermarks

    def _active_us(
        self, operator: Operator, before: OperatorEpoch | None, read: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the processing time of the last records of each input that may be idle.

        Parameters:
            before: the operator before the epoch.
            read: the records of this epoch by input.
        """
        active_us = {}
        for stream in operator.inputs:
            if self.job.idle_after_us(stream) is not None:
                now_us = self.processing_time_us
                last_us = now_us if before is None else before.active_us.get(stream, now_us)
                active_us[stream] = now_us if read.get(stream) else last_us
        return active_us

    def _event_time_of(self, stream: str, read: int | None, *, drain: bool) -> int:
        """Return the event time up to which an input of an operator has advanced.

        An operator without event time passes on the event time of its inputs, of several the
        smallest.

        Parameters:
            read: the largest event time read from the stream.
        """
        stream = self.job.origin_of(stream)
        above = self.job.emitter_of(stream)
        if above is not None and above.declared.event_time is None:
            return min(self._event_time_of(name, read, drain=drain) for name in above.inputs)
        if above is not None:
            reached = self._watermark(above.name)
            if reached not in (None, BEGINNING, END):
                reached = max(reached - above.declared.traits.holds_back_us, BEGINNING)
        else:
            read = None if self._is_in_history(stream) else read
            reached = END if drain and self._may_end(stream) else read
        return BEGINNING if reached is None else reached

    def _is_in_history(self, stream: str) -> bool:
        """Return whether a stream comes from a source whose history is being read. Its records may
        be in any order of event time.
        """
        offsets = {} if self.last is None else self.last.offsets
        return is_in_history(offsets.get(self.job.origin_of(stream)))

    def _may_end(self, stream: str) -> bool:
        """Return whether a drained stream at the start of a chain has ended.

        Late records are at or before any watermark, so their stream starts a chain. It ends when
        the operator that they were late for has ended.
        """
        late = {operator.late: operator.name for operator in self.job.operators}
        return stream not in late or self._watermark(late[stream]) == END

    def _operator_epoch(self, name: str) -> OperatorEpoch | None:
        return None if self.last is None else self.last.operators.get(name)

    def _watermark(self, name: str) -> int | None:
        """Return the watermark of an operator in the last epoch."""
        epoch = self._operator_epoch(name)
        return None if epoch is None else epoch.watermark_us

    @property
    def was_draining(self) -> bool:
        """True if a drain has begun. It must be completed before anything else."""
        drained = self.last is not None and self.last.drained
        return drained or (self.note is not None and self.note.what == "drain")

    @property
    def would_advance(self) -> bool:
        """True if an epoch without records would have a later watermark than the last epoch."""
        now_us = self._not_before(self._now_us())
        watermarks = self._watermarks(drain=False, to={}, processing_time_us=now_us)
        before = {name: self._watermark(name) for name in watermarks}
        return any(us > (before[name] or BEGINNING) for name, us in watermarks.items())

    @property
    def has_event_time(self) -> bool:
        return any(operator.declared.event_time is not None for operator in self.job.operators)

    @property
    def is_drained(self) -> bool:
        """True if event time has ended in all operators, and nothing is due any more."""
        timed = [op.name for op in self.job.operators if op.declared.event_time is not None]
        epochs = [self._operator_epoch(name) for name in timed]
        return all(
            operator is not None
            and operator.watermark_us == END
            and not any(shard.wake_us.get("event", END + 1) <= END for shard in operator.shards)
            for operator in epochs
        )

    def keeps_copies(self, asked: bool | None) -> bool:
        """Return whether to keep working copies at the end of this run. `asked` is the user's
        choice; None if there is none.
        """
        if asked is not None:
            return asked
        return not (self.last is not None and self.last.drained and self.has_event_time)

    @property
    def without_outputs(self) -> tuple[tuple[int, int], ...]:
        """Ranges of epochs without outputs: first and last numbers.

        These are epochs that were rolled back, and epochs that no run made: a run that stopped
        before its commit may have written outputs under such a number. The first epoch of a
        checkpoint that continues another one has a number that counts there, with its outputs.
        """
        if self.last is None:
            return ()
        has_outputs = self.last.cause in ("records", *_OF_ANOTHER_CHECKPOINT)
        own = () if has_outputs else ((self.last.epoch, self.last.epoch),)
        return (*((first, end + 1) for first, end in self.last.abandoned), *own)

    def plans(self, operator: str) -> ShardPlans:
        """Return the plans of all shards of an operator for the next epoch."""
        reached, record = self._watermark(operator), self._record(operator)
        earliest = self._by_name[operator].declared.traits.earliest_us
        bases = self._bases(operator)
        common = ShardPlan(
            checkpoint_id=self.job_file.id,
            operator=operator,
            shard=0,
            epoch=self.epoch,
            base=bases[0],
            base_epoch=None if self.last is None else self.last.epoch,
            watermark_us=max(self.watermarks_us.get(operator, BEGINNING), earliest),
            reached_us=max(BEGINNING if reached is None else reached, earliest),
            processing_time_us=self.processing_time_us,
            eras={state.name: state.expiry_era for state in record.states if state.era},
            begun=begun_states(self._before, self.job_file, operator, self.last),
            migrated={state.name: state for state in record.states if state.generation},
            since=0 if self.last is None else self.last.since,
            inputs=record.inputs,
            buffered_inputs=record.buffered_inputs,
            buffered_types=record.buffered_types,
            failed_before=self._failed_before(operator),
        )
        return ShardPlans.of(common, bases)

    def _failed_before(self, operator: str) -> int:
        """Return the number of failed calls of an operator's function in all epochs so far."""
        epoch = self._operator_epoch(operator)
        return 0 if epoch is None else epoch.failed_so_far

    def _bases(self, operator: str) -> Sequence[ShardState]:
        laid_out = None if self.layout is None else self.layout.operators.get(operator)
        if laid_out is not None:
            return laid_out.shards
        return blank_shards(self.parallelism, self.key_groups)

    def _record(self, operator: str) -> OperatorRecord:
        record = self.job_file.operator(operator)
        assert record is not None, "the job file names all operators of the job"
        return record

    def check_failed(self, reports: Iterable[Report]) -> None:
        """Check that no more calls have failed than the operators allow. Call it before outputs of
        the epoch are published.

        Raises:
            ProcessError: more have.
        """
        by_operator = _by_operator(reports)
        for operator in self.job.operators:
            if operator.declared.errors.max_errors is not None:
                found = self._reports_of(operator, by_operator[operator.name])
                failed = self._failed_before(operator.name) + found.failed
                check_failed(operator.name, operator.declared, failed, found.last_failure)

    def check_owner(self) -> None:
        """Check that no other run has committed the next epoch, and that the last epoch still
        exists. The epoch is noted then, if it is to be.

        Raises:
            FencedError: another run has committed the next epoch.
            CorruptCheckpointError: the last epoch is missing.
        """
        self._await_note()
        if self.repository.is_committed(self.epoch):
            raise FencedError(
                f"epoch {self.epoch} of {self.repository.url} was committed by another run of job "
                f"{self.job.name!r}: stop one of them, then start the other again; nothing is lost"
            )
        self._check_not_lost()

    def _check_not_lost(self) -> None:
        """Check that the previous epoch exists. Otherwise the new epoch would reference missing
        files.
        """
        if self.last is None or self.repository.is_committed(self.last.epoch):
            return
        if self.last.epoch < self.repository.first_kept():
            raise self.repository.overtaken(self.epoch)
        raise CorruptCheckpointError(
            f"{self.repository.at(epoch_path(self.last.epoch))} is missing, and job "
            f"{self.job.name!r} committed it: files of the checkpoint were removed while the job "
            f"runs. Nothing of epoch {self.epoch} is committed: restore the checkpoint from a "
            "backup, then start the job again"
        )

    def commit(
        self,
        reports: Iterable[Report],
        *,
        batch: int | None = None,
        offsets: EpochOffsets | None = None,
        read: Mapping[str, int] | None = None,
        bad_records: dict[str, int] | None = None,
    ) -> EpochManifest:
        """Check the reports of all shards, then commit the epoch.

        Parameters:
            batch: Spark's number of the micro-batch, if it was one.
            offsets: where it ends in each input; None leaves them as they were.
            read: how many records were read from sources. Of sources that are not in it, the
                records count that arrived at operators.
            bad_records: how many records of sources did not fit their types so far; None, too.

        Raises:
            IncompleteEpochError: a shard is missing, or attempts at it had different effects.
            FencedError: another run committed this epoch.
            CorruptCheckpointError: the epoch before it is missing.
        """
        operators = self._held_back.noted(
            self._checked(reports), self.last, self.processing_time_us
        )
        self._check_not_lost()
        previous = self.last
        manifest = EpochManifest(
            job=self.job.name,
            job_file=self._reference,
            epoch=self.epoch,
            previous=None if previous is None else previous.epoch,
            abandoned=() if previous is None else previous.abandoned,
            batch=batch if batch is not None else (previous.batch if previous else None),
            offsets=offsets if offsets is not None else (previous.offsets if previous else {}),
            bad_records=(
                bad_records
                if bad_records is not None
                else (previous.bad_records if previous else {})
            ),
            records_by_source=self._records_by_source(operators, read or {}),
            guarantees=self.guarantees,
            parallelism=self.parallelism,
            key_groups=self.key_groups,
            writer=self.writer,
            processing_time_us=self.processing_time_us,
            drained=self._drains,
            committed_at_us=now_us(),
            operators=operators,
        )
        self.repository.commit(manifest)
        self._held_back.warn(manifest)
        self._follow(manifest)
        store_unwritten_failure(self.repository)
        return manifest

    def _records_by_source(
        self, operators: Mapping[str, OperatorEpoch], read: Mapping[str, int]
    ) -> dict[str, int]:
        """Return how many records of an epoch were read from each source.

        Spark does not say how many rows its own streams and frames have. Of these, count the
        records behind the transforms of a source; the largest number if several streams lead from
        it to operators.
        """
        found = {each.name: 0 for each in self.job.sources if each.errors_of is None}
        for operator in operators.values():
            for stream, count in operator.records_by_input.items():
                source = self.job.origin_of(stream)
                if source in found:
                    found[source] = max(found[source], count)
        return found | {name: count for name, count in read.items() if name in found}

    def _follow(self, manifest: EpochManifest) -> None:
        """Make a committed epoch the last one: remove its note, and collect earlier epochs."""
        self.last = self.layout = manifest
        self._before = self.job_file
        if self.note is None:
            self._has_run = True
        else:
            self.note = None
            self._remove_note(manifest.epoch)
        if self._collection is not None:
            self._collection.committed(manifest.epoch)
        if self._recordings is not None:
            self._recordings.committed(manifest.epoch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, failed: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        """End background work, at once if the run failed: the store may be what failed."""
        if error is not None:
            self.note_failure(error)
        self.close(at_once=failed is not None)

    def note_failure(self, error: BaseException) -> None:
        """Write why the run has failed to the checkpoint, unless somebody has interrupted it."""
        if not isinstance(error, Exception):
            return
        failure = failure_of(error, self.epoch, now_us(), self.writer)
        try:
            store_failure(self.repository, failure)
        except StatekitError as unwritten:
            _log.warning("the reason of the failure is not in the checkpoint: %s", unwritten)

    def close(self, *, at_once: bool = False) -> None:
        """End background work, as `BackgroundCollection.close` does."""
        if self._note_writer is not None:
            self._note_writer.shutdown()
        if self._collection is not None:
            self._collection.close(at_once=at_once)

    def _checked(self, reports: Iterable[Report]) -> dict[str, OperatorEpoch]:
        by_operator = _by_operator(reports)
        return {op.name: self._combined(op, by_operator[op.name]) for op in self.job.operators}

    def _combined(self, operator: Operator, reports: list[Report]) -> OperatorEpoch:
        before = None if self.layout is None else self.layout.operators.get(operator.name)
        checked = self._reports_of(operator, reports)
        watermark_us = self.watermarks_us.get(operator.name)
        after = checked.combined(before, self._record(operator.name).holds, watermark_us)
        active_us = self._active_us(operator, before, after.records_by_input)
        return after.model_copy(update={"active_us": active_us}) if active_us else after

    def _reports_of(self, operator: Operator, reports: Sequence[Report]) -> OperatorReports:
        return OperatorReports(operator, self.epoch, self._bases(operator.name), reports)


def _by_operator(reports: Iterable[Report]) -> dict[str, list[Report]]:
    by_operator: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_operator[report.operator].append(report)
    return by_operator


def open_checkpoint(job: Plan, repository: Repository, options: RunOptions) -> StartPoint:
    """Check that a job can run on a checkpoint, and prepare the checkpoint for it.

    Writes the job file if the checkpoint has none or another one, redistributes operator state for
    another parallelism, and commits a rollback for `from_epoch`.

    Raises:
        RestoreError: the checkpoint belongs to another job, or cannot go back to that epoch.
        RescaleError: the parallelism or the number of key groups is not possible.
        StateSchemaError: stored and declared state do not match.
        CorruptCheckpointError: the last manifest or the job file cannot be read.
    """
    latest = repository.latest_epoch()
    if latest is None:
        repository.check_checkpoint()
    last = None if latest is None else repository.manifest(latest)
    target = options.from_epoch
    rollback = None if target is None else for_start(repository, job.name, target)
    if rollback is not None:
        last = rollback.manifest
    job_file, reference = _job_file(job, repository, last, options.allow_dropped_state)
    parallelism = options.parallelism
    if parallelism is None:
        parallelism = last.parallelism if last else 1
    check_parallelism(parallelism, job_file.key_groups)
    layout = last
    if last is not None and last.parallelism != parallelism:
        # This becomes part of the next epoch and is none of its own. So an epoch that was begun,
        # and whose outputs may be published, keeps its number in a replay with any parallelism.
        # A rollback is not committed yet: operator state is read from the epoch it goes back to.
        stored = last if rollback is None else rollback.target
        specs = {operator.name: operator.declared.states for operator in job.operators}
        read = nullcontext() if rollback is None else still_kept(repository, stored.epoch)
        layout = rescaled(last, parallelism)
        with read:
            layout = redistributed(repository, stored, layout, job_file.operators, specs)
    if rollback is not None:
        rollback.carry_out()  # all checks of the code against that epoch have passed
    return StartPoint(last, job_file, reference, parallelism, layout)


def _job_file(
    job: Plan, repository: Repository, last: EpochManifest | None, allow_dropped_state: bool
) -> tuple[JobFile, FileRef]:
    """Compare the job file with the code. Write a new one if there is none, or if the code has
    changed.
    """
    if last is None:
        stored_job = repository.newest_job_file()
    else:
        stored_job = repository.job_file(last.job_file.path), last.job_file
    operators = tuple(operator.record() for operator in job.operators)
    if stored_job is None:
        groups = job.key_groups or DEFAULT_GROUPS
        first = JobFile(id=unique_id(), name=job.name, key_groups=groups, operators=operators)
        return repository.ensure_job_file(first)
    stored, reference = stored_job
    check_job_name(stored, job, repository.url)
    if last is None:
        # There is no state that must be kept.
        groups = job.key_groups or stored.key_groups
        wanted = stored.model_copy(
            update={"key_groups": groups, "operators": operators, "dropped": {}}
        )
    else:
        wanted = continued_job_file(
            without_empty_buffers(stored, last),
            job,
            repository.url,
            allow_dropped_state=allow_dropped_state,
        )
        wanted = continued_expiry(stored, wanted, last)
    return (stored, reference) if stored == wanted else repository.ensure_job_file(wanted)


def _instant_of(clock: Callable[[], int]) -> int:
    """Return the time of a user's clock.

    Raises:
        ProcessError: it failed.
        StateTypeError: it gave something else than a time.
    """
    try:
        instant = clock()
    except CALL_FAILURES as error:
        raise ProcessError(
            f"clock= failed with {shown_error(error)}. Nothing of this epoch is committed: correct "
            "the clock, then start the job again"
        ) from error
    if type(instant) is not int or not MIN_MICROS <= instant <= MAX_MICROS:
        hint = foreign_hint(instant) or ": return the microseconds since 1970 UTC, as an int"
        raise StateTypeError(
            f"clock= gave {shown(instant)}, of type {type_name(instant)}{hint}, from the year 1 to "
            "the year 9999. Nothing of this epoch is committed"
        )
    return instant
