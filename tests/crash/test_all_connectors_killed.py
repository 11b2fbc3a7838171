"""A process with all sources and sinks is killed: each record is in each sink once."""

from __future__ import annotations

from pathlib import Path

from tests.support.all_connectors_kills import KilledRuns
from tests.support.effort import SOAK
from tests.support.kafka_broker import KafkaBroker
from tests.support.postgres import PostgresSchema

SEEDS = range(100) if SOAK else (0, 2)
"""Of runs, each of which is killed. The first one works while the broker is suspended and the
database is killed; the third one is killed at its start.
"""


def test_each_record_is_in_each_sink_once_after_kills_of_all_processes(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    runs = KilledRuns("process", tmp_path, kafka, postgres, topic)
    for seed in SEEDS:
        runs.run(seed)
    runs.finish()
