"""Assemble a working copy from those of other shards, after a change of parallelism.

The tables of a database never change, so the new copy links them: the cost is a hard link per file,
for any number of rows. A part without a source on this host is restored from the checkpoint. The
sources do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekit.backend.rocksdb import link_database
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import missed_files, shard_restore_plan
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import Contents, Slice
from statekit.working_copy.clipping import Database, Piece
from statekit.working_copy.directory import Mark, Ranges, database_paths, reading
from statekit.working_copy.lock import usable
from statekit.working_copy.restore import restored
from statekit.working_copy.uploaded_tables import table_bytes


@dataclass(frozen=True)
class Assembly:
    """The assembly of a shard's databases in a directory of its own.

    Parameters:
        home: that directory.
        copies: the directory with the copies of the operator's other shards.
        plan: the plan of the shard.
        states: as for any backend.
        options: limits of RocksDB.
        repository: the checkpoint.
    """

    home: Path
    copies: Path
    plan: ShardPlan
    states: tuple[str, ...]
    options: RocksOptions
    repository: Repository

    @property
    def sources(self) -> list[Path]:
        """The directories of copies of other shards."""
        return [self.copies / "{}-{}".format(*piece.shard) for piece in self.plan.base.slices]

    def made(self, *, from_copies: bool) -> tuple[Ranges, Database]:
        """Create the databases at the plan's base.

        Parameters:
            from_copies: whether to use copies of other shards, and share their tables.

        Raises:
            StorageError: the local disk is full or failed, or a copy of another shard is damaged.
            CorruptCheckpointError: a file of the checkpoint cannot be read.
        """
        plan, repository = self.plan, self.repository
        linked = list(self._linked()) if from_copies else []
        missing = []
        if gaps := list(_between(plan.base.groups, [piece.groups for piece in linked])):
            restore_plan = shard_restore_plan(repository, plan.operator, plan.base, plan.base_epoch)
            missing = [restore_plan.within(*gap) for gap in gaps]
        beside = self.copies if from_copies else None
        with usable(self.home):
            return restored(
                repository,
                self.home,
                plan.base.groups,
                missing,
                self.states,
                self.options,
                local=linked,
                beside=beside,
            )

    # --------------------------------------------------------------------------------- sources

    def _linked(self) -> Iterator[Piece]:
        for number, (wanted, source) in enumerate(
            zip(self.plan.base.slices, self.sources, strict=True)
        ):
            with contextlib.suppress(OSError):  # such as a source that is deleted meanwhile
                yield from self._pieces(wanted, source, self.home / "pieces" / f"linked-{number}")

    def _pieces(self, wanted: Slice, source: Path, drafts: Path) -> list[Piece]:
        """Link the databases of the shard that the slice was cut out of."""
        with reading(source, self.states) as mark:
            later = None if mark is None else self._later(wanted, mark)
            if mark is None or later is None:
                return []
            pieces: list[Piece] = []
            ranges = mark.fragments if len(mark.fragments) > 1 else (wanted.shard,)
            sequences = mark.sequences or [None] * len(ranges)
            for (first, last), path, sequence in zip(
                ranges, database_paths(source, mark.fragments), sequences, strict=True
            ):
                own = max(first, wanted.first_group), min(last, wanted.last_group)
                if own[0] <= own[1]:
                    draft = drafts / str(len(pieces))
                    link_database(path, draft)
                    share = (own[1] - own[0] + 1) / (last - first + 1)
                    size, is_exact = int(table_bytes(draft) * share), own == (first, last)
                    pieces.append(Piece(own, draft, self.states, size, is_exact, sequence, later))
        return pieces

    def _later(self, wanted: Slice, mark: Mark) -> Sequence[FileRef] | None:
        """Return the change files from a copy to the slice; None if they do not lead there."""
        if mark.attempt is None or mark.attempt == wanted.attempt:
            return None if mark.attempt is None else ()
        first, last = wanted.shard
        base = self.plan.base
        source = ShardState(
            first_group=first,
            last_group=last,
            changed=base.changed,
            **{name: getattr(wanted, name) for name in ("attempt", *Contents.model_fields)},
        )
        return missed_files(self.repository, self.plan.operator, source, base.changed, mark.last)


def _between(
    groups: tuple[int, int], taken: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the key groups that are not taken, as ranges."""
    start = groups[0]
    for first, last in taken:
        if start < first:
            yield start, first - 1
        start = last + 1
    if start <= groups[1]:
        yield start, groups[1]
