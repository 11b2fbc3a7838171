"""Clipping: assemble a shard's databases from databases of other shards, limited to its key groups.

A large piece stays a database, however many rows it has: one range at each end deletes the rows of
other key groups. But every epoch opens and closes each database. So small pieces, and those above a
maximum number, are copied row by row into a larger neighbour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch, in_batches
from statekit.backend.range_partitioned import FragmentedBackend
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import StorageError
from statekit.keygroup import MAX_GROUPS
from statekit.working_copy.directory import WHOLE, Ranges, database_paths

Database = RocksBackend | FragmentedBackend

# Each one is opened and closed in every epoch, 10 to 15 ms.
FRAGMENTS_MAX = 8

# To copy so much takes as long as to open a database three times.
COPIED_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A database with rows of the shard.

    Parameters:
        groups: first and last key group that the shard takes from it.
        source: its directory, which is used up.
        states: its column families.
        size: approximate bytes of its tables in these key groups.
        is_exact: whether it has no rows of other key groups.
        sequence: RocksDB's sequence number; None if it was not recorded.
        later: change files to apply to it.
    """

    groups: tuple[int, int]
    source: Path
    states: tuple[str, ...]
    size: int
    is_exact: bool
    sequence: int | None = None
    later: Sequence[FileRef] = ()


def clipped(
    groups: tuple[int, int],
    owned: tuple[int, int],
    source: Path,
    states: tuple[str, ...],
    database_bytes: int,
) -> Piece:
    """Return the piece with some of a database's key groups. Its size is estimated, with equally
    large key groups.
    """
    size = database_bytes * (groups[1] - groups[0] + 1) // (owned[1] - owned[0] + 1)
    return Piece(groups, source, states, size, is_exact=groups == owned)


def opened(home: Path, fragments: Ranges, states: Sequence[str], options: RocksOptions) -> Database:
    """Open the single database of a copy, or its fragments as one backend.

    Raises:
        StorageError: one of them is missing, damaged or in use.
    """
    paths = database_paths(home, fragments)
    with contextlib.ExitStack() as failing:
        databases = []
        for (first, _), path in zip(fragments, paths, strict=True):
            databases.append((first, RocksBackend(path, states, options, create=False)))
            failing.callback(databases[-1][1].close)
        failing.pop_all()
    return databases[0][1] if len(databases) == 1 else FragmentedBackend(databases)


def assembled(
    home: Path,
    groups: tuple[int, int],
    pieces: Sequence[Piece],
    states: Sequence[str],
    options: RocksOptions,
) -> tuple[Ranges, Database]:
    """Assemble the databases of a copy from the rows of all pieces.

    Parameters:
        home: the directory of the copy, which has no databases yet.
        groups: the key groups of the shard.
        pieces: in the order of their key groups. There are no rows between them.
        states: the column families to create.

    Raises:
        OSError, StorageError: a piece is damaged, or the local disk is full or failed.
    """
    kept = _kept(pieces)  # at least one, if there are any
    ranges = _ranges(groups, kept)
    paths = database_paths(home, ranges)
    databases: list[tuple[int, RocksBackend]] = []
    with contextlib.ExitStack() as failing:
        for piece, (first, _), path in zip(kept, ranges, paths, strict=bool(kept)):
            databases.append((first, _taken(piece, path, states, options)))
            failing.callback(databases[-1][1].close)
        if not databases:
            databases.append((groups[0], RocksBackend(paths[0], states, options)))
            failing.callback(databases[0][1].close)
        backend = databases[0][1] if len(databases) == 1 else FragmentedBackend(databases)
        for piece in pieces:
            if piece not in kept:
                _copy(piece, _owner(databases, piece), options)
        failing.pop_all()
    return ranges, backend


def _kept(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces to keep as databases, in order: all large ones, or else the largest one."""
    largest = sorted(pieces, key=lambda piece: piece.size, reverse=True)[:FRAGMENTS_MAX]
    chosen = [piece for piece in largest if piece.size >= COPIED_BYTES] or largest[:1]
    return [piece for piece in pieces if piece in chosen]


def _ranges(groups: tuple[int, int], kept: Sequence[Piece]) -> Ranges:
    """Return the key groups of each fragment. A fragment ends where the next one begins."""
    if len(kept) <= 1:
        return WHOLE
    starts = [groups[0], *(piece.groups[0] for piece in kept[1:])]
    ends = [*(start - 1 for start in starts[1:]), groups[1]]
    return tuple(zip(starts, ends, strict=True))


def _taken(piece: Piece, path: Path, states: Sequence[str], options: RocksOptions) -> RocksBackend:
    """Move the database of a piece to its final path, and delete the rows of all other key
    groups.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    piece.source.rename(path)
    backend = _checked(piece, path, options)
    try:
        if set(piece.states) != set(states):
            backend.change_states(states)
            backend.close()
            backend = RocksBackend(path, states, options, create=False)
        if not piece.is_exact:
            _trim(backend, *piece.groups)
    except BaseException:
        backend.close()
        raise
    return backend


def _checked(piece: Piece, path: Path, options: RocksOptions) -> RocksBackend:
    """Open the database of a piece, and check its sequence number against the recorded one."""
    backend = RocksBackend(path, piece.states, options, create=False)
    if piece.sequence is not None and (piece.sequence,) != backend.sequences:
        backend.close()
        raise StorageError(
            f"the database for the working copy at {path} does not match its mark: remove the "
            "working directory, then start the job again; nothing is lost"
        )
    return backend


def _trim(backend: Backend, first: int, last: int) -> None:
    everything, own = group_bounds(0, MAX_GROUPS), group_bounds(first, last)
    batch = Batch()
    for state in backend.states:
        batch.delete_range(state, everything[0], own[0])
        batch.delete_range(state, own[1], everything[1])
    backend.write(batch)


def _owner(databases: Sequence[tuple[int, RocksBackend]], piece: Piece) -> RocksBackend:
    """Return the fragment that takes the key groups of a piece. The first fragment also takes all
    key groups before the second.
    """
    before = (backend for first, backend in reversed(databases) if first <= piece.groups[0])
    return next(before, databases[0][1])


def _copy(piece: Piece, target: RocksBackend, options: RocksOptions) -> None:
    """Copy the rows of a piece, for all states that still exist."""
    with contextlib.closing(_checked(piece, piece.source, options)) as source:
        for state in set(piece.states).intersection(target.states):
            rows = source.scan(state, *group_bounds(*piece.groups))
            if piece.size >= COPIED_BYTES:
                target.load(state, rows)
                continue
            for batch in in_batches((state, *row) for row in rows):
                target.write(batch)
