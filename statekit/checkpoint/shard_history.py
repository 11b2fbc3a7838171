"""Add change files to a shard, and move older ones to a history when its manifest entry gets
long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.paths import HISTORY, data_path
from statekit.checkpoint.references import history
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import History

FILES_MAX = 8
"""The maximum number of change files per shard in a manifest; older ones move to a history."""

HISTORY_FILES_MAX = 256
"""The maximum number of files in a history; a longer one is continued in another file."""


def changed_contents(
    repository: Repository,
    operator: str,
    shard: ShardState,
    files: Sequence[FileRef],
    epoch: int | None,
    changed: Mapping[FileRef, int] | None = None,
) -> dict[str, Any]:
    """Return the files and the replay cost of a shard after a change, as fields of its state.

    Parameters:
        shard: before the change.
        files: of the change.
        epoch: the epoch that `shard` is the state after.
        changed: bytes of the keys and values in files, if fewer than the file has.

    Raises:
        StorageError: a history has to be written and cannot be.
    """
    contents: dict[str, Any] = {"slices": (), "redistributed": (), "is_complete": True}
    if shard.slices:
        begun = History(operator=operator, shard=shard.groups, slices=shard.slices)
        contents |= {"history": _stored(repository, begun), "files": tuple(files)}
    elif len(shard.files) + len(files) <= FILES_MAX:
        contents["files"] = (*shard.files, *files)
    else:
        listing = _continued(repository, operator, shard, shard.files)
        contents |= {"history": listing, "files": tuple(files)}
    chain = shard.chain
    for file in files:
        chain = chain.followed_by(file, (changed or {}).get(file, 0))
    return contents | {"chain": chain}


def _continued(
    repository: Repository, operator: str, shard: ShardState, files: Sequence[FileRef]
) -> FileRef | None:
    """Return a shard's history with more files."""
    before = shard.history
    listed = History(operator=operator, shard=shard.groups, before=before)
    if before is not None:
        newest = history(repository, before)
        if len(newest.files) < HISTORY_FILES_MAX:
            listed = newest
    return _stored(repository, listed.model_copy(update={"files": (*listed.files, *files)}))


def _stored(repository: Repository, listed: History) -> FileRef:
    path = data_path(listed.operator, HISTORY)
    return repository.put_file(path, BytesIO(listed.to_bytes()))
