"""The sink of PostgreSQL in one process: each epoch exactly once, whatever came before."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import statekit as sk
from statekit.sinks import Attempt, Part, Postgres
from tests.support.postgres import PostgresSchema
from tests.support.postgres_sinks import rows_of, run, spent_to
from tests.support.sinks import ORDERS, Order, Spent, sums

# ------------------------------------------------------------------------------ append


def test_the_table_is_made_and_has_the_epoch_of_each_row(
    root: Path, postgres: PostgresSchema
) -> None:
    run(root, spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)
    epochs = postgres.rows("SELECT _epoch, count(*) FROM spent GROUP BY 1 ORDER BY 1")
    assert epochs == [(0, 5), (1, 5), (2, 2)]
    assert postgres.tables() == ["_statekit_sinks", "spent"]


def test_a_run_that_continues_adds_its_epochs(root: Path, postgres: PostgresSchema) -> None:
    run(root, spent_to(postgres), ORDERS[:5])
    run(root, spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)


@pytest.mark.parametrize("column", ["_epoch", None])
def test_an_epoch_that_was_published_and_not_committed_is_replaced(
    root: Path, postgres: PostgresSchema, column: str | None
) -> None:
    """By one of another size, as after a restart with other options."""
    run(root, spent_to(postgres, epoch_column=column))
    (root / "epochs" / f"{2:020d}.json").unlink()
    run(root, spent_to(postgres, epoch_column=column), epoch_size=1)
    assert rows_of(postgres) == sums(ORDERS)


def test_rows_that_were_changed_and_have_no_epoch_cannot_be_replaced(
    root: Path, postgres: PostgresSchema
) -> None:
    run(root, spent_to(postgres, epoch_column=None))
    (root / "epochs" / f"{2:020d}.json").unlink()
    postgres.rows("UPDATE spent SET cents = 0")
    with pytest.raises(sk.RestoreError, match="with 2 rows, and 0 of them are in spent unchanged"):
        run(root, spent_to(postgres, epoch_column=None))
    assert len(rows_of(postgres)) == len(ORDERS), "nothing was written"


def test_rows_of_epochs_that_were_rolled_back_are_removed(
    root: Path, postgres: PostgresSchema
) -> None:
    run(root, spent_to(postgres))
    run(root, spent_to(postgres), from_epoch=0)
    assert rows_of(postgres) == sums(ORDERS)
    run(root, spent_to(postgres), [*ORDERS, Order("new", 1)])
    assert rows_of(postgres) == sums([*ORDERS, Order("new", 1)])


def test_without_a_column_of_epochs_a_rollback_removes_the_last_and_says_which_stay(
    root: Path, postgres: PostgresSchema, caplog: pytest.LogCaptureFixture
) -> None:
    sink = spent_to(postgres, epoch_column=None)
    run(root, sink)
    with caplog.at_level(logging.WARNING, "statekit.sinks"):
        run(root, sink, from_epoch=0)
    assert "rolled back stay in table spent: epochs 1 to 1" in caplog.text
    doubled = len(rows_of(postgres)) - len(ORDERS)
    assert doubled == 5, "those of epoch 1"
    caplog.clear()
    run(root, sink, [*ORDERS, Order("new", 1)])
    assert caplog.text == "", "it is said once"


def test_a_table_has_the_epochs_of_one_checkpoint(
    root: Path, tmp_path: Path, postgres: PostgresSchema
) -> None:
    run(tmp_path / "other", spent_to(postgres))
    with pytest.raises(sk.RestoreError, match="has the epochs of sink 'spent' of another"):
        run(root, spent_to(postgres))
    run(root, spent_to(postgres, epoch_column="_epoch_2"))
    assert rows_of(postgres) == sorted([*sums(ORDERS), *sums(ORDERS)])
    postgres.rows("DROP TABLE spent")
    run(tmp_path / "third", spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)


def test_a_checkpoint_that_was_restored_from_an_older_copy_is_refused(
    root: Path, postgres: PostgresSchema
) -> None:
    run(root, spent_to(postgres))
    for epoch in (1, 2):
        (root / "epochs" / f"{epoch:020d}.json").unlink()
    with pytest.raises(sk.RestoreError, match="contains epoch 2, which is later than epoch 1"):
        run(root, spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)


# ------------------------------------------------------------------------------ upsert


class Change(NamedTuple):
    city: str
    product: int
    price: int | None = None
    is_gone: bool = False


@sk.process(key=("city", "product"))
def changed(change: Change, seen: sk.ValueState[int]) -> Iterator[Change]:
    seen.update(1)
    yield change


def write_changes(root: Path | None, sink: Postgres, *epochs: list[Change], **options: Any) -> None:
    """Run a job whose outputs are changes, each list an epoch."""
    job = sk.Job("prices")
    job.source("changes", Change).process(changed).sink("prices", sink)
    given = [change for epoch in epochs for change in epoch]
    options = {"drain": False, "epoch_size": len(epochs[0]), "checkpoint": root} | options
    job.run({"changes": given}, **options)


def prices_in(postgres: PostgresSchema) -> list[Any]:
    return sorted(postgres.rows("SELECT city, product, price FROM prices"))


def test_a_row_of_a_key_is_replaced_by_the_last_one_and_deleted_by_the_field(
    postgres: PostgresSchema,
) -> None:
    options: dict[str, Any] = {"key": ("city", "product"), "mode": "upsert", "delete": "is_gone"}
    first = [Change("oslo", 1, 5), Change("oslo", 1, 6), Change("bern", 1, 7), Change("bern", 2, 8)]
    second = [
        Change("bern", 1, 9, is_gone=True),
        Change("bern", 2, 9, is_gone=True),
        Change("bern", 2, 10),
        Change("rome", 1, 1, is_gone=True),
    ]
    third = [Change("oslo", 1), Change("rome", 2, 3), Change("rome", 2, is_gone=True)]
    sink = spent_to(postgres, "prices", **options)
    write_changes(None, sink, first, second, third)
    assert prices_in(postgres) == [("bern", 2, 10), ("oslo", 1, None)]
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'prices'"
    assert sorted(postgres.rows(columns + f" AND table_schema = '{postgres.name}'")) == [
        ("_epoch",),
        ("city",),
        ("price",),
        ("product",),
    ]


def test_a_table_of_keys_alone_is_a_set(postgres: PostgresSchema) -> None:
    keys = ("city", "product", "price")
    options: dict[str, Any] = {"key": keys, "mode": "upsert", "delete": "is_gone"}
    sink = spent_to(postgres, "prices", epoch_column=None, **options)
    write_changes(None, sink, [Change("oslo", 1, 5), Change("oslo", 1, 5), Change("bern", 2, 8)])
    assert prices_in(postgres) == [("bern", 2, 8), ("oslo", 1, 5)]


def test_an_upsert_that_runs_again_leaves_the_same_rows(
    root: Path, postgres: PostgresSchema
) -> None:
    sink = spent_to(postgres, key="customer", mode="upsert")
    run(root, sink)
    last = rows_of(postgres)
    assert last == [Spent("c0", 18), Spent("c1", 22), Spent("c2", 26)]
    (root / "epochs" / f"{2:020d}.json").unlink()
    run(root, sink, epoch_size=1)
    assert rows_of(postgres) == last


def test_upserts_of_epochs_that_were_rolled_back_stay_and_are_marked_by_their_epoch(
    root: Path, postgres: PostgresSchema, caplog: pytest.LogCaptureFixture
) -> None:
    sink = spent_to(postgres, key="customer", mode="upsert")
    run(root, sink, [*ORDERS[:5], Order("gone", 1)])
    with caplog.at_level(logging.WARNING, "statekit.sinks"):
        run(root, sink, ORDERS[:5] + ORDERS[6:7], from_epoch=0)
    assert "stay in table spent until their keys are written again: epochs 1" in caplog.text
    marked = postgres.rows("SELECT customer FROM spent WHERE _epoch = 1")
    assert marked == [("gone",)]


def test_a_null_in_a_key_is_an_error_of_the_record(postgres: PostgresSchema) -> None:
    sink = spent_to(postgres, "prices", key="price", mode="upsert")
    with pytest.raises(sk.ProcessError, match='null value in column "price"'):
        write_changes(None, sink, [Change("oslo", 1, None)])


# -------------------------------------------------------------------------------- fences


def test_a_run_that_another_one_has_overtaken_writes_nothing(
    root: Path, postgres: PostgresSchema
) -> None:
    """The other one publishes and commits while this one is about to publish its second epoch."""
    run(root, spent_to(postgres), ORDERS[:5])

    class Overtaken(Postgres):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            run(root, spent_to(postgres), ORDERS[:10])
            super().publish(attempt, receipts)

    late = [*ORDERS[:5], *(Order("late", 1) for _ in range(5))]
    sink = spent_to(postgres)
    overtaken = Overtaken(sink.database, "spent", epoch_column="_epoch")
    with pytest.raises(sk.FencedError, match="a run that was started later has published epoch 1"):
        run(root, overtaken, late)
    assert rows_of(postgres) == sums(ORDERS[:10])


def test_an_older_run_replaces_nothing_of_a_newer_one_that_has_not_committed_yet(
    root: Path, postgres: PostgresSchema
) -> None:
    run(root, spent_to(postgres), ORDERS[:5])

    class Interrupted(Postgres):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            super().publish(attempt, receipts)
            raise KeyboardInterrupt

    class Overtaken(Postgres):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            database = spent_to(postgres).database
            newer = Interrupted(database, "spent", epoch_column="_epoch")
            with pytest.raises(KeyboardInterrupt):
                run(root, newer, ORDERS[:10])
            super().publish(attempt, receipts)

    overtaken = Overtaken(spent_to(postgres).database, "spent", epoch_column="_epoch")
    with pytest.raises(sk.FencedError):
        run(root, overtaken, ORDERS[:10])
    run(root, spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)


# ------------------------------------------------------------------------- tasks of Spark


class InTasks(Postgres):
    """Writes each epoch in parts by pickled copies, at the same time, as tasks of Spark do.

    Every part is written twice, and the receipt of one of the copies is lost.
    """

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Any:
        rows = pa.Table.from_batches(list(batches))
        halves = [rows.slice(0, 3), rows.slice(3)]

        def task(number: int) -> Any:
            batches = halves[number // 2].to_batches()
            own = replace(part, number=number // 2)
            return number, pickle.loads(sent).write(own, iter(batches))

        sent = pickle.dumps(Postgres(**fields_of(self)))
        with ThreadPoolExecutor(4) as pool:
            written = dict(pool.map(task, range(4)))
        self.receipts = [written[0], written[3]]
        return {}

    def publish(self, attempt: Attempt, receipts: Any) -> None:
        super().publish(attempt, self.receipts if receipts else [])


def fields_of(sink: Postgres) -> dict[str, Any]:
    return {each.name: getattr(sink, each.name) for each in fields(sink) if each.init}


def in_tasks(sink: Postgres, cls: type[InTasks] = InTasks) -> InTasks:
    return cls(**fields_of(sink))


@pytest.mark.parametrize("column", ["_epoch", None])
def test_parts_of_tasks_are_published_together_and_once(
    root: Path, postgres: PostgresSchema, column: str | None
) -> None:
    run(root, in_tasks(spent_to(postgres, epoch_column=column)))
    assert rows_of(postgres) == sums(ORDERS)
    assert postgres.tables() == ["_statekit_sinks", "spent"], "no staged rows are left"
    (root / "epochs" / f"{2:020d}.json").unlink()
    run(root, in_tasks(spent_to(postgres, epoch_column=column)))
    assert rows_of(postgres) == sums(ORDERS)


def test_the_last_row_of_a_key_is_that_of_the_last_part(postgres: PostgresSchema) -> None:
    options: dict[str, Any] = {"key": ("city", "product"), "mode": "upsert", "delete": "is_gone"}
    given = [Change("oslo", 1, 9), Change("bern", 1, 9), Change("rome", 1, 9)]
    given += [Change("oslo", 1, 1), Change("oslo", 1, 2), Change("bern", 1, is_gone=True)]
    write_changes(None, in_tasks(spent_to(postgres, "prices", **options)), given)
    assert prices_in(postgres) == [("oslo", 1, 2), ("rome", 1, 9)]


def test_staged_rows_of_a_run_that_was_killed_are_removed(
    root: Path, postgres: PostgresSchema
) -> None:
    class Killed(InTasks):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(root, in_tasks(spent_to(postgres), Killed), ORDERS[:5])
    assert len(postgres.tables()) == 3
    run(root, in_tasks(spent_to(postgres)), ORDERS[:5])
    assert len(postgres.tables()) == 3, "the killed run may be about to be fenced"
    run(root, in_tasks(spent_to(postgres)))
    assert postgres.tables() == ["_statekit_sinks", "spent"]
    assert rows_of(postgres) == sums(ORDERS)


def test_staged_rows_that_are_lost_are_an_error_that_commits_nothing(
    root: Path, postgres: PostgresSchema
) -> None:
    """As after a crash of the server, which empties tables without a log."""

    class Emptied(InTasks):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            (staged,) = [name for name in postgres.tables() if "staged" in name]
            postgres.rows(f"TRUNCATE {staged}")
            super().publish(attempt, receipts)

    with pytest.raises(sk.ConnectorError, match="sink 'spent': 0 of 5 rows of this epoch are"):
        run(root, in_tasks(spent_to(postgres), Emptied))
    run(root, in_tasks(spent_to(postgres)))
    assert rows_of(postgres) == sums(ORDERS)
