"""`statekit rescale`: change the parallelism of a checkpoint while no job runs on it.

The only new file is one manifest, created if absent: until then the old layout is valid, from then
on the new one. A killed process has changed nothing, and can be started again.
"""

from __future__ import annotations

from dataclasses import dataclass

from statekit.backend.interface import MemoryBackend, StateSize
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.checkpoint.offline import check_at_rest, last_epoch
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import apply_plan, restore_plan
from statekit.checkpoint.shard_layout import rescaled
from statekit.clock import now_us, unique_id
from statekit.errors import CorruptCheckpointError, StorageError
from statekit.job.compatibility import check_job_name, next_job_file
from statekit.job.job import Job
from statekit.maintenance.verify.verify import Progress, verify
from statekit.state.base import StateSpec
from statekit.state.redistribution import check_type, redistributed, rule_of

_OTHERWISE = "To rescale, start it with another parallelism= instead"


@dataclass
class Rescaled:
    """The result of a rescale.

    Attributes:
        before: the last epoch before.
        after: the committed epoch; `before` if it has the parallelism already.
        files, bytes: number of verified files and bytes.
    """

    before: EpochManifest
    after: EpochManifest
    files: int = 0
    bytes: int = 0


def rescale_offline(
    repository: Repository,
    parallelism: int,
    *,
    job: Job | None = None,
    progress: Progress = lambda done: None,
) -> Rescaled:
    """Give a checkpoint another parallelism, in a separate epoch. All files are verified before.

    Parameters:
        parallelism: shards per operator.
        job: the job of the checkpoint; None uses only what is stored.
        progress: called with the number of verified bytes.

    Raises:
        RestoreError: nothing is committed yet, an epoch was begun and must be completed first, or
            the checkpoint belongs to another job.
        RescaleError: the parallelism is not valid, operator state has no rule for it, or functions
            of the job for it take another type than is stored.
        StateSchemaError: the job's states are not those of the checkpoint.
        CorruptCheckpointError: a file is missing or altered.
        StorageError: the store did not return a file.
        FencedError: a job committed an epoch meanwhile.
    """
    last, stored = last_epoch(repository)
    planned = rescaled(last, parallelism)
    specs = declared_states(repository, job, stored)
    if last.parallelism == parallelism:
        return Rescaled(last, last)
    check_at_rest(repository, last, otherwise=_OTHERWISE)
    planned = redistributed(repository, last, planned, stored.operators, specs)
    local = {
        operator.name: states
        for operator in stored.operators
        if (states := [state.name for state in operator.states if state.is_local])
    }
    files, size = _verified(repository, last, progress)
    for name, operator in last.operators.items():
        _check_layout(name, operator, planned.operators[name], local.get(name, []))
        if name in local:
            _check_redistributed(repository, name, last, planned, local[name])
    check_at_rest(repository, last, otherwise=_OTHERWISE)  # verifying takes its time
    after = planned.model_copy(update={"writer": unique_id(), "committed_at_us": now_us()})
    repository.commit(after)
    if repository.manifest(after.epoch) != after:
        raise CorruptCheckpointError(
            f"epoch {after.epoch} of {repository.url} does not read back as it was written: "
            "check the store; the epoch before it is intact"
        )
    return Rescaled(last, after, files, size)


def declared_states(
    repository: Repository, job: Job | None, stored: JobFile
) -> dict[str, tuple[StateSpec, ...]]:
    """Return the declared states of each operator; empty without code.

    Raises:
        RestoreError: the checkpoint belongs to another job.
        StateSchemaError: the job's states are not those of the checkpoint.
        RescaleError: functions of the job would write rows of another type than the checkpoint has.
    """
    if job is None:
        return {}
    check_job_name(stored, job.plan, repository.url)
    next_job_file(stored, job.plan.operators, allow_dropped_state=False)
    specs_of = {operator.name: operator.declared.states for operator in job.plan.operators}
    for operator in stored.operators:
        specs = {spec.name: spec for spec in specs_of.get(operator.name, ())}
        for state in operator.states:
            spec = specs.get(state.name)
            if spec is None or not state.is_local or rule_of(state, spec) != "hooks":
                continue
            check_type(operator.name, state, spec)
    return specs_of


# ----------------------------------------------------------------------------------- verification


def _verified(repository: Repository, last: EpochManifest, progress: Progress) -> tuple[int, int]:
    """Verify all files of an epoch, and return their number and bytes.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        StorageError: the store did not return a file.
    """
    verification = verify(repository, epoch=last.epoch, rows=False, progress=progress)
    if verification.findings:
        first = verification.findings[0]
        error = StorageError if first.kind == "unreadable" else CorruptCheckpointError
        raise error(f"{first.what}. The parallelism was not changed")
    return verification.files, verification.bytes


def _check_layout(name: str, before: OperatorEpoch, after: OperatorEpoch, local: list[str]) -> None:
    """Check that each key group has the same rows in the new shards, and that all rows are counted.

    Parameters:
        local: operator state, which is written again and does not follow key groups.
    """
    origins = enumerate(zip(_origins(before), _origins(after), strict=True))
    lost = [group for group, (old, new) in origins if old != new]
    if lost:
        raise _differs(name, f"rows in key groups {lost} would be lost")
    for old_counts, new_counts in ((before.rows, after.rows), (before.bytes, after.bytes)):
        old, new = (
            {state: count for state, count in counts.items() if state not in local}
            for counts in (old_counts, new_counts)
        )
        if old != new:
            raise _differs(name, f"there are {old} rows or bytes, the new shards have {new}")


def _check_redistributed(
    repository: Repository, name: str, last: EpochManifest, planned: EpochManifest, local: list[str]
) -> None:
    """Check that the new shards have exactly the redistributed operator state."""
    after, backend = planned.operators[name], MemoryBackend(local)
    plan = restore_plan(repository, last, name, 0, last.key_groups - 1)
    apply_plan(repository, backend, plan.without_bases(only_local=True))
    waiting = [ref for shard in after.shards for ref in shard.redistributed]
    repository.replay(backend, waiting, 0, planned.key_groups - 1)
    rows, size = after.rows, after.bytes
    expected = {state: StateSize(rows.get(state, 0), size.get(state, 0)) for state in local}
    if (actual := backend.sizes()) != expected:
        raise _differs(name, f"its operator state should have {expected} and has {actual}")


def _origins(operator: OperatorEpoch) -> list[tuple[tuple[int, int], str] | None]:
    """Return, for each key group, the shard that last changed it and the attempt of that shard."""
    origins: list[tuple[tuple[int, int], str] | None] = []
    for shard in operator.shards:
        unsliced = (shard.groups, shard.attempt) if shard.attempt and not shard.slices else None
        own = [unsliced] * (shard.last_group - shard.first_group + 1)
        for piece in shard.slices:
            start, end = piece.first_group - shard.first_group, piece.last_group - shard.first_group
            own[start : end + 1] = [(piece.shard, piece.attempt)] * (end - start + 1)
        origins += own
    return origins


def _differs(operator: str, how: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"operator {operator!r}: the new layout is not the old one: {how}. Nothing was changed; "
        "this is an error of statekit: please report it with the last manifest"
    )
