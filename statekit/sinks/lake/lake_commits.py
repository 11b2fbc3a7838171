"""Commits of a sink to a lake table, in any format.

The log of a table keeps two numbers for each sink and checkpoint: the last epoch in the table, and
the last epoch whose rows were removed after a rollback. They change in the same commit as the rows.
A commit that removes rows has to follow the version of the table that it was made for. If another
writer has committed meanwhile, it fails, and the sink looks at the table again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from typing import Any

import pyarrow as pa

from statekit.errors import FencedError, RestoreError
from statekit.sinks.lake.lake_columns import WriteMode, Writing
from statekit.sinks.protocol.sink import Attempt, EpochRanges, Outputs, Receipt, SinkIdentity

SMALL_BYTES = 16 << 20
"""A file of fewer bytes is small."""

_COMPACTED_BYTES_MAX, _COMPACTED_FILES_MAX = 128 << 20, 1_000
"""The most small files that one commit rewrites, so that its time and its memory are bounded."""

_logger = logging.getLogger("statekit.sinks")


@dataclass(frozen=True)
class Note:
    """The note of a commit of a sink in the log.

    Parameters:
        id: unique, by which a commit that was not answered is found.
        epoch: whose rows it wrote; None if it wrote none.
        rows: their number.
        files: the number of files that it added.
    """

    id: str
    epoch: int | None = None
    rows: int = 0
    files: int = 0


@dataclass(frozen=True)
class Stamp:
    """The entries of a commit in the log, beside its rows.

    Parameters:
        note: about the commit.
        epoch: the last epoch in the table after it.
        abandoned: the last epoch whose rows are removed; None if that does not change.
    """

    note: Note
    epoch: int
    abandoned: int | None = None


class TableLog(ABC):
    """The log of a table at one version, as one sink reads and continues it.

    Versions and files have the types of the format of the table. All methods that commit fail with
    an error of the format if another writer has committed after this version.

    Attributes:
        place: what the table is and where, for messages.
        outputs: of the sink.
    """

    place: str
    outputs: Outputs

    @property
    @abstractmethod
    def epoch(self) -> int | None:
        """The last epoch that is in the table, or was removed from it."""

    @property
    @abstractmethod
    def abandoned(self) -> int | None:
        """The last epoch whose rows were removed."""

    @abstractmethod
    def notes(self) -> Iterator[tuple[Any, Note | None]]:
        """Yield the versions of the table, the latest first, with the note of this sink; None for
        commits of others.
        """

    @abstractmethod
    def check_features(self) -> None:
        """Check that the table needs nothing of a writer that the sink does not do.

        Raises:
            StateSchemaError: it does.
        """

    @abstractmethod
    def missing_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that outputs have and the table lacks, completely or in part.

        Raises:
            StateSchemaError: the outputs do not fit.
        """

    @property
    @abstractmethod
    def has_files(self) -> bool:
        """Whether the table has any data files."""

    @abstractmethod
    def rows(self, columns: Sequence[str], null: str | None) -> pa.Table:
        """Return rows of the table.

        Parameters:
            columns: their names.
            null: a column that is null in the rows; None for all rows.
        """

    @abstractmethod
    def compact(self, files: int) -> bool:
        """Commit one file with the rows of small ones, and return True; False if there are fewer
        small files. Rows of later versions stay as they are.

        Parameters:
            files: how many there have to be.
        """

    @abstractmethod
    def files(self, epochs: EpochRanges) -> list[Any]:
        """Return the files in the table that this sink has added for some epochs."""

    @abstractmethod
    def add(
        self,
        stamp: Stamp,
        receipts: Sequence[Receipt],
        removed: list[Any],
        *,
        overwrites: bool,
        columns: pa.Schema | None = None,
    ) -> None:
        """Commit files.

        Parameters:
            receipts: one per file.
            removed: files that they replace.
            overwrites: whether they replace all files.
            columns: those that the table has afterwards, if the files replace all others; None for
                those that it has.
        """

    @abstractmethod
    def merge(self, stamp: Stamp, rows: pa.Table, writing: Writing) -> None:
        """Commit rows in place of those with the same keys."""

    @abstractmethod
    def restore(self, stamp: Stamp, version: Any) -> bool:
        """Commit the rows before a version; return False if the table does not have them any
        more.
        """

    @abstractmethod
    def last_writer(self) -> SinkIdentity | None:
        """Return the sink that has committed the last epoch; None if the log has no such commit."""

    def last_note(self) -> Note | None:
        """Return the note about the last epoch; None if the log does not have it any more."""
        notes = (note for _, note in self.notes())
        return next((note for note in notes if note is not None and note.epoch is not None), None)

    def has(self, change: str) -> bool:
        """Return whether the table has the commit of a change."""
        return any(note is not None and note.id == change for _, note in self.notes())

    def check_owner(self, attempt: Attempt) -> bool:
        """Check that no other run has taken over, and return whether an earlier attempt has
        published this epoch.

        Raises:
            FencedError: another run has.
        """
        is_published = self.epoch == attempt.epoch
        if self.epoch is not None and self.epoch > attempt.epoch:
            what = f"has epoch {self.epoch} of this sink and checkpoint"
        elif self.abandoned is not None and self.abandoned >= attempt.epoch:
            what = "had this epoch removed after a rollback"
        elif is_published and not attempt.is_first:
            what = "has this epoch of another run"
        else:
            return is_published
        raise FencedError(
            f"sink {attempt.outputs.sink!r} cannot write epoch {attempt.epoch}: {self.place} "
            f"{what}. Another run writes to this table, and it keeps its rows. Stop one of them, "
            "then start the other again. If the checkpoint was restored from an older copy, write "
            "to a new table"
        )

    def files_committed(self, epochs: EpochRanges) -> int:
        """Return how many files the last commits of some epochs have added."""
        files: dict[int, int] = {}
        for _, note in self._notes_since(epochs):
            if note is not None and note.epoch is not None and is_in(epochs, note.epoch):
                files.setdefault(note.epoch, note.files)
        return sum(files.values())

    def begin_of(self, epochs: EpochRanges) -> tuple[Any, bool] | None:
        """Return the version of the first commit of some epochs, and whether others have committed
        since; None if there is no such commit.
        """
        found, others = None, False
        for version, note in self._notes_since(epochs):
            others = others or note is None
            if note is not None and note.epoch is not None:
                found = (version, others)
        return found

    def _notes_since(self, epochs: EpochRanges) -> Iterator[tuple[Any, Note | None]]:
        """Yield notes until the last epoch before some epochs."""
        begin = min(first for first, _ in epochs)
        for version, note in self.notes():
            if note is not None and note.epoch is not None and note.epoch < begin:
                return
            yield version, note


@dataclass(frozen=True)
class TableChange(ABC):
    """A change of the table by an attempt.

    Parameters:
        attempt: of an epoch.
        id: unique.
    """

    attempt: Attempt
    id: str

    @abstractmethod
    def commit(self, log: TableLog) -> None:
        """Commit the change to the table as it is in the log.

        Raises:
            FencedError: another run has taken over.
        """

    def stamp(self, rows: int, files: int) -> Stamp:
        """Return the stamp of a commit of this epoch."""
        return Stamp(Note(self.id, self.attempt.epoch, rows, files), self.attempt.epoch)


@dataclass(frozen=True)
class FilesAdded(TableChange):
    """Data files of an epoch are added; they replace those of an earlier attempt.

    Parameters:
        receipts: one per file.
        overwrites: whether they replace all rows of the table.
        columns: those of the table, if they are replaced, too.
    """

    receipts: Sequence[Receipt]
    overwrites: bool
    columns: pa.Schema | None = None

    def commit(self, log: TableLog) -> None:
        own = ((self.attempt.epoch, self.attempt.epoch),)
        replaces = log.check_owner(self.attempt) and not self.overwrites
        replaced = log.files(own) if replaces else []
        noted = log.last_note() if replaces else None
        if noted is not None and noted.files > len(replaced):
            self._keep(log, noted)
        elif replaced or self.receipts or self.attempt.replaces_all:
            stamp = self.stamp(self._rows, len(self.receipts))
            overwrites, columns = self.overwrites, self.columns
            log.add(stamp, self.receipts, replaced, overwrites=overwrites, columns=columns)

    @property
    def _rows(self) -> int:
        return sum(receipt["rows"] for receipt in self.receipts)

    def _keep(self, log: TableLog, noted: Note) -> None:
        """Keep the rows of an earlier attempt that another writer has moved to other files.

        Raises:
            RestoreError: this attempt has other rows.
        """
        if noted.rows != self._rows:
            raise RestoreError(
                f"sink {log.outputs.sink!r} cannot replace epoch {noted.epoch} in {log.place}: an "
                f"attempt before a crash wrote {noted.rows} rows, this one has {self._rows}, and "
                "another writer has rewritten the files of the first. Nothing of this epoch is "
                f"committed. {_ADVICE}"
            )


@dataclass(frozen=True)
class RowsMerged(TableChange):
    """Rows of an epoch are merged into the table by their key. A second merge changes nothing.

    Parameters:
        rows: one per key.
        writing: with the key and the field that marks deletes.
    """

    rows: pa.Table
    writing: Writing

    def commit(self, log: TableLog) -> None:
        log.check_owner(self.attempt)
        if self.rows.num_rows:
            log.merge(self.stamp(self.rows.num_rows, 0), self.rows, self.writing)


@dataclass(frozen=True)
class Abandonment(TableChange):
    """Rows of epochs that were rolled back are removed.

    With `append`, these are the files that the sink has added. With other modes, the table gets the
    rows that it had before, if nobody else has changed it since.

    Parameters:
        mode: of the sink.
    """

    mode: WriteMode

    def commit(self, log: TableLog) -> None:
        epochs = self._left(log.abandoned)
        if log.epoch is None or not epochs:
            return
        last = max(last for _, last in epochs)
        stamp = Stamp(Note(self.id), max(log.epoch, last), last)
        if self.mode == "append":
            log.add(stamp, [], self._files(log, epochs), overwrites=False)
        elif not self._is_restored(log, epochs, stamp):
            log.add(stamp, [], [], overwrites=False)

    def _left(self, abandoned: int | None) -> EpochRanges:
        """Return the epochs whose rows were not removed yet."""
        begin = -1 if abandoned is None else abandoned
        ranges = self.attempt.without_outputs
        return tuple((max(first, begin + 1), last) for first, last in ranges if last > begin)

    def _files(self, log: TableLog, epochs: EpochRanges) -> list[Any]:
        files = log.files(epochs)
        if log.files_committed(epochs) > len(files):
            raise RestoreError(
                f"sink {log.outputs.sink!r} cannot remove the rows of epochs that were rolled back "
                f"({_shown(epochs)}) from {log.place}: another writer has rewritten their files, "
                f"for example to compact them. Nothing was removed. {_ADVICE}"
            )
        return files

    def _is_restored(self, log: TableLog, epochs: EpochRanges, stamp: Stamp) -> bool:
        """Restore the rows before some epochs, and return True; False if that is not possible, or
        there is nothing to restore.
        """
        found = log.begin_of(epochs)
        if found is None:
            return False
        version, others_since = found
        if not others_since and log.restore(stamp, version):
            return True
        _logger.warning(
            "sink %s: rows of epochs that were rolled back (%s) stay in %s until later outputs "
            "replace them, because others have changed the table since",
            log.outputs.sink,
            _shown(epochs),
            log.place,
        )
        return False


_ADVICE = "Restore the table to the version before its files were rewritten, then start again"


def files_to_compact(sizes: Sequence[int], files: int) -> list[int]:
    """Return the places of the files that one commit of a compaction rewrites, in their order: the
    smallest ones. It costs as much as the rows that were written since the last one, whatever the
    size of the table.

    A file is rewritten only together with as many bytes of smaller files. So a row is rewritten
    about `log2(SMALL_BYTES / bytes of its first file)` times at most, until its file is not small.

    Parameters:
        sizes: of all files of the table, in bytes.
        files: how many there have to be.

    >>> files_to_compact([1 << 30, 900, 20 << 20, 500, 400], 3)
    [1, 3, 4]
    >>> files_to_compact([1 << 30, 1_000, 20 << 20, 500, 400], 3)
    []
    """
    small = ((size, place) for place, size in enumerate(sizes) if size < SMALL_BYTES)
    chosen = nsmallest(_COMPACTED_FILES_MAX, small)
    ends = list(accumulate(size for size, _ in chosen))
    count = bisect_right(ends, _COMPACTED_BYTES_MAX)
    while count > 1 and chosen[count - 1][0] > ends[count - 2]:
        count -= 1
    return sorted(place for _, place in chosen[:count]) if count >= max(files, 2) else []


def is_in(ranges: EpochRanges, epoch: int | None) -> bool:
    """Return whether an epoch is in one of some ranges. None is in none."""
    return epoch is not None and any(first <= epoch <= last for first, last in ranges)


def _shown(epochs: EpochRanges) -> str:
    return f"{min(first for first, _ in epochs)} to {max(last for _, last in epochs)}"
