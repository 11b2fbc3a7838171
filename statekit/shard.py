"""One shard's epoch: from a working copy at the base to a change file and a report.

What lives here: the order of effects on the worker's side. What does not: the user's function
(`task`), and the decision that the epoch is committed (`coordinator`).

Order of effects: mutations go to the change file; the change file is made durable; the copy is
closed at the new attempt; the report goes to the coordinator. Epochs that outgrow memory spill: a
full batch goes to the change file and to the copy at once, and the copy is not trusted until it is
closed.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Generator, Iterable, Iterator
from typing import IO, Any, cast

from statekit.backend import Backend, StateSize
from statekit.clock import unique_id
from statekit.errors import CorruptCheckpointError, StorageError
from statekit.manifest import EXPIRY, ShardPlan, ShardReport, ShardState
from statekit.mutation import Batch, ChangeFileWriter
from statekit.process import Process
from statekit.repository import Repository
from statekit.task import Chunk, ShardTask
from statekit.timers import DUE
from statekit.working_copy import WorkingCopies, WorkingCopy

__all__ = ["RARE_COLLECTION", "run_shard"]

# Change files up to this size are put together in memory.
_SPOOL_BYTES_MAX = 32 * 1024 * 1024

# What they hold is said elsewhere, too, and not counted.
_INDEXES = frozenset({DUE, EXPIRY})

# Thresholds of Python's three generations while a shard runs; see `_rare_collection`.
RARE_COLLECTION = (50_000, 20, 100)


class _Changes:
    """The change file in the making. Nothing is created before the first mutation."""

    def __init__(self, states: tuple[str, ...]) -> None:
        self._states = states
        self._file: IO[bytes] | None = None
        self._writer: ChangeFileWriter | None = None

    def append(self, batch: Batch) -> None:
        try:
            if self._writer is None:
                spool = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - see drop()
                    max_size=_SPOOL_BYTES_MAX
                )
                self._file = cast("IO[bytes]", spool)
                self._writer = ChangeFileWriter(self._file, self._states)
            self._writer.append(batch)
        except OSError as error:
            raise _unwritable(error) from error

    def finish(self) -> tuple[IO[bytes], int] | None:
        """The finished file and its number of mutations; None if there were none."""
        if self._writer is None or self._file is None:
            return None
        try:
            self._writer.close()
        except OSError as error:
            raise _unwritable(error) from error
        return self._file, self._writer.rows

    def drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _unwritable(error: OSError) -> StorageError:
    return StorageError(
        f"cannot write a change file to {tempfile.gettempdir()}: {error}. Nothing committed is "
        "lost: make space there or set TMPDIR, then start the job again"
    )


def run_shard(
    declared: Process[Any, Any, Any],
    plan: ShardPlan,
    chunks: Iterable[Chunk],
    repository: Repository,
    copies: WorkingCopies,
) -> Generator[list[Any], None, ShardReport]:
    """Run one shard for one epoch: yields lists of outputs, returns the report.

    A shard without records does not open its copy, unless a timer is due, or it came from a change
    of parallelism and its rows are to be counted. If the generator is closed early or fails, the
    copy is given back untrusted where it was written, and nothing refers to what was stored.
    """
    with _rare_collection():
        return (yield from _run(declared, plan, chunks, repository, copies))


@contextlib.contextmanager
def _rare_collection() -> Iterator[None]:
    """Let Python look for cyclic garbage less often while a shard runs.

    A shard makes a few objects per event, nearly none of them cyclic. At the usual threshold of 700
    the search for cycles took a third of the time of a running count.
    """
    usual = gc.get_threshold()
    if usual[0] == 0 or usual[0] >= RARE_COLLECTION[0]:
        yield  # turned off, or rare enough
        return
    gc.set_threshold(*RARE_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _run(
    declared: Process[Any, Any, Any],
    plan: ShardPlan,
    chunks: Iterable[Chunk],
    repository: Repository,
    copies: WorkingCopies,
) -> Generator[list[Any], None, ShardReport]:
    waiting = iter(chunks)
    first = next(waiting, None)
    if first is None and not plan.is_due:
        return unchanged(plan)
    families = declared.families_in(plan)
    copy = copies.obtain(plan, families, repository)
    changes = _Changes(families)

    def spill(batch: Batch) -> None:
        changes.append(batch)
        copy.write(batch)

    try:
        task = ShardTask(declared, plan, copy.backend, spill)
        chunk: Chunk | None = first
        while chunk is not None:
            _check_ownership(plan, chunk)
            yield from task.run(chunk)
            chunk = next(waiting, None)
        yield from task.fire()
        return _concluded(plan, task, changes, copy, repository)
    except BaseException:
        changes.drop()
        copy.drop()
        raise


def _concluded(
    plan: ShardPlan,
    task: ShardTask,
    changes: _Changes,
    copy: WorkingCopy,
    repository: Repository,
) -> ShardReport:
    """Make the changes durable, bring the copy up to them, and say so."""
    added = task.finish()
    if len(task.batch):
        changes.append(task.batch)
    report = unchanged(plan).model_copy(
        update={
            "records_in": task.records_in,
            "records_out": task.records_out,
            "late": task.late,
            "largest_event_us": task.largest_event_us,
        }
    )
    finished = changes.finish()
    if finished is None:
        standing = {**_counts(plan.base, added, copy.backend), "wake_us": task.wake_us}
        shard = report.shard.model_copy(update=standing)
        copy.keep(plan.base.attempt)
        return report.model_copy(update={"shard": shard})
    file, rows = finished
    with file:
        ref = repository.put_changes(plan.operator, file, rows)
    if len(task.batch):
        copy.write(task.batch)
    attempt, counts = unique_id(), _counts(plan.base, added, copy.backend)
    copy.keep(attempt)
    shard = ShardState(
        first_group=plan.base.first_group,
        last_group=plan.base.last_group,
        attempt=attempt,
        changed=plan.epoch,
        files=(ref,),
        wake_us=task.wake_us,
        **counts,
    )
    return report.model_copy(update={"shard": shard})


def _counts(
    base: ShardState, added: dict[str, StateSize], backend: Backend
) -> dict[str, dict[str, int]]:
    """What the shard holds now: what it held and what was added, or everything counted."""
    if base.is_counted:
        sizes = {
            name: StateSize(
                base.rows.get(name, 0) + size.rows, base.bytes.get(name, 0) + size.bytes
            )
            for name, size in added.items()
        }
    else:
        sizes = backend.sizes()
    return {
        "rows": {name: size.rows for name, size in sizes.items() if name not in _INDEXES},
        "bytes": {name: size.bytes for name, size in sizes.items() if name not in _INDEXES},
    }


def unchanged(plan: ShardPlan) -> ShardReport:
    """The report of a shard that changed nothing."""
    shard = plan.base.model_copy(update={"files": ()})
    return ShardReport(operator=plan.operator, shard=shard)


def _check_ownership(plan: ShardPlan, chunk: Chunk) -> None:
    """Records come sorted by key group, so the ends of a chunk say whether all are ours."""
    first, last = plan.base.groups
    for group in (chunk.groups[0], chunk.groups[-1]):
        if not first <= group <= last:
            raise CorruptCheckpointError(
                f"shard {plan.shard} of operator {plan.operator!r} owns key groups {first}..{last} "
                f"and was given a record of group {group}: the records were moved between "
                "partitions behind statekit's back; nothing of this epoch is committed"
            )
