"""Jobs in one process that write to PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import statekit as sk
from statekit.job.progress import Run
from statekit.sinks import Postgres
from tests.support.postgres import PostgresSchema
from tests.support.sinks import ORDERS, Order, Spent, spending_job


def spent_to(postgres: PostgresSchema, table: str = "spent", **options: Any) -> Postgres:
    return sk.sinks.postgres(postgres.url, table, **options)


def run(root: Path | None, sink: Postgres, orders: list[Order] = ORDERS, **options: Any) -> Run:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    return spending_job(sink).run({"orders": orders}, **given)


def rows_of(postgres: PostgresSchema, table: str = "spent") -> list[Spent]:
    return sorted(Spent(*row) for row in postgres.rows(f"SELECT customer, cents FROM {table}"))
