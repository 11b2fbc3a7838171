"""Spark's own streaming log within a checkpoint, as of a given micro-batch.

Spark keeps these text files, with the version of the format in the first line:

    metadata        the id of the query; two queries of one session must not have the same
    offsets/<n>     the position of each source after batch n, one line per source
    commits/<n>     batch n has ended; written after the state of n was committed, so it may be
        missing
    sources/<id>/   files of a source
    state/          the state of Spark's own stateful operators

Most sources keep their start position, which does not change. The file source keeps a log of all
files that it has seen, and its offset is a position in that log. Entries after the offset are of
files that no batch up to it has read. If they stayed, Spark would consider those files read. So the
log is cut at the offset. It has one file per position, `<n>`, and at regular positions one with all
entries so far, `<n>.compact`, after which the earlier ones may be deleted:

    v1
    {"path":"file:///data/0.json","timestamp":1700000000000,"batchId":<n>}
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from statekit.checkpoint.sealed_json import parse_json
from statekit.errors import CorruptCheckpointError, RestoreError

SparkFiles = dict[str, bytes | None]
"""The content by path below Spark's part; None for a file that is copied unchanged."""

METADATA = "metadata"

_NUMBERED = re.compile(r"(offsets|commits)/([0-9]+)")
_SOURCE = re.compile(r"sources/([^/]+)/.+")
_LOG_NAME = re.compile(r"([0-9]+)(\.compact)?")
_NOTHING_READ = "-"
_VERSIONS = ("v1", "v2")
"""The supported versions of files in `offsets/` and `commits/`."""
_LOG_VERSION = "v1"

_Read = Callable[[str], bytes]


def files_at(
    names: Iterable[str], read: _Read, batch: int, *, history: int | None = None
) -> SparkFiles:
    """Return Spark's part as it was when a micro-batch ended.

    Parameters:
        names: the paths of all files below Spark's part.
        read: returns the content of a file.
        batch: Spark's number of the micro-batch; -1 for the state before the first.
        history: the number of earlier batches whose offsets and commits are kept too; None for all.
            Spark needs one to start.

    Raises:
        RestoreError: Spark has deleted its log of that batch, or keeps state that cannot be set
            back.
        CorruptCheckpointError: one of its files cannot be read.
    """
    # Checksums and drafts of Hadoop's local file system are hidden files.
    known = sorted(name for name in names if not name.rsplit("/", 1)[-1].startswith("."))
    if any(name.startswith("state/") for name in known):
        raise RestoreError(
            "Spark keeps state of its own beside that of this job (a deduplication, an aggregation "
            "or a join in front of it), which cannot be set to a micro-batch: move that step into "
            "a process function"
        )
    files: SparkFiles = {METADATA: None} if METADATA in known else {}
    first = 0 if history is None else batch - history
    for name in known:
        match = _NUMBERED.fullmatch(name)
        if match is not None and first <= int(match[2]) <= batch:
            files[name] = None
    for needed in range(max(0, batch - 1), batch + 1):
        if f"offsets/{needed}" not in files:
            raise RestoreError(
                f"Spark's part no longer has micro-batch {needed}: it keeps the last "
                "spark.sql.streaming.minBatchesToRetain ones. Choose a later epoch"
            )
    sources: dict[str, list[str]] = defaultdict(list)
    for name in known:
        if (match := _SOURCE.fullmatch(name)) is not None:
            sources[match[1]].append(name)
    offsets = {} if batch < 0 else _offsets(read(f"offsets/{batch}"), f"offsets/{batch}")
    for source, paths in sources.items():
        files |= _source_at(paths, read, offsets.get(source, _NOTHING_READ))
    return files


def new_metadata(query: str) -> bytes:
    """Return the file `metadata` for a query with this id.

    >>> new_metadata("3cc8c161-6cff-444d-a3bf-f118d576f6e8")
    b'{"id":"3cc8c161-6cff-444d-a3bf-f118d576f6e8"}'
    """
    return json.dumps({"id": query}, separators=(",", ":")).encode()


def query_id(data: bytes) -> str:
    """Return the id of a query, from its file `metadata`.

    Raises:
        CorruptCheckpointError: it contains no id.

    >>> query_id(new_metadata("3cc8c161-6cff-444d-a3bf-f118d576f6e8"))
    '3cc8c161-6cff-444d-a3bf-f118d576f6e8'
    """
    query = _first_members([data.decode(errors="replace")], METADATA).get("id")
    if not isinstance(query, str):
        raise _unreadable(METADATA, ValueError("it names no query"))
    return query


class BatchTimes(NamedTuple):
    """The clocks of a micro-batch, in milliseconds.

    Parameters:
        watermark_ms: decides which timers were due; 0 before any record.
        timestamp_ms: the processing time.
    """

    watermark_ms: int
    timestamp_ms: int


def batch_times(data: bytes, name: str) -> BatchTimes:
    """Return the clocks of a micro-batch, from a file of `offsets/`.

    Raises:
        RestoreError: its version is unknown.
        CorruptCheckpointError: it cannot be read.

    >>> batch_times(b'v1\\n{"batchWatermarkMs":5000,"batchTimestampMs":1700,"conf":{}}\\n{}', "0")
    BatchTimes(watermark_ms=5000, timestamp_ms=1700)
    """
    members = _first_members(_known(data, name)[1], name)
    return BatchTimes(
        *(_number(members, of, name) for of in ("batchWatermarkMs", "batchTimestampMs"))
    )


class BatchEnd(NamedTuple):
    """Spark's record of the end of a micro-batch.

    Parameters:
        version: the version of the file and of the state format.
        next_watermark_ms: the watermark of the next batch; 0 before any record.
    """

    version: int
    next_watermark_ms: int

    def to_bytes(self) -> bytes:
        """Return the file for a query without Spark state. Every version of Spark reads it."""
        noted = {"nextBatchWatermarkMs": self.next_watermark_ms}
        return b"v1\n" + json.dumps(noted, separators=(",", ":")).encode()


def batch_end(data: bytes, name: str) -> BatchEnd:
    """Parse a file of `commits/`.

    Raises:
        RestoreError: its version is unknown.
        CorruptCheckpointError: it cannot be read.

    >>> batch_end(b'v2\\n{"nextBatchWatermarkMs":8000,"stateUniqueIds":{}}', "commits/0")
    BatchEnd(version=2, next_watermark_ms=8000)
    >>> BatchEnd(2, 8000).to_bytes()
    b'v1\\n{"nextBatchWatermarkMs":8000}'
    """
    version, lines = _known(data, name)
    noted = _first_members(lines, name)
    return BatchEnd(int(version[1:]), _number(noted, "nextBatchWatermarkMs", name))


def _known(data: bytes, name: str, versions: tuple[str, ...] = _VERSIONS) -> tuple[str, list[str]]:
    """Return the version of a file and the lines after it. An unknown version is an error."""
    try:
        version, *lines = data.decode().rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _unreadable(name, error) from error
    if version not in versions:
        raise RestoreError(
            f"{name} of Spark's part has version {version}, and this statekit reads "
            f"{' and '.join(versions)}: upgrade statekit"
        )
    return version, lines


def _first_members(lines: list[str], name: str) -> dict[str, Any]:
    """Return the JSON object in the first line of a file."""
    try:
        members = parse_json(lines[0] if lines else "")
    except ValueError as error:
        raise _unreadable(name, error) from error
    return members if isinstance(members, dict) else {}


def _number(members: dict[str, Any], of: str, name: str) -> int:
    number = members.get(of)
    if type(number) is not int:
        raise _unreadable(name, ValueError(f"it does not say {of}"))
    return number


def _offsets(data: bytes, name: str) -> dict[str, str]:
    """Return the offset of each source. Version 1 lists sources in order, version 2 by name."""
    version, lines = _known(data, name)
    offsets = lines[1:]  # after the metadata of the batch
    if version == "v1":
        return {str(source): offset for source, offset in enumerate(offsets)}
    return dict(line.split(":", 1) for line in offsets if ":" in line)


def _source_at(paths: list[str], read: _Read, offset: str) -> SparkFiles:
    """Return the files of one source, as of an offset."""
    until = _object_in(offset).get("logOffset")
    if type(until) is int:
        return _log_until(paths, read, until)
    if offset == _NOTHING_READ and _is_file_log(paths, read):
        return _log_until(paths, read, -1)
    return dict.fromkeys(paths)


def _object_in(text: str) -> dict[str, Any]:
    """Return the JSON object of a text; an empty object for any other text."""
    try:
        parsed = parse_json(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _is_file_log(paths: list[str], read: _Read) -> bool:
    """Return whether a source is a source of files. For a source that was not read yet, nothing
    else is known.
    """
    _, *lines = read(paths[0]).decode(errors="replace").split("\n")
    return bool(lines) and {"path", "batchId"} <= _object_in(lines[0]).keys()


def _log_until(paths: list[str], read: _Read, position: int) -> SparkFiles:
    """Return the log of a file source as of a position."""
    names: dict[int, str] = {}
    compact: list[int] = []
    for path in paths:
        match = _LOG_NAME.fullmatch(path.rsplit("/", 1)[-1])
        if match is not None:
            names[int(match[1])] = path
            compact += [int(match[1])] if match[2] else []
    start = max((at for at in compact if at <= position), default=0)
    if all(at in names for at in range(start, position + 1)):
        return {path: None for at, path in names.items() if at <= position}
    # Spark has deleted some of these files, so the log is built from a later one. A compact file at
    # any position is a log: Spark takes its interval from it.
    folder = paths[0].rsplit("/", 1)[0]
    later = min((at for at in compact if at > position), default=None)
    if later is None:
        raise CorruptCheckpointError(
            f"{folder} of Spark's part lacks entries up to {position}: restore it from a backup, "
            "or start with a new checkpoint"
        )
    lines = [line for at, line in _entries(read, names[later]) if at <= position]
    return {f"{folder}/{position}.compact": "\n".join([_LOG_VERSION, *lines]).encode()}


def _entries(read: _Read, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log with their positions."""
    for line in _known(read(name), name, (_LOG_VERSION,))[1]:
        try:
            entry: dict[str, Any] = parse_json(line)
            yield int(entry["batchId"]), line
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{name} of Spark's part cannot be read: {error}. Restore it from a backup, or start with "
        "a new checkpoint"
    )
