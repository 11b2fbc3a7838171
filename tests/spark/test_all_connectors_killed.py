"""A job on Spark with all sources and sinks is killed: each record is in each sink once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.all_connectors_kills import KilledRuns
from tests.support.effort import SOAK
from tests.support.kafka_broker import KafkaBroker
from tests.support.postgres import PostgresSchema

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("class_archive")]

SEEDS = range(62) if SOAK else (21,)
"""Of runs: 100 kills of drivers, workers and the database. The one of CI has a kill of each."""


def test_each_record_is_in_each_sink_once_after_kills_of_all_processes_of_spark(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresSchema, topic: str
) -> None:
    runs = KilledRuns("spark", tmp_path, kafka, postgres, topic)
    for seed in SEEDS:
        runs.run(seed)
    runs.finish()
