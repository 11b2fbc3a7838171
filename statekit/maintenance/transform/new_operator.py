"""New operators: the rows of one operator of the new checkpoint, copied and written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from statekit.backend.divided_rows import DividedRows
from statekit.backend.interface import Backend
from statekit.checkpoint.job_file import TIMERS, WAITING, JobFile, OperatorRecord
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.repository import LocalRows, Repository, group_bounds
from statekit.checkpoint.restore_plan import local_rows
from statekit.errors import StateSchemaError
from statekit.job.compatibility import next_job_file
from statekit.job.expiry import continued_expiry
from statekit.job.plan import Operator
from statekit.keygroup import group_ranges
from statekit.maintenance.new_shards import NewShard, WrittenRows, check_same, check_stored
from statekit.maintenance.row_keys import KeyedRows
from statekit.maintenance.transform.unique_rows import unique_rows
from statekit.maintenance.transform.written_state import WrittenState
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import RowBatch, RowColumns, row_batches
from statekit.state.redistribution import moved_rows
from statekit.working_copy.unpacked_shard import ShardRows


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
        self._local: dict[str, list[dict[bytes, bytes]]] = {}
        ends = [last for _, last in group_ranges(shards, key_groups)]
        families = self._declared.holds_by_key
        self._divided = DividedRows(families, ends, is_sorted=True)
        self._contents = dict[str, WrittenRows]()

    def __enter__(self) -> NewOperator:
        return self

    def __exit__(self, *_: object) -> None:
        self._divided.close()

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
                self._local[name] = [{} for _ in range(shards)]
        return self._written[name]

    def put(self, name: str, rows: RowColumns) -> None:
        """Add rows of a written state."""
        self._contents.setdefault(name, WrittenRows(self._key_groups)).add(rows)
        self._divided.add(name, *rows)

    def put_local(self, name: str, rows: RowBatch) -> None:
        """Add rows of a written operator state.

        Raises:
            StateTypeError: a shard has several rows for one place.
        """
        for shard, key, row in zip(rows.shards or (), rows.keys, rows.rows, strict=True):
            if self._local[name][shard].setdefault(key, row) is not row:
                raise self._written[name].repeated_in(shard)

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
        keyed = KeyedRows(record, self._key_groups)
        stored = self._blank_contents(keyed)
        read = self._blank_contents(keyed)
        shards = []
        for number, groups in enumerate(group_ranges(self._shards, self._key_groups)):
            new = NewShard(record, keyed, groups)
            with contextlib.ExitStack() as closing:
                new.store(target, self._columns(number, new, stored, read, closing))
            new.store_local(target, {name: rows[number] for name, rows in local.items()})
            count(sum(new.rows.values()))
            shards.append(new.state(epoch))
        for name, contents in self._contents.items():
            check_same(record.name, name, read[name], contents)
        check_stored(target, record, shards, stored, self._key_groups)
        return tuple(shards)

    def _blank_contents(self, keyed: KeyedRows) -> dict[str, WrittenRows]:
        return {family: WrittenRows(self._key_groups) for family in keyed.families}

    def _columns(
        self,
        number: int,
        new: NewShard,
        stored: Mapping[str, WrittenRows],
        read: Mapping[str, WrittenRows],
        closing: contextlib.ExitStack,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard as columns of a change file, copied ones first.

        Parameters:
            number: of the shard.
            new: the shard.
            stored: gets the rows.
            read: gets the written rows, before those of one row key become one.
            closing: closes what is read.
        """

        def written(name: str) -> Iterator[RowColumns]:
            for batch in self._divided.of(name, number):
                rows = RowColumns(*batch.columns)
                read[name].add(rows)
                yield rows

        for copied in self.copied:
            yield from self._copied(copied, new, stored, closing)
        for name, state in self._written.items():
            if not state.is_local:
                for rows in unique_rows(written(name), state.repeated):
                    stored[name].add(rows)
                    yield from new.columns(name, rows)

    def _copied(
        self,
        copied: Copied,
        new: NewShard,
        stored: Mapping[str, WrittenRows],
        closing: contextlib.ExitStack,
    ) -> Iterator[pa.RecordBatch]:
        manifest, operator = self._source.manifest, copied.operator
        old = manifest.shards_over(operator.name, *new.groups)
        if all(each.attempt is None and not each.slices for each in old):
            return
        indexes = KeyedRows(operator, self._key_groups).indexes if copied.is_whole else ()
        own = [name for name in operator.holds_by_key if name in copied.families]
        unpacked = ShardRows(self._source.repository, operator.name, manifest)
        backend = closing.enter_context(unpacked.opened_groups(new.groups, (*own, *indexes)))
        for name in own:
            new_name = copied.families[name]
            for rows in _stored(backend, name, new.groups):
                stored[new_name].add(rows)
                yield from new.columns(new_name, rows, is_indexed=not copied.is_whole)
        for name in indexes:
            for rows in _stored(backend, name, new.groups):
                yield new.of_index(name, rows)
        for each in old if copied.is_whole else ():
            new.wakes(each.wake_us)

    def _local_rows(self, record: OperatorRecord, epoch: int) -> dict[str, list[LocalRows]]:
        """Return the rows of each operator state, for each new shard."""
        specs = {spec.name: spec for spec in self.operator.declared.states}
        local = {
            name: [list(rows.items()) for rows in shards] for name, shards in self._local.items()
        }
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


def _stored(backend: Backend, family: str, groups: tuple[int, int]) -> Iterator[RowColumns]:
    for batch in row_batches(backend.scan(family, *group_bounds(*groups))):
        yield RowColumns.of(batch.keys, batch.rows)
