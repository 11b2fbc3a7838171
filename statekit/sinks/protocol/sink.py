"""The protocol of sinks: `Sink`, and the attempts and parts that it writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from statekit.connectors.probed import Probed
from statekit.errors import (
    CALL_FAILURES,
    ConnectorError,
    ProcessError,
    StorageError,
    is_users,
    name_failed,
)
from statekit.shown import shown_error

if TYPE_CHECKING:
    import pyarrow as pa

Guarantee = Literal["exactly once", "at least once"]
"""How often a record is in the target after crashes."""

Receipt = Mapping[str, Any]
"""A note of `Sink.write` for `Sink.publish`: JSON of a few hundred bytes, such as a file's name."""

Earlier = Literal["none", "part", "epoch"]
"""What earlier attempts may have left in the target: nothing, records of this part of the same run,
or records of any part of the epoch. In the last case, this part is the whole epoch.
"""

EpochRanges = tuple[tuple[int, int], ...]
"""Ranges of epochs: the first and the last number of each."""


@dataclass(frozen=True)
class Outputs:
    """The outputs that a sink takes, the same in all runs of a checkpoint.

    Parameters:
        checkpoint: the id of the checkpoint. A transaction identifier of the checkpoint and the
            name of the sink is of no other sink.
        sink: its name in the job.
        schema: of the batches. All fields are nullable.
    """

    checkpoint: str
    sink: str
    schema: pa.Schema


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run to write an epoch.

    Parameters:
        outputs: of all epochs.
        epoch: its number, the same when it is replayed.
        writer: the run; keeps staged files of different runs apart.
        is_first: whether an earlier attempt may have written this epoch: it is the sink's first
            epoch in a run, or an epoch that runs again.
        without_outputs: epochs whose outputs do not count.
        check_owner: raises FencedError if another run has committed the epoch.
        replaces_all: whether the rows replace all rows of the target, as those of a `TableSink`.
    """

    outputs: Outputs
    epoch: int
    writer: str
    is_first: bool
    without_outputs: EpochRanges
    check_owner: Callable[[], None]
    replaces_all: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the outputs of an epoch: those of one task of Spark, or all of a process.

    Parameters:
        outputs: of all epochs.
        epoch: the number of the epoch.
        writer: the run, as in `Attempt`.
        number: of the part in its epoch. A task that Spark runs twice writes its part twice.
        earlier: what earlier attempts may have left, for sinks that write to where readers are.
        replaces_all: as in `Attempt`.
    """

    outputs: Outputs
    epoch: int
    writer: str
    number: int
    earlier: Earlier = "none"
    replaces_all: bool = False


class Sink(Probed[Outputs], ABC):
    """The destination of a stream's outputs, written epoch by epoch in any runtime.

    Before the first record of a run, the driver calls `begin`. For each epoch, it calls `open`,
    tasks call `write` where the outputs are, and the driver calls `publish` before it commits the
    epoch. Tasks get a pickled copy of the sink, so open connections belong into `open` or `write`.
    After a crash an epoch runs again with the same number, and outputs under that number may be
    there already.

    >>> class Collected(Sink):
    ...     "Keeps rows in memory."
    ...     def __init__(self):
    ...         self.rows = {}
    ...     def write(self, part, batches):
    ...         return {"rows": [row for batch in batches for row in batch.to_pylist()]}
    ...     def publish(self, attempt, receipts):
    ...         self.rows[attempt.epoch] = [row for receipt in receipts for row in receipt["rows"]]
    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="customer")
    ... def total(order: Order, sum: sk.ValueState[int]) -> None:
    ...     sum.update((sum.get() or 0) + order.cents)
    >>> job, kept = sk.Job("shop"), Collected()
    >>> orders = job.source("orders", Order).sink("kept")
    >>> _ = orders.process(total)
    >>> run = job.run({"orders": [Order("ada", 5)]}, outputs={"kept": kept})
    >>> kept.rows
    {0: [{'customer': 'ada', 'cents': 5}]}
    """

    guarantee: ClassVar[Guarantee] = "exactly once"
    guarantee_on_spark: ClassVar[Guarantee | None] = None
    """The guarantee of runs on Spark; None if it is the same."""

    @property
    def directory(self) -> str | None:
        """The directory that only this sink may write to; None if there is no such directory."""
        return None

    def begin(self, outputs: Outputs) -> None:
        """Check that the target takes these outputs, or make it so, before a run reads a record.

        It is called in the driver, once per run.
        """

    def open(self, attempt: Attempt) -> None:
        """Prepare the target for an epoch, in the driver."""

    def wants_one_part(self, attempt: Attempt) -> bool:
        """Return whether Spark must give the epoch to `write` as one part, after `open`.

        It is asked if an earlier attempt may have written the epoch, which may have been divided
        otherwise. A process always writes an epoch as one part.
        """
        return False

    @abstractmethod
    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt | None:
        """Write a part of the outputs of an epoch to a place where readers do not see it yet.

        Parameters:
            part: which part it is.
            batches: its rows. The part has at least one.

        Returns:
            A note for `publish`; None if there is nothing to publish.
        """

    @abstractmethod
    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        """Let readers see an epoch, in the driver, before the epoch is committed.

        Replace or keep the outputs that an earlier attempt has published.

        Parameters:
            attempt: of the epoch.
            receipts: of its parts, in the order of their numbers.
        """

    def abandon(self, epochs: EpochRanges) -> None:
        """Remove the outputs of epochs that do not count any more, after a rollback.

        It is called before the first epoch of a run, also if they were removed before.
        """

    def close(self) -> None:
        """Release resources, in the driver, at the end of a run."""


class TableSink(Sink):
    """A sink of a table that a mirror can keep equal to a state.

    It can write an epoch that replaces all rows: `Attempt.replaces_all`.
    """

    def create(self, outputs: Outputs) -> None:
        """Create the table if there is none. A table that is there does not change."""

    def begin_owned(self, outputs: Outputs) -> None:
        """Prepare a table that only this sink writes, in place of `begin`.

        The first epoch, and each one whose outputs have other types, replaces all rows. It may
        replace the columns, too.
        """
        self.begin(outputs)

    @property
    @abstractmethod
    def target(self) -> object:
        """The place of the table. It is equal for sinks that write to one table."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The kind and the place of the table as a text for people, without a password."""

    @property
    def is_table(self) -> bool:
        """Whether the rows have types, so that the target is a table."""
        return True

    @abstractmethod
    def last_epoch(self, outputs: Outputs) -> int | None:
        """Return the last epoch that is in the table; None if there is none. The table was
        created.

        An epoch without rows need not be there.
        """

    def by_key(self, key: Sequence[str], delete: str) -> TableSink | None:
        """Return this sink with rows that replace those with the same key; None if it cannot.

        Parameters:
            key: the fields of the key.
            delete: the field that marks keys to be deleted.
        """
        return None

    @abstractmethod
    def has_rows(self, outputs: Outputs) -> bool:
        """Return whether the table has any rows, of whichever writer. The table was created."""

    def stored(self, outputs: Outputs, columns: Sequence[str], null: str | None = None) -> pa.Table:
        """Return rows of the table, with the types of the outputs. Needed if `by_key` is not None.

        Parameters:
            columns: their names.
            null: a column that is null in the rows; None for all rows.
        """
        raise NotImplementedError

    @abstractmethod
    def last_writer(self, outputs: Outputs) -> SinkIdentity | None:
        """Return the sink that has written the last epoch of the table; None if none is known."""

    @abstractmethod
    def is_dropped(self, outputs: Outputs) -> bool:
        """Return whether the table does not exist, although it was created."""

    def claim(self, outputs: Outputs, last: int | None) -> None:
        """Make the table that of this sink, and remove the rows of others if they would stay. It
        is called before each epoch; commits of tables have their writer.

        Parameters:
            last: the last epoch of the table; None if there is none.
        """

    def compact(self, outputs: Outputs, files: int) -> bool:
        """Rewrite some small files of the table as a large one, if the target has files that
        readers choose by a log. The rows do not change. Return whether that was done: then there
        may be more of them. The work of a call is bounded, whatever the size of the table.

        Parameters:
            files: how many small files there have to be.
        """
        return False

    def appending(self) -> TableSink:
        """Return this sink with rows that are only added."""
        return self

    @property
    def transactions(self) -> object:
        """What the transactions of the target belong to: sinks in which it is equal can publish
        together. None if each table has its own commits.
        """
        return None

    def publish_all(self, publications: Sequence[Publication]) -> None:
        """Publish epochs of several tables: in one transaction, if `transactions` is not None.

        Parameters:
            publications: of sinks whose `transactions` equal those of this one.
        """
        for sink, attempt, receipts in publications:
            sink.publish(attempt, receipts)


class SinkIdentity(NamedTuple):
    """A sink that has written to a table.

    Parameters:
        checkpoint: the id of its checkpoint; empty if it is not known.
        sink: its name; empty if it is not known.
    """

    checkpoint: str
    sink: str


class Publication(NamedTuple):
    """An epoch of a table that is to be published.

    Parameters:
        sink: of the table.
        attempt: of the epoch.
        receipts: of its parts, in the order of their numbers.
    """

    sink: TableSink
    attempt: Attempt
    receipts: Sequence[Receipt]


def staged_part(sink: Sink, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt | None:
    """Write a part of an epoch to a sink, and return the receipt; None if there is no row, or
    nothing to publish.
    """
    first = next(batches, None)
    return None if first is None else sink.write(part, chain((first,), batches))


@contextmanager
def sink_failures(
    which: str, epoch: int, passes: Callable[[BaseException], bool] = lambda error: False
) -> Iterator[None]:
    """Convert errors of a sink to ProcessError, while the outputs of an epoch are written.

    Parameters:
        which: the sink, as messages name it, such as "sink 'orders'".
        epoch: its number.
        passes: whether an error is not about the sink, and raised as it is.

    Raises:
        ProcessError: the sink failed, and not with an error of statekit.
        ConnectorError, StorageError: what it writes to failed.
    """
    try:
        yield
    except CALL_FAILURES as error:
        if passes(error):
            raise
        if not is_users(error):
            if isinstance(error, ConnectorError | StorageError):
                name_failed(error, which)
            raise
        raise ProcessError(
            f"{which} failed in epoch {epoch} with {shown_error(error)}. Nothing of this epoch "
            "is committed, and it runs again under the same number: correct the sink, then start "
            "again"
        ) from error
