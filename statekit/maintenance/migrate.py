"""`statekit migrate`: rewrite all rows of states whose types changed.

Order of effects: a change file per shard, the job file, the manifest. Nothing is visible before the
manifest: a killed run leaves orphans, and is started again from the beginning. The new epoch only
changes rows, and its job file no longer contains earlier types. Generations start again from 0, so
a rewritten state costs what it would cost if its type had never changed.

A shard is unpacked into a temporary database; memory holds one batch of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch, in_batches
from statekit.checkpoint.job_file import JobFile, StateRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.offline import check_at_rest, last_epoch
from statekit.checkpoint.references import changed_contents
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_layout import blank_shards
from statekit.clock import unique_id
from statekit.codec.value_codec import ValueCodec
from statekit.errors import CorruptCheckpointError, StatekitError
from statekit.job.compatibility import check_job_name, continued_job_file, successions
from statekit.job.expiry import continued_expiry
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.job.state_succession import Succession
from statekit.maintenance.rewrite import Progress
from statekit.shown import shown
from statekit.state.base import StateSpec
from statekit.state.key_scope import KeyScope
from statekit.state.row_versions import generation_codec
from statekit.state.ttl import stamp_of
from statekit.working_copy.unpacked_shard import ShardRows


@dataclass
class StateReport:
    """The result for one state.

    Attributes:
        succession: its stored and its declared type.
        rows: number of rows: of the last epoch, or as they were rewritten.
        rewritten: number of rows with a new form.
        failed: in a dry run, number of rows that cannot be converted.
        first_failure: the first error.
    """

    succession: Succession
    rows: int = 0
    rewritten: int = 0
    failed: int = 0
    first_failure: str = ""

    @property
    def is_wanted(self) -> bool:
        """True if some rows of the state may have an earlier type."""
        return self.succession.verdict in ("compatible", "migrated")


@dataclass
class _Rewriting:
    """The rewriting of one state in one shard: reads rows of earlier types and writes rows of the
    declared type.
    """

    report: StateReport
    spec: StateSpec
    codec: ValueCodec[object]
    scope: KeyScope
    decode_key: Callable[[bytes, int], tuple[Any, int]]
    bytes_added: int = 0

    def rows(
        self, backend: Backend, groups: tuple[int, int], *, dry: bool
    ) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the rows of the state in their new form, if it differs: family, row key, row."""
        report, scope, write = self.report, self.scope, self.spec.codec.encode
        for row_key, row in backend.scan(self.spec.name, *group_bounds(*groups)):
            report.rows += 1
            if scope.shard is None:
                scope.key = self.decode_key(row_key, 2)[0]
            stamp = stamp_of(row) if report.succession.stored.era else b""
            try:
                now = stamp + write(self._read(row[len(stamp) :]))
            except StatekitError as error:
                if not dry:
                    raise
                report.failed += 1
                report.first_failure = report.first_failure or f"{scope.place}: {error}"
                continue
            if now != row:
                report.rewritten += 1
                self.bytes_added += len(now) - len(row)
                yield self.spec.name, row_key, now

    def _read(self, row: bytes) -> object:
        """Return the value of a row as the declared type. Errors contain the place of the row."""
        try:
            return self.codec.decode(row)
        except CorruptCheckpointError as error:
            scope = self.scope
            place = (
                f"state {self.spec.name!r} of operator {scope.operator!r} at key {shown(scope.key)}"
            )
            raise CorruptCheckpointError(f"{place}: {error}") from error


class Migration:
    """The migration of a checkpoint to a job with changed types.

    Parameters:
        job: with the new declarations.
        url: of the checkpoint.

    Attributes:
        reports: one per state that is stored and still declared.

    Raises:
        RestoreError: there is no such checkpoint, nothing is committed, or it belongs to another
            job.
    """

    def __init__(self, job: Job, url: str | Path) -> None:
        self.job = job
        self.repository = repository = Repository(url, create=False)
        self.last, self.stored = last_epoch(repository)
        check_job_name(self.stored, job.plan, repository.url)
        rows = {name: operator.rows for name, operator in self.last.operators.items()}
        self.reports = [
            StateReport(state, rows.get(state.operator, {}).get(state.stored.name, 0))
            for state in successions(self.stored, job.plan.operators)
        ]
        self.epoch = self.last.epoch + 1
        self._is_dry = False

    def run(self, progress: Progress, *, dry: bool = False) -> EpochManifest | None:
        """Rewrite rows and commit the new epoch. Return the epoch; None if no row had to change.

        Parameters:
            progress: called with the progress.
            dry: change nothing, and continue after a row that cannot be converted.

        Raises:
            StateSchemaError: a state's rows cannot be read as the declared type, or something else
                than its type does not match.
            ProcessError, StateTypeError: a hook failed.
            RestoreError: an epoch was begun that a run has to complete first.
            FencedError: another run committed an epoch meanwhile.
        """
        self._is_dry = dry
        following = None if dry and self.refused else self._following()
        changed = {op.name: self._operator(op, progress) for op in self.job.plan.operators}
        needed = any(report.is_wanted for report in self.reports)
        if dry or following is None or not needed:
            return None
        _, reference = self.repository.ensure_job_file(following)
        manifest = self.last.followed_by(
            job_file=reference,
            cause="migrate",
            operators={name: self._after(name, shards) for name, shards in changed.items()},
        )
        self.repository.commit(manifest)
        return manifest

    @property
    def refused(self) -> list[Succession]:
        """The states whose rows cannot be read as the declared type."""
        states = [report.succession for report in self.reports]
        return [state for state in states if state.verdict == "refused"]

    def _following(self) -> JobFile:
        """Return the job file after the migration. It has no earlier types."""
        url = self.repository.url
        wanted = continued_job_file(self.stored, self.job.plan, url, allow_dropped_state=False)
        wanted = continued_expiry(self.stored, wanted, self.last)
        check_at_rest(self.repository, self.last)
        operators = tuple(
            operator.model_copy(update={"states": tuple(map(_rewritten, operator.states))})
            for operator in wanted.operators
        )
        return wanted.model_copy(update={"operators": operators})

    # ------------------------------------------------------------------------------------ shards

    def _operator(self, operator: Operator, progress: Progress) -> dict[int, ShardState]:
        """Rewrite the rows of an operator. Return its changed shards by number."""
        wanted = [
            report
            for report in self.reports
            if report.succession.operator == operator.name and report.is_wanted
        ]
        before = self.last.operators.get(operator.name)
        shards = () if before is None else before.shards
        for report in wanted:
            report.rows = 0
        changed: dict[int, ShardState] = {}
        for number, shard in enumerate(shards if wanted else ()):
            progress(number, len(shards))
            if shard.attempt is not None or shard.redistributed:
                new_shard = self._shard(operator, number, shard, wanted)
                changed |= {} if new_shard is None else {number: new_shard}
            progress(number + 1, len(shards))
        return changed

    def _shard(
        self, operator: Operator, number: int, shard: ShardState, reports: list[StateReport]
    ) -> ShardState | None:
        """Rewrite the rows of a shard. Return the new shard; None if nothing changed."""
        scope = KeyScope(operator.name, self.epoch, Batch(), lambda: None)
        work = [_rewriting(operator, number, report, scope) for report in reports]
        unpacked = ShardRows(self.repository, operator.name, self.last)
        with unpacked.opened(shard, [state.spec.name for state in work]) as backend:
            by_place = (
                [state for state in work if state.spec.kind.is_local == local]
                for local in (False, True)
            )
            stored = [self._file(states, backend, shard.groups) for states in by_place]
        files = [ref for ref in (*shard.redistributed, *stored) if ref is not None]
        if not any(stored):
            return None
        sizes = dict(shard.bytes)
        for state in work:
            sizes[state.spec.name] = sizes.get(state.spec.name, 0) + state.bytes_added
        position = {"attempt": unique_id(), "changed": self.epoch, "bytes": sizes}
        changes = dict.fromkeys(files, 0)
        new_contents = changed_contents(self.repository, operator.name, shard, changes)
        return shard.model_copy(update={**position, **new_contents})

    def _file(
        self, states: list[_Rewriting], backend: Backend, groups: tuple[int, int]
    ) -> FileRef | None:
        """Rewrite the keyed states of a shard, or its operator state. Return the change file; None
        without changes.
        """
        rows = (row for state in states for row in state.rows(backend, groups, dry=self._is_dry))
        if self._is_dry or not states:
            deque(rows, maxlen=0)
            return None
        names, first = [state.spec.name for state in states], states[0]
        is_local, operator = first.spec.kind.is_local, first.scope.operator
        return self.repository.store_changes(operator, names, in_batches(rows), local=is_local)

    def _after(self, operator: str, changed: dict[int, ShardState]) -> OperatorEpoch:
        """Return an operator in the new epoch, with the changed shards and without records."""
        before = self.last.operators.get(operator)
        if before is None:  # new in the code
            blank = blank_shards(self.last.parallelism, self.last.key_groups)
            return OperatorEpoch(shards=tuple(blank))
        return before.at_rest(
            changed.get(number, shard) for number, shard in enumerate(before.shards)
        )


def _rewritten(state: StateRecord) -> StateRecord:
    """Return the record of a state after all rows were rewritten to its type."""
    return state.model_copy(update={"generation": 0, "past": ()})


def _rewriting(operator: Operator, number: int, report: StateReport, scope: KeyScope) -> _Rewriting:
    record = report.succession.record
    spec = next(spec for spec in operator.declared.states if spec.name == record.name)
    codec = spec.codec
    if spec.kind.is_local:
        scope = replace(scope, shard=number)
    if record.generation:
        codec = generation_codec(codec, record, spec.hooks, scope)
    return _Rewriting(report, spec, codec, scope, operator.declared.key_codec.decode)
