"""Format "statekit-changes": the changes of a state as a frame, batch and streaming."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from importlib.util import find_spec

import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from statekit.errors import QueryError
from statekit.spark.sources.changes_request import (
    FORMAT,
    OF_BATCHES,
    OF_STREAMS,
    ChangesRequest,
    planned,
    read_bundle,
)
from statekit.spark.sources.frame import Frame, spark_schema
from statekit.spark.sources.options import Options


class ChangesSource(DataSource):
    """The data source of changes. Spark creates it when a frame is loaded, in a separate
    process.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.request = ChangesRequest.of(options)
        self._has_all_columns = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the columns. Spark does not call this if the user gave a schema."""
        self._has_all_columns = True
        return spark_schema(self.request.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for a batch query."""
        self._options().refuse(OF_STREAMS, "streams, read with spark.readStream")
        return ChangesReader(self.request, self._frame(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader for a streaming query.

        Raises:
            QueryError: this version of Spark has no limits of micro-batches.
        """
        self._options().refuse(OF_BATCHES, "batches, read with spark.read")
        offered = self.request.columns if self._has_all_columns else None
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise QueryError(
                f'a stream of "{FORMAT}" needs Spark 4.2 or newer, and this is {spark_version}: '
                "read batches with spark.read, or the changes without Spark with statekit.feed()"
            )
        from statekit.spark.sources.changes_stream import ChangesStream

        return ChangesStream(self.request, self._frame(schema), offered)

    def _options(self) -> Options:
        return Options(FORMAT, self.options, [*self.options])

    def _frame(self, schema: StructType) -> Frame:
        return Frame.of(schema, self.request.place, self.request.columns)


class ChangesReader(DataSourceReader):
    """Reads the changes of some epochs.

    Parameters:
        request: what to read.
        frame: the columns.
    """

    def __init__(self, request: ChangesRequest, frame: Frame) -> None:
        self._request = request
        self._frame = frame

    def partitions(self) -> Sequence[InputPartition]:
        """Return partitions of one shard and up to a million mutations each."""
        changes, last = self._request.changes(), self._request.ending
        start = self._request.start(changes.epochs, default="earliest", last=last)
        return planned(changes, start, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Runs in a worker."""
        return read_bundle(self._request, self._frame, partition.value)
