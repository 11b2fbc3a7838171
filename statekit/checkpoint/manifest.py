"""The manifest of an epoch: the files and progress of every shard of every operator.

A manifest is the commit: a file that no committed manifest references does not count. The entry of
a shard references all files that its rows consist of, in few words (`shard_contents`). So the size
of a manifest follows the number of shards and never the length of the history, and a restore reads
one manifest. Of a job with many shards, most entries are stored in pages (`manifest_pages`), which
only `Repository` knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.era import Era
from statekit.checkpoint.job_file import Clock, StateRecord
from statekit.checkpoint.sealed_json import FORMAT, Count, FileRef, Record, Sealed, checksum_of
from statekit.checkpoint.shard_contents import Contents, ReplayCost, Slice
from statekit.clock import now_us, unique_id
from statekit.names import StoredName, StoredText
from statekit.timestamp import MIN_MICROS
from statekit.watermark import BEGINNING

Cause = Literal[
    "records",
    "rescale",
    "rollback",
    "repair",
    "migrate",
    "savepoint",
    "import",
    "bootstrap",
    "transform",
]
"""The cause of an epoch: a run (over records or idle), or a command that changes a checkpoint."""


def added(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of counts by name.

    >>> added({"a": 1}, {"a": 2, "b": 5})
    {'a': 3, 'b': 5}
    """
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total


class ShardState(Contents):
    """A shard of an operator after an epoch.

    Parameters:
        first_group, last_group: its key groups, both inclusive.
        attempt: the attempt whose changes were committed last; None before the first change.
        changed: the epoch of that attempt; None before the first change.
        base, history, files, is_complete: see `Contents`.
        rows, bytes: exact size per state, keys included.
        wake_us: per clock, the time until which the shard has nothing to do without records. Never
            too late; a clock without anything due is left out.
        redistributed: change files with redistributed operator state, which are applied after all
            others. They become the first of `files` when the shard runs.
        slices: the parts that the shard consists of, in order, if a change of parallelism made it
            and it has not changed since. It then has neither base, history nor files.
        chain: the cost of applying the referenced change files.
        is_part: whether the shard was divided from another one, and its rows were not counted
            since. `rows` and `bytes` are then relative to the start: they are below zero if rows
            were removed. The sizes at the start are in the `undivided` fields of its operator. Use
            `row_bytes` for the size of the shard.
    """

    first_group: Count
    last_group: Count
    attempt: str | None = None
    changed: int | None = None
    rows: dict[str, int] = Field(default={})
    bytes: dict[str, int] = Field(default={})
    wake_us: dict[Clock, int] = Field(default={})
    redistributed: tuple[FileRef, ...] = ()
    slices: tuple[Slice, ...] = ()
    chain: ReplayCost = ReplayCost()
    is_part: bool = False

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.first_group > self.last_group:
            raise ValueError(f"key groups {self.first_group}..{self.last_group} are no range")
        if not self.is_part and min([*self.rows.values(), *self.bytes.values()], default=0) < 0:
            raise ValueError(f"it cannot hold {self.rows} rows and {self.bytes} bytes")
        if (self.attempt is None) != (self.changed is None):
            raise ValueError("attempt and changed come together")
        if self.slices and (self.files or self.base or self.history):
            raise ValueError("a shard that has changed cannot consist of slices of others")
        return self

    @property
    def row_bytes(self) -> int | None:
        """Bytes of all rows of the shard, keys included; None if unknown."""
        return None if self.is_part else sum(self.bytes.values())

    @property
    def groups(self) -> tuple[int, int]:
        return self.first_group, self.last_group

    def overlaps(self, first_group: int, last_group: int) -> bool:
        return self.first_group <= last_group and first_group <= self.last_group


@dataclass(frozen=True)
class ShardPlan:
    """The plan of a shard in an epoch: the information that its worker needs. Small and picklable.

    Parameters:
        checkpoint_id: of the job file.
        operator: its name.
        shard: its number.
        epoch: the epoch to run.
        base: the shard before the epoch.
        base_epoch: the epoch whose manifest has that entry; None before the first.
        watermark_us: of the operator in this epoch.
        reached_us: the watermark of the epoch before.
        processing_time_us: the processing time of the epoch.
        eras: the era of each state that ever had rows which expire.
        begun: the clock of each state whose era begins in this epoch, and that may have rows.
        migrated: the record of each state whose rows are marked with a generation.
        since: the epoch of the last rollback in its history; 0 without any.
        inputs: the names of the keyed inputs, in the order of their numbers.
        buffered_inputs: the names of all inputs that it may have buffered records of.
        buffered_types: the names of the types that those may be of, if there are several.
        failed_before: the number of failed calls of the operator's function in all epochs before.
    """

    checkpoint_id: str
    operator: str
    shard: int
    epoch: int
    base: ShardState
    base_epoch: int | None
    watermark_us: int = BEGINNING
    reached_us: int = BEGINNING
    processing_time_us: int = BEGINNING
    eras: dict[str, Era] = field(default_factory=dict)
    begun: dict[str, Clock] = field(default_factory=dict)
    migrated: dict[str, StateRecord] = field(default_factory=dict)
    since: int = 0
    inputs: tuple[str, ...] = ()
    buffered_inputs: tuple[str, ...] = ()
    buffered_types: tuple[str, ...] = ()
    failed_before: int = 0

    @property
    def now_us(self) -> dict[Clock, int]:
        """The time of each clock. Timers are not earlier than the smallest time of their clock."""
        return {
            "event": max(self.watermark_us, MIN_MICROS),
            "processing": max(self.processing_time_us, MIN_MICROS),
        }

    def clocks_due(self, shard: ShardState) -> tuple[Clock, ...]:
        """Return the clocks by which a state of the shard has something to do."""
        wake_us = shard.wake_us
        begun = {
            clock for state, clock in self.begun.items() if shard.is_part or shard.rows.get(state)
        }
        return tuple(
            c for c, now in self.now_us.items() if c in begun or wake_us.get(c, now + 1) <= now
        )

    @property
    def due_clocks(self) -> tuple[Clock, ...]:
        """The clocks by which the shard has something to do before the epoch."""
        return self.clocks_due(self.base)


@dataclass(frozen=True)
class ShardPlans(Sequence[ShardPlan]):
    """The plans of all shards of an operator in an epoch. Each plan is created when it is read.

    Parameters:
        common: the plan of any shard. The others differ in `shard` and `base`.
        bases: the shards before the epoch, in order.
        due: the numbers of the shards that have something to do even without records.
    """

    common: ShardPlan
    bases: Sequence[ShardState]
    due: frozenset[int]

    @classmethod
    def of(cls, common: ShardPlan, bases: Sequence[ShardState]) -> Self:
        """Return the plans of shards. Their wake times are compared with the clocks."""
        due = (
            number
            for number, base in enumerate(bases)
            if (base.wake_us or common.begun) and common.clocks_due(base)
        )
        return cls(common, bases, frozenset(due))

    @property
    def operator(self) -> str:
        return self.common.operator

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[shard] for shard in range(*place.indices(len(self)))]
        shard = range(len(self))[place]
        return replace(self.common, shard=shard, base=self.bases[shard])


class ShardReport(Record):
    """The commit record of an attempt: the report of a worker about a shard.

    Parameters:
        operator: its operator.
        shard: the shard after the epoch.
        records_out: number of emitted records.
        files_written: number of new change files, which are the last ones of the shard.
        bytes_written: bytes of these files.
        late: number of late records.
        failed: number of records and timers for which the function failed, and that it was declared
            to drop or collect.
        last_failure: the last of them, as text for messages.
        records_by_input: number of records by the number of the input, broadcast ones included.
        largest_by_input: the largest event time of records that were not late, likewise.
        undivided_rows, undivided_bytes: the size of a part at its start, if this epoch counted the
            rows of the shard. The shard is no part any more.
        executor: of a cluster, where it ran; empty elsewhere, and if it had nothing to do.
        has_moved: whether it ran on another one before.
        restored_bytes: bytes of the files that its working copy was restored from.
        caught_up_bytes: bytes of the change files that its working copy had missed.
        cpu_us: CPU time of the operator in the worker, in microseconds.
    """

    operator: str
    shard: ShardState
    records_out: Count = 0
    files_written: Count = 0
    bytes_written: Count = 0
    late: Count = 0
    failed: Count = 0
    last_failure: str = ""
    records_by_input: dict[int, Count] = Field(default={})
    largest_by_input: dict[int, int] = Field(default={})
    undivided_rows: dict[str, int] = Field(default={})
    undivided_bytes: dict[str, int] = Field(default={})
    executor: str = ""
    has_moved: bool = False
    restored_bytes: Count = 0
    caught_up_bytes: Count = 0
    cpu_us: Count = 0


class IdleShards(Record):
    """The report of a task about the shards of an operator that had nothing to do in an epoch.

    Parameters:
        operator: the operator.
        ranges: first and last number of shards that follow each other.
        cpu_us: CPU time of these shards in the worker, in microseconds.
    """

    operator: str
    ranges: tuple[tuple[Count, Count], ...]
    cpu_us: Count = 0

    @classmethod
    def of(cls, operator: str, shards: Iterable[int], cpu_us: int = 0) -> Self:
        """Return the report of shards with these numbers.

        >>> IdleShards.of("count", [5, 0, 1, 2]).ranges
        ((0, 2), (5, 5))
        """
        ranges: list[tuple[int, int]] = []
        for shard in sorted(shards):
            if ranges and ranges[-1][1] == shard - 1:
                ranges[-1] = ranges[-1][0], shard
            else:
                ranges.append((shard, shard))
        return cls(operator=operator, ranges=tuple(ranges), cpu_us=cpu_us)

    @property
    def shards(self) -> Iterator[int]:
        """Numbers of the shards."""
        return (shard for first, last in self.ranges for shard in range(first, last + 1))


Report = ShardReport | IdleShards
"""The report of a task: an attempt at a shard, or the shards that had nothing to do."""


InputOffset = Count | dict[StoredText, JsonValue]
"""How much of an input is in the state: the number of its records, or an offset of each partition
of a source.
"""

EpochOffsets = dict[str, InputOffset]
"""Where an epoch ends in each input."""


class EpochNote(Sealed):
    """The note of an epoch that began. With it, a replay gets the same input and processing time.

    Parameters:
        epoch: its number.
        what: its input: "batch 7" of Spark, "idle", "drain", or "records".
        processing_time_us: its processing time.
        begins_run: whether it is the first epoch of a run: the job did not run before it.
        offsets: where it ends in each input; empty if the input is that of Spark, or there is none.
    """

    title: ClassVar[str] = "the beginning of an epoch"

    epoch: Count
    what: StoredText
    processing_time_us: int
    begins_run: bool = False
    offsets: dict[StoredText, InputOffset] = Field(default={})


class Placed(Record):
    """The placement of an operator's shards in an epoch, and its cost.

    Parameters:
        shards: their number by the id of the executor; only those that had something to do.
        moved: the number of shards that ran on another executor the last time.
        restored_bytes: bytes of the files that working copies were restored from.
        caught_up_bytes: bytes of the change files that working copies had missed.
    """

    shards: dict[StoredText, Count] = Field(default={})
    moved: Count = 0
    restored_bytes: Count = 0
    caught_up_bytes: Count = 0


class HeldBack(Record):
    """The input that holds the event time of an operator back, because it is behind the others.

    Parameters:
        input: the name of the input.
        source: the source that the input's event time comes from.
        at_us: the largest event time of the source's records; None if it had none.
        since_us: the processing time of the first epoch at which it was there.
    """

    input: StoredText
    source: StoredText
    at_us: int | None
    since_us: int


class OperatorEpoch(Record):
    """An operator in an epoch.

    Parameters:
        shards: in key group order.
        records_in, records_out: records of this epoch.
        bytes_written: to change files in this epoch.
        late: late records of this epoch.
        late_so_far: late records of all epochs.
        failed: records and timers of this epoch for which the function failed, and that it was
            declared to drop or collect.
        failed_so_far: the same of all epochs.
        watermark_us: in this epoch; None for an operator without event time.
        largest_event_us: the largest event time of all epochs; None before the first.
        undivided_rows, undivided_bytes: the total size of the parts at their start: a change of
            parallelism divides shards without counting rows.
        records_by_input: records of this epoch per input stream; of a broadcast stream, the records
            that each shard handled.
        largest_by_input: the largest event time of all epochs, by input; none for an input without
            records.
        active_us: the processing time of the last epoch with records, by input; only for inputs
            that may be idle. Until its first record it is the time of the first epoch.
        held_back: the input that its event time waits for; None if it waits for none.
        placed: where its shards ran.
        cpu_us: CPU time of its shards in Spark's workers, in microseconds; 0 if unknown.
    """

    shards: tuple[ShardState, ...]
    records_in: Count = 0
    records_out: Count = 0
    bytes_written: Count = 0
    late: Count = 0
    late_so_far: Count = 0
    failed: Count = 0
    failed_so_far: Count = 0
    watermark_us: int | None = None
    largest_event_us: int | None = None
    undivided_rows: dict[str, Count] = Field(default={})
    undivided_bytes: dict[str, Count] = Field(default={})

    @property
    def rows(self) -> dict[str, int]:
        """Exact number of rows of all shards, per state."""
        return added(self.undivided_rows, *(shard.rows for shard in self.shards))

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of all rows of all shards, keys included."""
        return added(self.undivided_bytes, *(shard.bytes for shard in self.shards))

    records_by_input: dict[StoredText, Count] = Field(default={})
    largest_by_input: dict[StoredText, int] = Field(default={})
    active_us: dict[StoredText, int] = Field(default={})
    held_back: HeldBack | None = None
    placed: Placed = Placed()
    cpu_us: Count = 0

    def shards_over(self, first_group: int, last_group: int) -> Sequence[ShardState]:
        """Return the shards with rows of these key groups."""
        shards = self.shards
        begin = bisect_left(shards, first_group, key=lambda shard: shard.last_group)
        return shards[begin : bisect_right(shards, last_group, key=lambda shard: shard.first_group)]

    def at_rest(self, shards: Iterable[ShardState], **changes: Any) -> OperatorEpoch:
        """Return the operator in an epoch without records, with these shards."""
        counts = ("records_in", "records_out", "bytes_written", "late", "failed", "cpu_us")
        read = dict.fromkeys(self.records_by_input, 0)
        own = {"shards": tuple(shards), "placed": Placed(), "records_by_input": read}
        return self.model_copy(update={**dict.fromkeys(counts, 0), **own, **changes})

    def largest_of(self, stream: str) -> int | None:
        """Return the largest event time of a stream so far; None if it had no records."""
        if not self.largest_by_input and not self.records_by_input:
            return self.largest_event_us  # imported from Spark by an earlier version
        return self.largest_by_input.get(stream)

    @model_validator(mode="after")
    def _shards_follow_each_other(self) -> Self:
        for left, right in zip(self.shards, self.shards[1:], strict=False):
            if right.first_group != left.last_group + 1:
                raise ValueError(
                    f"shards must follow each other: {left.groups} is followed by {right.groups}"
                )
        return self


class EpochManifest(Sealed):
    """A committed epoch of a job.

    Parameters:
        job: the job's name.
        job_file: the job description in force.
        epoch: its number; the first is 0.
        previous: the epoch before it, or None for the first. After a rollback to epoch n it is n.
        cause: what made the epoch.
        abandoned: the epochs that were rolled back and are not in its history, as ranges of
            numbers, first and last, in order.
        whole: its files contain all state, and no earlier files count: key groups may have been
            others.
        batch: Spark's number of the last micro-batch in the state, or None.
        offsets: how much of each input is in the state; not of streams that Spark reads.
        guarantees: how often a record is in the target of each sink after crashes: "exactly once",
            "at least once"; only of sinks that say so.
        bad_records: how many records of sources did not fit their types so far, by source.
        records_by_source: records of this epoch that were read from each source, before any
            condition or function, and without bad ones.
        parallelism: the number of shards.
        key_groups: as in the job file.
        writer: the run that committed it.
        processing_time_us: the processing time of the epoch.
        drained: whether event time has ended.
        committed_at_us: wall clock, for display only.
        operators: by name.
    """

    title: ClassVar[str] = "an epoch's manifest"

    job: StoredName
    job_file: FileRef
    epoch: Count
    previous: int | None
    cause: Cause = "records"
    abandoned: tuple[tuple[Count, Count], ...] = ()
    whole: bool = False
    batch: int | None = None
    offsets: dict[StoredText, InputOffset] = Field(default={})
    bad_records: dict[StoredText, Count] = Field(default={})
    records_by_source: dict[StoredText, Count] = Field(default={})
    guarantees: dict[StoredText, StoredText] = Field(default={})
    parallelism: Annotated[int, Field(ge=1, le=32768)]
    key_groups: Annotated[int, Field(ge=1, le=32768)]
    writer: StoredText
    processing_time_us: int = BEGINNING
    drained: bool = False
    committed_at_us: int
    operators: dict[StoredName, OperatorEpoch]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.previous is not None and not 0 <= self.previous < self.epoch:
            raise ValueError(f"epoch {self.epoch} cannot follow epoch {self.previous}")
        ends = [end for first, last in self.abandoned for end in (first - 1, last)]
        if sorted({*ends, self.epoch}) != [*ends, self.epoch]:
            raise ValueError(f"abandoned epochs {self.abandoned} are no ranges before {self.epoch}")
        return self

    @model_validator(mode="after")
    def _shards_cover_all_groups(self) -> Self:
        for name, operator in self.operators.items():
            shards = operator.shards
            covered = (shards[0].first_group, shards[-1].last_group) if shards else None
            if covered != (0, self.key_groups - 1):
                raise ValueError(f"shards of {name} cover {covered} of {self.key_groups} groups")
        return self

    @property
    def id(self) -> EpochId:
        """The identity of the epoch. The cost of computing it grows with the number of shards."""
        return EpochId(self.epoch, checksum_of(self.to_bytes()))

    def followed_by(self, **changes: Any) -> EpochManifest:
        """Return the manifest of the next epoch: a copy with these changes and a new writer."""
        own: dict[str, Any] = {"format": FORMAT, "epoch": self.epoch + 1, "previous": self.epoch}
        own |= {"whole": False, "records_by_source": {}}
        written = {"writer": unique_id(), "committed_at_us": now_us()}
        return EpochManifest(**{**dict(self), **own, **written, **changes})

    def by_state(self, counts: Callable[[OperatorEpoch], dict[str, int]]) -> dict[str, int]:
        """Return a number for each state, by `operator.state`."""
        return {
            f"{name}.{state}": number
            for name, operator in self.operators.items()
            for state, number in counts(operator).items()
        }

    @property
    def sets_spark_back(self) -> bool:
        """True if Spark's part may have to be set back to this epoch."""
        return self.cause in ("rollback", "repair")

    def has_abandoned(self, epoch: int) -> bool:
        """Return whether an earlier epoch was rolled back and is not in the history."""
        return any(first <= epoch <= last for first, last in self.abandoned)

    @property
    def since(self) -> int:
        """The epoch of the last rollback in its history; 0 without any."""
        return self.abandoned[-1][1] + 1 if self.abandoned else 0

    def shards_over(self, operator: str, first_group: int, last_group: int) -> Sequence[ShardState]:
        """Return the shards of an operator that own any of these key groups; empty for a new
        operator.
        """
        operator_epoch = self.operators.get(operator)
        return operator_epoch.shards_over(first_group, last_group) if operator_epoch else ()
