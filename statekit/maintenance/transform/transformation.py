"""`Transformation`: the old checkpoint and the new one, as a transform function gets them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import Any

import pyarrow as pa

from statekit.checkpoint.era import PERMANENT
from statekit.checkpoint.job_file import TIMERS, WAITING, Clock, JobFile
from statekit.checkpoint.repository import Repository
from statekit.errors import QueryError, StateSchemaError, StateTypeError
from statekit.job.plan import Operator, Plan
from statekit.maintenance.rewrite import rows_to_read
from statekit.maintenance.transform.new_checkpoint import Shards
from statekit.maintenance.transform.new_operator import Copied, NewOperator
from statekit.maintenance.transform.state_row import StateRow
from statekit.maintenance.transform.typed_reads import AnyProcess, KeyStates, TypedReads
from statekit.maintenance.transform.written_state import WrittenState
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.given_rows import is_table, record_batches
from statekit.query.tables.packed_bytes import RowBatch, RowColumns
from statekit.query.tables.read import StateTable
from statekit.shown import shown, type_name
from statekit.watermark import BEGINNING

_PIECE_ROWS = 4096


class Transformation:
    """Reads an old checkpoint, and writes the state of a new one.

    A transform function gets it. The states are read and written in batches, so that memory has a
    few of them. All that the function writes becomes visible at once, after the function has
    returned.

    Parameters:
        source: the old checkpoint at its epoch.
        job: the new job.
        shards: the number of shards per operator of the new checkpoint.
        allow_pickle: unpickle values of the old checkpoint.

    Attributes:
        job: the new job.
        epoch: the epoch of the old checkpoint. The new job continues with the next one.
    """

    def __init__(
        self, source: CheckpointReader, job: Plan, shards: int, *, allow_pickle: bool = False
    ) -> None:
        self.job = job
        self.epoch = source.manifest.epoch
        self.sources: dict[str, str | None] = {}
        """The new name of each source that was renamed; None for a source that was dropped."""
        self._source, self._allow_pickle = source, allow_pickle
        self._settled: set[tuple[str, str]] = set()
        groups = source.job.key_groups
        self._operators = {
            operator.name: NewOperator(operator, source, shards, groups)
            for operator in job.operators
        }

    def __enter__(self) -> Transformation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as closing:
            for operator in self._operators.values():
                closing.push(operator)

    @property
    def operators(self) -> Mapping[str, Sequence[str]]:
        """The states of each operator of the old checkpoint, with "_timers" and "_waiting"."""
        return {operator.name: operator.holds for operator in self._source.job.operators}

    # ------------------------------------------------------------------------------- reading

    def read(
        self,
        operator: str,
        state: str,
        *,
        columns: Sequence[str] | None = None,
        wide_ints: bool = False,
    ) -> pa.RecordBatchReader:
        """Return the rows of a state as record batches, as `statekit.read` does.

        Parameters:
            operator: an operator of the old checkpoint.
            state: its state; "_timers" for timers, "_waiting" for buffered records.
            columns: the columns to read, in order; None for all.
            wide_ints: give all ints the type decimal(20, 0), for states with ints of 2^63 or more.

        Raises:
            QueryError: there is no such operator, state or column, its values are pickled, or an
                int needs `wide_ints`.
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
        """
        table = StateTable(self._source, operator, state)
        self._settled.add((operator, state))
        pickle = self._allow_pickle
        return table.reader(columns=columns, wide_ints=wide_ints, allow_pickle=pickle)

    def rows(
        self, operator: str, state: str, *, of: AnyProcess | None = None
    ) -> Iterator[StateRow]:
        """Yield the rows of a state, with keys and values of Python types.

        Parameters:
            operator: an operator of the old checkpoint.
            state: its state; "_timers" for timers.
            of: the process function of the old operator, for values of its classes. None: that of
                the new job's operator with this name, if it has the same key and this state;
                otherwise values are plain data, as `statekit get` shows them.

        Raises:
            QueryError: there is no such operator or state, or its values are pickled.
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
        """
        found = self._typed(operator, [state], of).rows(state)
        self._settled.add((operator, state))
        return found

    def keys(
        self, operator: str, *states: str, of: AnyProcess | None = None
    ) -> Iterator[KeyStates]:
        """Yield each key of an operator with several of its states, to join them.

        Memory has all rows of one key. `key["total"]` is the value of a state, and
        `key.rows("total")` has its rows, with the times at which they were written.

        Parameters:
            operator: an operator of the old checkpoint.
            states: names of its keyed states, and "_timers"; none for all states.
            of: as for `rows`.

        Raises:
            QueryError: there is no such operator or state, or its values are pickled.
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
        """
        record = self._source.operator(operator)
        names = states or [name for name in record.holds_by_key if name != WAITING]
        found = self._typed(operator, names, of).keys(names)
        self._settled.update((operator, name) for name in names)
        return found

    def _typed(
        self, operator: str, states: Sequence[str], function: AnyProcess | None
    ) -> TypedReads:
        if function is None and operator in self._operators:
            record = self._source.operator(operator)
            declared = self._operators[operator].operator.declared
            names = {*(spec.name for spec in declared.states), TIMERS}
            same_key = declared.key == tuple(field.name for field in record.key)
            function = declared if same_key and names.issuperset(states) else None
        return TypedReads(self._source, operator, function, allow_pickle=self._allow_pickle)

    # ------------------------------------------------------------------------------- writing

    def copy(
        self,
        operator: str,
        *states: str,
        to: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Give an operator of the new job states of an old one, without decoding them.

        The keys of both are of the same types. Types of values may change as they may in a job that
        is continued.

        Parameters:
            operator: an operator of the old checkpoint.
            states: its states, "_timers" and "_waiting"; none for everything that it has.
            to: the operator of the new job; None for the one with the same name.
            renamed: new names of states by their old ones.

        Raises:
            QueryError: there is no such operator or state.
            StateSchemaError: the new operator does not declare them so, or has rows of them.
        """
        record, renamed = self._source.operator(operator), renamed or {}
        for name in (*states, *renamed):
            if name not in record.holds:
                raise QueryError(
                    f"copy({operator!r}): it has no state {name!r}, it has "
                    f"{', '.join(record.holds) or 'none'}. Nothing was written"
                )
        names = states or record.holds
        families = {name: renamed.get(name, name) for name in names}
        self._new(operator if to is None else to, "copy").copy(Copied(record, families))
        self._settled.update((operator, name) for name in names)

    def write(self, operator: str, state: str, rows: Any) -> None:
        """Add rows to a state of the new job, in any order. It may be called several times.

        Rows of one key and place are combined by a `ReducingState`, and by an `AggregatingState`
        with `merge`; other states refuse them.

        Parameters:
            operator: an operator of the new job.
            state: its state; "_timers" for timers.
            rows: what `Job.bootstrap` takes, such as an Arrow table, batch or reader, a frame or an
                iterable of batches, with the columns of `statekit.read`; or an iterable of
                `StateRow`. `position` and `written` may be
                left out, and `expires` is ignored. Of a state with a TTL, rows whose `written` is
                null or None do not expire, and rows without `written` have the time of the old
                epoch.

        Raises:
            StateSchemaError: the job has no such operator or state, or the state is copied.
            StateTypeError: a row does not fit the declared types; the message has the row.
            StorageError: the local disk is full or failed.
        """
        if state == WAITING:
            raise StateTypeError(
                f"write({operator!r}, {WAITING!r}): buffered records are copied, and not written: "
                f"use copy({operator!r}, {WAITING!r}). Nothing was written"
            )
        new = self._new(operator, "write")
        written = new.write(state, lambda clock: self._time_of(new.operator, clock))
        for batch in _converted(written, rows):
            if isinstance(batch, RowBatch):
                new.put_local(state, batch)
            else:
                new.put(state, batch)

    def drop(self, operator: str, *states: str) -> None:
        """Give states of the old checkpoint up.

        Parameters:
            operator: an operator of the old checkpoint.
            states: its states; none for everything that it has.

        Raises:
            QueryError: there is no such operator or state.
        """
        record = self._source.operator(operator)
        for name in states or record.holds:
            if name not in record.holds:
                raise QueryError(
                    f"drop({operator!r}): it has no state {name!r}, it has "
                    f"{', '.join(record.holds) or 'none'}. Nothing was written"
                )
            self._settled.add((operator, name))

    def rename_source(self, source: str, to: str) -> None:
        """Continue a source of the old job under another name.

        Raises:
            StateSchemaError: the old job or the new job has no such source.
        """
        self._check_source(source, f"rename_source({source!r}, {to!r})")
        names = [each.name for each in self.job.sources]
        if to not in names:
            raise StateSchemaError(
                f"rename_source({source!r}, {to!r}): the new job has the sources "
                f"{', '.join(names)}. Nothing was written"
            )
        self.sources[source] = to

    def drop_source(self, source: str) -> None:
        """Give the offset of a source up that the new job does not read.

        Raises:
            StateSchemaError: the old job has no such source.
        """
        self._check_source(source, f"drop_source({source!r})")
        self.sources[source] = None

    @property
    def _old_sources(self) -> list[str]:
        """The sources of the old job, and the streams that its operators read."""
        read = [name for record in self._source.job.operators for name in record.inputs]
        return [*dict.fromkeys([*self._source.manifest.offsets, *read])]

    def _check_source(self, source: str, call: str) -> None:
        if source not in self._old_sources:
            raise StateSchemaError(
                f"{call}: the old job has the sources {', '.join(self._old_sources) or 'none'}. "
                "Nothing was written: correct the name"
            )

    def _new(self, operator: str, call: str) -> NewOperator:
        if operator not in self._operators:
            raise StateSchemaError(
                f"{call}() to operator {operator!r}: the new job has "
                f"{', '.join(self._operators) or 'no operator'}. Nothing was written: correct the "
                "name"
            )
        return self._operators[operator]

    def _time_of(self, operator: Operator, clock: Clock | str) -> int:
        """Return the write time of rows without one: that of the old epoch."""
        manifest = self._source.manifest
        if clock == "processing":
            return manifest.processing_time_us
        same = manifest.operators.get(operator.name)
        epochs = [*manifest.operators.values()] if same is None else [same]
        watermarks = (epoch.watermark_us for epoch in epochs)
        reached = [us for us in watermarks if us is not None and us != BEGINNING]
        return min(reached, default=PERMANENT)  # as for a row that a job writes before event time

    # ----------------------------------------------------------------------------- the result

    def check_complete(self) -> None:
        """Check that no row and no offset of the old checkpoint is forgotten.

        Raises:
            StateSchemaError: a state was neither read, copied nor dropped, the new job has no such
                source, or a source continues two others.
        """
        self._check_rows()
        self._check_sources()

    def _check_rows(self) -> None:
        manifest, left = self._source.manifest, []
        for record in self._source.job.operators:
            epoch = manifest.operators.get(record.name)
            for name, count in (epoch.rows if epoch else {}).items():
                if count and name in record.holds and (record.name, name) not in self._settled:
                    left.append(f"{record.name}.{name} ({count:,} rows)")
        if left:
            raise StateSchemaError(
                f"the transform neither reads nor copies {', '.join(left)}. Nothing was written: "
                "call drop() for states that are to be given up"
            )

    def _check_sources(self) -> None:
        names = {source.name for source in self.job.sources}
        new = {name: self.sources.get(name, name) for name in self._old_sources}
        lost = [name for name in self._source.manifest.offsets if new[name] not in {*names, None}]
        if lost:
            raise StateSchemaError(
                f"the new job {self.job.name!r} has no source {', '.join(lost)}, of which the "
                "state has records. Nothing was written: call rename_source() or drop_source()"
            )
        for name in names:
            continued = [old for old, to in new.items() if to == name]
            if len(continued) > 1:
                raise StateSchemaError(
                    f"source {name!r} of the new job would continue {' and '.join(continued)} of "
                    "the old one. Nothing was written: call rename_source() or drop_source() for "
                    "all but one of them"
                )
            if not continued and self.sources.get(name, name) is None:
                raise StateSchemaError(
                    f"source {name!r} is dropped, and the new job reads it. Nothing was written: "
                    "leave drop_source() out to continue it, or give the source of the new job "
                    "another name to read it from its start"
                )

    def job_file(self) -> JobFile:
        """Return the job file of the new checkpoint, without an id of its own."""
        records = tuple(operator.record() for operator in self._operators.values())
        changes = {"name": self.job.name, "operators": records, "dropped": {}}
        return self._source.job.model_copy(update=changes)

    def shards(self, target: Repository, count: Callable[[int], None]) -> dict[str, Shards]:
        """Write all rows to files of the new checkpoint. Return the shards of each operator.

        Parameters:
            count: called with the number of rows that were written.

        Raises:
            StateTypeError: a state got several rows for one place, and does not combine them.
            RescaleError: operator state has no rule for another number of shards.
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
        """
        return {
            name: operator.shards(target, self.epoch, count)
            for name, operator in self._operators.items()
        }

    @property
    def old_rows(self) -> int:
        """The number of rows of the old checkpoint."""
        return rows_to_read(self._source.job, self._source.manifest)


def _converted(written: WrittenState, rows: Any) -> Iterator[RowBatch | RowColumns]:
    """Yield rows to write as stored rows, in batches."""
    if not is_table(rows):
        if not isinstance(rows, Iterable):
            raise _unknown(written, rows)
        given = iter(rows)
        first = list(islice(given, 1))
        rows = chain(first, given)
        if not first or not isinstance(first[0], pa.RecordBatch):
            yield from _of_typed_rows(written, rows)
            return
    yield from map(written.of_batch, record_batches(rows, written.where, may_be_empty=True))


def _of_typed_rows(written: WrittenState, rows: Iterable[Any]) -> Iterator[RowBatch | RowColumns]:
    given = iter(rows)
    while piece := list(islice(given, _PIECE_ROWS)):
        wrong = next((row for row in piece if not isinstance(row, StateRow)), None)
        if wrong is not None:
            raise _unknown(written, wrong)
        yield written.of_rows(piece)


def _unknown(written: WrittenState, given: object) -> StateTypeError:
    return StateTypeError(
        f"{written.where}: {shown(given, 200)} of type {type_name(given)} is no row. Nothing was "
        "written: give Arrow batches, or an iterable of statekit.StateRow"
    )
