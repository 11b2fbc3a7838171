"""Sinks: the destinations of a job's outputs.

A `Sink` takes Arrow batches, in any runtime; a `FrameSink` takes the frame of an epoch, on Spark.
May import `sinks/protocol`, `sinks/lake`, `sinks/database` and whatever those may import.
"""

from statekit.sinks.console import Console, console
from statekit.sinks.delta import Delta, delta
from statekit.sinks.files import Files, csv, json_lines, parquet
from statekit.sinks.iceberg import Iceberg, iceberg
from statekit.sinks.kafka import KafkaSink, kafka
from statekit.sinks.postgres import Postgres, postgres
from statekit.sinks.protocol.frame_sinks import Callback, FrameSink, Writer, callback, writer
from statekit.sinks.protocol.sink import Attempt, Outputs, Part, Receipt, Sink

__all__ = [
    "Attempt",
    "Callback",
    "Console",
    "Delta",
    "Files",
    "FrameSink",
    "Iceberg",
    "KafkaSink",
    "Outputs",
    "Part",
    "Postgres",
    "Receipt",
    "Sink",
    "Writer",
    "callback",
    "console",
    "csv",
    "delta",
    "iceberg",
    "json_lines",
    "kafka",
    "parquet",
    "postgres",
    "writer",
]


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
