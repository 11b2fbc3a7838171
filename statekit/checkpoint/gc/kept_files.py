"""The files that kept epochs reference, compared with the files of collected epochs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.references import Following, direct_refs
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef


@dataclass
class Size:
    """A number of files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.bytes += size


def manifests_before_gaps(
    repository: Repository, kept: Sequence[int], last: EpochManifest
) -> list[EpochManifest]:
    """Return the kept epochs whose predecessor is not kept. They reference all older files that are
    needed.

    Parameters:
        kept: the numbers of the kept epochs, in order.
        last: the last one.
    """
    history = next(number for number in kept if not last.has_abandoned(number))
    manifests = [repository.manifest(history)]
    for number in kept:
        if number != history and last.has_abandoned(number):
            manifest = repository.manifest(number)
            if manifest.previous is None or manifest.previous < kept[0]:
                manifests.append(manifest)
    return manifests


class KeptFiles:
    """The files of the kept epochs. References are followed only where a collected epoch may share
    files.

    If a collected epoch references only files that kept manifests reference directly, no base and
    no history is read. Otherwise those of the same key groups are read. Shards that may have slices
    are followed too, whatever their key groups: they reference files of the whole shards that they
    were cut out of, over any number of changes. A shard with a base references no other shards.
    """

    def __init__(self, repository: Repository, manifests: Collection[EpochManifest]) -> None:
        self._manifests = manifests
        self._repository = repository
        self._paths = {ref.path for m in manifests for s in _shards(m) for ref in direct_refs(s)}
        self._paths.update(ref.path for m in manifests for ref in repository.pages(m.epoch))
        self._kept = Following(repository)
        self._gone = Following(repository, set(self._paths), gaps=True)
        self._looked_up: set[tuple[str, tuple[int, int]]] = set()
        self._cut: set[str] = set()
        """Operators whose shards with possible slices were looked up."""

    def not_among(self, manifest: EpochManifest) -> Iterator[FileRef]:
        """Yield the files of a collected epoch that no kept epoch references. A file may be yielded
        more than once.
        """
        for ref in self._repository.pages(manifest.epoch):
            if ref.path not in self._paths:
                yield ref
        for name, operator in manifest.operators.items():
            for shard in operator.shards:
                if any(ref.path not in self._paths for ref in direct_refs(shard)):
                    self._look_up(name, shard.groups)
                    for file in self._gone.of_shard(shard):
                        if file.ref.path not in self._paths:
                            yield file.ref

    def _look_up(self, operator: str, groups: tuple[int, int]) -> None:
        """Follow the references of kept epochs in these key groups, and the references that may
        lead to other key groups.
        """
        if (operator, groups) in self._looked_up:
            return
        self._looked_up.add((operator, groups))
        for manifest in self._manifests:
            shards = list(manifest.shards_over(operator, *groups))
            if operator not in self._cut and operator in manifest.operators:
                shards += filter(_may_have_slices, manifest.operators[operator].shards)
            for shard in shards:
                self._paths.update(file.ref.path for file in self._kept.of_shard(shard))
        self._cut.add(operator)


def _shards(manifest: EpochManifest) -> Iterator[ShardState]:
    return (shard for operator in manifest.operators.values() for shard in operator.shards)


def _may_have_slices(shard: ShardState) -> bool:
    """Return whether a shard may reference files of a shard that it was cut out of, directly or
    through a history.
    """
    return shard.base is None and bool(shard.slices or shard.history)
