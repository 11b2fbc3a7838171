"""The header of each record that a sink of statekit writes to Kafka: where the record is from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


def origin_prefix(sink: str, epoch: int, writer: str, part: int) -> bytes:
    """Return the value of the header for a part, up to the sequence number.

    >>> origin_prefix("5f3a/totals", 12, "9d1c", 0) + b"17"
    b'5f3a/totals 12 9d1c 0 17'
    """
    return f"{sink} {epoch} {writer} {part} ".encode()


def _parsed(value: bytes) -> Origin | None:
    try:
        sink, epoch, writer, part, sequence = value.decode().rsplit(" ", 4)
        return Origin(sink, int(epoch), writer, int(part), int(sequence))
    except ValueError:  # also of UnicodeDecodeError: a header of another program
        return None


@dataclass
class RepeatFilter:
    """Finds records of one partition that a sink of statekit has written again or too late.

    A sink writes an epoch only after the epoch before it is committed, and then all records of
    that one are in the topic. So a record of an earlier epoch is from a run that has been overtaken
    and was still writing, and the partition has the records that count. Records without the header
    are no repeats.

    Parameters:
        epochs: the last epoch of each sink in the partition, as JSON: a reader may keep it with
            its offset.

    >>> repeats = RepeatFilter()
    >>> origin = Origin("5f3a/totals", 12, "9d1c", 0, 17)
    >>> repeats.is_repeat(origin), repeats.is_repeat(origin._replace(epoch=11))
    (False, True)
    >>> repeats.epochs
    {'5f3a/totals': 12}
    """

    epochs: dict[str, int] = field(default_factory=dict)

    def is_repeat(self, origin: Origin | None) -> bool:
        """Return whether a record does not count. Called for each record, by offset."""
        if origin is None:
            return False
        last = self.epochs.get(origin.sink, origin.epoch)
        self.epochs[origin.sink] = max(last, origin.epoch)
        return origin.epoch < last
