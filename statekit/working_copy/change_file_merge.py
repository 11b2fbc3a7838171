"""Merge many small change files into one.

Each file costs a restore a trip to the store, however little is in it. Small files of similar size
are merged, so many at a time, into one: a row is written once per size. What is merged at a time is
held in memory; it is little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

from sortedcontainers import SortedDict

from statekit.backend.change_file import Changes
from statekit.backend.mutation import DELETE, DELETE_RANGE, Batch
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import Count, FileRef, Record
from statekit.working_copy.staging import Going, StagedWork

MERGED_AT_A_TIME = 32

MERGE_BYTES_MIN = MERGED_AT_A_TIME * 1024
"""What the smallest merge uploads: a change file with a single mutation has more than 1 KiB."""

# Files of up to the first size have little more than their own overhead; 32 of those in one are of
# the second. To apply a larger one takes longer than to get it, so nothing is gained by merging it,
# and bases would be put off by what that uploads.
_SIZES = (2500, 8 * 1024)


def merged(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Mutations that do the same as others, and name each row once.

    Ranges that are removed come first, then what was last done to each row.

    >>> from statekit.backend.mutation import Delete, DeleteRange, Put
    >>> before = [Put("s", b"a", b"1"), Put("s", b"c", b"1"), DeleteRange("s", b"b", b"d")]
    >>> [both] = merged([Batch(before), Batch([Put("s", b"a", b"2"), Delete("s", b"x")])])
    >>> for mutation in both:
    ...     print(mutation)
    DeleteRange(state='s', start=b'b', end=b'd')
    Put(state='s', key=b'a', value=b'2')
    Delete(state='s', key=b'x')
    """
    ranges: dict[tuple[str, bytes, bytes], None] = {}
    rows: dict[str, SortedDict[bytes, bytes | None]] = {}
    for batch in batches:
        for state, op, key, value in batch.rows():
            held = rows.setdefault(state, SortedDict())
            if op == DELETE_RANGE and value is not None:
                ranges[state, key, value] = None
                for row in list(held.irange(key, value, inclusive=(True, False))):
                    del held[row]
            else:
                held[key] = None if op == DELETE else value
    made = Batch()
    for state, start, end in ranges:
        made.delete_range(state, start, end)
    for state, held in rows.items():
        for key, value in held.items():
            if made.full:
                yield made
                made = Batch()
            if value is None:
                made.delete(state, key)
            else:
                made.put(state, key, value)
    if len(made):
        yield made


def worth_merging(files: Sequence[FileRef]) -> tuple[FileRef, ...]:
    """Files that follow each other, of similar size, as many as are merged at a time; or none.

    The oldest ones that there are: newer ones have more to come.
    """
    for size, found in groupby(files, key=_size_class):
        alike = tuple(islice(found, MERGED_AT_A_TIME))
        if size is not None and len(alike) == MERGED_AT_A_TIME:
            return alike
    return ()


def _size_class(file: FileRef) -> int | None:
    return next((size for size in _SIZES if file.size <= size), None)


class Merge(Record):
    """Change files to be merged.

    Parameters:
        operator: whose they are.
        states: all states that may occur.
        files: what is merged, in order; they follow each other.
        epoch: the one that they were read behind the beginning of.
        begun_us: when that was noted, by the wall clock.
    """

    operator: str
    states: tuple[str, ...]
    files: tuple[FileRef, ...]
    epoch: Count
    begun_us: int


class Merged(Record):
    """Change files that are in the checkpoint, and that nothing names yet.

    Parameters:
        merge: what they stand for.
        files: those of state of keys and those of state of shards, at most one of each.
    """

    merge: Merge
    files: tuple[FileRef, ...]

    @property
    def uploaded(self) -> Count:
        return sum(file.size for file in self.files)

    def within(self, files: Sequence[FileRef]) -> tuple[FileRef, ...] | None:
        """Files with these in the place of those they stand for; None if those are not there."""
        replaced = self.merge.files
        for start, file in enumerate(files):
            if file.path == replaced[0].path:
                end = start + len(replaced)
                if [f.path for f in files[start:end]] == [f.path for f in replaced]:
                    return (*files[:start], *self.files, *files[end:])
        return None


class StagedMerge(StagedWork):
    """The directory of a merge."""

    def seal(self, merge: Merge) -> None:
        """Say what is to be merged."""
        self.write("merge.json", merge)

    @property
    def staged(self) -> Merge | None:
        """What is to be merged; None if that was not said in full."""
        return self.read("merge.json", Merge)

    @property
    def finished(self) -> Merged | None:
        """What became of it; None while it is not done."""
        return self.read("merged.json", Merged)

    def upload(self, repository: Repository, going: Going) -> Merged | None:
        """Do it; None if somebody else does.

        Raises:
            CorruptCheckpointError: one of the files is missing or altered.
            StorageError: the store failed.
        """
        with self.locked() as mine:
            if not mine:
                return None
            merge, finished = self.staged, self.finished
            if merge is None or finished is not None:
                return finished
            files = []
            for local in (False, True):
                chosen = [file for file in merge.files if file.local == local]
                if (made := _merged_file(repository, merge, chosen, going)) is not None:
                    files.append(made.model_copy(update={"local": local}))
            finished = Merged(merge=merge, files=tuple(files))
            self.write("merged.json", finished)
            return finished


def _merged_file(
    repository: Repository, merge: Merge, files: Sequence[FileRef], going: Going
) -> FileRef | None:
    """One file for several; None if there are none, or nothing is left of them."""

    def batches() -> Iterator[Batch]:
        for ref in files:
            going()
            yield from repository.batches(ref)

    changes = Changes(merge.states)
    try:
        for batch in merged(batches()):
            changes.append(batch)
        made = changes.finish()
        if made is None:
            return None
        file, rows = made
        going()
        return repository.put_changes(merge.operator, file, rows)
    finally:
        changes.drop()
