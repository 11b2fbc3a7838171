"""The files with the rows of a shard: a base snapshot or slices, and change files.

    shard  =  base          RocksDB's own files after some attempt; or
              slices        key groups of shards of another layout; or nothing
            + history       a file that lists older change files
            + files         the change files since

So the entry of a shard references all its files, and no reader needs older manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from statekit.checkpoint.sealed_json import COUNT_MAX, Count, FileRef, Group, Record, Sealed
from statekit.names import DatabaseFile, StoredName


class Contents(Record):
    """The files with the rows of a shard.

    Parameters:
        base: the file of the `BaseSnapshot` to start from.
        history: the file of the `History` between the base and `files`.
        files: change files in order.
        is_complete: whether these are all files: always true after the first change.
    """

    base: FileRef | None = None
    history: FileRef | None = None
    files: tuple[FileRef, ...] = ()
    is_complete: bool = False


class ReplayCost(Record):
    """The cost of applying the change files of a shard.

    Parameters:
        files, rows, bytes: number of change files, mutations in them, and their size.
        since_base: bytes written since the last base snapshot or change of parallelism: the budget
            for the next base.
        changed: bytes of all keys and values that ever changed. A change file counts with its own
            size if that is larger.
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

    @classmethod
    def of(cls, **counts: int) -> ReplayCost:
        """Return a cost. Counts too large for a manifest become its maximum: shards that were cut
        out of one shard count its files once each, so each time that they are joined the estimate
        doubles.
        """
        return cls(**{name: min(count, COUNT_MAX) for name, count in counts.items()})

    def followed_by(self, file: FileRef, changed: int) -> ReplayCost:
        """Return the cost with one more change file.

        Parameters:
            changed: bytes of the keys and values in it.
        """
        return ReplayCost.of(
            files=self.files + 1,
            rows=self.rows + file.rows,
            bytes=self.bytes + file.size,
            since_base=self.since_base + file.size,
            changed=self.changed + max(changed, file.size),
            uploaded=self.uploaded + file.size,
        )

    def based(self, files: Iterable[FileRef], uploaded: int) -> ReplayCost:
        """Return the cost after a new base with an upload of so many bytes.

        Parameters:
            files: change files that are not in the base.
        """
        later = ReplayCost()
        for file in files:
            later = later.followed_by(file, 0)
        return later.model_copy(
            update={"changed": self.changed, "uploaded": self.uploaded + uploaded}
        )


class Slice(Contents):
    """Key groups that were cut out of a shard of another layout.

    Parameters:
        first_group, last_group: the key groups that were cut out, both inclusive.
        shard: first and last key group of the other shard.
        attempt: the attempt that the other shard was at.
    """

    first_group: Group
    last_group: Group
    shard: tuple[Group, Group]
    attempt: str


class History(Sealed):
    """Change files of a shard in a separate file, which keeps its manifest entry short.

    Parameters:
        operator: its operator.
        shard: its first and last key group.
        slices: the slices of the shard, if a change of parallelism made it; it then has no base.
        before: the file of the previous `History`; this one then has no slices.
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
    """All rows of a shard after an epoch, described in a separate file.

    Parameters:
        operator: its operator.
        shard: its first and last key group.
        attempt: the attempt that the shard was at.
        epoch: the epoch that committed this attempt.
        states: the column families.
        databases: one, or one for each fragment of the shard, in the order of key groups.
        local: a change file with the operator state of the shard; None without such state.
        follows: the last change file that it contains.
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
