"""The protocol of sources: `Source`, and the offsets up to which epochs have read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from statekit.connectors.probed import Probed
from statekit.sources.decoding.decoder import ColumnDecoder, Decoder

if TYPE_CHECKING:
    import pyarrow as pa

    from statekit.records.union import Records

Offset = Any
"""A position in a partition, as JSON: a number, a text, or a list or dict of them."""

Offsets = Mapping[str, Offset]
"""A position in each partition of a source, by the name of the partition."""


class Source(Probed["Records"], ABC):
    """The origin of a job's records, read by offsets in any runtime.

    The driver decides up to which offsets an epoch reads, and notes them before the epoch runs.
    They are committed with the state, so that each record is processed exactly once, and a run in
    any runtime continues there. `read` must give the same records for the same offsets again, as
    long as the checkpoint may go back to them. On Spark, tasks get a pickled copy of the source:
    open connections belong into `open` or `read`.

    >>> class Numbers(Source):
    ...     "Counts from 0, without an end."
    ...     def earliest(self):
    ...         return {"all": 0}
    ...     def latest(self, start, limit, wait_s):
    ...         return {"all": start["all"] + limit}
    ...     def read(self, partition, start, end):
    ...         yield pa.record_batch({"number": range(start, end)})
    >>> import pyarrow as pa
    >>> source = Numbers()
    >>> end = source.latest(source.earliest(), 3, 0.0)
    >>> [batch.to_pydict() for batch in source.read("all", 0, end["all"])]
    [{'number': [0, 1, 2]}]
    """

    @property
    def is_bounded(self) -> bool:
        """True if all records are there when a run begins. A run then reads them to the end."""
        return False

    @property
    def lag_limit(self) -> int | None:
        """The number up to which `lag` counts: this many are at least so many."""
        return None

    def open(self, *, reads_here: bool) -> None:
        """Connect to the origin, in the driver, at the start of a run.

        Parameters:
            reads_here: whether `read` is called on this object, in this process; not if tasks of
                Spark read.
        """

    @abstractmethod
    def earliest(self) -> Offsets:
        """Return the offsets at which a new checkpoint starts, one per partition."""

    @abstractmethod
    def latest(self, start: Offsets, limit: int, wait_s: float) -> Offsets:
        """Return the offsets at which the next epoch ends. Called in the driver.

        Parameters:
            start: the offsets at which it starts.
            limit: about how many records it should read at most.
            wait_s: how long to wait for a record if there is none after `start`, in seconds. A
                source that cannot be notified returns earlier.

        Returns:
            The offset of each partition of `start`, and of partitions that are new: these are
            read from their first record. Equal to `start` if there is no record.
        """

    @abstractmethod
    def read(self, partition: str, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """Yield the records of a partition after `start` and up to `end`, in order.

        Columns whose name begins with `__offset` say where a row is, and are no fields of records.

        Parameters:
            start: where an epoch before this one ended; None for the first record of a new
                partition.
            end: an offset that `latest` has returned.
        """

    def decoder(self, records: Records, name: str) -> Decoder:
        """Return the function that makes records of batches. By default columns are fields.

        Parameters:
            records: the type of the records.
            name: of the source in the job.
        """
        return ColumnDecoder(records, name)

    def lag(self, offsets: Offsets) -> int | None:
        """Return how many records are after these offsets; None if that is not known.

        It is called once a second, between two epochs: a source that counts records needs a limit.
        """
        return None

    def close(self) -> None:
        """Release resources, in the driver, at the end of a run."""
