"""The format of savepoints: the savepoint file, and the columns and rows of the tables.

A savepoint is a directory that may be moved anywhere. It references no file outside of it, and does
not depend on shards, key groups or the backend:

    savepoint.json                           the job, its types, and every file; written last
    state.<id>/<operator>/<state>/*.parquet  rows; timers are `_timers`, buffered records `_waiting`
    spark.<id>/…                             what Spark needs to read on from there

**Tables.** Typed columns come first, for people and tools: the fields of the key under their own
names, then

    a map                map_key
    a list               position, from 0
    timers               timer, clock, at
    buffered records     at
    all but timers       value
    operator state       shard, in place of a key
    states with a TTL    written

The last columns are the exact bytes, from which a savepoint is restored: `_key`, the encoded key,
`_subkey`, the rest of the row key, and `_row`. A key field whose name is taken gets the prefix
`key_`; names are compared without case, as in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from statekit.checkpoint.job_file import TIMERS, JobFile, OperatorRecord
from statekit.checkpoint.manifest import InputOffset
from statekit.checkpoint.paths import SAVEPOINT
from statekit.checkpoint.repository import LocalRows, Repository
from statekit.checkpoint.sealed_json import Count, FileRef, Record, Sealed
from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.maintenance.rewrite import RowChecksum
from statekit.maintenance.row_keys import RowKeyParts
from statekit.maintenance.savepoint.parquet_sizes import batch_rows
from statekit.names import StoredId, StoredName, StoredText
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import (
    Table,
    TableColumn,
    columns_of_key,
    names_of,
    plain_column,
    renamed,
    row_key_columns,
    whole_values,
    written_column,
)

POSITION = {"epoch", "batch", "offsets", "bad_records", "processing_time_us", "drained"}
"""The fields of a manifest that a savepoint has too. They describe the progress of the job."""

EXACT = ("_key", "_subkey", "_row")
"""The columns from which a savepoint is restored."""


class StateContents(Record):
    """The rows of one state in a savepoint.

    Parameters:
        rows: number of rows.
        checksum: of all rows, in any order: the sum of the XXH3-64 of each, as 16 hex digits.
        files: Parquet, paths below the savepoint.
    """

    rows: Count
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    files: tuple[FileRef, ...]


class SavepointOperator(Record):
    """An operator in a savepoint.

    Parameters:
        watermark_us, largest_event_us, largest_by_input, late_so_far, failed_so_far: as in a
            manifest.
        states: by name, with those of timers and buffered records.
    """

    watermark_us: int | None
    largest_event_us: int | None
    largest_by_input: dict[StoredText, int] = Field(default={})
    late_so_far: Count
    failed_so_far: Count = 0
    states: dict[StoredName, StateContents]


class SavepointFile(Sealed):
    """`savepoint.json`: the contents of a savepoint.

    Parameters:
        id: unique per savepoint.
        name: the user's name for it.
        taken_at_us: wall clock, for display.
        job: the job description in force.
        epoch: the epoch of the state; the next epoch of an imported checkpoint follows it.
        batch, offsets, bad_records, processing_time_us, drained: as in a manifest.
        parallelism: the number of shards, for information.
        operators: by name.
        spark: files of Spark's part, if the state is that of a stream.
    """

    title: ClassVar[str] = "a savepoint"

    id: StoredId
    name: StoredText
    taken_at_us: int
    job: JobFile
    epoch: Count
    batch: int | None
    offsets: dict[StoredText, InputOffset]
    bad_records: dict[StoredText, Count] = Field(default={})
    parallelism: Annotated[int, Field(ge=1, le=32768)]
    processing_time_us: int
    drained: bool
    operators: dict[StoredName, SavepointOperator]
    spark: tuple[FileRef, ...]


def saved_rows(file: IO[bytes], name: str) -> Iterator[SavedRow]:
    """Yield the exact rows of a table's file, in order.

    Raises:
        CorruptCheckpointError: it is not such a file.
    """
    try:
        opened = pq.ParquetFile(file)
        columns = [*EXACT, *({"position"} & set(opened.schema_arrow.names))]
        _check_columns(opened.schema_arrow)
        size = batch_rows(file, opened.metadata)
        for batch in opened.iter_batches(size, columns=columns):
            values = {column: batch.column(column).to_pylist() for column in columns}
            positions = values.get("position", [0] * batch.num_rows)
            keys, subkeys, rows = (values[column] for column in EXACT)
            if None in keys or None in subkeys or None in rows:
                raise ValueError("a row lacks its bytes")
            yield from map(SavedRow, keys, subkeys, rows, positions)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptCheckpointError(
            f"{name} is not a readable table of a savepoint ({error}): restore the savepoint from "
            "a backup"
        ) from error


def _check_columns(schema: pa.Schema) -> None:
    """Check the types of the columns from which rows are restored.

    Raises:
        ValueError: a column is missing, has another type, or exists twice.
    """
    for name, type_ in [*((column, pa.binary()) for column in EXACT), ("position", pa.int64())]:
        if name == "position" and name not in schema.names:
            continue
        at = schema.get_all_field_indices(name)
        if len(at) != 1 or schema.field(at[0]).type != type_:
            types = ", ".join(str(schema.field(number).type) for number in at)
            raise ValueError(f"the column {name} is of type {type_}, and here of {types or 'none'}")


class Savepoint:
    """A complete savepoint, at its present location.

    Parameters:
        repository: the store that contains it.
        folder: its folder; empty if it is the whole store.

    Raises:
        RestoreError: there is none, or it was written by a newer version.
        CorruptCheckpointError: its `savepoint.json` is truncated or altered.
    """

    def __init__(self, repository: Repository, folder: str = "") -> None:
        self._repository = repository
        self._at = f"{folder}/" if folder else ""
        self.url = f"{repository.url}/{folder}".rstrip("/")
        if f"{self._at}{SAVEPOINT}" not in set(repository.names(folder)):
            if not folder and repository.latest_epoch() is not None:
                raise RestoreError(
                    f"{self.url} is a checkpoint, and not a savepoint: write one of it with "
                    f"`statekit savepoint {self.url} NAME`, or pass it as checkpoint="
                )
            raise RestoreError(
                f"there is no savepoint at {self.url}: it has no {SAVEPOINT}. Check the path; a "
                "savepoint whose writing was interrupted has to be written again"
            )
        data = repository.read(f"{self._at}{SAVEPOINT}")
        self.file = SavepointFile.from_bytes(data, f"{self.url}/{SAVEPOINT}")

    @classmethod
    def at(cls, url: str | Path) -> Savepoint:
        """Return the savepoint in a directory, or at a URL of an object store."""
        try:
            repository = Repository(url, create=False)
        except RestoreError:
            raise RestoreError(f"there is no savepoint at {url}: check the path") from None
        return cls(repository)

    def rows(self, operator: OperatorRecord) -> Iterator[tuple[str, RowKeyParts, bytes]]:
        """Yield all keyed rows of an operator, in the form of `stored_rows`.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
        """
        for family in operator.holds_by_key:
            for parts, row in self.table(operator.name, family):
                yield family, parts, row

    def local_rows(self, operator: OperatorRecord) -> dict[str, list[LocalRows]]:
        """Return the rows of each operator state, per shard in order.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
        """
        rows_of: dict[str, list[LocalRows]] = {}
        for state in operator.states:
            if state.is_local:
                shards: list[LocalRows] = [[] for _ in range(self.file.parallelism)]
                for parts, row in self.table(operator.name, state.name):
                    shards[shard_of_key(parts.key)].append((parts.after, row))
                rows_of[state.name] = shards
        return rows_of

    def table(self, operator: str, family: str) -> Iterator[tuple[RowKeyParts, bytes]]:
        """Yield the rows of one state, of timers or of buffered records.

        Raises:
            CorruptCheckpointError: a file is missing or altered.
        """
        contents, checksum = self.file.operators[operator].states[family], RowChecksum()
        for ref in contents.files:
            with self._open(ref) as file:
                for saved in saved_rows(file, f"{self.url}/{ref.path}"):
                    parts = RowKeyParts.of_subkey(family, saved.key, saved.subkey)
                    checksum.add(parts.before + parts.key + parts.after, saved.row)
                    yield parts, saved.row
        if (checksum.rows, checksum.checksum) != (contents.rows, contents.checksum):
            raise CorruptCheckpointError(
                f"{self.url} has {checksum} of {operator}.{family}, and its {SAVEPOINT} has "
                f"{contents.rows} rows with checksum {contents.checksum}: restore the savepoint "
                "from a backup"
            )

    def spark(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files of Spark's part: path below it, and content."""
        for ref in self.file.spark:
            with self._open(ref) as file:
                yield ref.path.removeprefix(f"spark.{self.file.id}/"), file.read()

    def _open(self, ref: FileRef) -> IO[bytes]:
        full_ref = ref.model_copy(update={"path": f"{self._at}{ref.path}"})
        return self._repository.open_verified(full_ref)


# ----------------------------------------------------------------------------------- tables


class SavedRow(NamedTuple):
    """A row of a savepoint.

    Parameters:
        key: encoded.
        subkey: the row key without key group and key.
        row: as stored.
        position: the number of rows of the same key before it.
    """

    key: bytes
    subkey: bytes
    row: bytes
    position: int


def key_of_shard(shard: int) -> bytes:
    """Return the bytes that represent a shard in place of a key."""
    return shard.to_bytes(4, "big")


def shard_of_key(key: bytes) -> int:
    """Return the shard in such bytes. This is the inverse of `key_of_shard`."""
    return int.from_bytes(key, "big")


def savepoint_table(operator: OperatorRecord, family: str, *, wide: bool = False) -> Table:
    """Return the table of a state, of the timers or of the buffered records of an operator.

    Parameters:
        operator: its operator.
        family: the name of the state, or `TIMERS`, or `WAITING`.
        wide: give ints 20 digits.
    """
    state = Family(operator, family)
    own, exact = list(_own(state, wide)), list(_exact())
    keys = renamed(columns_of_key(state), names_of([*own, *exact]), "key_")
    # The schema of a savepoint has no metadata: `savepoint.json` has the types.
    columns = (
        column._replace(field=column.field.remove_metadata()) for column in (*keys, *own, *exact)
    )
    return Table(state, columns)


def _own(family: Family, wide: bool) -> Iterator[TableColumn]:
    yield from row_key_columns(family, wide)
    if family.name != TIMERS:
        yield whole_values(family, wide=wide)
    if family.state is not None and family.state.ttl is not None:
        yield written_column(family)


def _exact() -> Iterator[TableColumn]:
    key, subkey, row = EXACT
    yield plain_column(key, pa.binary(), lambda parts: parts.key_bytes)
    yield plain_column(subkey, pa.binary(), lambda parts: parts.subkey_bytes)
    yield plain_column(row, pa.binary(), lambda parts: pa.array(parts.rows.rows, pa.binary()))
