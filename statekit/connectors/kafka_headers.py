"""The header of each record that a sink of statekit writes to Kafka: where the record is from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

ORIGIN = "statekit"
"""The name of the header. Its value is text: `checkpoint/sink epoch writer part sequence`."""


class Origin(NamedTuple):
    """The origin of a record in a topic.

    Parameters:
        sink: the id of the checkpoint and the name of the sink: `checkpoint/sink`.
        epoch: the epoch whose output it is, the same when the epoch is replayed.
        writer: the run that wrote it.
        part: the part of the epoch, which one process or one task of Spark has written.
        sequence: the number of the record in its part, from 0.
    """

    sink: str
    epoch: int
    writer: str
    part: int
    sequence: int

    @classmethod
    def of(cls, headers: Iterable[Sequence[Any]] | None) -> Origin | None:
        """Return the origin of a record; None if no sink of statekit has written it.

        Parameters:
            headers: names with values, as confluent-kafka returns them.

        >>> Origin.of([("trace", b"1"), ("statekit", b"5f3a/totals 12 9d1c 0 17")])
        Origin(sink='5f3a/totals', epoch=12, writer='9d1c', part=0, sequence=17)
        >>> Origin.of([("statekit", b"something else")])
        """
        for name, value in headers or ():
            if name == ORIGIN and isinstance(value, bytes):
                return _parsed(value)
        return None


def origin_prefix(sink: str, epoch: int, writer: str, part: int) -> str:
    """Return the value of the header for a part, up to the sequence number.

    >>> origin_prefix("5f3a/totals", 12, "9d1c", 0) + "17"
    '5f3a/totals 12 9d1c 0 17'
    """
    return f"{sink} {epoch} {writer} {part} "


def _parsed(value: bytes) -> Origin | None:
    try:
        sink, epoch, writer, part, sequence = value.decode().rsplit(" ", 4)
        return Origin(sink, int(epoch), writer, int(part), int(sequence))
    except ValueError:  # also of UnicodeDecodeError: a header of another program
        return None


def record_digest(value: Any, key: Any, headers: Any) -> bytes:
    """Return what equal records have in common.

    >>> record_digest(b"1", None, [("trace", b"7")]) == record_digest(b"1", None, [("trace", b"8")])
    False
    """
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode((value, key, headers)))


class RepeatFilter:
    """Finds records of one partition that a sink of statekit has written twice.

    A record is a repeat if an equal one with the same origin is at most some offsets before it.
    The origin has the sequence number of the record, so that equal records with one origin are one
    record that was written twice. The origin alone does not say that: if an epoch runs again, its
    parts may have other records. Records without an origin are no repeats.

    Parameters:
        within: how many offsets a record may be behind the equal one.

    >>> repeats = RepeatFilter(within=100)
    >>> headers = [("statekit", b"5f3a/totals 12 9d1c 0 17")]
    >>> [repeats.is_repeat(at, b"1", None, headers) for at in (7, 8, 108, 209)]
    [False, True, True, False]
    >>> [repeats.is_repeat(at, b"2", None, []) for at in (210, 211)]
    [False, False]
    """

    def __init__(self, within: int) -> None:
        self._within = within
        self._offsets: dict[bytes, int] = {}

    def is_repeat(self, offset: int, value: Any, key: Any, headers: Any) -> bool:
        """Return whether a record is a repeat. Called for each record, in the order of offsets."""
        if not headers or ORIGIN not in dict(headers):
            return False
        digest, offsets = record_digest(value, key, headers), self._offsets
        before = offsets.get(digest)
        offsets[digest] = offset
        if len(offsets) > 2 * self._within:
            self._forget(offset)
        if before is None or offset - before > self._within:
            return False
        return Origin.of(headers) is not None  # the header may be of another program

    def _forget(self, offset: int) -> None:
        """Forget the records that no record from an offset on can repeat."""
        first = offset - self._within
        self._offsets = {of: at for of, at in self._offsets.items() if at >= first}
