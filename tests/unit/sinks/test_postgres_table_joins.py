"""The join of two tables in PostgreSQL is what PostgreSQL itself joins, also after a crash.

The job writes both tables and their join. Foreign keys of orders change from epoch to epoch.
"""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.sinks import Attempt, Postgres
from tests.support.postgres import PostgresSchema

CUSTOMERS, ORDERS, EPOCHS, OF_EPOCH = 4, 12, 6, 20


class Order(NamedTuple):
    id: int
    customer: int | None
    cents: int
    deleted: bool


class Customer(NamedTuple):
    id: int
    city: str
    deleted: bool


class Located(NamedTuple):
    order: int
    cents: int
    city: str | None
    deleted: bool


class Found(NamedTuple):
    order: int
    cents: int
    deleted: bool


JOINED = {
    "inner": "o.id, o.cents, c.city FROM orders o JOIN customers c ON o.customer = c.id",
    "left": "o.id, o.cents, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.id",
    "semi": "o.id, o.cents FROM orders o WHERE customer IN (SELECT id FROM customers)",
    "anti": """o.id, o.cents FROM orders o
        WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE o.customer = c.id)""",
}


class Killed(Postgres):
    """Ends the run when it publishes an epoch, before or after the transaction."""

    at_epoch, is_published = 3, False

    def publish(self, attempt: Attempt, receipts: Any) -> None:
        if attempt.epoch != self.at_epoch or self.is_published:
            super().publish(attempt, receipts)
        if attempt.epoch == self.at_epoch:
            raise KeyboardInterrupt


class KilledAfterwards(Killed):
    is_published = True


def changes(seed: int) -> dict[str, list[Any]]:
    """Random changes of both tables. Each epoch has both."""
    chosen, count = random.Random(seed), EPOCHS * OF_EPOCH
    keys = [None, *range(CUSTOMERS)]
    orders = [
        Order(
            chosen.randrange(ORDERS),
            chosen.choice(keys),
            chosen.randrange(3),
            chosen.random() < 0.2,
        )
        for _ in range(count)
    ]
    customers = [
        Customer(chosen.randrange(CUSTOMERS), chosen.choice("abc"), chosen.random() < 0.3)
        for _ in range(count)
    ]
    return {"orders": orders, "customers": customers}


def options_of(sink: Postgres) -> dict[str, Any]:
    return {each.name: getattr(sink, each.name) for each in fields(sink) if each.init}


def job(postgres: PostgresSchema, how: Any, joined: type[Postgres]) -> sk.Job:
    def table(name: str, key: str) -> Postgres:
        options: dict[str, Any] = {"key": key, "mode": "upsert", "delete": "deleted"}
        return sk.sinks.postgres(postgres.url, name, **options)

    made = sk.Job("shop")
    orders, customers = made.source("orders", Order), made.source("customers", Customer)
    orders.sink("orders", table("orders", "id"))
    customers.sink("customers", table("customers", "id"))
    result: Any = Located if how in ("inner", "left") else Found
    sink = table("joined", "order")
    orders.join(
        customers,
        on=("customer", "id"),
        how=how,
        emit="changes",
        key="id",
        deletes="deleted",
        into=result,
        fields={"order": "left.id"},
    ).sink("joined", joined(**options_of(sink)))
    return made


@pytest.mark.parametrize("killed", [Killed, KilledAfterwards])
@pytest.mark.parametrize(
    "how", ["left", *(pytest.param(how, marks=pytest.mark.slow) for how in JOINED if how != "left")]
)
def test_a_join_of_tables_with_moving_keys_is_that_of_sql_after_a_crash(
    how: str, killed: type[Killed], root: Path, postgres: PostgresSchema
) -> None:
    records = changes(seed=len(how))
    options: dict[str, Any] = {"checkpoint": root, "epoch_size": OF_EPOCH, "drain": False}

    def compare(epoch: int) -> None:
        name = '"order", cents, city' if how in ("inner", "left") else '"order", cents'
        found = postgres.rows(f"SELECT {name} FROM joined")
        expected = postgres.rows(f"SELECT {JOINED[how]}")
        assert sorted(found, key=str) == sorted(expected, key=str), epoch
        assert found, "the comparison needs rows"

    def run(epochs: int, joined: type[Postgres] = Postgres, parallelism: int = 2) -> None:
        until = epochs * OF_EPOCH
        given = {name: of[:until] for name, of in records.items()}
        job(postgres, how, joined).run(given, parallelism=parallelism, **options)
        compare(epochs)

    run(1)
    run(2, parallelism=5)
    with pytest.raises(KeyboardInterrupt):
        run(EPOCHS, killed)
    run(4, parallelism=3)
    run(EPOCHS)
