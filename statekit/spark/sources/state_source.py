"""Format "statekit": the rows of a state, its timers or its buffered records after an epoch, as a
frame.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    InputPartition,
    IsNull,
)
from pyspark.sql.types import StructType

from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.repository import Repository
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.errors import StatekitError
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.read import StateTable
from statekit.spark.sources.frame import Frame, spark_schema
from statekit.spark.sources.options import Given, Options
from statekit.stored_types import key_schema

FORMAT = "statekit"
_OPTIONS = ("path", "operator", "state", "epoch", "key", "wideInts", "allowPickle")
PATH = '.load("…") with the directory or URL of a checkpoint'
OPERATOR = '.option("operator", "…") with the name of an operator'
STATE = '.option("state", "…") with the name of a state'


@dataclass(frozen=True)
class StateRequest:
    """The request of a user for one state. The object is small and picklable.

    Parameters:
        checkpoint: the URL of the checkpoint, or an absolute path.
        operator, state: their names.
        epoch: the epoch; that of the last commit, if the user gave none.
        manifest: the checksum of its manifest: all tasks read this epoch, and not another one of a
            checkpoint that was replaced meanwhile.
        key: read this key alone, as text or JSON; None for all.
        wide_ints, allow_pickle: as in `statekit.read`.
    """

    checkpoint: str
    operator: str
    state: str
    epoch: int
    manifest: str
    key: str | None
    wide_ints: bool
    allow_pickle: bool

    @classmethod
    def of(cls, given: Given) -> StateRequest:
        """Check the options of a user and return the request.

        Raises:
            StateTypeError: an option is missing or not valid.
            QueryError: there is no such epoch, operator or state.
            RestoreError: the path does not exist.
        """
        options = Options(FORMAT, given, _OPTIONS)
        repository = Repository(options.required("path", PATH), create=False)
        epoch = CheckpointReader(repository, epoch=options.number("epoch")).manifest.id
        request = cls(
            checkpoint=repository.url,
            operator=options.required("operator", OPERATOR),
            state=options.required("state", STATE),
            epoch=epoch.epoch,
            manifest=epoch.manifest,
            key=options.text("key"),
            wide_ints=options.flag("wideInts"),
            allow_pickle=options.flag("allowPickle"),
        )
        rows = request.rows()
        if request.key is not None:
            rows.encoded(request.key)
        return request

    def rows(self) -> StateTable:
        """Open the checkpoint."""
        epoch = EpochId(self.epoch, self.manifest)
        reader = CheckpointReader(self.checkpoint, epoch=epoch)
        return StateTable(reader, self.operator, self.state)

    @property
    def place(self) -> str:
        """The description of the state, for messages."""
        return f"{self.operator}.{self.state} of {self.checkpoint} in epoch {self.epoch}"


class StateSource(DataSource):
    """The data source of a state. Spark creates it when a frame is loaded, in a separate process.

    Loading determines the epoch, so that all jobs on the frame read the same rows.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.request = StateRequest.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the columns of the state."""
        return spark_schema(self._offered())

    def _offered(self) -> pa.Schema:
        request = self.request
        return request.rows().schema(wide_ints=request.wide_ints, allow_pickle=request.allow_pickle)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns of the frame."""
        # A choice of columns may leave pickled values out.
        offered = self.request.rows().schema(wide_ints=self.request.wide_ints, allow_pickle=True)
        return StateReader(self.request, Frame.of(schema, self.request.place, offered))


class FilteredStateSource(StateSource):
    """The same source for sessions that push filters down. In other sessions, Spark refuses readers
    that accept filters.
    """

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns of the frame."""
        reader = super().reader(schema)
        assert isinstance(reader, StateReader)
        return FilteredStateReader(reader.request, reader.frame)


class StateReader(DataSourceReader):
    """Reads a state, one partition per shard.

    Parameters:
        request: what to read.
        frame: the columns.
    """

    def __init__(self, request: StateRequest, frame: Frame) -> None:
        self.request = request
        self.frame = frame
        self.encoded_key: bytes | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per shard. For a single key and for operator state, return one
        partition without a shard.
        """
        shards: Sequence[int] = ()
        if self.request.key is None and self.encoded_key is None:
            shards = self.request.rows().shards
        return [InputPartition(shard) for shard in shards or (None,)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a worker."""
        rows, request = self.request.rows(), self.request
        stored = {name.lower(): name for name in rows.schema(allow_pickle=True).names}
        batches = rows.reader(
            key=request.key,
            encoded_key=self.encoded_key,
            shard=partition.value,
            columns=[stored[name.lower()] for name in self.frame.schema.names],
            wide_ints=request.wide_ints,
            allow_pickle=request.allow_pickle,
        )
        yield from map(self.frame.conformed, batches)


class FilteredStateReader(StateReader):
    """Reads one key group if the filters of a query select one key."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Note the key that the filters select. Spark applies all filters again."""
        rows = self.request.rows()
        if self.request.key is None and not rows.family.is_local:
            self.encoded_key = encoded_key(rows.family.operator, rows.key_names, filters)
        return filters


# ----------------------------------------------------------------------------------- filters

_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "str": str,
    "bytes": bytes,
    "date": dt.date,
    "datetime": dt.datetime,
}
"""Types whose values are equal in a column and in a key."""


def encoded_key(
    operator: OperatorRecord, columns: Sequence[str], filters: Iterable[Filter]
) -> bytes | None:
    """Return the key that filters select; None if they select no key, or several.

    Parameters:
        operator: the operator.
        columns: the names of the columns of its key.
        filters: of the query. All of them hold.
    """
    values = _equal_values(filters)
    schemas = [Schema.from_json(field.type) for field in operator.key]
    fields = []
    for name, schema in zip(columns, schemas, strict=True):
        if name.lower() not in values or not _is_key(schema, values[name.lower()]):
            return None
        fields.append(values[name.lower()])
    if not fields:
        return None
    try:
        codec = schema_key_codec(key_schema(operator))
        return codec.encode(fields[0] if len(fields) == 1 else tuple(fields))
    except StatekitError:
        return None  # no key is equal: Spark applies the filter itself


def _equal_values(filters: Iterable[Filter]) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for given in filters:
        match given:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                values[name.lower()] = value
            case IsNull((name,)):
                values[name.lower()] = None
    return values


def _is_key(schema: Schema, value: Any) -> bool:
    if schema.kind == "optional":
        return value is None or _is_key(schema.items[0], value)
    if schema.kind == "datetime" and getattr(value, "tzinfo", None) is None:
        return False
    return type(value) is _TYPES.get(schema.kind)
