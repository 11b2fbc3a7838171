"""Apply a restore plan to a backend: rows of base snapshots, then change files."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from statekit.backend.interface import Backend, MemoryBackend, prefix_end
from statekit.backend.mutation import BATCH_ROWS_MAX, Batch, Put
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.repository import TRANSFERS, LocalRows, Repository, group_bounds
from statekit.checkpoint.restore_plan import RestorePlan, restore_plan
from statekit.checkpoint.shard_contents import BaseSnapshot
from statekit.keygroup import pack_group


def replay(
    repository: Repository,
    backend: Backend,
    plan: RestorePlan,
    *,
    only_local: bool = False,
    has_bases: bool = False,
) -> None:
    """Apply a restore plan to a backend that has none of its rows.

    Mutations of states that the backend was not opened with are skipped: these states were dropped.

    Parameters:
        only_local: apply operator state only, without any databases.
        has_bases: whether the backend contains the bases already.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
    """
    groups, base = (plan.first, plan.last), None if has_bases else plan.base
    if base is not None and not only_local:
        _load_base(repository, backend, base, *groups)
    elif base is not None and base.local is not None:
        repository.replay(backend, [base.local], *groups)
    for part in plan.below:
        replay(repository, backend, part, only_local=only_local, has_bases=has_bases)
    files = [ref for ref in plan.files if ref.local or not only_local]
    repository.replay(backend, files, *groups)


def _load_base(
    repository: Repository, backend: Backend, base: BaseSnapshot, first: int, last: int
) -> None:
    """Copy the rows of a base to a backend."""
    states = [state for state in base.states if state in backend.states]
    for database in base.databases:
        with contextlib.ExitStack() as closing:
            place = closing.enter_context(scratch_directory("base"))
            for name, ref in database.files.items():
                repository.fetch(ref, place / name)
            source = RocksBackend(place, base.states, create=False)
            closing.callback(source.close)
            for state in states:
                waiting = source.scan(state, *group_bounds(first, last))
                while rows := list(islice(waiting, BATCH_ROWS_MAX)):
                    backend.write(Batch([Put(state, key, row) for key, row in rows]))


def local_rows(
    repository: Repository, operator: OperatorRecord, manifest: EpochManifest
) -> dict[str, list[LocalRows]]:
    """Return each operator state after an epoch, for each shard in order.

    Only change files with operator state are read, those of several shards at a time.
    """
    names = [state.name for state in operator.states if state.is_local]
    operator_epoch = manifest.operators.get(operator.name)
    shards = operator_epoch.shards if names and operator_epoch else ()

    def replayed(shard: ShardState) -> list[LocalRows]:
        plan = restore_plan(repository, manifest, operator.name, *shard.groups)
        backend, prefix = MemoryBackend(names), pack_group(shard.first_group)
        replay(repository, backend, plan, only_local=True)
        scans = (backend.scan(name, prefix, prefix_end(prefix)) for name in names)
        return [[(key[len(prefix) :], row) for key, row in rows] for rows in scans]

    with ThreadPoolExecutor(TRANSFERS) as threads:
        rows_of_shards = list(threads.map(replayed, shards))
    return {name: [rows[place] for rows in rows_of_shards] for place, name in enumerate(names)}
