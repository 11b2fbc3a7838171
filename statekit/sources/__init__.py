"""Sources: the origins of a job's records.

A `Source` yields Arrow batches by offsets, in any runtime. Spark reads a `SparkSource`. May import
`sources/decoding` and whatever that may import.
"""

from statekit.sources.decoding.decoder import BadRecord
from statekit.sources.decoding.json_decoding import JsonDecoder
from statekit.sources.files import FileSource, arrow, csv, files, json_lines, parquet
from statekit.sources.kafka import KafkaSource, kafka
from statekit.sources.postgres import PostgresSource, postgres
from statekit.sources.rate import RateSource, rate
from statekit.sources.socket_lines import SocketSource, socket
from statekit.sources.source import Offset, Offsets, Source
from statekit.sources.spark import SparkSource, spark

__all__ = [
    "BadRecord",
    "FileSource",
    "JsonDecoder",
    "KafkaSource",
    "Offset",
    "Offsets",
    "PostgresSource",
    "RateSource",
    "SocketSource",
    "Source",
    "SparkSource",
    "arrow",
    "csv",
    "files",
    "json_lines",
    "kafka",
    "parquet",
    "postgres",
    "rate",
    "socket",
    "spark",
]


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
