"""`Job.bootstrap`: the first epoch of a checkpoint from tables of states.

The tables have the columns of `statekit.read`. Rows are checked and encoded in columns, and written
by the writer of rewritten states. The order of effects is: change files, job file, manifest. Until
the manifest is committed the checkpoint has no epoch, and a bootstrap after a kill repeats it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statekit.checkpoint.job_file import TIMERS, JobFile, OperatorRecord
from statekit.checkpoint.manifest import OperatorEpoch, ShardState
from statekit.checkpoint.repository import LocalRows, Repository
from statekit.clock import now_us, unique_id
from statekit.codec.value_codec import PickleCodec
from statekit.errors import BootstrapError, StateTypeError
from statekit.job.plan import Operator, Plan
from statekit.job.progress import Bootstrapped
from statekit.keygroup import DEFAULT_GROUPS, check_groups, check_parallelism
from statekit.maintenance.first_epoch import check_without_epochs, commit_first
from statekit.maintenance.new_shards import NewRows
from statekit.maintenance.rewrite import write_operators
from statekit.maintenance.seen_keys import SeenKeys
from statekit.number_faults import int_fault
from statekit.query.tables.given_rows import record_batches
from statekit.query.tables.packed_bytes import RowColumns
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import column_names
from statekit.query.tables.table_rows import RowEncoder, cell_text, encoder_of, local_rows_of
from statekit.query.tables.timer_rows import TimerRows
from statekit.shown import shown
from statekit.state.base import StateSpec
from statekit.timestamp import MAX_MICROS, datetime_to_micros

_SHOWN_REASONS = 3


def bootstrap(
    job: Plan,
    given: Mapping[str, Any],
    checkpoint: str | Path | Repository,
    *,
    parallelism: int,
    refuse: int,
    watermark: dt.datetime | None,
) -> Bootstrapped:
    """Commit the first epoch of a checkpoint. See `Job.bootstrap`."""
    _check_arguments(given, checkpoint, refuse)
    watermark_us = _checked_watermark(job, watermark)
    repository = Repository.of(checkpoint)
    repository.check_checkpoint()
    check_without_epochs(
        repository,
        "a bootstrap makes the first one: pass a new checkpoint, or run the job to continue from "
        "this one",
    )
    groups = check_groups(job.key_groups or DEFAULT_GROUPS)
    check_parallelism(parallelism, groups)
    records = tuple(operator.record() for operator in job.operators)
    described = JobFile(id=unique_id(), name=job.name, key_groups=groups, operators=records)
    refusals = _Refusals(refuse)
    states = {name: _StateInput(job, described, name, of, refusals) for name, of in given.items()}

    def rows_of(operator: OperatorRecord, _: object) -> Iterator[NewRows]:
        for state in states.values():
            if state.family.operator.name == operator.name and not state.family.is_local:
                yield from ((state.family.name, rows) for rows in state.rows())

    def local_of(operator: OperatorRecord) -> dict[str, list[LocalRows]]:
        given_rows = {
            state.family.name: state.local_rows(parallelism)
            for state in states.values()
            if state.family.operator.name == operator.name and state.family.is_local
        }
        return {
            state.name: given_rows.get(state.name, [])
            for state in operator.states
            if state.is_local
        }

    shards = write_operators(
        repository,
        described,
        rows_of,
        local_of,
        stored_epoch=0,
        epoch=0,
        parallelism=parallelism,
        specs={operator.name: operator.declared.states for operator in job.operators},
    )
    refused = refusals.tables()
    manifest = commit_first(
        repository,
        described,
        cause="bootstrap",
        parallelism=parallelism,
        operators={
            operator.name: _epoch_of(operator, shards[operator.name], watermark_us)
            for operator in job.operators
        },
        epoch=0,
        processing_time_us=now_us(),
    )
    counts = manifest.by_state(lambda operator: operator.rows)
    return Bootstrapped(0, {name: counts.get(name, 0) for name in states}, refused)


def _check_arguments(given: Mapping[str, Any], checkpoint: object, refuse: object) -> None:
    """Check arguments before anything is read.

    Raises:
        StateTypeError: one is not valid.
    """
    if not given:
        raise StateTypeError(
            "no state is given: give the name of one and its table, or a dict of several. Nothing "
            "was read"
        )
    if not isinstance(checkpoint, str | Path | Repository):
        raise StateTypeError(
            f"checkpoint={shown(checkpoint)}: give a directory, an object store URL or an open "
            "repository. Nothing was read"
        )
    if fault := int_fault(refuse, "give a number of rows"):
        raise StateTypeError(f"refuse={shown(refuse)}{fault}. Nothing was read")


def _checked_watermark(job: Plan, watermark: object) -> int | None:
    """Return a watermark in microseconds; None for none.

    Raises:
        StateTypeError: it is not a time with a time zone, or no operator has event time.
    """
    if watermark is None:
        return None
    if not isinstance(watermark, dt.datetime) or watermark.tzinfo is None:
        raise StateTypeError(
            f"watermark={shown(watermark)}: give a datetime with a time zone. Nothing was read"
        )
    if all(operator.declared.event_time is None for operator in job.operators):
        raise StateTypeError(
            f"watermark={shown(watermark)}: no operator of job {job.name!r} has event time: leave "
            "it out. Nothing was read"
        )
    return datetime_to_micros(watermark)


def _epoch_of(
    operator: Operator, shards: tuple[ShardState, ...], watermark_us: int | None
) -> OperatorEpoch:
    """Return the entry of an operator in the manifest."""
    epoch = OperatorEpoch(shards=shards)
    if watermark_us is None or operator.declared.event_time is None:
        return epoch
    # The largest event time of each input that has led to this watermark.
    largest_us = min(watermark_us + operator.declared.lateness_us, MAX_MICROS)
    return epoch.model_copy(
        update={
            "watermark_us": watermark_us,
            "largest_event_us": largest_us,
            "largest_by_input": dict.fromkeys(operator.inputs, largest_us),
        }
    )


class _Refusals:
    """The refused rows of all states.

    Parameters:
        most: more than these are an error.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._rows: dict[str, list[tuple[pa.Table, pa.Array]]] = {}

    def add(self, state: str, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Add rows of a batch, with their reasons by their place in it.

        Raises:
            BootstrapError: there are too many.
        """
        places = sorted(reasons)
        table = pa.Table.from_batches([rows]).take(pa.array(places, pa.int64()))
        texts = pa.array([reasons[place] for place in places], pa.string())
        self._rows.setdefault(state, []).append((table, texts))
        self._count += len(places)
        if self._count > self._most:
            shown_reasons = "; ".join(texts.to_pylist()[:_SHOWN_REASONS])
            raise BootstrapError(
                f"{self._count:,} rows so far cannot be stored, the last ones in {state}: "
                f"{shown_reasons}. Nothing is committed: correct the rows, which are in `refused` "
                f"of this error, or allow more than refuse={self._most}",
                self.tables(),
            )

    def tables(self) -> dict[str, pa.Table]:
        """Return the refused rows of each state."""
        return {state: _with_reasons(rows) for state, rows in self._rows.items()}


def _with_reasons(rows: Sequence[tuple[pa.Table, pa.Array]]) -> pa.Table:
    """Return one table with the reasons as its last column. Files may differ in their schemas."""
    used = [name for table, _ in rows for name in table.column_names]
    (name,) = column_names(["reason"], used, "refused_")
    tables = [table.append_column(name, texts) for table, texts in rows]
    if all(table.schema == tables[0].schema for table in tables):
        return pa.concat_tables(tables)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        return pa.concat_tables(map(_as_text, tables), promote_options="permissive")


def _as_text(table: pa.Table) -> pa.Table:
    """Return a table whose columns are text: a type that can hold the values of all columns of
    other files with the same name.
    """
    texts = [pa.array([cell_text(cell) for cell in column], pa.string()) for column in table]
    return pa.table(texts, names=table.column_names)


class _StateInput:
    """The table of one state, or of the timers of an operator.

    Parameters:
        job: the job.
        described: its job file.
        name: operator and state, as in "totals.sum".
        origin: where the rows come from.
        refusals: takes the rows that do not fit.

    Raises:
        StateTypeError: there is no such state, or no table can have its rows.
    """

    def __init__(
        self, job: Plan, described: JobFile, name: str, origin: Any, refusals: _Refusals
    ) -> None:
        record, self._spec = _state_of(job, described, name)
        self.family = Family(record, TIMERS if self._spec is None else self._spec.name)
        self._name, self._origin, self._refusals = name, origin, refusals
        self._key_groups = described.key_groups

    def rows(self) -> Iterator[RowColumns]:
        """Yield the rows of the table.

        Raises:
            BootstrapError: too many rows do not fit, or columns are missing or of another type.
        """
        with closing(SeenKeys()) as seen:
            yield from self._new_rows(seen)

    def _new_rows(self, seen: SeenKeys) -> Iterator[RowColumns]:
        """Yield the rows whose row keys were not seen before."""
        encoder: RowEncoder | None = None
        schema = None
        for batch in record_batches(self._origin, self._name):
            if encoder is None or batch.schema != schema:
                schema = batch.schema
                encoder = self._encoder(schema)
            if not batch.num_rows:
                continue
            found, places, refused = encoder.rows(batch)
            reasons = {refusal.place: refusal.reason for refusal in refused}
            repeated = seen.repeated(found.keys)
            if repeated.any():
                reasons |= dict.fromkeys(
                    (places[at] for at in np.flatnonzero(repeated).tolist()), _REPEATED
                )
                found = found.where(~repeated)
            if reasons:
                self._refusals.add(self._name, batch, reasons)
            if len(found.keys):
                yield found

    def local_rows(self, parallelism: int) -> list[LocalRows]:
        """Return the rows of operator state for each shard of the table.

        Parameters:
            parallelism: the least number of shards.

        Raises:
            BootstrapError: too many rows do not fit, or columns are missing or of another type.
        """
        found: list[LocalRows] = [[] for _ in range(parallelism)]
        for rows in map(local_rows_of, self.rows()):
            for shard, row_key, row in zip(rows.shards or (), rows.keys, rows.rows, strict=True):
                found += [[] for _ in range(len(found), shard + 1)]
                found[shard].append((row_key, row))
        return found

    def _encoder(self, schema: pa.Schema) -> RowEncoder:
        encoder: RowEncoder
        if self._spec is None:
            encoder = timers = TimerRows(self.family, self._key_groups, schema)
            wrong = timers.wrong
        else:
            encoder, wrong = encoder_of(self.family, self._spec.codec, self._key_groups, schema)
        if wrong:
            raise BootstrapError(
                f"the table of {self._name} does not have the columns of the state: "
                f"{'; '.join(wrong)}. Nothing is committed: give it the columns that "
                "statekit.read returns for the state"
            )
        return encoder


_REPEATED = "a row before has the same key"


def _state_of(job: Plan, described: JobFile, name: str) -> tuple[OperatorRecord, StateSpec | None]:
    """Return the operator and the declaration of a state; None for timers.

    Raises:
        StateTypeError: there is no such state, or it cannot be filled from a table.
    """
    known: dict[str, tuple[str, StateSpec | None]] = {
        f"{operator.name}.{spec.name}": (operator.name, spec)
        for operator in job.operators
        for spec in operator.declared.states
    }
    timed = (operator.name for operator in described.operators if operator.timers)
    known |= {f"{operator}.{TIMERS}": (operator, None) for operator in timed}
    if name not in known:
        raise StateTypeError(
            f"job {job.name!r} has no state {shown(name)}: it has "
            f"{', '.join(known) or 'no state'}. Nothing was read"
        )
    operator, spec = known[name]
    record = described.operator(operator)
    assert record is not None, "the job file names all operators"
    why = ""
    if spec is not None and spec.codec.name == PickleCodec.name:
        why = "has pickled values, which no table has"
    elif record.definition is not None:
        why = f"is of {operator!r}, whose rows depend on the options of the operator"
    if why:
        raise StateTypeError(
            f"state {name!r} {why}: fill it by running the job over the records. Nothing was read"
        )
    return record, spec
