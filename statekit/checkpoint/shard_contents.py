"""What the rows of a shard consist of: a base snapshot or parts of other shards, and change files.

    shard  =  base          RocksDB's own files as they were at some attempt; or
              slices        key groups of shards of another layout; or nothing
            + history       a file that lists older change files
            + files         the change files since

So a shard says of itself all that leads to its rows, and nobody reads older manifests for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from statekit.checkpoint.sealed_json import Count, FileRef, Group, Record, Sealed
from statekit.names import DatabaseFile, StoredName


class Contents(Record):
    """What rows are made of.

    Parameters:
        base: the file of the `BaseSnapshot` that they start from.
        history: the file of the `History` that comes between the base and `files`.
        files: change files in order, the last ones last.
        is_complete: whether that is all: always, once something has changed.
    """

    base: FileRef | None = None
    history: FileRef | None = None
    files: tuple[FileRef, ...] = ()
    is_complete: bool = False


class ReplayCost(Record):
    """The change files on top of a shard's base, in numbers.

    Parameters:
        files, rows, bytes: how many they are, mutations in them, and their size.
        since_base: the size of those that were written since the last base snapshot or the last
            change of parallelism: they pay for the next base.
        changed: bytes of keys and values that were ever changed. A change file counts with its own
            size where that is larger.
        uploaded: bytes that were ever uploaded: change files and bases.
        forgone: read from checkpoints of earlier versions, and ignored.
    """

    files: Count = 0
    rows: Count = 0
    bytes: Count = 0
    since_base: Count = 0
    changed: Count = 0
    uploaded: Count = 0
    forgone: Count = Field(default=0, exclude=True, repr=False)

    def followed_by(self, file: FileRef, changed: int) -> ReplayCost:
        """Return the chain with one more change file.

        Parameters:
            changed: bytes of the keys and values in it.
        """
        return ReplayCost(
            files=self.files + 1,
            rows=self.rows + file.rows,
            bytes=self.bytes + file.size,
            since_base=self.since_base + file.size,
            changed=self.changed + max(changed, file.size),
            uploaded=self.uploaded + file.size,
        )

    def based(self, files: Iterable[FileRef], uploaded: int) -> ReplayCost:
        """Return the chain on top of a new base, whose upload took so many bytes.

        Parameters:
            files: those that are not in the base.
        """
        later = list(files)
        size = sum(file.size for file in later)
        return ReplayCost(
            files=len(later),
            rows=sum(file.rows for file in later),
            bytes=size,
            since_base=size,
            changed=self.changed,
            uploaded=self.uploaded + uploaded,
        )


class Slice(Contents):
    """Key groups of a shard that were cut out of a shard of another layout.

    Parameters:
        first_group, last_group: the key groups that were cut out, both inclusive.
        shard: those of the shard that they were cut out of, first and last.
        attempt: where that shard stood.
    """

    first_group: Group
    last_group: Group
    shard: tuple[Group, Group]
    attempt: str


class History(Sealed):
    """Change files of a shard that would make its manifests long. A file of its own.

    Parameters:
        operator: whose shard it is.
        shard: its first and last key group.
        slices: what the shard was made of, if it came from a change of parallelism; it then has no
            base.
        before: the file of the `History` that comes before this one, which then has no slices.
        files: change files in order.
    """

    title: ClassVar[str] = "the history of a shard"

    operator: StoredName
    shard: tuple[Group, Group]
    slices: tuple[Slice, ...] = ()
    before: FileRef | None = None
    files: tuple[FileRef, ...] = ()


class BaseDatabase(Record):
    """The files of a RocksDB database.

    Parameters:
        first_group, last_group: the key groups that it has rows of.
        files: by their name in the database's directory. Several bases may share a file.
    """

    first_group: Group
    last_group: Group
    files: Annotated[dict[DatabaseFile, FileRef], Field(min_length=1)]


class BaseSnapshot(Sealed):
    """All rows of a shard as they were after an epoch. A file of its own.

    Parameters:
        operator: whose shard it is.
        shard: its first and last key group.
        attempt: where the shard stood.
        epoch: the epoch that committed this attempt.
        states: the column families.
        databases: one, or one for each fragment that the shard had, in the order of key groups.
        local: a change file with what is in there of state of the shard, and nothing of keys; None
            if there is no such state.
        follows: the last change file that is in it.
    """

    title: ClassVar[str] = "a base snapshot"

    operator: StoredName
    shard: tuple[Group, Group]
    attempt: str
    epoch: Count
    states: tuple[StoredName, ...]
    databases: Annotated[tuple[BaseDatabase, ...], Field(min_length=1)]
    local: FileRef | None = None
    follows: str
