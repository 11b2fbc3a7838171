"""`job.json`: the operators, states and types of a job. They do not change from epoch to epoch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from statekit.checkpoint.era import PERMANENT, UNWRITTEN, EndedEra, Era
from statekit.checkpoint.sealed_json import Count, Record, Sealed
from statekit.checkpoint.state_kinds import STATE_KINDS, RowShape
from statekit.codec.schema_tree import tree_fault
from statekit.names import StoredId, StoredName, StoredText, check_different
from statekit.watermark import BEGINNING

TIMERS = "_timers"
"""The name of timers among the states of an operator. No state can have this name."""

WAITING = "_waiting"
"""The name of buffered records among the states of an operator."""

EXPIRY = "_expiry"
"""The name of the index of expiring rows."""

ROW_MARK = b"\xc1"
"""The first byte of a row that contains more than its value. Neither MessagePack nor pickle data
starts with this byte.
"""

Clock = Literal["event", "processing"]
"""Event time comes from records, processing time from the wall clock."""

CLOCK_TAGS: dict[Clock, bytes] = {"event": b"\x00", "processing": b"\x01"}
"""The tag byte of each clock in row keys."""


def _checked_tree(tree: Any) -> Any:
    if (fault := tree_fault(tree)) is not None:
        raise ValueError(f"it is not a type: {fault}")
    return tree


TypeTree = Annotated[Any, AfterValidator(_checked_tree)]
"""A type in the form of `Schema.to_json`."""


def _checked_roles(types: dict[str, Any]) -> dict[str, Any]:
    if types.keys() not in ({"value"}, {"key", "value"}):
        raise ValueError(f"a state has types of its value and of its key, and not of {[*types]}")
    return types


StateTypes = Annotated[dict[str, TypeTree], AfterValidator(_checked_roles)]
"""The types of a state by role: the value, and the key of map entries."""


class KeyFieldRecord(Record):
    """A key field: its name, and its type as a schema tree."""

    name: StoredText
    type: TypeTree


class TtlRecord(Record):
    """The expiry of a state's rows.

    Parameters:
        duration_us: the time to live.
        clock: which clock counts.
        refresh: whether only a "write" restarts the time, or a "read" too.
        downtime: whether the time counts during which the job does not run.
    """

    duration_us: Annotated[int, Field(gt=0)]
    clock: Clock
    refresh: Literal["write", "read"]
    downtime: bool = True


class PastEra(Record):
    """An earlier era of a state in which rows expired.

    Parameters:
        era: its number.
        since_us: as in `StateRecord`.
        floor_us: rows of the era that were written then, or before, had expired when it ended.
    """

    era: Annotated[int, Field(ge=0, le=255)]
    since_us: int | None
    floor_us: int


class PastState(Record):
    """An earlier declaration of a state, kept while rows of that declaration may exist.

    Parameters:
        generation: the generation that marks rows of that time.
    """

    codec: StoredText
    types: StateTypes
    fingerprint: StoredText
    generation: Annotated[int, Field(ge=0, le=255)]


class StateRecord(Record):
    """A declared state: its kind, codecs and types as schema trees, and the expiry of its rows.

    Parameters:
        ttl: None if its rows do not expire.
        era: how often expiry was turned on or off, or moved to another clock. Stamps of other eras
            do not count; 0 if no row was ever stamped.
        since_us: when the era began, which is the write time of all rows without a stamp of it; the
            beginning of time if there were no rows. None if it has not begun, because event time
            has not, and in job files of older versions: such rows do not expire.
        floor_us: rows of this era that were written then, or before, had expired when the TTL
            changed. None if it did not change.
        paused_us: the downtime that does not count, of all runs of this era.
        past_eras: the earlier eras with a TTL, oldest first.
        redistribute: for operator state, the rule for another number of shards; None if none is
            declared, and for keyed state.
        reducer: the function that adds a value to a reducing or aggregating state, if it has a
            stable name, such as "max"; None for a function of the user, for other states, and in
            job files of older versions.
        generation: how often the type changed to one that cannot read older rows. Rows are marked
            with it; those of generation 0 have no mark.
        past: earlier declarations, oldest first, as far as rows of that time may exist. The type
            reads all rows of its own generation; a hook has to convert the others.
    """

    name: StoredName
    kind: str
    codec: StoredText
    types: StateTypes
    fingerprint: StoredText
    ttl: TtlRecord | None = None
    era: Annotated[int, Field(ge=0, le=255)] = 0
    since_us: int | None = None
    floor_us: int | None = None
    paused_us: Count = 0
    past_eras: tuple[PastEra, ...] = ()
    redistribute: Literal["even", "union", "broadcast", "hooks"] | None = None
    reducer: StoredText | None = None
    generation: Annotated[int, Field(ge=0, le=255)] = 0
    past: tuple[PastState, ...] = ()

    @model_validator(mode="after")
    def _has_the_types_of_its_kind(self) -> Self:
        if self.kind not in STATE_KINDS:
            raise ValueError(
                f"state {self.name} has the kind {self.kind!r:.80}, which does not exist"
            )
        for types in (self.types, *(past.types for past in self.past)):
            if ("key" in types) != (self.shape is RowShape.ENTRIES):
                raise ValueError(f"a {self.kind} state cannot have types of {[*types]}")
        return self

    @property
    def is_local(self) -> bool:
        """True for operator state, which belongs to shards and not to keys."""
        return STATE_KINDS[self.kind].is_local

    @property
    def shape(self) -> RowShape:
        """The shape of its rows per key or shard."""
        return STATE_KINDS[self.kind].shape

    @property
    def expiry_era(self) -> Era:
        """The present era of the state's expiry."""
        return Era(
            self.era,
            _begin_of(self.since_us),
            UNWRITTEN if self.floor_us is None else self.floor_us,
            self.paused_us,
            tuple(
                EndedEra(past.era, _begin_of(past.since_us), past.floor_us)
                for past in self.past_eras
            ),
        )

    @property
    def as_past(self) -> PastState:
        """This declaration in the form for the `past` of its successor."""
        return PastState(**{name: getattr(self, name) for name in PastState.model_fields})

    @property
    def past_generations(self) -> dict[int, tuple[PastState, ...]]:
        """Earlier declarations of each earlier generation, oldest first."""
        past: dict[int, tuple[PastState, ...]] = {}
        for state in self.past:
            if state.generation != self.generation:
                past[state.generation] = (*past.get(state.generation, ()), state)
        return past


def _begin_of(since_us: int | None) -> int:
    """Return the effective write time in an era of rows that were written before it."""
    return PERMANENT if since_us is None or since_us == BEGINNING else since_us


class OperatorRecord(Record):
    """An operator of a job: its key, its times and its states.

    Parameters:
        key: its fields; none for an operator without a key.
        event_time: the field with the event time; None without event time.
        time_fields: for inputs whose records are selected from others, the field of these that the
            event time is taken from.
        lateness_us: how far records may lag behind before they are late.
        timers: whether it handles timers, and so may have some.
        timer_names: names with a callback, and None if one callback handles all others. None
            without timers, and in job files of older versions.
        ordered: the type of its records as a schema tree, if they are buffered until the watermark.
        ordered_past: earlier types of records that may still be buffered, which it reads.
        buffered_inputs: the names of the inputs that buffered records may be from. A row has the
            place of its input in this list, so names are only added.
        dropped_types: the names of types of buffered records that it no longer takes: those that
            come due are dropped.
        definition: other facts that give its state its meaning, by name; None for most operators.
        widths: the largest number of bits of numbers in its states, by name, if types declare it.
        inputs: names of the keyed input streams.
        broadcasts: names of the broadcast input streams.
    """

    name: StoredName
    inputs: tuple[StoredText, ...]
    key: tuple[KeyFieldRecord, ...]
    states: tuple[StateRecord, ...]
    event_time: StoredText | None = None
    time_fields: dict[StoredText, StoredText] = Field(default_factory=dict)
    lateness_us: Count = 0
    timers: bool = False
    timer_names: tuple[StoredText | None, ...] | None = None
    ordered: TypeTree | None = None
    ordered_past: tuple[TypeTree, ...] = ()
    buffered_inputs: tuple[StoredText, ...] = ()
    dropped_types: tuple[StoredText, ...] = ()
    definition: dict[StoredText, StoredText] | None = None
    widths: dict[StoredText, Count] = Field(default_factory=dict)
    broadcasts: tuple[StoredText, ...] = ()

    @property
    def fires_without_timers(self) -> tuple[Clock, ...]:
        """The clocks by which rows may be due without a timer, so that the rows alone do not
        contain the time: those of windows, of distinct records within an interval, and of final
        aggregates.
        """
        definition = self.definition or {}
        if "early" in definition or "clock" in definition:
            return ("event", "processing")
        is_timed = "window" in definition or "within" in definition
        return ("event",) if is_timed or definition.get("emit") == "final" else ()

    @property
    def holds(self) -> tuple[str, ...]:
        """Names of all families that may have rows: states, timers and buffered records."""
        names = tuple(state.name for state in self.states)
        if self.timers:
            names += (TIMERS,)
        return names if self.ordered is None else (*names, WAITING)

    @property
    def buffered_types(self) -> tuple[str, ...]:
        """Names of the possible types of buffered records, in the order of the stored union; empty
        if there is one type.
        """
        union = self.ordered if self.ordered is not None and self.ordered["kind"] == "union" else {}
        return tuple(member["name"] for member in union.get("items", ()))

    @property
    def holds_by_key(self) -> tuple[str, ...]:
        """Names of all families whose rows belong to key groups: `holds` without operator state."""
        local = {state.name for state in self.states if state.is_local}
        return tuple(name for name in self.holds if name not in local)

    @model_validator(mode="after")
    def _states_have_different_names(self) -> Self:
        names = [state.name for state in self.states]
        if len(set(names)) != len(names):
            raise ValueError(f"operator {self.name} names a state twice: {names}")
        if set(names) & {TIMERS, WAITING, EXPIRY}:
            raise ValueError(f"a state of operator {self.name} has a name that is reserved")
        return self


class JobFile(Sealed):
    """`job.json`: the parts of a job that do not change from epoch to epoch.

    Parameters:
        id: unique per checkpoint, so that copies of another checkpoint are never mistaken for its
            own.
        name: of the job.
        key_groups: fixed for the life of the checkpoint.
        operators: with their states and types.
        dropped: names of dropped states, per operator. Change files may still have their rows, so
            no other state may use such a name.
        savepoint: the id of the savepoint that the checkpoint was imported from; None if it was
            not.
        imported: the id of the Spark query that it was imported from; None if it was not.
    """

    title: ClassVar[str] = "a job description"

    id: StoredId
    name: StoredName
    key_groups: Annotated[int, Field(ge=1, le=32768)]
    operators: tuple[OperatorRecord, ...]
    dropped: dict[StoredName, tuple[StoredName, ...]] = Field(default={})
    savepoint: StoredText | None = None
    imported: StoredText | None = None

    @model_validator(mode="after")
    def _operators_have_different_names(self) -> Self:
        check_different(tuple(operator.name for operator in self.operators), "operators")
        return self

    @property
    def is_made_of_another(self) -> bool:
        """True if the first epoch was imported from a savepoint or from Spark."""
        return self.savepoint is not None or self.imported is not None

    def operator(self, name: str) -> OperatorRecord | None:
        return next((operator for operator in self.operators if operator.name == name), None)
