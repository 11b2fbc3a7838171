"""The change files of a single epoch: the difference between the epoch before it and the epoch.

A manifest references all files that the rows of a shard consist of. The files of the epoch itself
are those that the manifest before it does not reference. A path is never used twice, so comparing
paths is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.paths import BASE
from statekit.checkpoint.references import Following, direct_refs
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef

_REPLACED = frozenset({"repair", "migrate", "savepoint", "import"})
"""Causes of epochs whose rows may differ from the previous epoch without a change file for it."""


def follows_by_files(before: EpochManifest, after: EpochManifest) -> bool:
    """Return whether the state after `before` plus the own change files of `after` gives the state
    after `after`.

    They do not after a rollback, and not where all rows were written again.
    """
    return (
        after.previous == before.epoch
        and not after.whole
        and after.cause not in _REPLACED
        and after.key_groups == before.key_groups
    )


def own_files(
    repository: Repository, before: EpochManifest | None, after: EpochManifest, operator: str
) -> Iterator[tuple[ShardState, Sequence[FileRef]]]:
    """Yield the shards that an epoch changed, each with its change files of that epoch in order.

    Files with redistributed operator state are among them: they follow from the layout of the
    epoch. The cost follows the number of shards that changed. A history is read only if the
    shard has a new base.

    Parameters:
        before: the epoch that `follows_by_files` holds for; None for the first epoch.
        operator: its name; one without shards in `after` has no files.

    Raises:
        CorruptCheckpointError: a history is missing or altered.
    """
    operator_epoch = after.operators.get(operator)
    epoch_before = None if before is None else before.operators.get(operator)
    # Entries that two epochs have from the same page are the same objects.
    same = set(map(id, epoch_before.shards)) if epoch_before is not None else set[int]()
    for shard in () if operator_epoch is None else operator_epoch.shards:
        if id(shard) in same:
            continue
        earlier = () if before is None else before.shards_over(operator, *shard.groups)
        if len(earlier) == 1 and earlier[0] == shard:
            continue
        known = {ref.path for old in earlier for ref in direct_refs(old)}
        new = [ref for ref in (*shard.redistributed, *shard.files) if ref.path not in known]
        if new and shard.base is not None and shard.base.path not in known:
            # It is new. The files that are not in it may have been in a history.
            following = Following(repository, {path for path in known if path.endswith(BASE)})
            known = {file.ref.path for old in earlier for file in following.of_shard(old)}
            new = [ref for ref in new if ref.path not in known]
        if new:
            yield shard, new
