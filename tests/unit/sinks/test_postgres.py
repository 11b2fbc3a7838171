"""The sink of PostgreSQL in one process: each epoch exactly once, whatever came before."""

from __future__ import annotations

import datetime as dt
import enum
import logging
import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest

import statekit as sk
from statekit.job.progress import Run
from statekit.sinks import Attempt, Part, Postgres
from tests.support.postgres import PostgresSchema
from tests.support.sinks import ORDERS, Order, Spent, spending_job, sums


def spent_to(postgres: PostgresSchema, table: str = "spent", **options: Any) -> Postgres:
    return sk.sinks.postgres(postgres.url, table, **options)


def run(root: Path | None, sink: Postgres, orders: list[Order] = ORDERS, **options: Any) -> Run:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    return spending_job(sink).run({"orders": orders}, **given)


def rows_of(postgres: PostgresSchema, table: str = "spent") -> list[Spent]:
    return sorted(Spent(*row) for row in postgres.rows(f"SELECT customer, cents FROM {table}"))


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


# ------------------------------------------------------------------------------- types


class Colour(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    town: str
    zip: int | None


class Trip(NamedTuple):
    number: int
    at: dt.datetime | None
    day: dt.date | None
    took: dt.timedelta | None
    fee: Annotated[Decimal, sk.Decimals(10, 2)] | None
    large: Decimal | None
    ratio: float | None
    is_paid: bool | None
    name: str | None
    raw: bytes | None
    id: UUID | None
    colour: Colour | None
    tags: list[str] | None
    moments: list[dt.datetime] | None
    sums: list[Decimal] | None
    grid: list[list[int]] | None
    place: Place | None
    pair: tuple[str, int] | None
    counts: dict[int, int] | None


_AT = dt.datetime(2026, 1, 31, 8, 0, 0, 5, tzinfo=dt.UTC)
FULL = Trip(
    number=2**63 - 1,
    at=_AT,
    day=dt.date(1, 1, 1),
    took=dt.timedelta(days=-3, microseconds=7),
    fee=Decimal("-12345678.05"),
    large=Decimal("12345678901234567890.000000000000000001"),
    ratio=-0.1,
    is_paid=True,
    name='é "quoted"\n\\. \t,',
    raw=b"\x00\xff",
    id=UUID(int=5),
    colour=Colour.RED,
    tags=["a", "", '{"x"}'],
    moments=[_AT],
    sums=[Decimal("0.5"), Decimal(10_000)],
    grid=[[1, 2], []],
    place=Place("oslo", None),
    pair=("a", 1),
    counts={5: 1},
)
NOTHING = Trip(-(2**63), *[None] * (len(Trip._fields) - 1))
EMPTY = NOTHING._replace(
    number=0,
    at=dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    took=dt.timedelta(0),
    fee=Decimal(0),
    ratio=math.inf,
    name="",
    raw=b"",
    tags=[],
    moments=[],
    grid=[],
    counts={},
)


@sk.process(key="number")
def travelled(trip: Trip, seen: sk.ValueState[int]) -> Iterator[Trip]:
    seen.update(1)
    yield trip


def write_trips(sink: Postgres, *trips: Trip) -> None:
    job = sk.Job("trips")
    job.source("trips", Trip).process(travelled).sink("trips", sink)
    job.run({"trips": trips})


@pytest.mark.parametrize("options", [{}, {"key": "number", "mode": "upsert"}], ids=["add", "set"])
def test_values_of_all_types_can_be_read_as_they_were(
    postgres: PostgresSchema, options: dict[str, Any]
) -> None:
    write_trips(spent_to(postgres, "trips", **options), FULL, NOTHING, EMPTY)
    names = ", ".join(Trip._fields)
    found = {row[0]: row for row in postgres.rows(f"SELECT {names} FROM trips")}
    shown = {"id": str(FULL.id), "colour": "red", "pair": ["a", 1], "counts": {"5": 1}}
    place = {"town": "oslo", "zip": None}
    assert found[FULL.number] == tuple(FULL._replace(place=place, **shown))  # type: ignore[arg-type]
    assert found[NOTHING.number] == tuple(NOTHING)
    assert found[0] == tuple(EMPTY)
    types = "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = "
    of_columns = dict(postgres.rows(f"{types} '{postgres.name}' AND table_name = 'trips'"))
    assert of_columns["at"] == "timestamp with time zone"
    assert of_columns["took"] == "interval"
    assert of_columns["fee"] == "numeric"
    assert of_columns["tags"] == of_columns["sums"] == "ARRAY"
    assert of_columns["grid"] == of_columns["place"] == of_columns["counts"] == "jsonb"


def test_columns_of_an_existing_table_may_have_another_order_and_wider_types(
    postgres: PostgresSchema,
) -> None:
    postgres.rows("CREATE TYPE mood AS ENUM ('red')")
    postgres.rows(
        "CREATE TABLE trips (counts json, pair jsonb, id uuid, colour mood, name varchar(50), "
        "note text DEFAULT 'none', fee numeric(20, 5), number numeric, serial serial)"
    )
    write_trips(spent_to(postgres, "trips"), FULL, NOTHING)
    rows = postgres.rows("SELECT number, id, colour, name, note, fee, counts FROM trips")
    assert rows[1] == (NOTHING.number, None, None, None, "none", None, None)
    assert rows[0][:4] == (FULL.number, FULL.id, "red", FULL.name)
    assert rows[0][5:] == (FULL.fee, {"5": 1})


def test_a_value_that_a_column_refuses_is_an_error_of_the_record(postgres: PostgresSchema) -> None:
    with pytest.raises(sk.ProcessError, match=r"refuses a value: .*0x00.* Nothing of this epoch"):
        write_trips(spent_to(postgres, "trips"), FULL._replace(name="a\0b"))
    assert postgres.rows("SELECT * FROM trips") == []


# ---------------------------------------------------------------------------- evolution


class Priced(NamedTuple):
    customer: str
    cents: int
    currency: str | None = None


def write_priced(sink: Postgres) -> None:
    @sk.process(key="customer")
    def priced(order: Order, seen: sk.ValueState[int]) -> Iterator[Priced]:
        seen.update(1)
        yield Priced(order.customer, order.cents, "EUR")

    job = sk.Job("shop")
    job.source("orders", Order).process(priced).sink("spent", sink)
    job.run({"orders": ORDERS[:1]})


def test_a_new_field_is_a_new_column(postgres: PostgresSchema) -> None:
    run(None, spent_to(postgres, epoch_column=None))
    write_priced(spent_to(postgres, epoch_column=None))
    found = postgres.rows("SELECT currency, count(*) FROM spent GROUP BY 1 ORDER BY 1")
    assert found == [("EUR", 1), (None, len(ORDERS))]


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (
            "TABLE spent (customer text, cents integer)",
            {},
            "integer in column 'cents', where int64",
        ),
        ("TABLE spent (customer int, cents bigint)", {}, "integer in column 'customer'"),
        ("TABLE spent (customer text, cents numeric(5,2))", {}, "numeric\\(5,2\\) in column"),
        ("TABLE spent (cents bigint GENERATED ALWAYS AS IDENTITY)", {}, "set by the server"),
        ("TABLE spent (day date NOT NULL)", {}, "may not be null, and that the output .* 'day'"),
        ("VIEW spent AS SELECT 1 AS cents", {}, "is no table"),
        (
            "TABLE spent (customer text, cents bigint)",
            {"key": "customer", "mode": "upsert"},
            "no unique index on exactly customer",
        ),
        (
            "TABLE spent (cents bigint)",
            {"key": "customer", "mode": "upsert"},
            "no column 'customer' of the key",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_found_before_the_first_record(
    root: Path, postgres: PostgresSchema, made: str, options: dict[str, Any], message: str
) -> None:
    postgres.rows(f"CREATE {made}")
    given = iter(ORDERS)
    with pytest.raises(sk.StateSchemaError, match=f"sink 'spent': .*{message}"):
        spending_job(spent_to(postgres, **options)).run({"orders": given}, checkpoint=root)
    assert next(given) == ORDERS[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "town", "mode": "upsert"}, "has no field 'town', only customer, cents"),
        ({"key": "customer", "mode": "upsert", "delete": "cents"}, "has int64 in delete='cents'"),
        ({"epoch_column": "cents"}, "has a field 'cents', which is the column of the epoch"),
    ],
)
def test_options_that_do_not_fit_the_output_are_refused(
    postgres: PostgresSchema, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateSchemaError, match=message):
        run(None, spent_to(postgres, **options))
    assert postgres.tables() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode='replace': give 'append' or 'upsert'"),
        ({"mode": "upsert"}, "mode='upsert' needs key="),
        ({"key": "customer"}, "key= and delete= are options of mode='upsert'"),
        ({"key": "a", "delete": "a", "mode": "upsert"}, "delete='a' is a field of the key"),
        ({"table": "a.b.c"}, "table='a.b.c' is no name of a table"),
        ({"table": "t" * 64}, "is no name of a table: .* at most 63 bytes"),
        ({"epoch_column": ""}, "epoch_column='' is no name of a column"),
        ({"url": 5}, "url=5: give a text"),
    ],
)
def test_options_that_are_not_valid_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"url": "postgresql://db/shop", "table": "t"} | options
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sinks.postgres(**given)


HOSTILE = 'the "best" %s; DROP TABLE spent -- 100%'


def test_names_of_any_characters_are_names(postgres: PostgresSchema) -> None:
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    postgres.rows(f"CREATE SCHEMA {quoted}")
    try:
        for options in ({}, {"key": "customer", "mode": "upsert"}):
            sink = spent_to(postgres, f"{quoted}.{quoted}", epoch_column=HOSTILE, **options)
            run(None, sink)
            assert len(postgres.rows(f"SELECT {quoted} FROM {quoted}.{quoted}")) in (12, 3)
            postgres.rows(f"DROP TABLE {quoted}.{quoted}")
    finally:
        postgres.rows(f"DROP SCHEMA {quoted} CASCADE")


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


# -------------------------------------------------------------------------------- errors


def _every_text(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error!r} {error} {getattr(error, '__notes__', '')}"
        error = error.__cause__ or error.__context__


def _texts_of(call: Callable[[], object]) -> str:
    with pytest.raises(sk.StatekitError) as raised:
        call()
    return "\n".join(_every_text(raised.value))


def test_each_refusal_names_the_sink_and_shows_no_password(
    postgres: PostgresSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, secret = postgres.server, "sentinel"
    monkeypatch.setenv("PGPASSWORD", "sentinel-of-the-environment")
    right = server.url()
    refusals = {
        "refused the connection: .*password authentication failed": server.url(
            password="sentinel-and-wrong"
        ),
        "Connection refused": right.replace(f":{server.port}/", ":1/"),
        "does not exist": right.replace("/postgres", "/nowhere"),
    }
    for message, url in refusals.items():
        sink = sk.sinks.postgres(url, "spent", retry_s=0.2)
        text = _texts_of(lambda sink=sink: run(None, sink))  # type: ignore[misc]
        assert secret not in text + repr(sink)
        with pytest.raises(sk.ConnectorError, match=f"sink 'spent': PostgreSQL at .*{message}"):
            run(None, sink)
    no_password = f"postgresql://statekit@127.0.0.1:{server.port}/postgres"
    assert secret not in _texts_of(lambda: run(None, sk.sinks.postgres(no_password, "spent")))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:senti@nel@db/shop",
        "postgresql://ada:12/senti@nel@db/shop",
        "postgresql://ada:sentinel/x@db/shop",
        "host=db password=a sentinel",
    ],
)
def test_a_url_that_cannot_be_parsed_is_not_shown(url: str) -> None:
    with pytest.raises(sk.StateTypeError, match="the URL of PostgreSQL is not valid") as raised:
        sk.sinks.postgres(url, "spent")
    assert "senti" not in "\n".join(_every_text(raised.value))


def test_passwords_of_other_characters_are_taken_and_not_shown() -> None:
    for password in ("a?senti=nel", "sentinel#", "senti:nel", "senti%40nel"):
        assert "senti" not in repr(sk.sinks.postgres(f"postgresql://ada:{password}@db", "spent"))


def test_a_missing_schema_or_permission_is_an_error_that_says_so(postgres: PostgresSchema) -> None:
    with pytest.raises(sk.ConnectorError, match=r"InvalidSchemaName: .*create the schema"):
        run(None, spent_to(postgres, "nowhere.spent"))
    reader = f"reader_{postgres.name}"
    postgres.rows(f"CREATE ROLE {reader} LOGIN PASSWORD 'sentinel'")
    postgres.rows(f"GRANT USAGE ON SCHEMA {postgres.name} TO {reader}")
    url = postgres.server.url(schema=postgres.name, user=reader, password="sentinel")
    with pytest.raises(sk.ConnectorError, match=r"InsufficientPrivilege: .*grant the user"):
        run(None, sk.sinks.postgres(url, "spent"))


def test_a_table_that_is_dropped_during_the_run_is_an_error_that_commits_nothing(
    root: Path, postgres: PostgresSchema
) -> None:
    class Dropping(Postgres):
        def open(self, attempt: Attempt) -> None:
            super().open(attempt)
            postgres.rows("DROP TABLE spent")

    sink = Dropping(spent_to(postgres).database, "spent")
    with pytest.raises(sk.StateSchemaError, match="is not there, or without columns 'customer'"):
        run(root, sink)
    run(root, spent_to(postgres))
    assert rows_of(postgres) == sums(ORDERS)


def test_a_connection_that_is_lost_between_epochs_is_opened_again(
    root: Path, postgres: PostgresSchema
) -> None:
    class Lost(Postgres):
        def publish(self, attempt: Attempt, receipts: Any) -> None:
            postgres.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'statekit'"
            )
            super().publish(attempt, receipts)

    run(root, Lost(spent_to(postgres).database, "spent", epoch_column="_epoch"))
    assert rows_of(postgres) == sums(ORDERS)


def test_a_pickled_sink_has_no_connection_and_can_be_used(postgres: PostgresSchema) -> None:
    sink = spent_to(postgres)
    run(None, sink, ORDERS[:1])
    assert pickle.loads(pickle.dumps(sink)) == sink


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
