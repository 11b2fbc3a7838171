"""A working copy made of those of other shards, after a change of parallelism.

What lives here: finding copies of the shards that a new shard was cut out of, and putting it
together from them. What does not: whether that is needed, and trust in the result (`working_copy`).

The tables of a database never change, so a copy shares them with the one it was made from: what it
costs is a name per file, however many rows are in it. Rows of other key groups are removed by one
range at each end. Each source becomes a fragment, a database of its own; a part that has no source
on this machine is replayed from the checkpoint. Sources stay as they are.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from statekit.backend import Backend
from statekit.contents import Contents, Slice
from statekit.copy_home import WHOLE, Mark, Ranges, database_paths, read_mark, reading
from statekit.errors import StorageError
from statekit.fragments import FragmentedBackend
from statekit.keygroup import MAX_GROUPS
from statekit.lineage import Lineage, lineage_of, missed_files, replay
from statekit.manifest import ShardPlan, ShardState
from statekit.mutation import Batch, DeleteRange
from statekit.repository import Repository, group_bounds
from statekit.rocks import RocksBackend, RocksOptions, link_database
from statekit.sealed import FileRef

__all__ = ["Assembly", "Database", "opened"]

Database = RocksBackend | FragmentedBackend

# Each one is opened and closed in every epoch; more than these are merged into one.
FRAGMENTS_MAX = 8


def opened(home: Path, fragments: Ranges, states: Sequence[str], options: RocksOptions) -> Database:
    """The database of a copy, or its fragments as one.

    Raises:
        StorageError: one of them is missing, damaged or in use.
    """
    paths = database_paths(home, fragments)
    with contextlib.ExitStack() as failing:
        made = []
        for (first, _), path in zip(fragments, paths, strict=True):
            made.append((first, RocksBackend(path, states, options, create=False)))
            failing.callback(made[-1][1].close)
        failing.pop_all()
    return made[0][1] if len(made) == 1 else FragmentedBackend(made)


@dataclass
class _Piece:
    """A part of the new shard that comes from one place.

    Parameters:
        groups: the key groups that it has rows of.
        source: a database that holds them, linked already; None to replay them.
        is_exact: whether the source holds nothing else.
        sequence: how many writes the source has seen; None if nobody noted it.
        later: what to apply to the source.
    """

    groups: tuple[int, int]
    source: Path | None = None
    is_exact: bool = False
    sequence: int | None = None
    later: Sequence[FileRef] = ()


@dataclass(frozen=True)
class Assembly:
    """Puts a shard's databases together in a directory that is its own.

    Parameters:
        home: that directory.
        copies: where the other shards of the operator have theirs.
        plan: of the shard.
        states: as for any backend.
        options: what RocksDB may spend.
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
        """Whether other copies stand just where the shard was cut out of them."""
        base = self.plan.base
        marks = [read_mark(self._source(piece), self.states) for piece in base.slices]
        return bool(marks) and all(
            mark is not None and mark.attempt == piece.attempt and piece.shard != base.groups
            for mark, piece in zip(marks, base.slices, strict=True)
        )

    @property
    def sources(self) -> list[Path]:
        """Where copies of the other shards are, if there are any."""
        return [self._source(piece) for piece in self.plan.base.slices]

    def made(self) -> tuple[Ranges, Database] | None:
        """The databases, which stand at the plan's base; None if there is no copy to begin with.

        Raises:
            StorageError: the local disk is full or failed.
            CorruptCheckpointError: a file of the checkpoint cannot be read.
        """
        pieces = list(_joined(self._pieces()))
        if all(piece.source is None for piece in pieces):
            return None
        starts = [self.plan.base.first_group, *(piece.groups[0] for piece in pieces[1:])]
        ends = [*(start - 1 for start in starts[1:]), self.plan.base.last_group]
        ranges = tuple(zip(starts, ends, strict=True))
        try:
            if len(pieces) <= FRAGMENTS_MAX:
                return ranges, self._opened(ranges, pieces, self.home)
            return WHOLE, self._merged(self._opened(ranges, pieces, self.home / "pieces"))
        finally:
            shutil.rmtree(self.home / "pieces", ignore_errors=True)

    @cached_property
    def _lineage(self) -> Lineage:
        plan = self.plan
        return lineage_of(self.repository, plan.operator, plan.base, plan.base_epoch)

    # --------------------------------------------------------------------------------- sources

    def _pieces(self) -> Iterator[_Piece]:
        for number, piece in enumerate(self.plan.base.slices):
            try:
                yield from self._linked(piece, self.home / "pieces" / f"linked-{number}")
            except OSError:  # such as a source that somebody deletes
                yield _Piece((piece.first_group, piece.last_group))

    def _source(self, piece: Slice) -> Path:
        """Where a copy of the shard is that a slice was cut out of, if there is one."""
        return self.copies / "{}-{}".format(*piece.shard)

    def _linked(self, wanted: Slice, drafts: Path) -> list[_Piece]:
        """What a copy of the shard that it was cut out of has, linked; else to be replayed."""
        groups = (wanted.first_group, wanted.last_group)
        source = self._source(wanted)
        with reading(source, self.states) as mark:
            later = None if mark is None else self._later(wanted, mark)
            if mark is None or later is None:
                return [_Piece(groups)]
            found: list[_Piece] = []
            held = mark.fragments if len(mark.fragments) > 1 else (wanted.shard,)
            sequences = mark.sequences or [None] * len(held)
            for (first, last), path, sequence in zip(
                held, database_paths(source, mark.fragments), sequences, strict=True
            ):
                own = max(first, groups[0]), min(last, groups[1])
                if own[0] <= own[1]:
                    draft = drafts / str(len(found))
                    link_database(path, draft)
                    is_exact = own == (first, last)
                    found.append(_Piece(own, draft, is_exact, sequence, later))
        return found

    def _later(self, wanted: Slice, mark: Mark) -> Sequence[FileRef] | None:
        """What leads from where a copy stands to where it was cut; None if nothing does."""
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

    # ------------------------------------------------------------------------------- databases

    def _opened(self, ranges: Ranges, pieces: Sequence[_Piece], home: Path) -> Database:
        made: list[tuple[int, RocksBackend]] = []
        with contextlib.ExitStack() as failing:
            for groups, piece, path in zip(
                ranges, pieces, database_paths(home, ranges), strict=True
            ):
                backend = self._restored(piece, path)
                made.append((groups[0], backend))
                failing.callback(backend.close)
            failing.pop_all()
        return made[0][1] if len(made) == 1 else FragmentedBackend(made)

    def _restored(self, piece: _Piece, path: Path) -> RocksBackend:
        """The database of one piece, at the plan's base."""
        first, last = piece.groups
        backend = self._taken(piece, path)
        if backend is not None:
            found = Lineage(first, last, files=tuple(piece.later))
        else:
            found = self._lineage.within(first, last)
            backend = RocksBackend(path, self.states, self.options)
        try:
            replay(self.repository, backend, found)
        except BaseException:
            backend.close()
            raise
        return backend

    def _taken(self, piece: _Piece, path: Path) -> RocksBackend | None:
        """The database that was linked, without what is not of the piece; None if it is damaged."""
        if piece.source is None:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        piece.source.rename(path)
        try:
            backend = RocksBackend(path, self.states, self.options, create=False)
        except StorageError:
            shutil.rmtree(path)
            return None
        if piece.sequence is not None and (piece.sequence,) != backend.sequences:
            backend.close()
            shutil.rmtree(path)
            return None
        if not piece.is_exact:
            _trim(backend, *piece.groups)
        return backend

    def _merged(self, fragments: Database) -> RocksBackend:
        """The same rows in one database."""
        with contextlib.closing(fragments):
            backend = RocksBackend(self.home / "db", self.states, self.options)
            try:
                for state in self.states:
                    backend.load(state, fragments.scan(state, *group_bounds(0, MAX_GROUPS)))
            except BaseException:
                backend.close()
                raise
        return backend


def _joined(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """The pieces with those to be replayed in one go where they follow each other."""
    waiting: _Piece | None = None
    for piece in pieces:
        if waiting is not None and waiting.source is None and piece.source is None:
            waiting = _Piece((waiting.groups[0], piece.groups[1]))
            continue
        if waiting is not None:
            yield waiting
        waiting = piece
    if waiting is not None:
        yield waiting


def _trim(backend: Backend, first: int, last: int) -> None:
    """Remove the rows of all other key groups."""
    everything, own = group_bounds(0, MAX_GROUPS), group_bounds(first, last)
    ends = ((everything[0], own[0]), (own[1], everything[1]))
    backend.write(Batch([DeleteRange(s, *bounds) for s in backend.states for bounds in ends]))
