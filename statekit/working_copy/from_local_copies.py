"""Assemble a working copy from those of other shards, after a change of parallelism.

The tables of a database never change, so the new copy links them: the cost is a hard link per file,
for any number of rows. A part without a source on this host is restored from the checkpoint. The
sources do not change.
"""

from __future__ import annotations

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
from statekit.working_copy.directory import Mark, Ranges, database_paths, read_mark, reading
from statekit.working_copy.lock import unusable
from statekit.working_copy.restore import restored
from statekit.working_copy.uploaded_tables import tables_in


@dataclass(frozen=True)
class _Linked:
    """A linked database of another copy.

    Parameters:
        piece: the part that is used.
        later: the change files to apply to it.
    """

    piece: Piece
    later: Sequence[FileRef]


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
    def costs_nothing(self) -> bool:
        """Whether other copies are exactly at the state that the shard was cut out of."""
        base = self.plan.base
        marks = [read_mark(self._source(piece), self.states) for piece in base.slices]
        return bool(marks) and all(
            mark is not None and mark.attempt == piece.attempt and piece.shard != base.groups
            for mark, piece in zip(marks, base.slices, strict=True)
        )

    @property
    def sources(self) -> list[Path]:
        """The directories of copies of other shards."""
        return [self._source(piece) for piece in self.plan.base.slices]

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
        gaps = list(_between(plan.base.groups, [each.piece.groups for each in linked]))
        missing = []
        if gaps:
            found = shard_restore_plan(repository, plan.operator, plan.base, plan.base_epoch)
            missing = [found.within(*gap) for gap in gaps]
        try:
            ranges, backend = restored(
                repository,
                self.home,
                plan.base.groups,
                missing,
                self.states,
                self.options,
                local=[each.piece for each in linked],
                beside=self.copies if from_copies else None,
            )
        except OSError as error:
            raise unusable(self.home, error) from error
        try:
            for each in linked:
                repository.replay(backend, each.later, *each.piece.groups)
        except BaseException:
            backend.close()
            raise
        return ranges, backend

    # --------------------------------------------------------------------------------- sources

    def _linked(self) -> Iterator[_Linked]:
        for number, piece in enumerate(self.plan.base.slices):
            try:
                yield from self._taken(piece, self.home / "pieces" / f"linked-{number}")
            except OSError:  # such as a source that is deleted meanwhile
                continue

    def _source(self, piece: Slice) -> Path:
        """Return the directory for a copy of the shard that a slice was cut out of."""
        return self.copies / "{}-{}".format(*piece.shard)

    def _taken(self, wanted: Slice, drafts: Path) -> list[_Linked]:
        """Link the databases of the shard that the slice was cut out of."""
        groups = (wanted.first_group, wanted.last_group)
        source = self._source(wanted)
        with reading(source, self.states) as mark:
            later = None if mark is None else self._later(wanted, mark)
            if mark is None or later is None:
                return []
            found: list[_Linked] = []
            held = mark.fragments if len(mark.fragments) > 1 else (wanted.shard,)
            sequences = mark.sequences or [None] * len(held)
            for (first, last), path, sequence in zip(
                held, database_paths(source, mark.fragments), sequences, strict=True
            ):
                own = max(first, groups[0]), min(last, groups[1])
                if own[0] <= own[1]:
                    draft = drafts / str(len(found))
                    link_database(path, draft)
                    share = (own[1] - own[0] + 1) / (last - first + 1)
                    piece = Piece(
                        own,
                        draft,
                        self.states,
                        size=int(sum(tables_in(draft).values()) * share),
                        is_exact=own == (first, last),
                        sequence=sequence,
                    )
                    found.append(_Linked(piece, later))
        return found

    def _later(self, wanted: Slice, mark: Mark) -> Sequence[FileRef] | None:
        """Return the change files from a copy's state to the slice; None if they do not lead
        there.
        """
        if mark.attempt is None or mark.attempt == wanted.attempt:
            return None if mark.attempt is None else ()
        first, last = wanted.shard
        base = self.plan.base
        stood = ShardState(
            first_group=first,
            last_group=last,
            changed=base.changed,
            **{name: getattr(wanted, name) for name in ("attempt", *Contents.model_fields)},
        )
        return missed_files(self.repository, self.plan.operator, stood, base.changed, mark.last)


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
