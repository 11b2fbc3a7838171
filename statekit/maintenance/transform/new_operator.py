"""New operators: the rows of one operator of the new checkpoint, copied and written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch
from statekit.checkpoint.job_file import TIMERS, WAITING, JobFile, OperatorRecord
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.repository import LocalRows, Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.errors import StateSchemaError
from statekit.job.compatibility import next_job_file
from statekit.job.expiry import continued_expiry
from statekit.job.plan import Operator
from statekit.keygroup import group_ranges
from statekit.maintenance.rewrite import NewShard
from statekit.maintenance.row_keys import KeyedRows
from statekit.maintenance.transform.sorted_rows import SortedRows
from statekit.maintenance.transform.written_state import WrittenState
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import RowBatch, row_batches
from statekit.state.redistribution import moved_rows
from statekit.working_copy.unpacked_shard import ShardRows

_FILE_BYTES_MAX = 1 << 30
"""A change file ends at this size, before compression."""


@dataclass(frozen=True)
class Copied:
    """States of an old operator that a new one gets unchanged.

    Parameters:
        operator: the old operator.
        families: the new name of each copied state, by its old one. Timers and buffered records
            keep theirs.
    """

    operator: OperatorRecord
    families: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """True if all rows of the operator are copied under their names, with the indexes."""
        return all(self.families.get(name) == name for name in self.operator.holds)

    def stored(self, name: str) -> OperatorRecord:
        """Return the record that the new operator continues.

        Parameters:
            name: of the new operator.
        """
        families = self.families
        states = tuple(
            state.model_copy(update={"name": families[state.name]})
            for state in self.operator.states
            if state.name in families
        )
        changes: dict[str, object] = {"name": name, "states": states}
        if TIMERS not in families:
            changes |= {"timers": False, "timer_names": None}
        if WAITING not in families:
            nothing = {"ordered_past": (), "buffered_inputs": (), "dropped_types": ()}
            changes |= {"ordered": None, **nothing}
        return self.operator.model_copy(update=changes)


class NewOperator:
    """Gathers the rows of one operator of the new checkpoint, and writes them shard by shard. A
    context manager.

    Parameters:
        operator: as the new job declares it.
        source: the old checkpoint.
        shards: the number of shards.
        key_groups: the number of key groups.

    Attributes:
        operator: as the new job declares it.
        copied: the states that it gets unchanged.
    """

    def __init__(
        self, operator: Operator, source: CheckpointReader, shards: int, key_groups: int
    ) -> None:
        self.operator = operator
        self.copied: list[Copied] = []
        self._source = source
        self._shards, self._key_groups = shards, key_groups
        self._declared = operator.record()
        self._written: dict[str, WrittenState] = {}
        self._local: dict[str, list[LocalRows]] = {}
        self._sorted = SortedRows(KeyedRows(self._declared, key_groups).families)

    def __enter__(self) -> NewOperator:
        return self

    def __exit__(self, *_: object) -> None:
        self._sorted.__exit__()

    # ---------------------------------------------------------------------------- what it gets

    def copy(self, copied: Copied) -> None:
        """Add states that the operator gets unchanged.

        Raises:
            StateSchemaError: it has such a state already, or does not declare it so.
        """
        name = self.operator.name
        for new in copied.families.values():
            self._check_is_free(new, "copy")
            if new not in self._declared.holds:
                raise StateSchemaError(
                    f"copy({copied.operator.name!r}) has rows of {new!r}, which operator {name!r} "
                    f"of the new job does not declare: it has "
                    f"{', '.join(self._declared.holds) or 'none'}. Nothing was written: name the "
                    "states to copy, and drop() the others"
                )
        self._continued(copied)  # raises
        self.copied.append(copied)

    def _check_is_free(self, name: str, call: str) -> None:
        copied = {new for other in self.copied for new in other.families.values()}
        if name in copied or (call == "copy" and name in self._written):
            raise StateSchemaError(
                f"{self.operator.name}.{name} is copied, and {call}() gives it rows again. Nothing "
                "was written: copy the state, or write all of its rows"
            )

    def write(self, name: str, now_us: Callable[[str], int]) -> WrittenState:
        """Return the conversion of the rows of a state.

        Parameters:
            now_us: returns the time of a clock.

        Raises:
            StateSchemaError: it is copied, or the operator has no such state.
        """
        self._check_is_free(name, "write")
        if name not in self._written:
            spec = next((spec for spec in self.operator.declared.states if spec.name == name), None)
            clock = "processing" if spec is None or spec.ttl is None else spec.ttl.clock
            groups, shards = self._key_groups, self._shards
            self._written[name] = WrittenState(self.operator, name, groups, shards, now_us(clock))
            if self._written[name].is_local:
                self._local[name] = [[] for _ in range(shards)]
        return self._written[name]

    def put(self, name: str, rows: RowBatch) -> None:
        """Add rows of a written state."""
        if rows.shards is None:
            self._sorted.put(name, rows)
            return
        for shard, key, row in zip(rows.shards, rows.keys, rows.rows, strict=True):
            self._local[name][shard].append((key, row))

    # ------------------------------------------------------------------------------ its record

    def record(self) -> OperatorRecord:
        """Return the operator for the job file of the new checkpoint. Copied states continue."""
        record = self._declared
        for copied in self.copied:
            continued = self._continued(copied)
            own = set(copied.families.values())
            by_name = {state.name: state for state in continued.states if state.name in own}
            states = tuple(by_name.get(state.name, state) for state in record.states)
            changes: dict[str, object] = {"states": states, "widths": continued.widths}
            if WAITING in own:
                names = ("ordered", "ordered_past", "buffered_inputs", "dropped_types")
                changes |= {name: getattr(continued, name) for name in names}
            record = record.model_copy(update=changes)
        return record

    def _continued(self, copied: Copied) -> OperatorRecord:
        """Return the declared operator as successor of copied states.

        Raises:
            StateSchemaError: rows would be misread.
        """
        name, manifest = self.operator.name, self._source.manifest
        stored: JobFile = self._source.job.model_copy(
            update={"operators": (copied.stored(name),), "dropped": {}}
        )
        wanted = next_job_file(stored, [self.operator], allow_dropped_state=False)
        epoch = manifest.operators.get(copied.operator.name)
        last = manifest.model_copy(update={"operators": {} if epoch is None else {name: epoch}})
        continued = continued_expiry(stored, wanted, last).operator(name)
        assert continued is not None, "the job file has the operators that it was made of"
        return continued

    # ------------------------------------------------------------------------------ its shards

    def shards(
        self, target: Repository, epoch: int, count: Callable[[int], None]
    ) -> tuple[ShardState, ...]:
        """Write all rows to files of the new checkpoint, and return its shards.

        Parameters:
            target: the new checkpoint.
            epoch: its first epoch.
            count: called with the number of rows that were written.

        Raises:
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
            RescaleError: operator state has no rule for another number of shards.
            StateTypeError: a state got several rows for one place, and does not combine them.
        """
        record = self.record()
        local = self._local_rows(record, epoch)
        families = (*record.holds, *KeyedRows(record, self._key_groups).indexes)
        shards = []
        for number, groups in enumerate(group_ranges(self._shards, self._key_groups)):
            shard = _Shard(record, groups, self._key_groups)
            with contextlib.ExitStack() as closing:
                batches = self._batches(shard, closing)
                for batch in _files(batches):
                    shard.new.store(target, record.name, families, batch)
            own = {name: rows[number] for name, rows in local.items()}
            shard.new.store_local(target, record.name, own)
            count(sum(shard.new.rows.values()))
            shards.append(shard.new.state(epoch))
        return tuple(shards)

    def _batches(self, shard: _Shard, closing: contextlib.ExitStack) -> Iterator[Batch]:
        """Yield the rows of a shard, copied ones first."""
        for copied in self.copied:
            yield from self._copied(copied, shard, closing)
        for name, state in self._written.items():
            if not state.is_local:
                for rows in self._sorted.batches(name, shard.new.groups, state.repeated):
                    yield shard.with_index(name, rows)

    def _copied(
        self, copied: Copied, shard: _Shard, closing: contextlib.ExitStack
    ) -> Iterator[Batch]:
        manifest, operator = self._source.manifest, copied.operator
        first, last = shard.new.groups
        old = manifest.shards_over(operator.name, first, last)
        if all(each.attempt is None and not each.slices for each in old):
            return
        indexes = KeyedRows(operator, self._key_groups).indexes if copied.is_whole else ()
        own = [name for name in operator.holds_by_key if name in copied.families]
        unpacked = ShardRows(self._source.repository, operator.name, manifest)
        backend = closing.enter_context(unpacked.opened_groups(shard.new.groups, (*own, *indexes)))
        for name in own:
            for rows in _stored(backend, name, shard.new.groups):
                if copied.is_whole:
                    yield shard.counted(name, rows)
                else:
                    yield shard.with_index(copied.families[name], rows)
        for name in indexes:
            for rows in _stored(backend, name, shard.new.groups):
                yield _batch(name, rows)
        for each in old if copied.is_whole else ():
            shard.new.wakes(each.wake_us)

    def _local_rows(self, record: OperatorRecord, epoch: int) -> dict[str, list[LocalRows]]:
        """Return the rows of each operator state, for each new shard."""
        specs = {spec.name: spec for spec in self.operator.declared.states}
        local = dict(self._local)
        for copied in self.copied:
            stored = local_rows(self._source.repository, copied.operator, self._source.manifest)
            for old, rows in stored.items():
                if old in copied.families:
                    name = copied.families[old]
                    state = next(each for each in record.states if each.name == name)
                    local[name] = moved_rows(
                        record.name, state, specs[name], rows, self._shards, epoch
                    )
        return local


class _Shard:
    """A new shard that is being written."""

    def __init__(self, record: OperatorRecord, groups: tuple[int, int], key_groups: int) -> None:
        self._keyed = KeyedRows(record, key_groups)
        self.new = NewShard.blank(record, self._keyed, groups)

    def counted(self, family: str, rows: RowBatch) -> Batch:
        """Return rows as a batch, and count them."""
        batch = Batch()
        self.new.bytes[family] += batch.put_all(family, rows.keys, rows.rows)
        self.new.rows[family] += len(rows.keys)
        return batch

    def with_index(self, family: str, rows: RowBatch) -> Batch:
        """Return rows as a batch, with their index rows."""
        batch = self.counted(family, rows)
        if self._keyed.has_entries(family):
            for entry in self._keyed.entries(family, rows.keys, rows.rows):
                self.new.put_entry(entry, batch)
        return batch


def _stored(backend: Backend, family: str, groups: tuple[int, int]) -> Iterator[RowBatch]:
    return row_batches(backend.scan(family, *group_bounds(*groups)))


def _batch(family: str, rows: RowBatch) -> Batch:
    batch = Batch()
    batch.put_all(family, rows.keys, rows.rows)
    return batch


def _files(batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
    """Yield the batches of one change file after the other. A file has to be read before the next
    one is requested.
    """
    ahead = next(batches, None)

    def of_file() -> Iterator[Batch]:
        nonlocal ahead
        size = 0
        while ahead is not None and size < _FILE_BYTES_MAX:
            yield ahead
            size += ahead.size_bytes
            ahead = next(batches, None)

    while ahead is not None:
        yield of_file()
