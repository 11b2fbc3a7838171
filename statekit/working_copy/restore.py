"""Restore: create the databases of a working copy, from the checkpoint and from copies of other
shards.

After a change of parallelism a shard consists of slices of others. The tables of a database never
change, so the new copy links the tables of copies on this host: the cost is a hard link per file,
for any number of rows. The sources do not change. The other slices may each have a base, over any
number of changes. These bases are fetched at the same time, each one once. All databases are
clipped to the key groups of the shard. Only small ones are copied row by row.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from statekit.backend.rocksdb import link_database
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import (
    RestorePlan,
    apply_plan,
    missed_files,
    shard_restore_plan,
)
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseDatabase, Slice
from statekit.working_copy.base_snapshot import WantedDatabase, fetch_databases
from statekit.working_copy.clipping import Database, Piece, assembled, clipped
from statekit.working_copy.directory import Mark, Ranges, database_paths, read_mark
from statekit.working_copy.lock import DirectoryLock, usable
from statekit.working_copy.uploaded_tables import table_bytes


@dataclass(frozen=True)
class Assembly:
    """The assembly of a shard's databases in a separate directory.

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

    def made(self, *, from_copies: bool) -> tuple[Ranges, Database, int]:
        """Create the databases at the plan's base.

        Returns:
            The fragments, the open databases, and the bytes of the files that were fetched.

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
            fragments, database = restored(
                repository,
                self.home,
                plan.base.groups,
                missing,
                self.states,
                self.options,
                local=linked,
                beside=beside,
            )
        return fragments, database, sum(plan.bytes for plan in missing)

    # --------------------------------------------------------------------------------- sources

    def _linked(self) -> Iterator[Piece]:
        for number, (wanted, source) in enumerate(
            zip(self.plan.base.slices, self.sources, strict=True)
        ):
            with contextlib.suppress(OSError):  # such as a source that is deleted meanwhile
                yield from self._pieces(wanted, source, self.home / "pieces" / f"linked-{number}")

    def _pieces(self, wanted: Slice, source: Path, drafts: Path) -> list[Piece]:
        """Link the databases of the shard from which the slice was cut out."""
        with DirectoryLock.held(source, shared=True) as lock:
            mark = None if lock is None else read_mark(source, self.states)
            later = None if mark is None else self._later(wanted, mark)
            if mark is None or later is None:
                return []
            ranges = mark.fragments if len(mark.fragments) > 1 else (wanted.shard,)
            sequences = mark.sequences or [None] * len(ranges)
            pieces: list[Piece] = []
            for owned, path, sequence in zip(
                ranges, database_paths(source, mark.fragments), sequences, strict=True
            ):
                groups = max(owned[0], wanted.first_group), min(owned[1], wanted.last_group)
                if groups[0] <= groups[1]:
                    draft = drafts / str(len(pieces))
                    link_database(path, draft)
                    piece = clipped(groups, owned, draft, self.states, table_bytes(draft))
                    pieces.append(replace(piece, sequence=sequence, later=later))
        return pieces

    def _later(self, wanted: Slice, mark: Mark) -> Sequence[FileRef] | None:
        """Return the change files between a copy and the slice; None if the copy is not on the
        slice's history.
        """
        if mark.attempt is None:
            return None
        if mark.attempt == wanted.attempt:
            return ()
        epoch = self.plan.base.changed
        return missed_files(self.repository, self.plan.operator, wanted, epoch, mark.last)


def _between(
    groups: tuple[int, int], taken: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of key groups that are not taken."""
    start = groups[0]
    for first, last in taken:
        if start < first:
            yield start, first - 1
        start = last + 1
    if start <= groups[1]:
        yield start, groups[1]


# ------------------------------------------------------------------------- from the checkpoint


def restored(
    repository: Repository,
    home: Path,
    groups: tuple[int, int],
    missing: Sequence[RestorePlan],
    states: Sequence[str],
    options: RocksOptions | None = None,
    *,
    local: Sequence[Piece] = (),
    beside: Path | None = None,
) -> tuple[Ranges, Database]:
    """Create the databases of a copy.

    Parameters:
        home: the directory of the copy, which has no databases yet.
        groups: first and last key group.
        missing: the restore plans of the key groups to restore.
        states: the column families to create.
        options: limits of RocksDB.
        local: pieces for all other key groups.
        beside: a directory with other databases of this host, whose tables may be shared.

    Raises:
        CorruptCheckpointError: a file is missing or altered.
        OSError, StorageError: the store or the local disk failed. The new files are unusable.
    """
    options, drafts = options or RocksOptions(), home / "pieces"
    with contextlib.ExitStack() as closing:
        closing.callback(shutil.rmtree, drafts, ignore_errors=True)
        fetched = _fetched(repository, missing, drafts, beside)
        pieces = sorted([*local, *fetched], key=lambda piece: piece.groups)
        ranges, backend = assembled(home, groups, pieces, states, options)
        # The databases stay open, unless one of the next steps fails.
        failing = closing.enter_context(contextlib.ExitStack())
        failing.callback(backend.close)
        # The rows of the bases are in the databases now, only the change files are left.
        for plan in missing:
            apply_plan(repository, backend, plan.without_bases())
        # A copy of another shard may be older than the slice.
        for piece in local:
            repository.replay(backend, piece.later, *piece.groups)
        failing.pop_all()
    return ranges, backend


class _Cut(NamedTuple):
    """Key groups that are cut out of a database of the base with the file `named`."""

    groups: tuple[int, int]
    named: str
    states: tuple[str, ...]
    database: BaseDatabase


def _cuts(missing: Iterable[RestorePlan]) -> list[_Cut]:
    """Return the parts of databases to use, sorted by key groups.

    Adjacent parts of one database are joined.
    """
    cuts: list[_Cut] = []
    for part in (part for plan in missing for part in plan.beginnings):
        if part.base is None or part.named is None:
            continue
        for database in part.base.databases:
            first = max(part.first, database.first_group)
            last = min(part.last, database.last_group)
            if first > last:
                continue
            cut = _Cut((first, last), part.named, part.base.states, database)
            if cuts and cuts[-1] == cut._replace(groups=(cuts[-1].groups[0], first - 1)):
                cut = cut._replace(groups=(cuts.pop().groups[0], last))
            cuts.append(cut)
    return cuts


def _fetched(
    repository: Repository, missing: Iterable[RestorePlan], drafts: Path, beside: Path | None
) -> list[Piece]:
    """Fetch the databases of the bases, each once, and return the pieces."""
    places: dict[tuple[str, int], Path] = {}
    wanted, again, pieces = list[WantedDatabase](), list[tuple[Path, Path]](), list[Piece]()
    for number, (groups, named, states, database) in enumerate(_cuts(missing)):
        place, owned = drafts / f"base-{number}", (database.first_group, database.last_group)
        size = sum(ref.size for ref in database.files.values())
        pieces.append(clipped(groups, owned, place, states, size))
        source = places.setdefault((named, database.first_group), place)
        if source == place:
            wanted.append(WantedDatabase(database, named, place))
        else:
            again.append((source, place))
    if wanted:
        fetch_databases(repository, wanted, beside)
    for source, target in again:
        link_database(source, target)
    return pieces
