"""The request of a user for the changes of a state, and its division into tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from statekit.checkpoint.leases.reader_lease import lease_ttl_us, resync_error
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.names import name_fault
from statekit.query.changes.state_changes import ShardChanges, StateChanges
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.reader import CheckpointReader
from statekit.spark.sources.frame import Frame
from statekit.spark.sources.options import Given, Options
from statekit.spark.sources.state_source import OPERATOR, PATH, STATE

FORMAT = "statekit-changes"
OF_STREAMS = ("maxEpochsPerTrigger", "reader", "leaseTtl")
OF_BATCHES = ("endingEpoch",)
_OPTIONS = (
    *("path", "operator", "state", "startingEpoch", *OF_BATCHES),
    *OF_STREAMS,
    *("wideInts", "allowPickle"),
)
EPOCHS_PER_TRIGGER = 1000
LEASE_TTL = "10 minutes"

MUTATIONS_PER_TASK = 1_000_000
"""The approximate maximum of mutations per task. A task reads the change files of one shard, over
several epochs.
"""


@dataclass(frozen=True)
class Start:
    """The first change to read.

    Parameters:
        epoch: an epoch.
        is_snapshot: whether all rows of the state after it come first. Otherwise the consumer has
            them, and the changes of the next epoch come first.
    """

    epoch: int
    is_snapshot: bool

    @property
    def first(self) -> int:
        """The first epoch whose changes or rows are read."""
        return self.epoch if self.is_snapshot else self.epoch + 1


@dataclass(frozen=True)
class ChangesRequest:
    """The options of a user. The object is small and picklable.

    Parameters:
        checkpoint: the URL of the checkpoint, or an absolute path.
        operator, state: their names.
        starting: the first epoch to read; "earliest", "latest"; None for the default.
        ending: the last epoch to read in a batch. Loading determines it if the user gave none. The
            types of the columns are those of this epoch.
        epochs_per_trigger: the number of epochs of a micro-batch.
        reader: the name of the reader that keeps epochs; None for none.
        lease_ttl: how long the lease of the reader is valid.
        wide_ints, allow_pickle: as in `statekit.read`.
        columns: all columns, with the types of the epoch `ending`. That may be collected while a
            query runs.
    """

    checkpoint: str
    operator: str
    state: str
    starting: int | str | None
    ending: int
    epochs_per_trigger: int
    reader: str | None
    lease_ttl: str
    wide_ints: bool
    allow_pickle: bool
    columns: pa.Schema

    @classmethod
    def of(cls, given: Given) -> ChangesRequest:
        """Return the request of a user after checking it.

        Raises:
            StateTypeError: an option is missing or not valid.
            QueryError: there is no such epoch, operator or state, or it has no changes.
            RestoreError: the path does not exist.
        """
        options = Options(FORMAT, given, _OPTIONS)
        repository = Repository(options.required("path", PATH), create=False)
        ending = options.number("endingEpoch")
        request = cls(
            checkpoint=repository.url,
            operator=options.required("operator", OPERATOR),
            state=options.required("state", STATE),
            starting=_starting(options),
            ending=CheckpointReader(repository, epoch=ending).manifest.epoch,
            epochs_per_trigger=options.number("maxEpochsPerTrigger", least=1) or EPOCHS_PER_TRIGGER,
            reader=_reader(options),
            lease_ttl=_lease_ttl(options),
            wide_ints=options.flag("wideInts"),
            allow_pickle=options.flag("allowPickle"),
            columns=pa.schema([]),
        )
        if isinstance(request.starting, int) and ending is not None and request.starting > ending:
            raise options.wrong("startingEpoch", f"give an epoch up to endingEpoch={ending}")
        changes = request.changes()
        manifest = changes.epochs.manifest(request.ending)
        return replace(request, columns=changes.table(manifest).schema)

    def changes(self, wanted: Collection[str] | None = None) -> StateChanges:
        """Open the checkpoint.

        Parameters:
            wanted: lower-case names of columns; None for all.
        """
        return StateChanges(
            self.checkpoint,
            self.operator,
            self.state,
            wanted=wanted,
            wide_ints=self.wide_ints,
            allow_pickle=self.allow_pickle,
        )

    @property
    def place(self) -> str:
        """The description of the state, for messages."""
        return f"{self.operator}.{self.state} of {self.checkpoint}"

    def start(self, epochs: EpochReader, *, default: str, last: int) -> Start:
        """Return the first change to read.

        Parameters:
            default: for a user who gave no start: "earliest" or "latest".
            last: the last epoch.

        Raises:
            QueryError: the epoch before the first was collected.
        """
        starting = default if self.starting is None else self.starting
        if starting == "latest":
            return Start(last, is_snapshot=True)
        if starting == "earliest":
            return Start(epochs.repository.epochs()[0], is_snapshot=True)
        assert isinstance(starting, int)
        if starting > 0:
            return Start(epochs.applied(starting - 1).epoch, is_snapshot=False)
        error = resync_error(epochs.repository, 0)
        if error is not None:
            raise error
        return Start(0, is_snapshot=True)


def _starting(options: Options) -> int | str | None:
    value = options.text("startingEpoch")
    if value is None:
        return None
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    if not (value.isascii() and value.isdigit()):
        raise options.wrong(
            "startingEpoch", 'give the first epoch to read, or "earliest" or "latest"'
        )
    return int(value)


def _reader(options: Options) -> str | None:
    name = options.text("reader")
    fault = None if name is None else name_fault(name)
    if fault is not None:
        raise options.wrong("reader", fault)
    return name


def _lease_ttl(options: Options) -> str:
    ttl = options.text("leaseTtl")
    if ttl is None:
        return LEASE_TTL
    if options.text("reader") is None:
        raise options.wrong("leaseTtl", 'a lease has a reader: add .option("reader", "…")')
    if lease_ttl_us(ttl, "leaseTtl") < 1_000_000:
        raise options.wrong("leaseTtl", 'give a second or more, such as "10 minutes"')
    return ttl


# ------------------------------------------------------------------------------------- division


def planned(
    changes: StateChanges,
    start: Start,
    last: int,
    check: Callable[[EpochManifest], None] = lambda manifest: None,
) -> list[InputPartition]:
    """Return the tasks that read changes. There is always one, even without changes, because Spark
    runs a task in any case.

    Parameters:
        changes: the changes of the state.
        start: where to begin.
        last: the last epoch.
        check: is called with each epoch, and raises an error if the query cannot read it.

    Raises:
        QueryError: an epoch was collected, or the checkpoint was replaced.
    """
    begin = changes.epochs.manifest(start.epoch)
    following: Iterable[EpochManifest] = changes.manifests(begin, last)

    def checked() -> Iterator[EpochManifest]:
        for manifest in chain([begin], following) if start.is_snapshot else following:
            check(manifest)
            yield manifest

    pieces = changes.pieces(None if start.is_snapshot else begin, checked())
    return [InputPartition(bundle) for bundle in bundles(pieces)] or [InputPartition(())]


def bundles(pieces: Iterable[ShardChanges]) -> list[Sequence[ShardChanges]]:
    """Group the changes of each shard in successive epochs. Comparisons of shards stay alone."""
    finished = list[Sequence[ShardChanges]]()
    of_shards = dict[int, list[ShardChanges]]()
    for piece in pieces:
        if not piece.files:
            finished.append([piece])
            continue
        bundle = of_shards.setdefault(piece.shard, [])
        bundle.append(piece)
        if sum(part.mutations for part in bundle) >= MUTATIONS_PER_TASK:
            finished.append(of_shards.pop(piece.shard))
    return [*finished, *of_shards.values()]


def read_bundle(
    request: ChangesRequest, frame: Frame, bundle: Sequence[ShardChanges]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a task. Runs in a worker.

    Raises:
        QueryError: an epoch was collected meanwhile; or a column has another type than Spark
            expects.
    """
    changes = request.changes(frame.wanted)
    for piece in bundle:
        yield from map(frame.conformed, changes.batches(piece))
