"""Restore the databases of some key groups from the checkpoint.

After a change of parallelism a shard consists of slices of others, each of which may have a base,
over any number of changes. All these bases are fetched at the same time, each one once, and clipped
to the key groups. Only small ones are copied row by row.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statekit.backend.rocksdb import link_database
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.replay import replay
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.restore_plan import RestorePlan
from statekit.checkpoint.shard_contents import BaseDatabase
from statekit.working_copy.base_snapshot import Wanted, fetch_databases, noted
from statekit.working_copy.clipping import Database, Piece, put_together
from statekit.working_copy.directory import Ranges


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
        ranges, backend = put_together(home, groups, pieces, states, options)
        failing = closing.enter_context(contextlib.ExitStack())
        failing.callback(backend.close)
        for plan in missing:
            replay(repository, backend, plan, has_bases=True)
        for piece in local:
            repository.replay(backend, piece.later, *piece.groups)
        failing.pop_all()
    return ranges, backend


@dataclass(frozen=True)
class _Cut:
    """Key groups that come from one database of a base."""

    groups: tuple[int, int]
    named: str
    states: tuple[str, ...]
    database: BaseDatabase

    def piece(self, place: Path) -> Piece:
        """Return the piece in a directory. Its size assumes equally large key groups."""
        (first, last), database = self.groups, self.database
        owned = (database.first_group, database.last_group)
        size = sum(ref.size for ref in database.files.values()) * (last - first + 1)
        size //= owned[1] - owned[0] + 1
        return Piece(self.groups, place, self.states, size, is_exact=self.groups == owned)


def _cuts(missing: Iterable[RestorePlan]) -> list[_Cut]:
    """Return the parts of databases to use, in the order of key groups.

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
            if cuts and cuts[-1] == replace(cut, groups=(cuts[-1].groups[0], first - 1)):
                cut = replace(cut, groups=(cuts.pop().groups[0], last))
            cuts.append(cut)
    return cuts


def _fetched(
    repository: Repository, missing: Iterable[RestorePlan], drafts: Path, beside: Path | None
) -> list[Piece]:
    """Fetch the databases of the bases, each one once, and return the pieces."""
    places: dict[tuple[str, int], Path] = {}
    wanted, again, pieces = list[Wanted](), list[tuple[Path, Path]](), list[Piece]()
    for number, cut in enumerate(_cuts(missing)):
        place, origin = drafts / f"base-{number}", (cut.named, cut.database.first_group)
        pieces.append(cut.piece(place))
        if origin in places:
            again.append((places[origin], place))
        else:
            places[origin] = place
            wanted.append(Wanted(cut.database, cut.named, place))
    if wanted:
        fetch_databases(repository, wanted, [] if beside is None else noted(beside))
    for source, target in again:
        link_database(source, target)
    return pieces
