"""A job that reads all sources and writes all sinks that are exactly once, and its right results.

Each word is in one partition of one source, so its records have one order, and the outputs are the
same whenever an epoch runs again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv

import statekit as sk
from statekit.sinks import Sink
from statekit.sources import Source
from tests.support.kafka_broker import KafkaBroker
from tests.support.lake_tables import LAKES, lake
from tests.support.spark_job import Counted, Event, count, counted
from tests.support.spark_runs import parquet_rows, state_of, write_batch

PARTITIONS = 2
WORDS = 6
"""Of each source."""

_RETRY_S = 60
_UPSERT: dict[str, Any] = {"mode": "upsert", "key": "word"}
_COLUMNS = {"word": pa.string(), **dict.fromkeys(("number", "seen", "before"), pa.int64())}


@sk.process(key="word")
def as_it_is(row: Counted, rows: sk.ValueState[int]) -> Iterator[Counted]:
    """A job reads a topic with at least one operator."""
    yield row


@dataclass(frozen=True)
class Connected:
    """The places that the job reads and writes.

    Parameters:
        home: the directory of files, tables of lakes and the checkpoint.
        servers: of Kafka.
        url: of a schema of PostgreSQL.
        topics: how the names of topics begin.
    """

    home: Path
    servers: str
    url: str
    topics: str

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    @property
    def topic(self) -> str:
        """The topic that the job reads."""
        return f"{self.topics}-events"

    def sources(self) -> dict[str, Source]:
        return {
            "topic": sk.sources.kafka(self.servers, self.topic),
            "table": sk.sources.postgres(self.url, "events", retry_s=_RETRY_S),
            "lines": sk.sources.json_lines(self.home / "lines.jsonl", tail=True),
            "files": sk.sources.parquet(self.home / "files"),
        }

    def sinks(self) -> dict[str, Sink]:
        """All sinks. Those whose names end with `upsert` keep the last row of each word."""
        files = {
            "parquet": sk.sinks.parquet(self.home / "parquet"),
            "json": sk.sinks.json_lines(self.home / "json"),
            "csv": sk.sinks.csv(self.home / "csv"),
        }
        lakes = {
            name: lake(kind, self.home / name).sink(**options)
            for kind in LAKES
            for name, options in ((kind, {}), (f"{kind}_upsert", _UPSERT))
        }
        tables = {
            name: sk.sinks.postgres(self.url, name, retry_s=_RETRY_S, **options)
            for name, options in (("postgres", {}), ("postgres_upsert", _UPSERT))
        }
        topics = {
            name: sk.sinks.kafka(
                self.servers,
                f"{self.topics}-{name}",
                key="word",
                partitions=PARTITIONS,
                transactional=name == "transactional",
            )
            for name in ("plain", "transactional")
        }
        return {**files, **lakes, **tables, **topics}

    def job(self) -> sk.Job:
        job = sk.Job("connected")
        first, *others = [
            job.source(name, Event, source) for name, source in self.sources().items()
        ]
        counts = first.union(*others).process(count)
        for name, sink in self.sinks().items():
            counts.sink(name, sink)
        return job

    # ------------------------------------------------------------------------------- what it left

    def check(self, given: list[Event], drop_repeats: int | None = None) -> None:
        """Check that each sink has each record once, and that the state is that of one run.

        Parameters:
            given: all records, those of a word in their order.
            drop_repeats: an option for readers of the topics.
        """
        expected, states = counted(given)
        last = {row.word: row for row in expected}
        for name in self.sinks():
            wanted = Counter(last.values() if name.endswith("upsert") else expected)
            found = Counter(self._rows(name, drop_repeats))
            more, less = list((found - wanted).elements()), list((wanted - found).elements())
            assert not more, f"{name} has {len(more)} wrong rows, or has them twice: {more[:5]}"
            assert not less, f"{name} has not {len(less)} of {wanted.total()} rows: {less[:5]}"
        for name in ("seen", "numbers", "most"):
            held = state_of(self.checkpoint, "count", name, self.home / "unpacked")
            assert held == states[name], name

    def _rows(self, name: str, drop_repeats: int | None) -> list[Counted]:
        """Return the rows of a sink, as a user reads them."""
        place = self.home / name
        kind = name.removesuffix("_upsert")
        if kind in LAKES:
            return _counted(lake(kind, place).read().to_pylist())
        if kind == "postgres":
            with psycopg.connect(self.url) as connection:
                select = f"SELECT word, number, seen, before FROM {name}"
                return [Counted(*row) for row in connection.execute(select.encode())]
        match name:
            case "parquet":
                return _counted(parquet_rows(place))
            case "json":
                lines = [line for f in place.glob("*.jsonl") for line in f.read_text().splitlines()]
                return _counted(map(json.loads, lines))
            case "csv":
                typed = pa_csv.ConvertOptions(column_types=_COLUMNS)
                tables = [pa_csv.read_csv(f, convert_options=typed) for f in place.glob("*.csv")]
                return _counted(pa.concat_tables(tables).to_pylist())
        topic = sk.sources.kafka(self.servers, f"{self.topics}-{name}", drop_repeats=drop_repeats)
        return self._read(topic)

    def _read(self, source: Source) -> list[Counted]:
        """Return the records of a source, read by a job."""
        job = sk.Job("reads")
        job.source("counted", Counted, source).process(as_it_is).sink("all")
        return [row for row in job.run()["all"] if isinstance(row, Counted)]


def _counted(rows: Iterable[dict[str, Any]]) -> list[Counted]:
    return [Counted(**row) for row in rows]


@dataclass
class Feed:
    """Writes records to all sources.

    Parameters:
        kafka: the broker, which answers.
        seed: of the records.

    Attributes:
        given: the records so far, those of a word in their order.
    """

    places: Connected
    kafka: KafkaBroker
    seed: int = 0
    given: list[Event] = field(default_factory=list)
    _files: int = 0

    def __post_init__(self) -> None:
        self._chosen = random.Random(self.seed)
        self.kafka.create_topic(self.places.topic, PARTITIONS)
        self._to_postgres("CREATE TABLE events (id serial PRIMARY KEY, word text, number bigint)")
        (self.places.home / "files").mkdir()

    def write(self, size: int) -> None:
        """Write so many records to each source."""
        for partition in range(PARTITIONS):
            events = self._new(f"topic-{partition}", size // PARTITIONS + 1)
            values = [json.dumps(event._asdict()) for event in events]
            self.kafka.produce(self.places.topic, values, partition=partition)
        rows = ", ".join(f"('{event.word}', {event.number})" for event in self._new("table", size))
        self._to_postgres(f"INSERT INTO events (word, number) VALUES {rows}")
        with (self.places.home / "lines.jsonl").open("a") as file:
            file.writelines(json.dumps(e._asdict()) + "\n" for e in self._new("lines", size))
        events = self._new("files", size)
        write_batch(self.places.home / "files", self._files, [e._asdict() for e in events])
        self._files += 1

    def _new(self, source: str, size: int) -> list[Event]:
        events = [
            Event(f"{source}-{self._chosen.randrange(WORDS)}", self._chosen.randrange(1000))
            for _ in range(size)
        ]
        self.given += events
        return events

    def _to_postgres(self, statement: str) -> None:
        with psycopg.connect(self.places.url, autocommit=True) as connection:
            connection.execute(statement.encode())
