"""Sinks: the destinations of a job's outputs on Spark.

A sink is a `Sink`: its attributes say how Spark may run an epoch, and `write` writes it. May import
only top-level modules.
"""

from statekit.sinks.parquet_files import Parquet, parquet
from statekit.sinks.sink import Attempt, Callback, Sink, Writer, callback, writer

__all__ = ["Attempt", "Callback", "Parquet", "Sink", "Writer", "callback", "parquet", "writer"]
