"""Add change files to a shard, and move older ones to a history when its manifest entry gets
long.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    repository: Repository, operator: str, shard: ShardState, files: Mapping[FileRef, int]
) -> dict[str, Any]:
    """Return the files and the replay cost of a shard after a change, as fields of its state.

    Parameters:
        shard: before the change.
        files: of the change, with the bytes of the keys and values in each, if these are more than
            the file has; else 0.

    Raises:
        StorageError: a history has to be written and cannot be.
    """
    listed, older = (*shard.files, *files), shard.history
    if shard.slices or len(listed) > FILES_MAX:
        longer = _longer_history(repository, operator, shard)
        older = repository.put_file(data_path(operator, HISTORY), BytesIO(longer.to_bytes()))
        listed = tuple(files)
    chain = shard.chain
    for file, changed in files.items():
        chain = chain.followed_by(file, changed)
    blank = {"slices": (), "redistributed": (), "is_complete": True}
    return {**blank, "history": older, "files": listed, "chain": chain}


def _longer_history(repository: Repository, operator: str, shard: ShardState) -> History:
    """Return the history of a shard, with the slices and files of its manifest entry."""
    if shard.history is not None:
        newest = history(repository, shard.history)
        if len(newest.files) < HISTORY_FILES_MAX:
            return newest.model_copy(update={"files": (*newest.files, *shard.files)})
    return History(
        operator=operator,
        shard=shard.groups,
        slices=shard.slices,
        before=shard.history,
        files=shard.files,
    )
