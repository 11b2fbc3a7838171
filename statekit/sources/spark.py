"""Sources that Spark reads: any format that it knows, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statekit.checkpoint.object_store import without_credentials
from statekit.connectors.probed import Probed
from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.shown import shown, type_name
from statekit.sources.source import Source

SparkOption = str | int | float | bool | Path
"""The value of an option of a format."""


@dataclass(frozen=True, repr=False)
class SparkSource(Probed[Any]):
    """A source that Spark reads, with its own log of offsets. See `spark`.

    Its repr contains the names of the options, and of their values the path alone: a password is
    never shown.

    Parameters:
        format: the name of the format.
        options: of the format.
        schema: of the rows; None for that of the format or the records.
        streaming: whether Spark reads it as a stream.
    """

    format: str
    options: Mapping[str, SparkOption] = field(default_factory=dict)
    schema: Any = None
    streaming: bool = True

    def __post_init__(self) -> None:
        name: object = self.format
        if not (isinstance(name, str) and name):
            raise StateTypeError(
                f"format={shown(name)}: give the name of a format of Spark, such as "
                '"delta" or "json"'
            )
        if self.schema is not None and not (
            isinstance(self.schema, str) or hasattr(self.schema, "simpleString")
        ):
            raise StateTypeError(
                f"schema={shown(self.schema)}: give columns with their types of Spark, such as "
                '"customer string, cents long", or a StructType'
            )
        for option, value in self.options.items():
            if not isinstance(value, SparkOption):
                raise StateTypeError(
                    f"options= has a {type_name(value)} for {option!r}: give a text, a number, "
                    "a bool or a path"
                )

    def __repr__(self) -> str:
        parts = [repr(self.format)]
        named = [name for name in self.options if name != "path"]
        if "path" in self.options:
            parts.append(f"path={without_credentials(str(self.options['path']))!r}")
        if named:
            parts.append(f"options of {', '.join(named)}")
        return f"spark({', '.join(parts)})"

    @property
    def is_bounded(self) -> bool:
        """True if all rows are there when a run begins."""
        return not self.streaming


AnySource = Source | SparkSource
"""What a job can declare as the origin of an input."""


@declarable("sources.spark")
def spark(
    format: str,
    *,
    options: Mapping[str, SparkOption] | None = None,
    schema: Any = None,
    streaming: bool = True,
) -> SparkSource:
    """Return a source of a format that Spark knows, such as a Delta table. It runs on Spark only.

    The job reads it as it reads a frame in `inputs=`: a stream by the offsets of Spark's log in the
    checkpoint, a static table completely in the first epoch. Names of options that contain
    "password", "secret", "token" or "key" are those of secrets: no message has their values.

    Parameters:
        format: the name, as for `spark.readStream.format`.
        options: of the format, such as `{"path": "/data/orders"}`.
        schema: columns and types of Spark, as a text or a StructType. None: the columns of the
            records for files of JSON, CSV and XML, and for streams of files of Parquet, ORC and
            Avro. Other formats know their columns.
        streaming: False reads the rows that are there when a run begins.

    Raises:
        StateTypeError: an argument is not valid. Spark checks the format and its options when the
            job starts.

    >>> spark("delta", options={"path": "/data/orders", "fs.secret": "quite secret"})
    spark('delta', path='/data/orders', options of fs.secret)
    """
    return SparkSource(format, dict(options or {}), schema, streaming)
