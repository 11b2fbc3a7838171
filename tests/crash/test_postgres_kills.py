"""A process that writes to PostgreSQL is killed at each step: every record is there once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import statekit as sk
from statekit.testing import check_sink
from tests.support.postgres import PostgresSchema
from tests.support.sinks import Spent

pytestmark = pytest.mark.slow


def _made(url: str, **options: Any) -> Callable[[Path], tuple[Any, Callable[[], list[Spent]]]]:
    def make(place: Path) -> tuple[Any, Callable[[], list[Spent]]]:
        def read() -> list[Spent]:
            with psycopg.connect(url) as connection:
                rows = connection.execute(f"SELECT customer, cents FROM {place.name}".encode())
                return [Spent(*row) for row in rows]

        return sk.sinks.postgres(url, place.name, **options), read

    return make


@pytest.mark.parametrize(
    "options",
    [{}, {"epoch_column": None}, {"key": "customer", "mode": "upsert"}],
    ids=["append", "without epochs", "upsert"],
)
def test_the_sink_leaves_each_record_once_whenever_its_process_is_killed(
    postgres: PostgresSchema, options: dict[str, Any]
) -> None:
    records = [Spent(f"c{number}", number) for number in range(4)]
    check_sink(_made(postgres.url, **options), records, depth="quick")
