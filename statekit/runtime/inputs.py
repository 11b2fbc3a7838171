"""The inputs of a run: how far each was read, how far the next epoch reads, and its records."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from statekit.checkpoint.manifest import EpochManifest, EpochOffsets, InputOffset
from statekit.errors import (
    CALL_FAILURES,
    ConnectorError,
    ProcessError,
    RestoreError,
    StateTypeError,
    StorageError,
    is_users,
    name_failed,
)
from statekit.job.plan import Input, Plan
from statekit.shown import shown, shown_error
from statekit.sources.decoding.decoder import BadRecord, Decoded
from statekit.sources.history import continued
from statekit.sources.source import Offset, Source
from statekit.sources.spark import SparkSource

WITHOUT_LIMIT = 1 << 62
"""The number of records of an epoch that reads all of them."""


class Range(NamedTuple):
    """The part of a partition that an epoch reads: after `start`, up to `end`."""

    partition: str
    start: Offset | None
    end: Offset


class RunInput(ABC):
    """An input of a run.

    Parameters:
        name: of the input in the job.
    """

    name: str

    @property
    @abstractmethod
    def is_stream(self) -> bool:
        """True if records may follow those that are there when the run begins."""

    @abstractmethod
    def start(self, offset: InputOffset | None) -> InputOffset:
        """Return the offset at which the run continues.

        Parameters:
            offset: where the last epoch ended; None if no epoch has read the input.
        """

    def continued(self, offset: InputOffset) -> InputOffset:
        """Return an offset that was noted, as an offset of the input as it is now."""
        return offset

    @abstractmethod
    def end(self, start: InputOffset, limit: int, wait_s: float) -> InputOffset:
        """Return the offset at which the next epoch ends, as `Source.latest` does."""

    def open(self, *, reads_here: bool, epoch: int) -> None:  # noqa: B027 - only sources do
        """Connect to the origin, at the start of a run. `epoch` is for messages."""

    def close(self) -> None:  # noqa: B027 - nor this
        """Release resources."""


@dataclass
class IterableInput(RunInput):
    """An iterable of records. Its offset is the number of records that were read."""

    name: str
    records: Iterable[Any]
    _behind: Iterator[Any] = field(default_factory=lambda: iter(()))
    _read: list[Any] = field(default_factory=list)

    @property
    def is_stream(self) -> bool:
        return False

    def start(self, offset: InputOffset | None) -> InputOffset:
        """Skip the records that the state already contains."""
        count = 0 if offset is None else offset
        if not isinstance(count, int):
            raise RestoreError(
                f"input {self.name!r} was read from a source, at {shown(count)}, and now it is an "
                "iterable: leave it out of inputs=, or start with a new checkpoint"
            )
        self._behind = iter(self.records)
        skipped = sum(1 for _ in islice(self._behind, count))
        if skipped < count:
            raise RestoreError(
                f"input {self.name!r} has {skipped} records, and {count} of it are in the state: "
                "pass the same records again, from the first one on, followed by new ones"
            )
        return count

    def end(self, start: InputOffset, limit: int, wait_s: float) -> InputOffset:
        assert isinstance(start, int)
        self._read += islice(self._behind, limit - len(self._read))
        return start + min(limit, len(self._read))

    def read(self, start: InputOffset, end: InputOffset) -> list[Any]:
        """Return the records of an epoch."""
        assert isinstance(start, int)
        assert isinstance(end, int)
        count = end - start
        self._read += islice(self._behind, count - len(self._read))
        records, self._read = self._read[:count], self._read[count:]
        if len(records) < count:
            raise RestoreError(
                f"input {self.name!r} ended after {start + len(records)} records, and an epoch up "
                f"to record {end} was begun: pass the same records again"
            )
        return records


@dataclass
class SourceInput(RunInput):
    """A source. Its offset is that of each partition."""

    name: str
    source: Source

    @property
    def is_stream(self) -> bool:
        return not self.source.is_bounded

    def start(self, offset: InputOffset | None) -> InputOffset:
        if isinstance(offset, int) and offset:
            raise RestoreError(
                f"input {self.name!r} was an iterable or a frame, of which {offset:,} records are "
                "in the state, and now it is a source: give it in inputs= as before, or start with "
                "a new checkpoint"
            )
        if offset is None or offset == 0:
            return dict(self.source.earliest())
        return self.continued(offset)

    def continued(self, offset: InputOffset) -> InputOffset:
        return dict(continued(self.source, _partitions(offset), self.name))

    def end(self, start: InputOffset, limit: int, wait_s: float) -> InputOffset:
        assert isinstance(start, dict)
        latest = dict(self.source.latest(start, limit, wait_s))
        if lost := start.keys() - latest.keys():
            raise StateTypeError(
                f"source {self.name!r}: latest() left out {', '.join(sorted(lost))}: return an "
                "offset for each partition that was read"
            )
        return latest

    def open(self, *, reads_here: bool, epoch: int) -> None:
        with input_failures(self.name, epoch):
            self.source.open(reads_here=reads_here)

    def close(self) -> None:
        self.source.close()


def ranges(start: InputOffset, end: InputOffset) -> list[Range]:
    """Return what an epoch reads of the partitions of a source, in the order of their names.

    >>> ranges({"0": 5, "1": 7}, {"0": 9, "1": 7, "2": 3})
    [Range(partition='0', start=5, end=9), Range(partition='2', start=None, end=3)]
    """
    assert isinstance(start, dict)
    assert isinstance(end, dict)
    return [
        Range(partition, start.get(partition), to)
        for partition, to in sorted(end.items())
        if partition not in start or start[partition] != to
    ]


def _partitions(offset: InputOffset) -> Mapping[str, Offset]:
    return offset if isinstance(offset, dict) else {}


class RunInputs:
    """The inputs of a run, with the offsets up to which they were read.

    If one of them is a stream, the others that are none are read completely in the first epoch,
    before all streams.

    Parameters:
        inputs: of the run.
    """

    def __init__(self, inputs: Iterable[RunInput]) -> None:
        self.inputs = {each.name: each for each in inputs}
        self.offsets: EpochOffsets = {}
        self._closing = contextlib.ExitStack()
        self.has_streams = any(each.is_stream for each in self.inputs.values())
        self._static = {
            name for name, each in self.inputs.items() if self.has_streams and not each.is_stream
        }
        self._waiting: set[str] = set()
        self._others: EpochOffsets = {}

    def open(self, last: EpochManifest | None, epoch: int, *, reads_here: bool) -> None:
        """Connect to all inputs, and continue where the last epoch ended.

        Parameters:
            last: the manifest of that epoch.
            epoch: the number of the next one, for messages.
            reads_here: as for `Source.open`.
        """
        offsets = {} if last is None else last.offsets
        self._waiting = self._static - offsets.keys()
        self._others = {name: at for name, at in offsets.items() if name not in self.inputs}
        for name, each in self.inputs.items():
            self._closing.callback(each.close)
            each.open(reads_here=reads_here, epoch=epoch)
            if name in self._static and name in offsets:
                self.offsets[name] = offsets[name]  # it was read to its end
                continue
            with input_failures(name, epoch):
                self.offsets[name] = each.start(offsets.get(name))

    def next(self, limit: int, wait_s: float, epoch: int) -> EpochOffsets | None:
        """Return where the next epoch ends; None if there is no record, and nothing to begin with.

        Parameters:
            limit: records per input, at most.
            wait_s: how long to wait for a record, in seconds.
            epoch: its number, for messages.
        """
        if self._waiting:
            return {**self.offsets, **self._ends(sorted(self._waiting), WITHOUT_LIMIT, 0.0, epoch)}
        names = [name for name in self.inputs if name not in self._static]
        is_alone = len(names) == 1
        ends = {**self.offsets, **self._ends(names, limit, wait_s if is_alone else 0.0, epoch)}
        for name in names if not is_alone and wait_s > 0 and ends == self.offsets else ():
            ends.update(self._ends([name], limit, wait_s / len(names), epoch))
        return None if ends == self.offsets else ends

    def _ends(self, names: list[str], limit: int, wait_s: float, epoch: int) -> EpochOffsets:
        ends: EpochOffsets = {}
        for name in names:
            with input_failures(name, epoch):
                ends[name] = self.inputs[name].end(self.offsets[name], limit, wait_s)
        return ends

    def begun(self, ends: EpochOffsets) -> EpochOffsets:
        """Return where an epoch ends that was begun before a crash."""
        read = {name: self.inputs[name].continued(ends[name]) for name in ends.keys() & self.inputs}
        return {**self.offsets, **ends, **read}

    def has_read(self, ends: EpochOffsets) -> None:
        """Note that an epoch with these ends was committed."""
        self.offsets = ends
        self._waiting.clear()

    @property
    def _sources(self) -> list[SourceInput]:
        return [each for each in self.inputs.values() if isinstance(each, SourceInput)]

    def lags(self) -> dict[str, int]:
        """Return how many records are behind the last epoch, of the sources that know it."""
        found = {of.name: of.source.lag(_partitions(self.offsets[of.name])) for of in self._sources}
        return {name: lag for name, lag in found.items() if lag is not None}

    def lag_limits(self) -> dict[str, int]:
        """Return the number up to which these records are counted, of the sources with a limit."""
        found = {of.name: of.source.lag_limit for of in self._sources}
        return {name: limit for name, limit in found.items() if limit is not None}

    def committed(self, ends: EpochOffsets) -> EpochOffsets:
        """Return the offsets for the manifest of an epoch: also those of inputs that this run does
        not read.
        """
        return {**self._others, **ends}

    def close(self) -> None:
        """Release what was opened. Later calls do nothing."""
        self._closing.close()


@contextlib.contextmanager
def input_failures(name: str, epoch: int) -> Iterator[None]:
    """Add the name of a failing input and the epoch to its error.

    Raises:
        ProcessError: code of the user failed.
        ConnectorError, StorageError: what a source reads failed.
    """
    try:
        yield
    except CALL_FAILURES as error:
        if not is_users(error):
            if isinstance(error, ConnectorError | StorageError):
                name_failed(error, f"source {name!r}")
            raise
        raise ProcessError(
            f"input {name!r} failed in epoch {epoch} with {shown_error(error)}. Nothing of this "
            "epoch is committed: correct the input, then start the job again with the same records"
        ) from error


def local_input(name: str, origin: object) -> RunInput:
    """Return an input of a run in this process.

    Raises:
        StateTypeError: it is no source and no iterable, or Spark reads it.
    """
    if isinstance(origin, Source):
        return SourceInput(name, origin)
    if isinstance(origin, SparkSource):
        raise StateTypeError(
            f"source {name!r} is {origin}, which Spark reads, and this run has no Spark: run the "
            f"job with job.start(spark, …), or give inputs={{{name!r}: …}} an iterable or another "
            "source, such as sources.parquet(path)"
        )
    if not isinstance(origin, Iterable):
        raise StateTypeError(
            f"inputs[{name!r}] is {shown(origin)}: give an iterable of records, or a source"
        )
    return IterableInput(name, origin)


class BadRecords:
    """Applies `on_error` to the bad records of an epoch, and counts them.

    Parameters:
        job: the job.
        last: the manifest of the last epoch, with the numbers of those before.

    Attributes:
        so_far: the number of bad records of all epochs, by source.
    """

    def __init__(self, job: Plan, last: EpochManifest | None) -> None:
        self._by_name = {each.name: each for each in job.sources}
        self.so_far = {} if last is None else dict(last.bad_records)

    def check(self, name: str, decoded: Decoded, epoch: int) -> None:
        """Count the bad records of a source.

        Raises:
            ProcessError: the source fails with the first one, or has too many.
        """
        if not decoded.bad:
            return
        declared = self._by_name[name]
        if declared.on_error == "fail":
            raise bad_record_error(declared, decoded.bad[0], epoch)
        self.add(name, len(decoded.bad), epoch, _described(declared, decoded.bad[-1]))

    def add(self, name: str, count: int, epoch: int, last: str = "") -> None:
        """Count bad records of a source. `last` describes the last one.

        Raises:
            ProcessError: it has too many.
        """
        most = self._by_name[name].max_errors
        self.so_far[name] = self.so_far.get(name, 0) + count
        if most is not None and self.so_far[name] > most:
            raise ProcessError(
                f"source {name!r} has {self.so_far[name]:,} bad records so far, and "
                f"max_errors={most}. Nothing of epoch {epoch} is committed"
                f"{f'. The last one: {last}' if last else ''}. Correct the records or their type, "
                "or raise the limit, then start the job again"
            )


def bad_record_error(declared: Input, bad: BadRecord, epoch: int) -> ProcessError:
    """Return the error about a bad record of a source that fails with it."""
    return ProcessError(
        f"source {declared.name!r}: {_described(declared, bad)}. Nothing of epoch {epoch} is "
        "committed: correct the record or its type, or declare it with "
        'job.source(…, on_error="collect") or "drop", then start the job again'
    )


def _described(declared: Input, bad: BadRecord) -> str:
    return (
        f"the record at {bad.offset} of partition {bad.partition!r} does not fit "
        f"{declared.record_type.name}: {bad.error}. The record: {shown(bad.value)}"
    )
