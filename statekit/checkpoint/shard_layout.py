"""Changes of a manifest's parallelism: compute the shards of one layout from another one.

No row is moved or read. A new shard references key groups of old shards. A shard whose range stays
the same does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from statekit.checkpoint.job_file import Clock
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState, added
from statekit.checkpoint.sealed_json import checksum_of
from statekit.checkpoint.shard_contents import ReplayCost, Slice
from statekit.keygroup import group_ranges


def rescaled(manifest: EpochManifest, parallelism: int) -> EpochManifest:
    """Return the epoch after `manifest`, with a different parallelism and no other change.

    Everything else is carried over: input positions, event time, processing time, late counts.

    Raises:
        RescaleError: the parallelism is not valid.
    """
    ranges = group_ranges(parallelism, manifest.key_groups)
    return manifest.followed_by(
        cause="rescale",
        parallelism=parallelism,
        operators={
            name: _laid_out(operator, ranges, manifest.epoch)
            for name, operator in manifest.operators.items()
        },
    )


def blank_shards(parallelism: int, key_groups: int) -> list[ShardState]:
    """Return the shards of an operator that has no rows yet."""
    ranges = group_ranges(parallelism, key_groups)
    return [ShardState(first_group=first, last_group=last) for first, last in ranges]


def standing(manifest: EpochManifest, operator: str, first: int, last: int) -> ShardState:
    """Return the key groups `first..last` of an operator after an epoch, as a shard.

    If the epoch has a shard of exactly these groups, it is returned. Otherwise the result
    references the parts of the epoch's shards, under a name that is the same for every caller.
    """
    operator_epoch = manifest.operators.get(operator)
    if operator_epoch is None:
        return ShardState(first_group=first, last_group=last)
    return _cut(operator_epoch, first, last, manifest.epoch)


def _laid_out(
    operator: OperatorEpoch, ranges: Sequence[tuple[int, int]], epoch: int
) -> OperatorEpoch:
    """Return an operator in an epoch that only changes its layout."""
    shards = [_cut(operator, first, last, epoch) for first, last in ranges]
    ends = {last for _, last in ranges}
    divided = [shard for shard in operator.shards if ends.intersection(range(*shard.groups))]
    rows = added(operator.undivided_rows, *(shard.rows for shard in divided))
    sizes = added(operator.undivided_bytes, *(shard.bytes for shard in divided))
    parts = [number for number, shard in enumerate(shards) if shard.is_part]
    if len(parts) == 1:  # it has all rows that are not divided
        whole = shards[parts[0]]
        counted = {"rows": added(rows, whole.rows), "bytes": added(sizes, whole.bytes)}
        shards[parts[0]] = whole.model_copy(update={**counted, "is_part": False})
        rows, sizes = {}, {}
    return operator.at_rest(shards, undivided_rows=rows, undivided_bytes=sizes)


def _cut(operator: OperatorEpoch, first: int, last: int, epoch: int) -> ShardState:
    """Return the parts of these shards in the key groups `first..last`, as one shard."""
    owners = operator.shards_over(first, last)
    if [shard.groups for shard in owners] == [(first, last)]:
        return owners[0]
    waiting = dict.fromkeys(ref for shard in owners for ref in shard.redistributed)
    blank = ShardState(first_group=first, last_group=last, redistributed=tuple(waiting))
    changed = [shard for shard in owners if shard.attempt is not None]
    slices = _slices(changed, first, last)
    if not slices:
        return blank
    # Epoch numbers do not do: an epoch may be made again after a rollback, with other content.
    origin = " ".join(f"{shard.groups} {shard.attempt}" for shard in owners)
    whole = [s for s in changed if first <= s.first_group and s.last_group <= last]
    return blank.model_copy(
        update={
            "attempt": f"sliced-{checksum_of(origin.encode())}-{first}-{last}",
            "changed": epoch,
            "rows": added(*(shard.rows for shard in whole)),
            "bytes": added(*(shard.bytes for shard in whole)),
            "wake_us": _soonest(changed),
            "slices": slices,
            "is_complete": True,
            "chain": _joined_chain(changed),
            "is_part": len(whole) < len(changed) or any(shard.is_part for shard in whole),
        }
    )


def _joined_chain(shards: Sequence[ShardState]) -> ReplayCost:
    """Return the cost of applying the change files of all these shards, with an empty upload
    budget.
    """
    costs = (shard.chain.model_dump(include={"files", "rows", "bytes"}) for shard in shards)
    return ReplayCost.of(**added(*costs))


def _soonest(shards: Sequence[ShardState]) -> dict[Clock, int]:
    """Return the earliest wake time of these shards, per clock."""
    wakes = [wake for shard in shards for wake in shard.wake_us.items()]
    return {clock: min(time for of, time in wakes if of == clock) for clock, _ in wakes}


def _slices(shards: Sequence[ShardState], first: int, last: int) -> tuple[Slice, ...]:
    """Return the slices to cut out of each shard. An unchanged shard passes on its own slices."""
    slices: list[Slice] = []
    for shard in shards:
        assert shard.attempt is not None, "a shard that holds something has an attempt"
        whole = Slice(
            first_group=shard.first_group,
            last_group=shard.last_group,
            shard=shard.groups,
            attempt=shard.attempt,
            base=shard.base,
            history=shard.history,
            files=shard.files,
            is_complete=True,
        )
        for piece in shard.slices or (whole,):
            start, end = max(first, piece.first_group), min(last, piece.last_group)
            if start > end:
                continue
            before = slices[-1] if slices else None
            if (
                before is not None
                and (before.shard, before.attempt) == (piece.shard, piece.attempt)
                and before.last_group + 1 == start
            ):
                slices[-1] = before.model_copy(update={"last_group": end})
            else:
                slices.append(piece.model_copy(update={"first_group": start, "last_group": end}))
    return tuple(slices)
