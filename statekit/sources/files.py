"""Sources of files: JSON lines, CSV, Parquet and Arrow, on local disks and in object stores."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from statekit.checkpoint.store_url import place_elsewhere
from statekit.clock import sleep_s, stopwatch_s
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StatekitError, StateTypeError
from statekit.records.union import Records
from statekit.shown import shown_text
from statekit.sources.decoding.csv_decoding import CsvDecoder
from statekit.sources.decoding.decoder import ColumnDecoder, Decoded, Decoder, check_first_rows
from statekit.sources.decoding.json_decoding import JsonDecoder
from statekit.sources.file_formats import READERS, Format, Rows, of_file
from statekit.sources.file_tree import FileTree, SourceFile
from statekit.sources.source import Offset, Offsets, Source
from statekit.timestamp import instant

_logger = logging.getLogger("statekit.sources")

ALL = "all"
"""The name of the only partition."""

_FILES_MAX = 1000
"""The number of files of a stream that an epoch reads at most: its offset contains them."""

_PROBED_ROWS = 100
"""Records that a probe reads."""

_KEPT_MAX = 1 << 20
"""The number of records that are kept in memory from `latest` to `read`."""

_POLL_S, _POLL_REMOTE_S = 0.02, 1.0
_LISTING_SHARE = 10
"""A listing is used for this many times as long as it took."""

Order = Literal["name", "time"]


@dataclass
class FileSource(Source):
    """Files of one format. See `files`.

    Parameters:
        path: a directory, a file or a pattern.
        format: of the files.
        order: in which they are read.
        tail: whether the last file grows.
        static: whether all files are there when a run begins.
        look_back: for `order="time"`: how late a file may appear with an older time.
    """

    path: str
    format: Format
    order: Order = "name"
    tail: bool = False
    static: bool = False
    look_back: timedelta = timedelta(minutes=10)
    _reads_here: bool = field(default=False, init=False, repr=False, compare=False)
    _reading: _Reading | None = field(default=None, init=False, repr=False, compare=False)
    _planned: _Epoch | None = field(default=None, init=False, repr=False, compare=False)
    _listing: _Listing | None = field(default=None, init=False, repr=False, compare=False)
    _known: set[str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tail and (self.format not in ("json", "csv") or self.order != "name"):
            raise StateTypeError(
                f"source {self.path}: tail=True follows lines of JSON or CSV in the order of "
                f"names, not format={self.format!r} with order={self.order!r}: leave tail out"
            )
        if self.tail and self.static:
            raise StateTypeError(
                f"source {self.path}: a static table does not grow: leave out tail or static"
            )

    def __getstate__(self) -> dict[str, Any]:
        path = place_elsewhere(self.path)
        fresh = FileSource(path, self.format, self.order, self.tail, self.static, self.look_back)
        return vars(fresh)  # each process opens the files

    @cached_property
    def _tree(self) -> FileTree:
        return FileTree(self.path, may_be_absent=self.tail)

    @property
    def is_bounded(self) -> bool:
        return self.static

    def open(self, *, reads_here: bool) -> None:
        self._reads_here = reads_here
        self._list("")  # finds a wrong path

    def earliest(self) -> Offsets:
        return {ALL: _Position().to_json()}

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        offset = start[ALL]
        planned = self._planned
        if planned is not None and planned.start == offset and planned.records <= limit:
            return {ALL: planned.end}
        until, pause = stopwatch_s() + wait_s, _POLL_S if self._tree.is_local else _POLL_REMOTE_S
        while True:
            epoch = self._epoch(_Position.from_json(offset), limit)
            left = until - stopwatch_s()
            if epoch.end != offset or left <= 0 or self.static:
                break
            sleep_s(min(pause, left))
        is_kept = self._reads_here and limit <= _KEPT_MAX and epoch.end != offset
        self._planned = epoch if is_kept else None
        return {ALL: epoch.end}

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        planned = self._planned
        if planned is not None and (planned.start, planned.end) == (start, end):
            yield from planned.batches
            return
        first = _Position() if start is None else _Position.from_json(start)
        last = _Position.from_json(end)
        for number, file in enumerate(last.files):
            at = first.at if number == 0 and first.is_in(file) else None
            stop = last.at if number == len(last.files) - 1 else None
            yield from self._read_again(file, at or 0, stop)

    def decoder(self, records: Records, name: str) -> Decoder:
        if self.format == "json":
            return _LineDecoder(JsonDecoder(records, name))
        return (CsvDecoder if self.format == "csv" else ColumnDecoder)(records, name)

    def close(self) -> None:
        self._planned = None
        self._listing = None
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def probe(self, declared: Records, limit_s: float) -> Iterator[str]:
        probed = FileSource(self.path, self.format, self.order, self.tail, self.static)
        try:
            count = len(probed._list(""))
            yield f"{count:,} {'file' if count == 1 else 'files'} at {self.path}"
            start = probed.earliest()
            end = probed.latest(start, _PROBED_ROWS, 0.0)
            rows = probed.read(ALL, start[ALL], end[ALL]) if end != start else iter(())
            decode = probed.decoder(declared, self.path)
            yield check_first_rows(decode, ALL, next(rows, None))
        finally:
            probed.close()

    # ------------------------------------------------------------------ the next epoch

    def _epoch(self, start: _Position, limit: int) -> _Epoch:
        """Read the records of the next epoch; the end is the start if there are none."""
        taken: list[SourceFile] = []
        batches: list[pa.RecordBatch] = []
        count, at = 0, None
        keeps = self._reads_here and limit <= _KEPT_MAX
        files_max = None if self.static else _FILES_MAX  # a table is read in one epoch
        for file, begin, is_last in self._pending(start):
            if count >= limit or len(taken) == files_max:
                break
            reading = self._opened(file, begin, only_complete=is_last and self.tail)
            for batch in reading.take(limit - count):
                count += batch.num_rows
                if keeps:
                    batches.append(batch)
            taken.append(file)
            is_complete = reading.is_complete and not (is_last and self.tail)
            at = None if is_complete else reading.at
            if is_complete:
                self._check_unchanged(file)
            if is_complete or self.tail or not keeps:
                reading.close()
                self._reading = None
            else:
                self._reading = reading
            if at is not None:
                break
        is_further = count > 0 or len(taken) == files_max  # empty files are read with the next one
        end = start.after(taken, at, self._look_back_us) if is_further else start
        return _Epoch(start.to_json(), end.to_json(), batches, count)

    @property
    def _look_back_us(self) -> int | None:
        return None if self.order == "name" else self.look_back // timedelta(microseconds=1)

    def _opened(self, file: SourceFile, at: int, *, only_complete: bool) -> _Reading:
        """Return a file, opened at a position. A file of several epochs stays open."""
        reading, self._reading = self._reading, None
        if reading is not None:
            if (reading.file, reading.at) == (file, at):
                return reading
            reading.close()
        return _Reading(self, file, at, only_complete)

    def _pending(self, start: _Position) -> Iterator[tuple[SourceFile, int, bool]]:
        """Yield the files after a position, in order: the position in each, and whether it is the
        last one.
        """
        begun = self._begun(start)
        pending = [] if begun is None else [(begun, start.at or 0)]
        pending += [(file, 0) for file in self._new(start, begun)]
        for number, (file, at) in enumerate(pending):
            yield file, at, number == len(pending) - 1

    def _begun(self, start: _Position) -> SourceFile | None:
        """Return the file that was read in part; None if there is none.

        Raises:
            ConnectorError: it is gone, or it is another one.
        """
        if start.at is None or not start.files:
            return None
        file = start.files[-1]
        return self._now(file, start.at) if self.tail else self._check_unchanged(file)

    def _new(self, start: _Position, begun: SourceFile | None) -> list[SourceFile]:
        """Return the files that were not read yet.

        Parameters:
            begun: the file that was read in part.
        """
        last = begun or (start.files[-1] if start.files else None)
        listed = self._list(last.path if last is not None and self.order == "name" else "")
        read = {file.path: file for file in (*start.recent, *start.files)}
        if not self.tail:
            for file in listed:
                if file.path in read and file != read[file.path]:
                    raise self._changed(read[file.path])
        if self.order == "time":
            oldest = start.newest - (self._look_back_us or 0)
            new = [f for f in listed if f.path not in read and f.modified >= oldest]
            return sorted(new, key=lambda file: (file.modified, file.path))
        if self.tail and self._tree.is_local:
            listed = [file._replace(inode=self._tree.inode(file.path)) for file in listed]
            if last is not None and self._tree.is_one_file:  # another file of that name
                newer = [file for file in listed if file.inode != last.inode]
                is_there = len(newer) < len(listed)
                between = [] if is_there else self._tree.rotated(Path(self.path).name, last)
                return between + newer
        if last is not None:
            self._report_late(listed, start, last.path)
        self._known = {file.path for file in listed}
        return [file for file in listed if last is None or file.path > last.path]

    def _report_late(self, listed: list[SourceFile], start: _Position, last: str) -> None:
        """Log the files that appeared before the last one that was read. They are not read."""
        known = self._known
        if known is None:  # a file that is newer than all that were read appeared while no job ran
            old = (file.path for file in listed if self.tail or file.modified <= start.newest)
            known = {*old, *(file.path for file in start.files)}
        late = [f.path for f in listed if f.path < last and f.path not in known]
        if late:
            what = f"{len(late)} files are not read, such as {late[0]}: they"
            _logger.warning(
                "source %s: %s appeared after %s was read, which sorts later. Give files names "
                'that sort in the order of their appearance, or use order="time"',
                self.path,
                what if len(late) > 1 else f"1 file is not read, {late[0]}: it",
                last,
            )

    def _list(self, after: str) -> list[SourceFile]:
        """Return the files; of an object store, those after a path."""
        behind = "" if self._tree.is_local else after
        now, listing = stopwatch_s(), self._listing
        is_usable = not self.tail and listing is not None and listing.after <= behind
        if is_usable and listing is not None and now < listing.expires:
            return listing.files
        files = self._tree.listed(behind)
        took = stopwatch_s() - now
        self._listing = _Listing(behind, files, now + took * (1 + _LISTING_SHARE))
        return files

    # ------------------------------------------------------------------ files as they were

    def _read_again(self, file: SourceFile, at: int, stop: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file from one position up to another, or to its end."""
        now = self._now(file, stop or at) if self.tail else self._check_unchanged(file)
        reading = _Reading(self, now, at, only_complete=False)
        try:
            yield from reading.until(stop)
        finally:
            reading.close()
        if not self.tail:
            self._check_unchanged(file)

    def _check_unchanged(self, file: SourceFile) -> SourceFile:
        """Return a file, after a check that it is as it was.

        Raises:
            ConnectorError: it is gone, or it has changed.
        """
        if self.tail:
            return file
        now = self._tree.stat(file.path)
        if now is None:
            raise self._tree.gone(file)
        if now != file:
            raise self._changed(file)
        return file

    def _changed(self, file: SourceFile) -> ConnectorError:
        modified = instant(file.modified).isoformat()
        return ConnectorError(
            f"{self._tree.at(file)} has changed since it was read, or while it "
            "was read: which of its records are new is not known. Nothing of this epoch is "
            "committed. Write each file under a name that begins with '_', and rename it when it "
            "is complete; or read a growing file with tail=True. Put the file back as it was, "
            f"with {file.size} bytes and the time of modification {modified}, "
            "or remove it if it was read to its end, then start the job again"
        )

    def _now(self, file: SourceFile, at: int) -> SourceFile:
        """Return a growing file as it is now, whatever its name is.

        Raises:
            ConnectorError: it is gone, or shorter than what was read.
        """
        now = self._tree.stat(file.path)
        if self._tree.is_local:
            if now is None or self._tree.inode(file.path) != file.inode:
                now = self._tree.renamed(file.inode, file.path)
            now = None if now is None else now._replace(inode=file.inode)
        if now is None:
            raise self._tree.gone(file)
        if now.path != file.path and not self._tree.is_one_file:
            raise ConnectorError(
                f"{self._tree.at(file)} was renamed to {now.path} while it was "
                "read. Nothing of this epoch is committed: to follow a file that is rotated by "
                "renaming, give the path of the file; in a directory, let new files have new names"
            )
        if now.size < at:
            raise ConnectorError(
                f"{self._tree.at(file)} has {now.size:,} bytes, and {at:,} "
                "were read: it was truncated or written again. Nothing of this epoch is committed: "
                "put its content back, and rotate files by renaming"
            )
        return now


class _Position(NamedTuple):
    """How far files were read.

    Parameters:
        files: the files of the last epoch, in the order in which they were read.
        at: the position in the last one; None if it was read to its end.
        recent: for the order of time, earlier files that are in the look-back interval.
        newest_before: for the order of names, the time of the newest file of earlier epochs.
    """

    files: tuple[SourceFile, ...] = ()
    at: int | None = None
    recent: tuple[SourceFile, ...] = ()
    newest_before: int = 0

    @classmethod
    def from_json(cls, offset: Any) -> Self:
        files, recent = (
            tuple(SourceFile(*of) for of in offset.get(name, ())) for name in ("files", "recent")
        )
        return cls(files, offset["at"], recent, offset.get("newest", 0))

    def to_json(self) -> dict[str, Any]:
        size = 4 if any(file.inode for file in self.files) else 3
        offset: dict[str, Any] = {"files": [list(file[:size]) for file in self.files]}
        if self.recent:
            offset["recent"] = [list(file[:3]) for file in self.recent]
        if self.newest_before:
            offset["newest"] = self.newest_before
        return {**offset, "at": self.at}

    @property
    def newest(self) -> int:
        """The time of the newest file."""
        times = [file.modified for file in (*self.files, *self.recent)]
        return max([*times, self.newest_before] if self.newest_before else times, default=0)

    def is_in(self, file: SourceFile) -> bool:
        """Return whether this is a position in a file."""
        if self.at is None or not self.files:
            return False
        begun = self.files[-1]
        return begun.inode == file.inode if file.inode else begun.path == file.path

    def after(self, files: list[SourceFile], at: int | None, look_back: int | None) -> _Position:
        """Return the position after files.

        Parameters:
            look_back: how many microseconds older than the newest file a new one may be; None for
                the order of names.
        """
        end = _Position(tuple(files), at)
        if look_back is None:
            return end._replace(newest_before=self.newest)
        own = {file.path for file in files}
        newest = max(end.newest, self.newest)
        recent = tuple(
            file
            for file in (*self.recent, *self.files)
            if file.path not in own and file.modified >= newest - look_back
        )
        return end._replace(recent=recent)


class _Epoch(NamedTuple):
    """Records between two offsets.

    Parameters:
        batches: the records; none if another process reads them.
        records: their number.
    """

    start: Offset
    end: Offset
    batches: list[pa.RecordBatch]
    records: int


class _Listing(NamedTuple):
    after: str
    files: list[SourceFile]
    expires: float


class _Reading:
    """An open file.

    Attributes:
        at: the position after the rows that were taken.
        is_complete: no row is left.
    """

    def __init__(self, source: FileSource, file: SourceFile, at: int, only_complete: bool) -> None:
        self.file, self.at, self.is_complete = file, at, False
        self._source, self._opened = source, ExitStack()
        self._left: Rows | None = None
        with self._failures():
            opened = self._opened.enter_context(source._tree.open(file))
            self._rows = READERS[source.format](opened, file.path, at, only_complete)

    def take(self, limit: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows, up to a number of them."""
        while not self.is_complete:
            rows = self._next()
            if rows is None or limit == 0:
                self._left = rows
                break
            first, self._left = rows.first(limit), rows.after(limit)
            limit -= first.batch.num_rows
            self.at = int(first.ends[-1])
            yield of_file(first.batch, self.file.path)

    def until(self, stop: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows before a position, or all rows."""
        while (rows := self._next()) is not None and (stop is None or self.at < stop):
            part = rows if stop is None else rows.until(stop)
            if part.batch.num_rows:
                yield of_file(part.batch, self.file.path)
                self.at = int(part.ends[-1])
            if part.batch.num_rows < rows.batch.num_rows:
                break

    def _next(self) -> Rows | None:
        rows, self._left = self._left, None
        with self._failures():
            while rows is None or not rows.batch.num_rows:
                rows = next(self._rows, None)
                if rows is None:
                    self.is_complete = True
                    return None
        return rows

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert errors of a format to ConnectorError."""
        try:
            yield
        except StatekitError:
            raise
        except (pa.ArrowException, ValueError, EOFError, OSError) as error:
            self.close()
            source = self._source
            raise ConnectorError(
                f"{source._tree.at(self.file)} cannot be read as "
                f"{source.format}: {shown_text(error)}. Nothing of this epoch is committed: write "
                "the file again, or remove it, then start the job again"
            ) from error

    def close(self) -> None:
        self._opened.close()


@dataclass(frozen=True)
class _LineDecoder:
    """Decodes lines of JSON. Bad lines have no ends of lines."""

    decoder: JsonDecoder

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        decoded = self.decoder(partition, batch)
        if not decoded.bad:
            return decoded
        bad = [of._replace(value=of.value.rstrip(b"\r\n")) for of in decoded.bad]
        return Decoded(decoded.records, bad)


# ------------------------------------------------------------------ for users


@declarable("sources.files")
def files(
    path: str | Path,
    format: Format = "json",
    *,
    order: Order = "name",
    tail: bool = False,
    static: bool = False,
    look_back: timedelta = timedelta(minutes=10),
) -> FileSource:
    """Return a source of the records of files.

    By default the files are a stream: a run without `follow=True` reads those that are there, and
    the next run continues with new ones. Each file is written once: a file that changes after it
    was read is an error. Files and folders whose names begin with `_` or `.` are left out, and so
    are names that end with `.tmp`, `.part` or `~`. Files of JSON lines and of CSV may be compressed
    by gzip or zstd.

    Parameters:
        path: a directory with its sub-folders, one file, or a pattern such as
            `/data/orders/day=*/*.jsonl`; a local path or a URL as for checkpoints.
        format: `"json"` for a JSON object per line, `"csv"` for rows with a header, `"parquet"`, or
            `"arrow"` for Arrow IPC files and streams.
        order: `"name"` reads files in the order of their paths: a new file must sort after those
            that were read. `"time"` reads them in the order in which they were modified.
        tail: follow the last file, which grows, by complete lines. A path of one file may be
            rotated by renaming.
        static: a table that is complete when a run begins, and that is read to its end.
        look_back: with `order="time"`, how much older than the newest file that was read a new
            file may be. Offsets contain the files of this interval.

    Raises:
        StateTypeError: the options contradict each other, or the URL contains credentials.

    >>> files("/data/orders", "parquet")
    FileSource(path='/data/orders', format='parquet', order='name', tail=False, static=False, \
look_back=datetime.timedelta(seconds=600))
    """
    return FileSource(str(path), format, order, tail, static, look_back)


@declarable("sources.json_lines")
def json_lines(path: str | Path, **options: Any) -> FileSource:
    """Return a source of files with a JSON object per line. See `files` for the options.

    >>> json_lines("/data/orders", tail=True).tail
    True
    """
    return files(path, "json", **options)


@declarable("sources.csv")
def csv(path: str | Path, **options: Any) -> FileSource:
    """Return a source of CSV files with a header each. See `files` for the options.

    >>> csv("/data/orders").format
    'csv'
    """
    return files(path, "csv", **options)


@declarable("sources.parquet")
def parquet(path: str | Path, **options: Any) -> FileSource:
    """Return a source of Parquet files. See `files` for the options.

    >>> parquet("/data/orders", static=True).is_bounded
    True
    """
    return files(path, "parquet", **options)


@declarable("sources.arrow")
def arrow(path: str | Path, **options: Any) -> FileSource:
    """Return a source of files and streams of Arrow IPC. See `files` for the options.

    >>> arrow("/data/orders").format
    'arrow'
    """
    return files(path, "arrow", **options)
