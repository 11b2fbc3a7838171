"""`Job.bootstrap`: the first epoch of a checkpoint from tables of states.

The tables have the columns of `statekit.read`. Rows are checked and encoded in columns, and written
by the writer of rewritten states. The order of effects is: change files, job file, manifest. Until
the manifest is committed the checkpoint has no epoch, and a bootstrap after a kill repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statekit.checkpoint.job_file import JobFile, OperatorRecord
from statekit.checkpoint.manifest import OperatorEpoch
from statekit.checkpoint.repository import Repository
from statekit.clock import now_us, unique_id
from statekit.codec.value_codec import PickleCodec
from statekit.errors import BootstrapError, StateTypeError
from statekit.job.job import Job
from statekit.job.progress import Bootstrapped
from statekit.keygroup import DEFAULT_GROUPS, check_groups, check_parallelism
from statekit.maintenance.first_epoch import check_without_epochs, commit_first
from statekit.maintenance.rewrite import NewRows, write_operators
from statekit.maintenance.seen_keys import SeenKeys
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table_rows import TableRows, encoder_of
from statekit.shown import shown
from statekit.sources.files import parquet
from statekit.sources.source import Source
from statekit.state.base import StateSpec

_BATCH_ROWS = 65_536
_ALL_ROWS = 1 << 62
_SHOWN_REASONS = 3
_OFFSET = "__offset"
"""Columns of sources whose name begins so say where a row is."""


def bootstrap(
    job: Job,
    given: Mapping[str, Any],
    checkpoint: str | Path | Repository,
    *,
    parallelism: int,
    refuse: int,
) -> Bootstrapped:
    """Commit the first epoch of a checkpoint. See `Job.bootstrap`."""
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
            if state.family.operator.name == operator.name:
                yield from ((state.family.name, *rows) for rows in state.rows())

    shards = write_operators(
        repository,
        described,
        rows_of,
        lambda operator: {state.name: [] for state in operator.states if state.is_local},
        stored_epoch=0,
        epoch=0,
        parallelism=parallelism,
        specs={operator.name: operator.declared.states for operator in job.operators},
    )
    manifest = commit_first(
        repository,
        described,
        cause="bootstrap",
        parallelism=parallelism,
        operators={name: OperatorEpoch(shards=own) for name, own in shards.items()},
        epoch=0,
        processing_time_us=now_us(),
    )
    counts = manifest.by_state(lambda operator: operator.rows)
    return Bootstrapped(0, {name: counts.get(name, 0) for name in states}, refusals.tables())


class _Refusals:
    """The refused rows of all states.

    Parameters:
        most: more than these are an error.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._tables: dict[str, list[pa.Table]] = {}

    def add(self, state: str, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Add rows of a batch, with their reasons by their place in it.

        Raises:
            BootstrapError: there are too many.
        """
        places = sorted(reasons)
        table = pa.Table.from_batches([rows]).take(pa.array(places, pa.int64()))
        texts = pa.array([reasons[place] for place in places], pa.string())
        name = "reason" if "reason" not in table.column_names else "refused_reason"
        self._tables.setdefault(state, []).append(table.append_column(name, texts))
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
        return {
            state: pa.concat_tables(tables, promote_options="permissive")
            for state, tables in self._tables.items()
        }


class _StateInput:
    """The table of one state.

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
        self, job: Job, described: JobFile, name: str, origin: Any, refusals: _Refusals
    ) -> None:
        record, self._spec = _state_of(job, described, name)
        self.family = Family(record, self._spec.name)
        self._name, self._origin, self._refusals = name, origin, refusals
        self._key_groups = described.key_groups
        self._seen = SeenKeys()

    def rows(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the row keys and rows of the table.

        Raises:
            BootstrapError: too many rows do not fit, or columns are missing or of another type.
        """
        encoder: TableRows | None = None
        schema = None
        for batch in record_batches(self._origin, self._name):
            if encoder is None or batch.schema != schema:
                schema = batch.schema
                encoder = self._encoder(schema)
            found, places, refused = encoder.rows(batch)
            reasons = {refusal.place: refusal.reason for refusal in refused}
            repeated = self._seen.repeated(found.keys)
            if repeated.any():
                reasons |= dict.fromkeys(
                    (places[at] for at in np.flatnonzero(repeated).tolist()), _REPEATED
                )
                found = found.where(~repeated)
            if reasons:
                self._refusals.add(self._name, batch, reasons)
            if found.keys:
                yield found.keys, found.rows

    def _encoder(self, schema: pa.Schema) -> TableRows:
        encoder, wrong = encoder_of(self.family, self._spec.codec, self._key_groups, schema)
        if wrong:
            raise BootstrapError(
                f"the table of {self._name} does not have the columns of the state: "
                f"{'; '.join(wrong)}. Nothing is committed: give it the columns that "
                "statekit.read returns for the state"
            )
        return encoder


_REPEATED = "a row before has the same key"


def _state_of(job: Job, described: JobFile, name: str) -> tuple[OperatorRecord, StateSpec]:
    """Return the operator and the declaration of a state.

    Raises:
        StateTypeError: there is no such state, or it cannot be filled from a table.
    """
    known = {
        f"{operator.name}.{spec.name}": (operator.name, spec)
        for operator in job.operators
        for spec in operator.declared.states
    }
    if name not in known:
        raise StateTypeError(
            f"job {job.name!r} has no state {shown(name)}: it has "
            f"{', '.join(known) or 'no state'}. Nothing was read"
        )
    operator, spec = known[name]
    record = described.operator(operator)
    assert record is not None, "the job file names all operators"
    why = ""
    if spec.kind.is_local:
        why = "belongs to shards and not to keys"
    elif spec.codec.name == PickleCodec.name:
        why = "has pickled values, which no table has"
    elif record.definition is not None:
        why = f"is of {operator!r}, whose rows depend on the options of the operator"
    if why:
        raise StateTypeError(
            f"state {name!r} {why}: fill it by running the job over the records. Nothing was read"
        )
    return record, spec


# -------------------------------------------------------------------------------- the tables


def record_batches(origin: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as record batches of bounded size.

    Parameters:
        origin: an Arrow table, batch or reader; a frame of pandas, Polars or another library with
            Arrow's C stream interface; the path or URL of Parquet files; or a bounded source.
        name: what the rows are of, for messages.

    Raises:
        StateTypeError: it is something else.
        ConnectorError, StorageError: it cannot be read.
    """
    if isinstance(origin, str | Path):
        origin = parquet(origin, static=True)
    batches: Iterable[pa.RecordBatch]
    if isinstance(origin, Source):
        batches = _batches_of_source(origin, name)
    elif isinstance(origin, pa.RecordBatch):
        batches = [origin]
    elif hasattr(origin, "__arrow_c_stream__"):
        batches = pa.RecordBatchReader.from_stream(origin)
    else:
        raise StateTypeError(
            f"the rows of {name} are {shown(origin)}: give an Arrow table, a frame of pandas or "
            "Polars, the path of Parquet files, or a bounded source. Nothing was read"
        )
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(start, _BATCH_ROWS)


def _batches_of_source(source: Source, name: str) -> Iterator[pa.RecordBatch]:
    if not source.is_bounded:
        raise StateTypeError(
            f"the rows of {name} are from a source without an end: use one that is bounded, such "
            "as sources.parquet(path, static=True), or read it by running the job. Nothing was read"
        )
    with closing(source):
        source.open(reads_here=True)
        start = source.earliest()
        for partition, end in sorted(source.latest(start, _ALL_ROWS, 0.0).items()):
            if partition not in start or start[partition] != end:
                for batch in source.read(partition, start.get(partition), end):
                    names = [each for each in batch.schema.names if not each.startswith(_OFFSET)]
                    yield batch.select(names)
