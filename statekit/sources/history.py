"""A history, then a stream: a source that reads a bounded source to its end, then another one.

The partitions of both are partitions of this source, with the name of the part before theirs. The
partition `part` has no records: its offset names the part that is being read. Offsets of the stream
say whether records were read, so the first offset of a partition is not mistaken for one up to
which an epoch reads:

    part            "history" or "then"
    history:NAME    an offset of the history
    then:NAME       {"from": OFFSET} until the first record was read, afterwards {"at": OFFSET}

The first call of `latest` fixes where the stream begins, before it asks for the first record of the
history. The offset is committed with the first records, or not at all. So each record that arrives
while the history is read is read from the stream.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statekit.codec.annotations import show
from statekit.codec.value_codec import value_codec
from statekit.errors import ProcessError, RestoreError, StateTypeError
from statekit.records.union import Records
from statekit.shown import shown
from statekit.sources.decoding.decoder import Decoded, Decoder
from statekit.sources.source import Offset, Offsets, Source

PART = "part"
HISTORY, THEN = "history", "then"
_SEPARATOR = ":"


@dataclass
class HistoryThenStream(Source):
    """Records of a bounded source, then those of another source. See `Job.source`.

    Parameters:
        history: read to its end first.
        then: read afterwards, from where it began when the history was begun.
        boundary: a field and its first value in `then`: records of the history from there on, and
            records of the stream before, are left out. None if the two have no records in common.
    """

    history: Source
    then: Source
    boundary: tuple[str, Any] | None = None

    def __post_init__(self) -> None:
        self._reads_here = False
        self._is_history_open = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reads_here": False, "_is_history_open": False}

    @property
    def is_bounded(self) -> bool:
        return self.then.is_bounded

    @property
    def lag_limit(self) -> int | None:
        return self.then.lag_limit

    def open(self, *, reads_here: bool) -> None:
        self._reads_here = reads_here
        self.then.open(reads_here=reads_here)

    def close(self) -> None:
        self.then.close()
        if self._is_history_open:
            self.history.close()
            self._is_history_open = False

    def earliest(self) -> Offsets:
        return _named(HISTORY, self._opened_history().earliest())

    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        if PART not in start:
            begin = {name: {"from": at} for name, at in self.then.earliest().items()}
            start = {**start, PART: HISTORY, **_named(THEN, begin)}
            return {**start, **_named(HISTORY, self._more_history(start, limit))}
        if start[PART] == HISTORY:
            end = {**start, **_named(HISTORY, self._more_history(start, limit))}
            return end if end != start else {**start, PART: THEN}
        before = _of(THEN, start)
        at = {name: _offset(marked) for name, marked in before.items()}
        after = self.then.latest(at, limit, wait_s)
        moved = {name: {"at": end} for name, end in after.items() if at.get(name, _NONE) != end}
        return {**start, **_named(THEN, moved)}

    def _more_history(self, start: Offsets, limit: int) -> Offsets:
        """Return where the next epoch ends in the history."""
        return self._opened_history().latest(_of(HISTORY, start), limit, 0.0)

    def _opened_history(self) -> Source:
        """Return the history, which is opened as long as it is read only: it may be deleted
        afterwards.
        """
        if not self._is_history_open:
            self.history.open(reads_here=self._reads_here)
            self._is_history_open = True
        return self.history

    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        part, _, name = partition.partition(_SEPARATOR)
        if part == HISTORY:
            history = self._opened_history() if self._reads_here else self.history
            yield from history.read(name, start, end)
        elif part == THEN and "at" in end:
            yield from self.then.read(name, None if start is None else _offset(start), end["at"])

    def decoder(self, records: Records, name: str) -> Decoder:
        decoders = {
            HISTORY: self.history.decoder(records, name),
            THEN: self.then.decoder(records, name),
        }
        if self.boundary is None:
            return _PartDecoder(decoders)
        is_later = _is_later(records, *self.boundary)
        return _PartDecoder(
            {
                HISTORY: _Filtered(decoders[HISTORY], lambda record: not is_later(record)),
                THEN: _Filtered(decoders[THEN], is_later),
            }
        )

    def probe(self, declared: Records, limit_s: float) -> Iterator[str]:
        for part, source in (("history", self.history), ("then", self.then)):
            for found in source.probe(declared, limit_s / 2):
                yield f"{part}: {found}"

    def lag(self, offsets: Offsets) -> int | None:
        if offsets.get(PART) != THEN:
            return None
        return self.then.lag({name: _offset(at) for name, at in _of(THEN, offsets).items()})


_NONE: Any = object()


def is_in_history(offset: object) -> bool:
    """Return whether the offset of an input, as it is committed, is within a history.

    >>> is_in_history({"part": "history", "history:all": 7}), is_in_history({"all": 7})
    (True, False)
    """
    return isinstance(offset, Mapping) and offset.get(PART) == HISTORY


def continued(source: Source, committed: Offsets, name: str) -> Offsets:
    """Return the offsets at which a source continues, of an input that may have had a history.

    An input whose history has ended may be declared with the source of `then` only.

    Parameters:
        source: what the input reads now.
        committed: its offsets in the last epoch.
        name: of the input, for messages.

    Raises:
        RestoreError: the history has not ended, or was added to an input that had none.

    >>> ended = {"part": "then", "history:all": 7, "then:0": {"at": 5}}
    >>> from statekit.sources import parquet
    >>> continued(parquet("/data/orders"), ended, "orders")
    {'0': 5}
    """
    part = committed.get(PART)
    had_history = part in (HISTORY, THEN)
    if isinstance(source, HistoryThenStream):
        if not had_history and committed:
            raise RestoreError(
                f"input {name!r} was read without history=, and a history cannot be put before "
                "records that are in the state: leave history= out and give the source of then= as "
                "before, or start with a new checkpoint"
            )
        return committed
    if not had_history:
        return committed
    if part == HISTORY:
        raise RestoreError(
            f"input {name!r} reads a history that has not ended: give history= and then= as before "
            "until it has, or start with a new checkpoint"
        )
    return {partition: _offset(marked) for partition, marked in _of(THEN, committed).items()}


def _named(part: str, offsets: Offsets) -> dict[str, Offset]:
    return {f"{part}{_SEPARATOR}{name}": offset for name, offset in offsets.items()}


def _of(part: str, offsets: Offsets) -> dict[str, Offset]:
    prefix = f"{part}{_SEPARATOR}"
    named = {name: at for name, at in offsets.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): offset for name, offset in named.items()}


def _offset(marked: Mapping[str, Offset]) -> Offset:
    """Return an offset of the stream without its mark."""
    return marked["at"] if "at" in marked else marked["from"]


@dataclass
class _PartDecoder:
    """Decodes each part by its own decoder."""

    decoders: Mapping[str, Decoder]

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        return self.decoders[partition.partition(_SEPARATOR)[0]](partition, batch)


@dataclass
class _Filtered:
    """Decodes batches, and leaves records out."""

    decode: Decoder
    keeps: Callable[[Any], bool]

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        decoded = self.decode(partition, batch)
        return Decoded(list(filter(self.keeps, decoded.records)), decoded.bad)


def _is_later(records: Records, field: str, first: Any) -> Callable[[Any], bool]:
    """Return a function that says whether a record belongs to the stream: those whose field is
    absent, None or NaN do.
    """
    getters = [(member.cls, member.getter((field,))) for member in records.members]

    def is_later(record: Any) -> bool:
        get = next(get for cls, get in getters if len(getters) == 1 or isinstance(record, cls))
        try:
            value = get(record)
            return value is None or not value < first  # NaN is no value
        except KeyError:  # of a dict without the field
            return True
        except TypeError as error:
            raise ProcessError(
                f"boundary= compares the field {field!r} with {shown(first)}, and a record has "
                f"{shown(value)} in it. Nothing of this epoch is committed: give a boundary of the "
                "type of the values"
            ) from error

    return is_later


def history_then(
    history: object, then: object, boundary: object, records: Records, where: str
) -> HistoryThenStream:
    """Return the source of a history and a stream.

    Parameters:
        boundary: a dict of one field and its first value in the stream, or None.
        records: the type of the records.
        where: for messages.

    Raises:
        StateTypeError: one of them is not valid.
    """
    for name, source in ((HISTORY, history), (THEN, then)):
        if not isinstance(source, Source):
            raise StateTypeError(
                f"{where}: {name}={shown(source)}: history= and then= are given together, and each "
                "is a source that statekit reads, such as sources.parquet(path, static=True)"
            )
    assert isinstance(history, Source)
    assert isinstance(then, Source)
    if not history.is_bounded:
        raise StateTypeError(
            f"{where}: history= is a source without an end: give one that is bounded, such as "
            "sources.parquet(path, static=True)"
        )
    if boundary is None:
        return HistoryThenStream(history, then)
    if not isinstance(boundary, dict) or len(boundary) != 1:
        raise StateTypeError(
            f"{where}: boundary={shown(boundary)}: give a dict of one field and its first value in "
            'then=, such as {"at": datetime(2026, 1, 1, tzinfo=UTC)}'
        )
    ((field, first),) = boundary.items()
    for member in records.members:
        if member.fields is not None and field not in member.fields:
            raise StateTypeError(
                f"{where}: boundary= names the field {shown(field)}, which {member.name} does not "
                f"have: it has {', '.join(member.fields)}"
            )
        annotation = None if member.fields is None else member.fields[field].annotation
        if why := _boundary_fault(annotation, first):
            raise StateTypeError(
                f"{where}: boundary= is {shown(first)} for the field {field!r} of {member.name}: "
                f"{why}"
            )
    return HistoryThenStream(history, then, (field, first))


def _boundary_fault(annotation: Any, first: Any) -> str:
    """Return why values of a field cannot be compared with a boundary; empty if they can.

    Parameters:
        annotation: the type of the field; None for a field of a dict.
    """
    try:
        if not first >= first:
            return "NaN is no boundary"
    except TypeError:
        return "give a value that has an order, such as a time or a number"
    if annotation is None:
        return ""
    if isinstance(first, dt.datetime) and first.tzinfo is None:
        return "give a datetime with a time zone"
    codec = value_codec(annotation)
    if not codec.accepts(first) or codec.decode(codec.encode(first)) != first:
        return f"give a value of its type, {show(annotation)}"
    return ""
