"""Pandas frames for processors, as input and output.

pandas is imported on its first use: processors that take `Row`s run without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from sys import getsizeof
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statekit.errors import ProcessError, StateTypeError
from statekit.records.record_type import RecordReader
from statekit.shown import shown_text
from statekit.spark.tws.row_records import row_class

_UNLIMITED = (1 << 31) - 1


def takes_frames(processor: StatefulProcessor) -> bool:
    """Return whether a processor's annotations declare frames of pandas."""
    signature = inspect.signature(type(processor).handleInputRows)
    parameters = list(signature.parameters.values())
    given = parameters[2].annotation if len(parameters) > 2 else None
    texts = [str(given), str(signature.return_annotation)]
    return any("DataFrame" in text for text in texts) and not any("Row]" in text for text in texts)


@dataclass(frozen=True)
class FrameOptions:
    """The options of Spark's frame conversion. The defaults are Spark's own, for instants in UTC.

    Parameters:
        timezone: of instants, which have no time zone in frames.
        rows_max: rows of a frame.
        bytes_max: bytes of a frame, above which it gets no more rows.
        integers_extended: whether whole numbers have pandas' own type, which allows nulls.
        safely: whether numbers that would be truncated are errors.
        by_name: whether columns are matched by name.
        integers_to_decimals: whether whole numbers are converted to decimals if those are expected.
    """

    timezone: str = "UTC"
    rows_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024
    integers_extended: bool = False
    safely: bool = True
    by_name: bool = True
    integers_to_decimals: bool = False

    def __post_init__(self) -> None:
        """Check the installation.

        Raises:
            StateTypeError: pandas is missing, or PySpark is too old.
        """
        try:
            import pandas  # noqa: F401  to find out now
            from pyspark.sql.conversion import (
                ArrowBatchTransformer,  # noqa: F401
                PandasToArrowConversion,  # noqa: F401
            )
        except ImportError as error:
            raise StateTypeError(
                "the processor takes frames of pandas, and they cannot be made here "
                f"({shown_text(error)}): install pandas and PySpark 4.2 or newer, or let it take "
                "rows"
            ) from error

    @classmethod
    def of_session(cls, spark: SparkSession) -> FrameOptions:
        """Return the options of a session.

        Raises:
            StateTypeError: pandas is missing, or PySpark is too old.
        """
        defaults = cls()  # refused before a session is asked for options that it may not know

        def says(name: str) -> str:
            return str(spark.conf.get(f"spark.sql.{name}"))  # Spark's default, unless it was set

        def is_on(name: str) -> bool:
            return says(name).lower() == "true"

        rows_max = int(says("execution.arrow.maxRecordsPerBatch"))
        bytes_max = says("execution.arrow.maxBytesPerBatch")
        jvm = spark.sparkContext._jvm
        assert jvm is not None, "it was checked at the start"
        return replace(
            defaults,
            timezone=says("session.timeZone"),
            rows_max=rows_max if rows_max > 0 else _UNLIMITED,
            bytes_max=jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(bytes_max),
            integers_extended=is_on("execution.pythonUDF.pandas.preferIntExtensionDtype"),
            safely=is_on("execution.pandas.convertToArrowArraySafely"),
            by_name=is_on("legacy.execution.pandas.groupedMap.assignColumnsByName"),
            integers_to_decimals=is_on("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        )


@dataclass
class FrameReader(RecordReader):
    """Reads batches as the tuples that pandas creates from the rows of a frame.

    Parameters:
        options: of the session.
        schema: of the columns of rows.
        first_column: the number of the first of them in batches.
    """

    options: FrameOptions
    schema: pa.Schema
    first_column: int

    def read(self, batch: pa.RecordBatch) -> list[Any]:
        import pandas as pd
        from pyspark.sql.conversion import ArrowBatchTransformer

        own = batch.columns[self.first_column : self.first_column + len(self.schema)]
        columns = ArrowBatchTransformer.to_pandas(
            pa.RecordBatch.from_arrays(own, schema=self.schema),
            timezone=self.options.timezone,
            prefer_int_ext_dtype=self.options.integers_extended,
        )
        return list(pd.concat(columns, axis=1).itertuples(index=False))


def frames_of(rows: Iterator[Any], options: FrameOptions) -> Iterator[Any]:
    """Yield rows in frames with limited numbers of rows and bytes."""
    import pandas as pd

    some: list[Any] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum(map(getsizeof, row))
        if len(some) >= options.rows_max or size >= options.bytes_max:
            yield pd.DataFrame(some)
            some, size = [], 0
    if some:
        yield pd.DataFrame(some)


def rows_of(schema: sql.StructType, options: FrameOptions) -> Callable[[Any], Iterator[Row]]:
    """Return a function from frames that a processor yields to rows."""
    schema_of_row = sql.StructType([sql.StructField("_0", schema)])
    make = row_class(schema.names)

    def rows(frame: Any) -> Iterator[Row]:
        import pandas as pd
        from pyspark.sql.conversion import PandasToArrowConversion

        if not isinstance(frame, pd.DataFrame):
            raise ProcessError(
                f"the processor takes frames of pandas and yields {type(frame).__name__}: yield "
                "frames"
            )
        batch = PandasToArrowConversion.convert(
            [frame],
            schema_of_row,
            timezone=options.timezone,
            safecheck=options.safely,
            arrow_cast=True,
            assign_cols_by_name=options.by_name,
            int_to_decimal_coercion_enabled=options.integers_to_decimals,
        )
        columns = [column.to_pylist() for column in batch.column(0).flatten()]
        return (tuple.__new__(make, values) for values in zip(*columns, strict=True))

    return lambda frames: chain.from_iterable(map(rows, frames))
