"""Findings about a job and a checkpoint: refusals and conversions of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import TMP
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.store_url import local_path
from statekit.checkpoint.writable import check_writable
from statekit.errors import StatekitError
from statekit.job.compatibility import (
    check_job_name,
    continued_job_file,
    schema_problems,
    successions,
    without_empty_buffers,
)
from statekit.job.expiry import continued_expiry
from statekit.job.findings import JobFinding, failed_check
from statekit.job.plan import Plan

_WHERE = "checkpoint"

_VERDICTS = {
    "same": "has the stored type",
    "compatible": "reads its stored rows, which have another type",
    "migrated": "converts its stored rows with a hook, as they are read",
}


class StoredJob(NamedTuple):
    """The job of a checkpoint.

    Parameters:
        url: of the checkpoint.
        job_file: in force.
        last: the last epoch; None if there is none.
    """

    url: str
    job_file: JobFile
    last: EpochManifest | None


def stored_job(url: str) -> StoredJob | None:
    """Return the job of a checkpoint; None if there is no checkpoint yet.

    Raises:
        StatekitError: it cannot be read.
    """
    path = local_path(url)
    if path is not None and not path.exists():
        return None
    repository = Repository(url, create=False)
    latest = repository.latest_epoch()
    if latest is not None:
        last = repository.manifest(latest)
        return StoredJob(repository.url, repository.job_file(last.job_file.path), last)
    repository.check_checkpoint()
    newest = repository.newest_job_file()
    return None if newest is None else StoredJob(repository.url, newest[0], None)


def checkpoint_findings(
    job: Plan, url: str, *, allow_dropped_state: bool, limit_s: float
) -> Iterator[JobFinding]:
    """Yield the findings about a job and a checkpoint. Nothing is written to it.

    Parameters:
        url: of the checkpoint.
        allow_dropped_state: as for `Job.run`.
        limit_s: how long requests to an object store are retried, in seconds.
    """
    try:
        yield JobFinding("ok", _WHERE, f"{url}: {check_writable(url, TMP, limit_s)}")
        stored = stored_job(url)
        if stored is None:
            yield JobFinding("ok", _WHERE, "the first run begins without state")
            return
        check_job_name(stored.job_file, job, stored.url)
    except StatekitError as error:
        yield failed_check(_WHERE, error)
        return
    if stored.last is None:
        yield JobFinding("ok", _WHERE, "it has no epoch, and so no state that must be kept")
        return
    yield JobFinding("ok", _WHERE, f"its last epoch is {stored.last.epoch}")
    if stored.last.drained and any(each.declared.event_time is not None for each in job.operators):
        what = "event time has ended in its last epoch: a run with more records is refused"
        yield JobFinding("warning", _WHERE, what)
    yield from _fit(job, stored.url, stored.job_file, stored.last, allow_dropped_state)


def _fit(
    job: Plan, url: str, job_file: JobFile, last: EpochManifest, allow_dropped_state: bool
) -> Iterator[JobFinding]:
    stored = without_empty_buffers(job_file, last)
    problems = list(schema_problems(stored, job.operators, allow_dropped_state=allow_dropped_state))
    for name, problem in problems:
        yield JobFinding("error", f"operator {name}", problem)
    is_refused = bool(problems)
    for each in successions(stored, job.operators):
        where = f"state {each.operator}.{each.stored.name}"
        is_refused |= bool(each.problem)
        if each.problem:
            yield JobFinding("error", where, each.problem)
        else:
            yield JobFinding("ok", where, _VERDICTS[each.verdict])
    yield from _added(job, stored)
    if allow_dropped_state:
        yield from _dropped(job, stored)
    if not is_refused:
        try:
            following = continued_job_file(
                stored, job, url, allow_dropped_state=allow_dropped_state
            )
            continued_expiry(stored, following, last)
        except StatekitError as error:
            yield failed_check(_WHERE, error)


def _added(job: Plan, stored: JobFile) -> Iterator[JobFinding]:
    for operator in job.operators:
        before = stored.operator(operator.name)
        known = {state.name for state in before.states} if before else set()
        for state in operator.declared.states:
            if state.name not in known:
                where = f"state {operator.name}.{state.name}"
                yield JobFinding("ok", where, "is new, and begins empty")


def _dropped(job: Plan, stored: JobFile) -> Iterator[JobFinding]:
    declared = {each.name: each.declared.states for each in job.operators}
    for before in stored.operators:
        kept = {state.name for state in declared.get(before.name, ())}
        for state in before.states:
            if state.name not in kept:
                what = "is in the checkpoint and no longer declared: its rows are not read"
                yield JobFinding("warning", f"state {before.name}.{state.name}", what)
