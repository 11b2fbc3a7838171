"""The position of a mirror: the last step that it took, as a file of the checkpoint.

The file is written before the tables of the step are. A mirror that starts compares the numbers in
the file with those in the tables: so it knows which tables have the step, and takes the same step
again for the others.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from statekit.checkpoint.paths import mirror_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Count, Record, Sealed
from statekit.errors import CorruptCheckpointError
from statekit.names import StoredName, StoredText
from statekit.query.changes.change_table import Form


class TableNumbers(Record):
    """The number of the last commit of a table, which the table has, too.

    Parameters:
        before: before the step; None for a table without a commit.
        after: after it. The same one if the step changed nothing in the table.
        is_whole: whether the step replaces all rows.
    """

    before: Count | None
    after: Count | None
    is_whole: bool


class MirrorPosition(Sealed):
    """The last step of a mirror, taken or about to be.

    Parameters:
        name: the mirror.
        mode: of its tables.
        number: of the step, which grows with each.
        start: the position before the step, as `EpochChanges.position`; None if all tables are
            written as a whole.
        end: the position after it.
        tables: by state, as "operator.state".
        places: of the tables, by state, for people; earlier versions did not write them.
    """

    title: ClassVar[str] = "the position of a mirror"

    name: StoredName
    mode: Form
    number: Count
    start: StoredText | None
    end: StoredText
    tables: dict[str, TableNumbers]
    places: dict[str, StoredText] = Field(default_factory=dict)


def stored_position(repository: Repository, name: str) -> MirrorPosition | None:
    """Return the position of a mirror; None if there is none, or if it is damaged: then the mirror
    writes its tables as a whole.

    Raises:
        RestoreError: it was written by a newer version of statekit.
    """
    path = mirror_path(name)
    data = repository.read_if_there(path)
    if data is None:
        return None
    try:
        found = MirrorPosition.from_bytes(data, repository.at(path))
    except CorruptCheckpointError:
        return None
    return found if found.name == name else None


def store_position(repository: Repository, position: MirrorPosition) -> None:
    """Write the position of a mirror."""
    repository.replace(mirror_path(position.name), position.to_bytes())
