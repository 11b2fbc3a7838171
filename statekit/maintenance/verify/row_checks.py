"""Row checks: the rows of a shard, one by one, and their sums in the manifest.

Nothing is unpickled: pickled values are counted and not decoded.

Leftovers in `_expiry` are no fault: a row that is deleted before it expires may leave its index row
until that is due. A missing index row is a fault: the row would never be deleted.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from statekit.backend.interface import Backend, StateSize, total_size
from statekit.backend.mutation import DELETE, PUT, Batch, Row
from statekit.checkpoint.era import UNWRITTEN
from statekit.checkpoint.job_file import (
    CLOCK_TAGS,
    EXPIRY,
    TIMERS,
    WAITING,
    Clock,
    OperatorRecord,
    StateRecord,
)
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.state_kinds import POSITION_BYTES, RowShape
from statekit.codec.key_codec import KeyCodec, schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import json_key_decoder, json_value_decoder
from statekit.errors import CorruptCheckpointError, QueryError, StatekitError, StorageError
from statekit.keygroup import group_of_row, pack_group
from statekit.maintenance.row_keys import Entry, KeyedRows, RowKeyParts
from statekit.maintenance.verify.findings import Finding, FindingKind, Verification, finding_kind
from statekit.shown import shown
from statekit.state.event_time_buffer import record_of_row
from statekit.state.row_versions import row_decoder
from statekit.state.timers import DUE, timer_of_row
from statekit.state.ttl import unstamped, without_stamp
from statekit.stored_types import key_schema
from statekit.timestamp import instant
from statekit.working_copy.unpacked_shard import ShardRows

RowKind = Literal["row", "key group", "timer index", "expiry index"]

INDEXED = "_indexed"
"""A family of the database for checks: the rows that the expiry index contains."""

_PIECE = 1_000  # so many rows are looked up at a time
_ALL = b"", b"\xff\xff\xff"


class RowFault(NamedTuple):
    """A faulty row.

    Parameters:
        kind: whether the row itself, its key group, or an index is wrong.
        family: the state, timers, buffered records or an index.
        row_key: of the row.
        what: the fault.
        mend: the change that repairs an index. None for rows of state, whose contents are lost.
    """

    kind: RowKind
    family: str
    row_key: bytes
    what: str
    mend: Row | None = None


class RowChecks:
    """The row checks of one operator.

    Parameters:
        operator: as in the job file.
        key_groups: the number of key groups.

    Attributes:
        families: the families to open a database with for the checks.
        sizes: rows and bytes per state of the shard that was checked last.
        soonest: per clock, the time of its first timer or buffered record.
        pickled: names of states whose values were not decoded.
    """

    def __init__(self, operator: OperatorRecord, key_groups: int) -> None:
        self.operator = operator
        self._keyed = KeyedRows(operator, key_groups)
        self._expires = EXPIRY in self._keyed.indexes
        self.families = (*operator.holds, *self._keyed.indexes, *([INDEXED] * self._expires))
        self.pickled: set[str] = set()
        self._values = {state.name: self._value_check(state) for state in operator.states}
        self._subkeys = {state.name: _subkey_check(state) for state in operator.states}
        if operator.timers:
            self._subkeys[TIMERS] = timer_of_row
            self._values[TIMERS] = _check_nothing
        if operator.ordered is not None:
            decode = json_value_decoder(Schema.from_json(operator.ordered))
            self._subkeys[WAITING] = lambda subkey: decode(record_of_row(subkey))
            self._values[WAITING] = _check_nothing
        self._eras = {state.name: state.expiry_era for state in operator.states if state.era}
        self._scans: dict[tuple[str, bytes], bytes] = {}
        self._seen = b""
        self.sizes: dict[str, StateSize] = {}
        self.soonest: dict[Clock, int] = {}

    def check(self, backend: Backend, groups: tuple[int, int]) -> Iterator[RowFault]:
        """Yield the faults in the rows of a shard.

        Parameters:
            backend: its rows, opened with `families`. The check writes to `INDEXED`.
            groups: first and last key group of the shard.
        """
        self.sizes, self.soonest = {}, {}
        if self._expires:
            yield from self._note_index(backend)
        for family in self._keyed.families:
            yield from self._check_family(backend, family, groups)
        if self.operator.timers:
            yield from self._check_due(backend)
        for state in self.operator.states:
            if state.is_local:
                yield from self._check_local(backend, state.name, groups[0])

    # ---------------------------------------------------------------------------- rows of keys

    def _check_family(
        self, backend: Backend, family: str, groups: tuple[int, int]
    ) -> Iterator[RowFault]:
        """Yield the faults in the rows of one family and in their index rows."""
        rows = size = 0
        stored_rows = backend.scan(family, *_ALL)
        while piece := list(islice(stored_rows, _PIECE)):
            entries: list[tuple[bytes, Entry]] = []
            for row_key, row in piece:
                rows, size = rows + 1, size + len(row_key) + len(row)
                try:
                    parts = self._keyed.parts(family, row_key)
                    self.check_row(family, parts, row)
                    entry = self._keyed.entry(family, parts, row_key, row)
                except UNREADABLE as error:
                    yield RowFault("row", family, row_key, str(error))
                    continue
                if (fault := self._wrong_group(parts, row_key, groups)) is not None:
                    yield RowFault("key group", family, row_key, fault)
                elif entry is not None:
                    if entry.family != EXPIRY:
                        due = self.soonest.get(entry.clock, entry.due_us)
                        self.soonest[entry.clock] = min(due, entry.due_us)
                    if entry.family is not None and not self._is_scanned(family, row_key, row):
                        entries.append((row_key, entry))
            yield from _missing(backend, family, entries)
        self.sizes[family] = StateSize(rows, size)

    def _is_scanned(self, family: str, row_key: bytes, row: bytes) -> bool:
        """Return whether a row existed when expiry was turned on. A scan of its key group then
        removes it.
        """
        cursor = self._scans.get((family, row_key[:2]))
        if cursor is None or cursor > row_key[2:]:
            return False
        era = self._eras[family]
        return unstamped(row, era)[1] in (era.since_us, UNWRITTEN)

    def check_row(self, family: str, parts: RowKeyParts, row: bytes) -> None:
        """Check that a row and all parts of its row key are readable.

        Raises:
            StatekitError, ValueError, IndexError: they are not.
        """
        if parts.key != self._seen:
            _canonical(self._keyed.key_codec, parts.key)
            self._seen = parts.key
        self._subkeys[family](parts.after)
        self._values[family](row)

    def _wrong_group(
        self, parts: RowKeyParts, row_key: bytes, groups: tuple[int, int]
    ) -> str | None:
        actual, right = group_of_row(row_key), group_of_row(self._keyed.row_key(parts))
        if actual != right:
            return f"it is in key group {actual}, and its key belongs to {right}"
        if not groups[0] <= actual <= groups[1]:
            return f"it is in key group {actual}, and the shard owns {groups[0]} to {groups[1]}"
        return None

    # --------------------------------------------------------------------------------- indexes

    def _check_due(self, backend: Backend) -> Iterator[RowFault]:
        """Yield the rows of `_timers.due` without a timer."""
        rows = backend.scan(DUE, *_ALL)
        while piece := [row_key for row_key, _ in islice(rows, _PIECE)]:
            timers: list[tuple[bytes, bytes]] = []
            for due in piece:
                try:
                    end = self._keyed.key_codec.decode(due, 11)[1]
                    timers.append((due, due[:2] + due[11:end] + due[2:11] + due[end:]))
                except UNREADABLE as error:
                    yield RowFault("timer index", DUE, due, str(error), (DUE, DELETE, due, None))
            stored = backend.get_many(TIMERS, [timer for _, timer in timers])
            for (due, _), row in zip(timers, stored, strict=True):
                if row is None:
                    fault = "it belongs to a timer that does not exist"
                    yield RowFault("timer index", DUE, due, fault, (DUE, DELETE, due, None))

    def _note_index(self, backend: Backend) -> Iterator[RowFault]:
        """Record the rows that the expiry index contains, and yield its invalid entries."""
        tags = {
            state.name: CLOCK_TAGS[state.ttl.clock]
            for state in self.operator.states
            if state.ttl is not None
        }
        self._scans = {}
        batch = Batch()
        batch.delete_range(INDEXED, *_ALL)
        for entry, cursor in backend.scan(EXPIRY, *_ALL):
            name, zero, row_key_rest = entry[2:].partition(b"\x00")
            if not zero or len(row_key_rest) < 9:
                fault = "it is cut short"
                yield RowFault("expiry index", EXPIRY, entry, fault, (EXPIRY, DELETE, entry, None))
            elif tags.get(name.decode(errors="replace")) == row_key_rest[:1]:
                if len(row_key_rest) == 9:
                    self._scans[name.decode(), entry[:2]] = cursor
                batch.put(INDEXED, name + zero + entry[:2] + row_key_rest[9:], b"")
                if batch.full:
                    backend.write(batch)
                    batch.clear()
        backend.write(batch)

    # ------------------------------------------------------------------------ state of shards

    def _check_local(self, backend: Backend, state: str, first_group: int) -> Iterator[RowFault]:
        rows = size = 0
        prefix = pack_group(first_group)
        for row_key, row in backend.scan(state, *_ALL):
            rows, size = rows + 1, size + len(row_key) + len(row)
            if not row_key.startswith(prefix):
                fault = f"it lies in key group {row_key[:2].hex()}, not in the shard's first one"
                yield RowFault("key group", state, row_key, fault)
                continue
            try:
                self._subkeys[state](row_key[len(prefix) :])
                self._values[state](row)
            except UNREADABLE as error:
                yield RowFault("row", state, row_key, str(error))
        self.sizes[state] = StateSize(rows, size)

    # ------------------------------------------------------------------------ contents of a row

    def _value_check(self, state: StateRecord) -> Callable[[bytes], object]:
        try:
            decode = row_decoder(state)
        except QueryError:
            self.pickled.add(state.name)
            return without_stamp
        if not state.era:
            return decode
        return lambda row: decode(without_stamp(row))


UNREADABLE = (StatekitError, IndexError, ValueError, struct.error)
"""The exceptions that decoding raises for bytes that are no row."""


def _subkey_check(state: StateRecord) -> Callable[[bytes], object]:
    """Return the check of the part of the row key after the key, by the kind of state."""
    if state.shape is RowShape.ENTRIES:
        codec = schema_key_codec(Schema.from_json(state.types["key"]))
        return lambda subkey: _canonical(codec, subkey)
    length = POSITION_BYTES if state.shape is RowShape.ELEMENTS else 0

    def check(subkey: bytes) -> None:
        if len(subkey) != length:
            raise CorruptCheckpointError(
                f"{len(subkey)} bytes follow the key in the row key of a {state.kind}, in place of "
                f"{length}"
            )

    return check


def _canonical(codec: KeyCodec[Any], data: bytes) -> None:
    """Check that bytes are the canonical encoding of a key.

    Raises:
        CorruptCheckpointError: they are not.
    """
    key, end = codec.decode(data)
    if end != len(data) or codec.encode(key) != data:
        raise CorruptCheckpointError(f"{data.hex()} is not how the key {shown(key)} is stored")


def _check_nothing(row: bytes) -> None:
    if row:
        raise CorruptCheckpointError(f"it should be empty and has {len(row)} bytes")


def _missing(
    backend: Backend, family: str, entries: Sequence[tuple[bytes, Entry]]
) -> Iterator[RowFault]:
    """Yield the missing index rows of some rows of a family."""
    if not entries:
        return
    if family == TIMERS:
        kind: RowKind = "timer index"
        stored = backend.get_many(DUE, [entry.row_key for _, entry in entries])
    else:
        kind = "expiry index"
        prefix = family.encode() + b"\x00"
        stored = backend.get_many(INDEXED, [prefix + row_key for row_key, _ in entries])
    for (row_key, entry), row in zip(entries, stored, strict=True):
        if row is None:
            fault = f"a row of {family}, {row_key.hex()}, expires and would never be removed"
            if family == TIMERS:
                fault = "a timer is set and would never fire: the index of due timers lacks it"
            index = DUE if family == TIMERS else EXPIRY
            yield RowFault(kind, index, entry.row_key, fault, (index, PUT, entry.row_key, b""))


# -------------------------------------------------------------------------- rows of an epoch

Sizes = Mapping[str, StateSize]
"""The size of a shard, per state."""

_EXAMPLES = 3
_NONE = StateSize(0, 0)


def check_rows(
    repository: Repository,
    manifest: EpochManifest,
    operator: OperatorRecord,
    readable: Sequence[ShardState],
    verification: Verification,
) -> None:
    """Check the rows of an operator after one epoch, and record findings.

    Parameters:
        readable: its shards without damaged files.
        verification: gets the findings.
    """
    checks = RowChecks(operator, manifest.key_groups)
    verification.pickled |= {f"{operator.name}.{state}" for state in checks.pickled}
    of_operator = partial(Finding, epochs=(manifest.epoch,), operator=operator.name)
    path, note = epoch_path(manifest.epoch), verification.findings.append
    shard_rows = ShardRows(repository, operator.name, manifest)
    sizes_of: dict[tuple[int, int], Sizes] = {}
    for shard in readable:
        try:
            with shard_rows.opened(shard, checks.families) as backend:
                faults = checks.check(backend, shard.groups)
                verification.findings += _row_findings(faults, manifest.epoch, operator, shard)
        except (CorruptCheckpointError, StorageError) as error:
            note(of_operator(finding_kind(error, "file"), str(error), shard=shard.groups))
            continue
        sizes_of[shard.groups] = checks.sizes
        verification.rows += sum(size.rows for size in checks.sizes.values())
        for what in _late_to_wake(shard, checks):
            note(of_operator("wake", what, path, shard=shard.groups))
    epoch = manifest.operators[operator.name]
    if len(sizes_of) == len(epoch.shards):
        for groups, state, what in _counted_wrongly(epoch, operator, sizes_of):
            note(of_operator("count", what, path, shard=groups, state=state))


def _row_findings(
    faults: Iterable[RowFault], epoch: int, operator: OperatorRecord, shard: ShardState
) -> Iterator[Finding]:
    """Yield one finding for all rows of a state with the same fault."""
    counts: Counter[tuple[FindingKind, str]] = Counter()
    examples_of: dict[tuple[FindingKind, str], list[RowFault]] = {}
    for fault in faults:
        counts[fault.kind, fault.family] += 1
        examples = examples_of.setdefault((fault.kind, fault.family), [])
        if len(examples) < _EXAMPLES:
            examples.append(fault)
    for (kind, family), examples in examples_of.items():
        yield Finding(
            kind,
            f"{examples[0].what} ({_key_text(operator, examples[0])})",
            epochs=(epoch,),
            operator=operator.name,
            shard=shard.groups,
            state=family,
            rows=counts[kind, family],
            row_keys=tuple(fault.row_key.hex() for fault in examples),
        )


def _late_to_wake(shard: ShardState, checks: RowChecks) -> Iterator[str]:
    """Yield the clocks for which a shard would wake up too late for a due row."""
    for clock, due in checks.soonest.items():
        wake = shard.wake_us.get(clock)
        if wake is None or wake > due:
            wake_text = "never wakes" if wake is None else f"wakes at {_time(wake)}"
            yield f"the shard {wake_text} by {clock} time, and has something due at {_time(due)}"


def _counted_wrongly(
    epoch: OperatorEpoch, operator: OperatorRecord, sizes_of: Mapping[tuple[int, int], Sizes]
) -> Iterator[tuple[tuple[int, int] | None, str, str]]:
    """Yield the states whose size differs from the manifest.

    Yields the key groups of the shard, or None for all shards together, the state, and the
    difference.

    Parameters:
        sizes_of: the counted size of each shard.
    """
    for state in operator.holds:
        total = total_size(sizes.get(state, _NONE) for sizes in sizes_of.values())
        expected = StateSize(epoch.rows.get(state, 0), epoch.bytes.get(state, 0))
        if total != expected:
            yield None, state, _count_text(total, expected)
        for shard in epoch.shards:
            actual = sizes_of[shard.groups].get(state, _NONE)
            expected = StateSize(shard.rows.get(state, 0), shard.bytes.get(state, 0))
            if not shard.is_part and actual != expected:
                yield shard.groups, state, _count_text(actual, expected)


def _count_text(actual: StateSize, expected: StateSize) -> str:
    return (
        f"there are {actual.rows:,} rows of {actual.bytes:,} bytes, and the manifest has "
        f"{expected.rows:,} of {expected.bytes:,}"
    )


def _time(micros: int) -> str:
    return instant(micros).isoformat()


def _key_text(operator: OperatorRecord, fault: RowFault) -> str:
    """Return a row key as readable text: its key if there is one, otherwise its bytes."""
    start = {WAITING: 10, DUE: 11}.get(fault.family, 2)
    text = f"row key {fault.row_key.hex()}"
    if not operator.key or fault.family == EXPIRY:
        return text
    try:
        key = json_key_decoder(key_schema(operator))(fault.row_key, start)[0]
    except StatekitError:
        return text
    return f"key {json.dumps(key)}, {text}"
