"""The table of the sink of PostgreSQL: types, names, changes, and errors of the server."""

from __future__ import annotations

import datetime as dt
import enum
import math
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pytest

import statekit as sk
from statekit.sinks import Attempt, Postgres
from tests.support.postgres import PostgresSchema
from tests.support.postgres_sinks import rows_of, run, spent_to
from tests.support.sinks import ORDERS, Order, spending_job, sums

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
