"""Uploaded tables: the tables of a local database that are in the checkpoint already, with their
paths there.

RocksDB writes a table once and never changes it. So a stored table need not be stored again, and a
local one need not be fetched. But RocksDB may use a file number twice if a process dies in between.
So a table is identified by its inode, time and size, and not by its name alone. A hard link keeps
all three.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from statekit.checkpoint.sealed_json import Count, FileRef, Record

NOTE = "stored.json"
"""The name of the note in the directory of the database. RocksDB ignores it."""


class _StoredTable(Record):
    """A table, as of the time when it was stored or fetched."""

    inode: Count
    written_ns: int
    size: Count
    ref: FileRef

    @classmethod
    def at(cls, path: Path, ref: FileRef) -> Self:
        """Return the table in a local file."""
        status = path.stat()
        return cls(inode=status.st_ino, written_ns=status.st_mtime_ns, size=status.st_size, ref=ref)


class _Note(Record):
    """The stored tables of a database.

    Parameters:
        base: the path of the base that references the tables; None if there is none yet.
        tables: by their name in the directory.
    """

    base: str | None
    tables: dict[str, _StoredTable]


def tables_in(directory: Path) -> dict[str, int]:
    """Return the tables of a database with their sizes. RocksDB may be merging some of them."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".sst"):
                with contextlib.suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def table_bytes(directory: Path, without: Collection[str] = ()) -> int:
    """Return the total size of the tables of a database, except the given ones."""
    return sum(size for name, size in tables_in(directory).items() if name not in without)


def read_stored(directory: Path, base: str | None) -> dict[str, FileRef]:
    """Return the tables of a database that a base references; none if the note belongs to another
    base.
    """
    note = _read(directory)
    return {} if note is None or note.base != base else dict(_still_there(directory, note))


def note_stored(directory: Path, base: str | None, refs: Mapping[str, FileRef]) -> None:
    """Write the note."""
    tables = {}
    for name, ref in refs.items():
        with contextlib.suppress(FileNotFoundError):
            tables[name] = _StoredTable.at(directory / name, ref)
    draft = directory / f"{NOTE}.draft"
    draft.write_text(_Note(base=base, tables=tables).model_dump_json())
    draft.rename(directory / NOTE)


def pass_on_note(source: Path, noted: str | None, target: Path, base: str) -> None:
    """Copy the note of uploaded tables to a database that is linked to the same tables.

    Parameters:
        noted: the base that the note in `source` is about.
        base: the base for the note in `target`.
    """
    shared = {}
    for name, ref in read_stored(source, noted).items():
        with contextlib.suppress(FileNotFoundError):  # the database has merged it into others
            if (source / name).samefile(target / name):
                shared[name] = ref
    note_stored(target, base, shared)


def stored_below(home: Path) -> dict[str, Path]:
    """Return the local paths of tables below a directory, by their path in the checkpoint."""
    places: dict[str, Path] = {}
    for directory in (path.parent for path in list(home.rglob(NOTE))):
        if (note := _read(directory)) is not None:
            for name, ref in _still_there(directory, note):
                places[ref.path] = directory / name
    return places


def forget_stored_below(home: Path) -> None:
    """Remove the notes of all databases below a directory, because one of their tables is damaged.

    Other databases may link the same file. Tables without a note are fetched from the checkpoint
    and verified.
    """
    for note in list(home.rglob(NOTE)):
        note.unlink(missing_ok=True)


def _still_there(directory: Path, note: _Note) -> Iterator[tuple[str, FileRef]]:
    for name, table in note.tables.items():
        with contextlib.suppress(OSError):  # it was merged into others
            if _StoredTable.at(directory / name, table.ref) == table:
                yield name, table.ref


def _read(directory: Path) -> _Note | None:
    try:
        return _Note.model_validate_json((directory / NOTE).read_bytes())
    except (OSError, ValidationError):
        return None  # the note is missing or truncated: then nothing is known
