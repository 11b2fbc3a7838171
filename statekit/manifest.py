"""What a checkpoint says about itself: `job.json` and the manifest of each epoch.

What lives here: frozen models of the two kinds of file, their invariants, and their bytes with a
checksum. What does not: any I/O (`repository`), and what the named files hold (`mutation`).

A manifest is the commit: whatever no committed manifest names does not exist. Each one names the
files of its own epoch only and points at the manifest before it, so its size follows the number
of shards and never the length of the history.

Both files are one line of JSON whose last member is the XXH3-128 of all bytes before it:

    {"format":1,…,"checksum":"0123456789abcdef0123456789abcdef"}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.timestamp import MIN_MICROS
from statekit.watermark import BEGINNING

__all__ = [
    "CLOCK_TAGS",
    "EXPIRY",
    "FORMAT",
    "TIMERS",
    "WAITING",
    "Clock",
    "EpochInstant",
    "EpochManifest",
    "FileRef",
    "JobFile",
    "KeyFieldRecord",
    "OperatorEpoch",
    "OperatorRecord",
    "ShardPlan",
    "ShardReport",
    "ShardState",
    "StateRecord",
    "TtlRecord",
    "checksum_of",
    "epoch_path",
    "instant_path",
]

FORMAT = 1
"""The format version that this code writes, and the newest that it reads."""

_SEAL = ',"checksum":"'
_SEAL_BYTES = len(_SEAL) + 32 + len('"}')

Count = Annotated[int, Field(ge=0)]

TIMERS = "_timers"
"""What the timers of an operator are called where its states are named. No state can be."""

WAITING = "_waiting"
"""The same for records that wait for the watermark."""

EXPIRY = "_expiry"
"""The same for the index of rows that expire."""

Clock = Literal["event", "processing"]
"""Event time is what records say, processing time what the wall clock says."""

CLOCK_TAGS: dict[Clock, bytes] = {"event": b"\x00", "processing": b"\x01"}
"""What stands for a clock in row keys."""


def checksum_of(data: bytes) -> str:
    """XXH3-128 of `data` as 32 hex digits.

    >>> checksum_of(b"")
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(data)


def epoch_path(epoch: int) -> str:
    """Where the manifest of an epoch lives, so that names sort like numbers.

    >>> epoch_path(12)
    'epochs/00000000000000000012.json'
    """
    return f"epochs/{epoch:020d}.json"


def instant_path(epoch: int) -> str:
    """Where the instant of an epoch is kept until the epoch is committed.

    >>> instant_path(12)
    'begun/00000000000000000012.json'
    """
    return f"begun/{epoch:020d}.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileRef(_Record):
    """A file that is written once and never changed.

    Parameters:
        path: below the checkpoint.
        size: in bytes.
        checksum: XXH3-128 of its content, in hex.
        rows: mutations in a change file; 0 for other kinds.
    """

    path: str
    size: Count
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    rows: Count = 0


class _Sealed(_Record):
    """A record that is a file of its own, with format version and checksum."""

    title: ClassVar[str]

    format: Annotated[int, Field(ge=1)] = FORMAT

    def to_bytes(self) -> bytes:
        """The file's content: canonical JSON, sealed with its checksum."""
        body = self.model_dump_json().encode()[:-1]
        return body + f'{_SEAL}{checksum_of(body)}"}}'.encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Self:
        """Verify and read a file's content.

        Raises:
            CorruptCheckpointError: truncated, altered, or not such a file.
            RestoreError: written by a newer version of statekit.
        """
        body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
        if seal != f'{_SEAL}{checksum_of(body)}"}}'.encode():
            raise CorruptCheckpointError(
                f"{path} is truncated or altered: its checksum does not match its content. "
                "Restore the file from a backup, or start from an earlier epoch or a savepoint"
            )
        try:
            parsed = json.loads(body + b"}")
            found = parsed.get("format")
            if isinstance(found, int) and found > FORMAT:
                raise RestoreError(
                    f"{path} has format version {found}; this statekit reads up to {FORMAT}: "
                    "upgrade statekit"
                )
            return cls.model_validate_json(body + b"}")
        except (ValueError, ValidationError, AttributeError) as error:
            raise CorruptCheckpointError(
                f"{path} is not {cls.title}: {error}. Restore the file from a backup, "
                "or start from an earlier epoch or a savepoint"
            ) from error


class KeyFieldRecord(_Record):
    """One key field: its name and its type as a schema tree."""

    name: str
    type: Any


class TtlRecord(_Record):
    """When rows of a state expire.

    Parameters:
        duration_us: after so long.
        clock: by which clock.
        refresh: a "write" begins the time anew, or a "read", too.
    """

    duration_us: Annotated[int, Field(gt=0)]
    clock: Clock
    refresh: Literal["write", "read"]


class StateRecord(_Record):
    """One declared state: its kind, codecs and types as schema trees, and when its rows expire.

    Parameters:
        ttl: None if its rows do not expire.
        era: how often expiry was turned on, or moved to another clock, so far. Only stamps of the
            era count; 0 if no row was ever stamped.
    """

    name: str
    kind: str
    codec: str
    types: dict[str, Any]
    fingerprint: str
    ttl: TtlRecord | None = None
    era: Annotated[int, Field(ge=0, le=255)] = 0

    @property
    def untimed(self) -> StateRecord:
        """What may not change from run to run: all but when its rows expire."""
        return self.model_copy(update={"ttl": None, "era": 0})

    def succeeding(self, stored: StateRecord) -> StateRecord:
        """This declaration, in the era that follows from what is stored.

        The time of rows begins with their next write when expiry is turned on or changes its clock.

        Raises:
            ValueError: expiry was turned on too often.
        """
        if self.ttl is None:
            return self.model_copy(update={"era": stored.era})
        same = stored.ttl is not None and stored.ttl.clock == self.ttl.clock
        era = stored.era if same else stored.era + 1
        if era > 255:
            raise ValueError("expiry was turned on, or moved to another clock, 255 times")
        return self.model_copy(update={"era": era})


class OperatorRecord(_Record):
    """One operator of a job: its key, its time and its states.

    Parameters:
        event_time: the field with the event time; None without event time.
        lateness_us: how far records may lag behind before they are late.
        timers: whether it handles timers, and so may hold some.
        timer_names: those that have a callback, and None if there is one for all others. None
            without timers, and in job files that were written before it was kept.
        ordered: the type of its records as a schema tree, if they wait for the watermark.
        definition: what else its state means nothing without, by name; None for most.
    """

    name: str
    inputs: tuple[str, ...]
    key: tuple[KeyFieldRecord, ...]
    states: tuple[StateRecord, ...]
    event_time: str | None = None
    lateness_us: Count = 0
    timers: bool = False
    timer_names: tuple[str | None, ...] | None = None
    ordered: Any = None
    definition: dict[str, str] | None = None

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of all that it may have rows of."""
        names = tuple(state.name for state in self.states)
        if self.timers:
            names += (TIMERS,)
        return names if self.ordered is None else (*names, WAITING)

    @model_validator(mode="after")
    def _states_have_different_names(self) -> Self:
        names = [state.name for state in self.states]
        if len(set(names)) != len(names):
            raise ValueError(f"operator {self.name} names a state twice: {names}")
        return self


class JobFile(_Sealed):
    """`job.json`: what does not change from epoch to epoch.

    Parameters:
        id: unique per checkpoint, so that copies made for another one are never mistaken.
        name: of the job.
        key_groups: fixed for the life of the checkpoint.
        operators: with their states and types.
        dropped: names of states that were given up, per operator. Change files may still hold
            their rows, so no other state may take such a name.
    """

    title: ClassVar[str] = "a job description"

    id: str
    name: str
    key_groups: Annotated[int, Field(ge=1, le=32768)]
    operators: tuple[OperatorRecord, ...]
    dropped: dict[str, tuple[str, ...]] = {}

    def operator(self, name: str) -> OperatorRecord | None:
        return next((found for found in self.operators if found.name == name), None)


class ShardState(_Record):
    """Where one shard of one operator stands after an epoch.

    Parameters:
        first_group, last_group: the key groups it owns, both inclusive.
        attempt: the attempt whose changes were committed last; None before the first change.
        changed: the epoch of that attempt; None before the first change.
        files: its change files in order, if `changed` is this manifest's epoch; else empty.
        rows, bytes: what the shard holds per state, keys included. Exact; without entries for a
            shard that came from a change of parallelism and was not counted yet.
        wake_us: per clock, before when the shard has nothing to do unless records come. Never too
            late; a clock for which nothing waits is left out.
    """

    first_group: Count
    last_group: Count
    attempt: str | None = None
    changed: int | None = None
    files: tuple[FileRef, ...] = ()
    rows: dict[str, Count] = {}
    bytes: dict[str, Count] = {}
    wake_us: dict[Clock, int] = {}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.first_group > self.last_group:
            raise ValueError(f"key groups {self.first_group}..{self.last_group} are no range")
        if (self.attempt is None) != (self.changed is None):
            raise ValueError("attempt and changed come together")
        return self

    @property
    def is_counted(self) -> bool:
        """Whether `rows` and `bytes` say what the shard holds."""
        return self.attempt is None or bool(self.rows)

    @property
    def groups(self) -> tuple[int, int]:
        return self.first_group, self.last_group

    def overlaps(self, first_group: int, last_group: int) -> bool:
        return self.first_group <= last_group and first_group <= self.last_group


@dataclass(frozen=True)
class ShardPlan:
    """What a worker needs to know about its part of an epoch. Small, and picklable.

    Parameters:
        checkpoint_id: of the job file.
        operator: its name.
        shard: its number.
        epoch: the epoch to make.
        base: where the shard stands before it.
        base_epoch: the epoch whose manifest says so; None before the first.
        watermark_us: of the operator in this epoch.
        reached_us: what it was in the epoch before.
        processing_time_us: the one instant that the epoch takes place at.
        eras: per state that ever had rows which expire, its era.
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
    eras: dict[str, int] = field(default_factory=dict)

    @property
    def now_us(self) -> dict[Clock, int]:
        """What each clock shows. No timer, not even at the first instant, is before time began."""
        return {
            "event": max(self.watermark_us, MIN_MICROS),
            "processing": max(self.processing_time_us, MIN_MICROS),
        }

    @property
    def due_clocks(self) -> tuple[Clock, ...]:
        """The clocks by which something may be due: whose time to wake has come.

        All of them for a shard that came from a change of parallelism.
        """
        base, now = self.base, self.now_us
        return tuple(
            clock
            for clock, time in now.items()
            if not base.is_counted or base.wake_us.get(clock, time + 1) <= time
        )

    @property
    def is_due(self) -> bool:
        """Whether the shard has something to do even if no records come."""
        return bool(self.due_clocks)


class ShardReport(_Record):
    """What a worker tells about one shard it ran: the commit record of its attempt.

    Parameters:
        operator: whose shard it is.
        shard: where it stands now.
        records_in, records_out: what it handled.
        late: how many of those that came in were late.
        largest_event_us: the largest event time among the others; None without any.
    """

    operator: str
    shard: ShardState
    records_in: Count = 0
    records_out: Count = 0
    late: Count = 0
    largest_event_us: int | None = None


class EpochInstant(_Sealed):
    """An epoch that was begun, so that a replay is of the same and sees the same instant.

    Parameters:
        epoch: its number.
        what: what it handles: "batch 7" of Spark, "idle", "drain", or "records".
        processing_time_us: the instant it takes place at.
    """

    title: ClassVar[str] = "the beginning of an epoch"

    epoch: Count
    what: str
    processing_time_us: int


class OperatorEpoch(_Record):
    """One operator in one epoch.

    Parameters:
        shards: in key group order.
        records_in, records_out: what it handled in this epoch.
        late: how many of those that came in were late.
        late_so_far: the same, of all epochs.
        watermark_us: in this epoch; None for an operator without event time.
        largest_event_us: the largest event time of all epochs; None before the first.
    """

    shards: tuple[ShardState, ...]
    records_in: Count = 0
    records_out: Count = 0
    late: Count = 0
    late_so_far: Count = 0
    watermark_us: int | None = None
    largest_event_us: int | None = None

    @model_validator(mode="after")
    def _shards_follow_each_other(self) -> Self:
        for left, right in zip(self.shards, self.shards[1:], strict=False):
            if right.first_group != left.last_group + 1:
                raise ValueError(
                    f"shards must follow each other: {left.groups} is followed by {right.groups}"
                )
        return self


class EpochManifest(_Sealed):
    """One committed epoch of a whole job.

    Parameters:
        job: the job's name.
        job_file: the `job.json` (or its successor) in force.
        epoch: its number; the first is 0.
        previous: the epoch before it, or None for the first.
        batch: Spark's number of the last micro-batch in the state, or None.
        offsets: records consumed per input, for runs without Spark.
        parallelism: the number of shards.
        key_groups: as in the job file.
        writer: the run that committed it.
        processing_time_us: the one instant that all of the epoch took place at.
        drained: whether event time came to its end.
        committed_at_us: wall clock, for people; nothing is decided by it.
        operators: by name.
    """

    title: ClassVar[str] = "an epoch's manifest"

    job: str
    job_file: FileRef
    epoch: Count
    previous: int | None
    batch: int | None = None
    offsets: dict[str, Count] = {}
    parallelism: Annotated[int, Field(ge=1)]
    key_groups: Annotated[int, Field(ge=1, le=32768)]
    writer: str
    processing_time_us: int = BEGINNING
    drained: bool = False
    committed_at_us: int
    operators: dict[str, OperatorEpoch]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.previous is not None and not 0 <= self.previous < self.epoch:
            raise ValueError(f"epoch {self.epoch} cannot follow epoch {self.previous}")
        for name, operator in self.operators.items():
            shards = operator.shards
            covered = (shards[0].first_group, shards[-1].last_group) if shards else None
            if covered != (0, self.key_groups - 1):
                raise ValueError(f"shards of {name} cover {covered} of {self.key_groups} groups")
        return self

    def standing(self, operator: str, first: int, last: int) -> ShardState:
        """Where the key groups `first..last` of an operator stand after this epoch.

        If the epoch had a shard of just these groups, that is it. After a change of parallelism
        there is none; then the state is everything that the epoch's shards hold of these groups,
        under a name that is the same for everyone who asks.
        """
        shards = list(self.shards_over(operator, first, last))
        for shard in shards:
            if shard.groups == (first, last):
                return shard
        blank = ShardState(first_group=first, last_group=last)
        if all(shard.attempt is None for shard in shards):
            return blank
        # Epoch numbers do not do: an epoch may be made again after a rollback, with other content.
        origin = " ".join(f"{shard.groups} {shard.attempt}" for shard in shards)
        name = f"sliced-{checksum_of(origin.encode())}-{first}-{last}"
        return blank.model_copy(update={"attempt": name, "changed": self.epoch})

    def shards_over(self, operator: str, first_group: int, last_group: int) -> Iterator[ShardState]:
        """The shards of an operator that own any of these key groups; none if it is new."""
        found = self.operators.get(operator)
        for shard in found.shards if found else ():
            if shard.overlaps(first_group, last_group):
                yield shard
