"""Frames: the columns that Spark expects of a data source, and batches in that form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from statekit.errors import QueryError
from statekit.spark.frames.arrow_schemas import arrow_schema


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the schema of a table for Spark. Its metadata contains the stored types."""
    fields = []
    for field, stored in zip(from_arrow_schema(schema).fields, schema, strict=True):
        metadata = {name.decode(): text.decode() for name, text in (stored.metadata or {}).items()}
        fields.append(StructField(field.name, field.dataType, True, metadata))
    return StructType(fields)


@dataclass(frozen=True)
class Frame:
    """The columns of a frame. The object is picklable.

    Parameters:
        schema: the columns in order, as Spark reads them from Arrow.
        place: names the state in messages.
    """

    schema: pa.Schema
    place: str

    @classmethod
    def of(cls, schema: StructType, place: str, offered: pa.Schema) -> Frame:
        """Return the frame for the schema of Spark.

        Parameters:
            schema: Spark's.
            offered: the columns of the table.

        Raises:
            QueryError: the table has no such column.
        """
        names = {name.lower() for name in offered.names}
        for field in schema.fields:
            if field.name.lower() not in names:
                raise QueryError(
                    f"{place} has no column {field.name!r}. Nothing was read: choose among "
                    f"{', '.join(offered.names)} in .schema(…)"
                )
        return cls(arrow_schema(schema), place)

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the columns in lower case. Spark compares names without case."""
        return frozenset(name.lower() for name in self.schema.names)

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with exactly these columns. Spark only checks the first batch.

        A column that the batch does not have is null.

        Raises:
            QueryError: a column cannot have the type that Spark expects.
        """
        if batch.schema.equals(self.schema):
            return batch
        places = {name.lower(): place for place, name in enumerate(batch.schema.names)}
        arrays = []
        for field in self.schema:
            place = places.get(field.name.lower())
            column = pa.nulls(batch.num_rows) if place is None else batch.column(place)
            arrays.append(self._cast(column, field))
        return pa.record_batch(arrays, schema=self.schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            cast_column = cast("pa.Array", column.cast(field.type))
        except pa.ArrowException as error:
            raise QueryError(
                f"{self.place}: column {field.name!r} of type {column.type} cannot be read as "
                f"{field.type}: {error}. The state is not affected: load the frame again, which "
                "takes the types of the last epoch, or choose a type in .schema(…) that all epochs "
                "can be read as"
            ) from error
        if not field.nullable and cast_column.null_count:
            raise QueryError(
                f"{self.place}: column {field.name!r} has nulls. The state is not affected: "
                "declare the column as nullable in .schema(…)"
            )
        return cast_column
