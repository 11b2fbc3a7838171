"""Unpacked shards: the rows of one shard for reading, from its base and change files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from statekit.backend.interface import Backend, MemoryBackend
from statekit.backend.scratch import scratch_directory
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import apply_plan, restore_plan
from statekit.working_copy.restore import restored

# Making a database takes longer than reading so many bytes of change files.
_FEW_BYTES = 1 << 20


@dataclass(frozen=True)
class ShardRows:
    """The shards of an operator after an epoch.

    Parameters:
        repository: the checkpoint.
        operator: its name.
        manifest: the manifest of the epoch.
    """

    repository: Repository
    operator: str
    manifest: EpochManifest

    @contextlib.contextmanager
    def opened(self, shard: ShardState, families: Sequence[str]) -> Iterator[Backend]:
        """Open the rows of one shard, as `opened_groups` does."""
        with self.opened_groups(shard.groups, families) as backend:
            yield backend

    @contextlib.contextmanager
    def opened_groups(self, groups: tuple[int, int], families: Sequence[str]) -> Iterator[Backend]:
        """Open the rows of some key groups: in memory if there are few, otherwise on the local
        disk.

        They are removed when the block ends.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed.
        """
        plan = restore_plan(self.repository, self.manifest, self.operator, *groups)
        few = not plan.bases and sum(ref.size for ref in plan.change_files) <= _FEW_BYTES
        with contextlib.ExitStack() as closing:
            backend: Backend
            if few:
                backend = MemoryBackend(families)
                apply_plan(self.repository, backend, plan)
            else:
                place = closing.enter_context(scratch_directory("shard"))
                _, backend = restored(self.repository, place, groups, [plan], families)
            closing.callback(backend.close)
            yield backend
