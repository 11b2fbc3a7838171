"""Sinks: where the outputs of a job on Spark are written.

A sink is a `Sink`: its attributes say how Spark may run an epoch, and `write` writes it.
"""

from statekit.sinks.parquet_files import Parquet, parquet
from statekit.sinks.sink import Callback, Sink, Writer, callback, writer

__all__ = ["Callback", "Parquet", "Sink", "Writer", "callback", "parquet", "writer"]
