"""A shard in one epoch: from a working copy to a change file and a report.

Order of effects: mutations go to the change file; the change file becomes durable; the copy is
closed at the new attempt; the report goes to the coordinator. Epochs that exceed memory spill: a
full batch goes to the change file and to the copy at once, and the copy is not trusted until it is
closed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from statekit.backend.change_file import Changes
from statekit.backend.interface import StateSize
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import EXPIRY
from statekit.checkpoint.manifest import ShardPlan, ShardReport, ShardState
from statekit.checkpoint.references import changed_contents
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError
from statekit.functions.process import Process
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.guarded_calls import Collect
from statekit.runtime.rare_collection import rare_collection
from statekit.runtime.shard_input import ShardInput
from statekit.runtime.task import ShardTask
from statekit.state.timers import DUE
from statekit.working_copy.copies import WorkingCopies, WorkingCopy

INDEXES = frozenset({DUE, EXPIRY})
"""Families whose rows are derived from other rows. They are not counted."""


def run_shard(
    declared: Process[Any, Any, Any],
    plan: ShardPlan,
    records: ShardInput,
    repository: Repository,
    copies: WorkingCopies,
    collect: Collect | None = None,
) -> Generator[list[Any], None, ShardReport | None]:
    """Run one shard for one epoch. Yield lists of outputs, and return the report.

    A shard without records opens its copy only if a timer is due. Otherwise it has nothing to do,
    and the report is None. If the generator is closed early or fails, a copy that was written is
    not trusted any more, and nothing references the stored files.

    Parameters:
        collect: takes failed records, as for `ShardTask`.
    """
    with rare_collection():
        try:
            if not records.has_records() and not plan.due_clocks:
                return None
            families = declared.families_in(plan)
            copy = obtained(plan, families, repository, copies)
            changes = Changes(families), Changes(families)
            shard = _OpenShard(declared, plan, repository, copy, changes, collect)
            return (yield from shard.run(records))
        except CorruptCheckpointError as missing:
            # Files of the last epoch are never collected: if they were, it is not the last one.
            if plan.base_epoch is None or plan.base_epoch >= repository.first_kept():
                raise
            raise repository.overtaken(plan.epoch) from missing
        finally:
            records.close()


def reporting(
    running: Generator[list[Any], None, ShardReport | None], reports: list[ShardReport | None]
) -> Generator[list[Any], None, None]:
    """Yield the outputs of a shard, then append its report to a list."""
    reports.append((yield from running))


def obtained(
    plan: ShardPlan, families: Sequence[str], repository: Repository, copies: WorkingCopies
) -> WorkingCopy:
    """Return the copy of a shard at its base, with redistributed operator state, before an
    epoch.
    """
    copy = copies.obtain(plan, families, repository)
    try:
        bounds = group_bounds(*plan.base.groups)
        for ref in plan.base.redistributed:
            for batch in repository.batches(ref):
                copy.write(batch.within(*bounds, families))
    except BaseException:
        copy.abandon()
        raise
    return copy


@dataclass(frozen=True)
class _OpenShard:
    """A shard with an open working copy.

    Parameters:
        declared: the process function.
        plan: the shard and the times of the epoch.
        repository: the checkpoint.
        copy: the working copy.
        changes: the change files of keyed state, and of operator state.
        collect: takes failed records.
    """

    declared: Process[Any, Any, Any]
    plan: ShardPlan
    repository: Repository
    copy: WorkingCopy
    changes: tuple[Changes, Changes]
    collect: Collect | None

    def run(self, records: ShardInput) -> Generator[list[Any], None, ShardReport]:
        """Run the epoch. Yield lists of outputs, and return the report."""
        try:
            spill, spill_local = (partial(self._spill, to) for to in self.changes)
            task = ShardTask(
                self.declared, self.plan, self.copy.backend, spill, spill_local, self.collect
            )
            for number, broadcast in records.broadcast():
                task.broadcast(number, broadcast)
            yield from task.run_all(_owned(self.plan, records.batches()))
            yield from task.fire()
            return self._concluded(task)
        except BaseException:
            for unfinished in self.changes:
                unfinished.drop()
            self.copy.abandon()
            raise

    def _spill(self, to: Changes, batch: Batch) -> None:
        to.append(batch)
        self.copy.write(batch)

    def _concluded(self, task: ShardTask) -> ShardReport:
        """Make the changes durable, update the copy, and return the report.

        The copy is marked before the report is sent. If the worker dies in between, no manifest
        references the attempt, and the copy is restored.
        """
        added, copy, base = task.finish(), self.copy, self.plan.base
        batches = task.batch, task.local_batch
        files = {file: file.size for file in base.redistributed}
        for batch, changes, local in zip(batches, self.changes, (False, True), strict=True):
            if len(batch):
                changes.append(batch)
            if (finished := changes.finish()) is not None:
                content, rows = finished
                with content:
                    stored = self.repository.put_changes(
                        self.plan.operator, content, rows, local=local
                    )
                files[stored] = changes.bytes
        report = ShardReport(operator=self.plan.operator, shard=base).model_copy(
            update={
                "records_out": task.records_out,
                "files_written": len(files),
                "bytes_written": sum(file.size for file in files),
                "late": task.late,
                "failed": task.failed,
                "last_failure": task.last_failure,
                "records_by_input": dict(task.records_by_input),
                "largest_by_input": task.largest_by_input,
                "restored_bytes": copy.fetched.restored,
                "caught_up_bytes": copy.fetched.caught_up,
            }
        )
        for batch in batches:
            if len(batch):
                copy.write(batch)
        counts, undivided = _counts(base, added, copy)
        shard = report.shard.model_copy(update={"wake_us": task.wake_us, **counts})
        if files:
            shard = self._changed(shard, files)
        copy.take_base(shard, self.declared.local_states)
        copy.close_at(shard)
        return report.model_copy(update={"shard": shard, **undivided})

    def _changed(self, shard: ShardState, files: Mapping[FileRef, int]) -> ShardState:
        """Return the shard at a new attempt, with more change files.

        Parameters:
            files: with the bytes of keys and values in each.
        """
        plan, before = self.plan, self.copy.newest_base()
        contents = changed_contents(self.repository, plan.operator, before, files)
        fields = {"attempt": unique_id(), "changed": plan.epoch, "base": before.base}
        return shard.model_copy(update={**fields, **contents})


def _counts(
    base: ShardState, added: dict[str, StateSize], copy: WorkingCopy
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the new size of the shard: the old size plus the changes, or a complete count.

    Returns:
        Fields of the shard's state, and fields of its report with its size as a part at the start.
    """
    new_sizes = {
        name: StateSize(base.rows.get(name, 0) + size.rows, base.bytes.get(name, 0) + size.bytes)
        for name, size in added.items()
        if name not in INDEXES
    }
    if not copy.must_count_rows:
        return _by_name(new_sizes, "rows", "bytes"), {}
    sizes = {name: n for name, n in copy.backend.sizes().items() if name not in INDEXES}
    counts = {**_by_name(sizes, "rows", "bytes"), "is_part": False}
    if not base.is_part:
        return counts, {}
    began = {
        name: StateSize(size.rows - new_sizes[name].rows, size.bytes - new_sizes[name].bytes)
        for name, size in sizes.items()
    }
    return counts, _by_name(began, "undivided_rows", "undivided_bytes")


def _by_name(sizes: Mapping[str, StateSize], rows: str, size: str) -> dict[str, object]:
    """Return rows and bytes per state as two fields."""
    return {
        rows: {name: size_of.rows for name, size_of in sizes.items()},
        size: {name: size_of.bytes for name, size_of in sizes.items()},
    }


def _owned(plan: ShardPlan, batches: Iterator[KeyedBatch]) -> Iterator[KeyedBatch]:
    """Check that batches belong to this shard, and yield them.

    Records are sorted by key group, so checking the ends of a batch is enough.
    """
    start, end = plan.base.groups
    for batch in batches:
        for group in (batch.groups[0], batch.groups[-1]):
            if not start <= group <= end:
                raise CorruptCheckpointError(
                    f"shard {plan.shard} of operator {plan.operator!r} owns key groups "
                    f"{start}..{end} and got a record of key group {group}: another operation "
                    "moved the records between partitions; nothing of this epoch is committed"
                )
        yield batch
