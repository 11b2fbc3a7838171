"""A process with all sources and sinks is killed: each record is in each sink once."""

from __future__ import annotations

from pathlib import Path

from tests.support.all_connectors_kills import KilledRuns
from tests.support.effort import SOAK
from tests.support.kafka_broker import KafkaBroker
from tests.support.postgres import PostgresSchema

KILLS = 100 if SOAK else 3
"""Of the process. What it is connected to is killed in between."""


def test_each_record_is_in_each_sink_once_after_kills_of_all_processes(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    runs = KilledRuns("process", tmp_path, kafka, postgres, topic)
    for seed in range(KILLS):
        runs.run(seed)
    print(dict(runs.kills), "in", runs.epochs(), "epochs,", len(runs.feed.given), "records")
    runs.finish()
