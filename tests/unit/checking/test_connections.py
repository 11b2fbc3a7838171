"""Whether a run would reach its sources and sinks: real servers, real refusals, nothing left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checking.connections import connection_findings, connections_of
from statekit.job.findings import JobFinding
from statekit.sinks import Outputs, Sink
from tests.support.kafka_broker import KafkaBroker
from tests.support.ports import free_port
from tests.support.postgres import PASSWORD, PostgresSchema, PostgresServer
from tests.support.schema_registry import schema_registry
from tests.support.sinks import ORDERS, Order, spending, spending_job

LIMIT_S = 3.0


def found(job: sk.Job, limit_s: float = LIMIT_S) -> list[JobFinding]:
    return connection_findings(
        connections_of(job.plan, job.plan.origins({}), job.plan.targets({}), "c"), limit_s
    )


def of_sink(target: Any) -> list[JobFinding]:
    return found(spending_job(target))


def of_source(source: Any, **options: Any) -> list[JobFinding]:
    job = sk.Job("shop")
    job.source("orders", Order, source, **options).process(spending)
    return found(job)


def only_error(findings: list[JobFinding], *parts: str) -> str:
    (error,) = (each for each in findings if each.severity != "ok")
    assert error.severity == "error"
    for part in parts:
        assert part in error.what
    assert PASSWORD not in error.what
    return error.what


def all_ok(findings: list[JobFinding]) -> str:
    assert [each.severity for each in findings] == ["ok"] * len(findings), findings
    return "; ".join(each.what for each in findings)


# ------------------------------------------------------------------------------------- Kafka


def test_topics_that_exist_are_reached_and_not_changed(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, ["{}"])
    assert "2 partitions" in all_ok(of_source(sk.sources.kafka(kafka.servers, topic)))
    assert "2 partitions" in all_ok(of_sink(sk.sinks.kafka(kafka.servers, topic)))
    assert kafka.values(topic) == [b"{}"]


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_made(
    kafka: KafkaBroker, topic: str
) -> None:
    only_error(of_source(sk.sources.kafka(kafka.servers, topic)), "has no topic", "create")
    only_error(of_sink(sk.sinks.kafka(kafka.servers, topic)), "has no topic", "partitions=")
    made = all_ok(of_sink(sk.sinks.kafka(kafka.servers, topic, partitions=3)))
    assert "does not exist and is made" in made
    assert kafka.partitions(topic) == 0


def test_a_broker_that_is_missing_is_an_error_within_the_time_limit() -> None:
    servers = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    job = sk.Job("shop")
    job.source("orders", Order, sk.sources.kafka(servers, "orders")).process(spending).sink(
        "spent", sk.sinks.kafka(servers, "spent")
    )
    findings = found(job)
    assert time.monotonic() - begun < 2 * LIMIT_S + 2
    assert [(each.severity, each.where) for each in findings] == [
        ("error", "source orders"),
        ("error", "sink spent"),
    ]
    assert all("check that the brokers are reachable" in each.what for each in findings)


def test_fields_that_records_do_not_have_are_errors(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    only_error(of_sink(sk.sinks.kafka(kafka.servers, topic, key="colour")), "no such field")
    source = sk.sources.kafka(kafka.servers, topic, fields={"colour": "key"})
    only_error(of_source(source), "'colour'")


def test_a_schema_registry_has_to_answer_this_user(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic)
    with schema_registry("ada:right") as registry:

        def source(url: str) -> Any:
            return sk.sources.kafka(kafka.servers, topic, value="avro", registry=url)

        assert "the schema registry at" in all_ok(of_source(source(registry.url)))
        wrong = registry.url.replace("right", "wrong")
        only_error(of_source(source(wrong)), "status 401", "user and password")
    only_error(of_source(source(registry.url)), "the schema registry at")


# -------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def orders(postgres: PostgresSchema) -> PostgresSchema:
    postgres.rows("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, cents bigint)")
    return postgres


def test_a_table_is_read_and_its_columns_compared(orders: PostgresSchema) -> None:
    source = sk.sources.postgres(orders.url, "orders")
    assert "no record is there yet" in all_ok(of_source(source))
    orders.rows("INSERT INTO orders VALUES (1, 'ada', 5), (2, 'bob', 7)")
    assert "the first record fits" in all_ok(of_source(source))
    only_error(of_source(sk.sources.postgres(orders.url, "orders", by="at")), "no column 'at'")
    only_error(of_source(sk.sources.postgres(orders.url, "bids")), "does not exist")
    orders.rows("ALTER TABLE orders DROP COLUMN cents")
    only_error(of_source(source), "cents")


def test_a_first_row_that_does_not_fit_is_a_warning_if_bad_records_are_dropped(
    orders: PostgresSchema,
) -> None:
    orders.rows("INSERT INTO orders VALUES (1, 'ada', NULL)")
    source = sk.sources.postgres(orders.url, "orders")
    only_error(of_source(source), "cents is null", "on_error=")
    assert of_source(source, on_error="drop")[-1].severity == "warning"


def test_a_table_of_a_sink_is_made_on_trial_and_rolled_back(postgres: PostgresSchema) -> None:
    sink = sk.sinks.postgres(postgres.url, "spent")
    assert "can be made" in all_ok(of_sink(sink))
    assert postgres.tables() == []
    postgres.rows("CREATE TABLE spent (customer text)")
    assert "table spent fits" in all_ok(of_sink(sink))
    assert postgres.table("spent") == []
    columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = "
    assert postgres.rows(f"{columns}'{postgres.name}'") == [("customer",)]


def test_columns_that_do_not_fit_are_an_error_with_the_statement_that_mends_them(
    postgres: PostgresSchema,
) -> None:
    postgres.rows("CREATE TABLE spent (customer text, cents text)")
    sink = sk.sinks.postgres(postgres.url, "spent")
    only_error(of_sink(sink), "has the type text in column 'cents'", "ALTER TABLE")


def test_a_user_without_the_right_to_write_is_an_error(
    postgres: PostgresSchema, postgres_server: PostgresServer
) -> None:
    name = f"reader_{postgres.name}"
    postgres.rows(f"CREATE ROLE {name} LOGIN PASSWORD 'reader'")
    postgres.rows(f"GRANT USAGE ON SCHEMA {postgres.name} TO {name}")
    postgres.rows("CREATE TABLE spent (customer text, cents bigint, _epoch bigint)")
    postgres.rows(f"GRANT SELECT ON spent TO {name}")
    place = postgres.url.partition("@")[2]
    sink = sk.sinks.postgres(f"postgresql://{name}:reader@{place}", "spent")
    only_error(of_sink(sink), "permission denied for schema", "grant")
    postgres.rows(f"GRANT CREATE ON SCHEMA {postgres.name} TO {name}")
    only_error(of_sink(sink), "does not allow INSERT, DELETE for this user", "GRANT INSERT, DELETE")
    postgres.rows(f"GRANT INSERT, DELETE ON spent TO {name}")
    all_ok(of_sink(sink))


@pytest.mark.parametrize("what", ["password", "server", "database"])
def test_a_database_that_is_not_reached_is_an_error(postgres: PostgresSchema, what: str) -> None:
    server = postgres.server
    url = {
        "password": f"postgresql://statekit:wrong@127.0.0.1:{server.port}/postgres",
        "server": f"postgresql://statekit@127.0.0.1:{free_port()}/postgres",
        "database": server.url().replace("/postgres", "/absent"),
    }[what]
    message = {"password": "password", "server": "reachable", "database": "does not exist"}[what]
    only_error(of_sink(sk.sinks.postgres(url, "spent")), message)
    only_error(of_source(sk.sources.postgres(url, "orders")), message)


# ------------------------------------------------------------------- files, lakes, everything


def test_files_are_listed_and_the_first_records_read(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    only_error(of_source(sk.sources.json_lines(folder)), "no such file or directory")
    folder.mkdir()
    assert "0 files" in all_ok(of_source(sk.sources.json_lines(folder)))
    (folder / "a.jsonl").write_text('{"customer": "ada", "cents": 5}\n' * 3)
    assert "the first 3 records fit" in all_ok(of_source(sk.sources.json_lines(folder)))
    (folder / "a.jsonl").write_text('{"customer": "ada", "cents": "many"}\n')
    only_error(of_source(sk.sources.json_lines(folder)), "1 of the first 1 records", "got `str`")


def test_a_history_and_the_stream_after_it_are_both_reached(
    tmp_path: Path, kafka: KafkaBroker, topic: str
) -> None:
    history = sk.sources.json_lines(tmp_path / "old", static=True)
    then = sk.sources.kafka(kafka.servers, topic)
    job = sk.Job("shop")
    job.source("orders", Order, history=history, then=then).process(spending)
    assert "no such file" in only_error(found(job))
    (tmp_path / "old").mkdir()
    assert "has no topic" in only_error(found(job))


def test_folders_of_sinks_are_not_made(tmp_path: Path) -> None:
    for target in (
        sk.sinks.parquet(tmp_path / "new" / "files"),
        sk.sinks.delta(tmp_path / "new" / "delta"),
        sk.sinks.iceberg("shop.spent", warehouse=tmp_path / "new" / "iceberg"),
    ):
        assert "can be made" in all_ok(of_sink(target))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").write_text("a file")
    only_error(of_sink(sk.sinks.parquet(tmp_path / "new")), "no file can be written")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_lakes_have_to_fit_the_outputs(tmp_path: Path, kind: str) -> None:
    def sink() -> Any:
        if kind == "delta":
            return sk.sinks.delta(tmp_path / "t")
        return sk.sinks.iceberg("shop.spent", warehouse=tmp_path / "t")

    spending_job(sink()).run({"orders": ORDERS})
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert "fits" in all_ok(of_sink(sink()))
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    job = sk.Job("other")

    @sk.process(key="customer")
    def texts(order: Order) -> Iterator[Texts]:
        yield Texts(order.customer, str(order.cents))

    job.source("orders", Order).process(texts).sink("spent", sink())
    only_error(found(job), "its column 'cents' is int64, and the field is string")


class Texts(NamedTuple):
    customer: str
    cents: str


def test_object_stores_are_written_and_nothing_stays(s3: str) -> None:
    from statekit.checkpoint.store import Store

    assert "it can be written" in all_ok(of_sink(sk.sinks.parquet(f"{s3}/spent")))
    assert list(Store(s3).tree("")) == []
    only_error(of_sink(sk.sinks.parquet("s3://no-such-bucket/spent")), "no-such-bucket")


class Silent(Sink):
    """A sink of a user, without a probe."""

    def write(self, part: Any, batches: Any) -> None: ...

    def publish(self, attempt: Any, receipts: Any) -> None: ...


class Hanging(Silent):
    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        yield f"columns {', '.join(declared.schema.names)}"
        time.sleep(60)


def test_sinks_of_users_are_not_checked_or_as_they_say_and_never_hang() -> None:
    (finding,) = of_sink(Silent())
    assert finding == ("warning", "sink spent", "not checked: Silent has no probe()")
    begun = time.monotonic()
    ok, error = found(spending_job(Hanging()), 0.5)
    assert (ok.what, error.severity) == ("columns customer, cents", "error")
    assert error.what.startswith("no answer within 0.5 s")
    assert time.monotonic() - begun < 10


def test_other_sources_and_sinks_say_that_there_is_nothing_to_reach() -> None:
    all_ok(of_sink(sk.sinks.console()))
    all_ok(of_source(sk.sources.rate(5)))
    (writer,) = of_sink(sk.sinks.writer("noop"))
    assert writer == ("warning", "sink spent", "not checked: Writer has no probe()")
