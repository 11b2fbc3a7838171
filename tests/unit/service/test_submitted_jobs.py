"""Jobs of a server over HTTP: what users do with them, who may, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

import statekit as sk
from statekit.cli.app import app
from statekit.declared_call import DECLARABLE
from statekit.documents.job_document import read_document
from statekit.query.client import AsyncClient, Client
from statekit.server.admission.options import JobServerOptions
from statekit.server.admission.token_file import add_token
from statekit.server.serve import job_service
from statekit.service.connector_limits import CONNECTORS
from statekit.service.document_check import checked_document
from statekit.service.job_log import JobLog
from statekit.service.job_process import ChildProcess, taken_lock
from statekit.service.submission_limits import SubmissionLimits
from tests.support.served import server
from tests.support.submitted_jobs import HOSTILE_LINES, MODULE, document, order, totals
from tests.support.waiting import until


class JobServer(NamedTuple):
    """A server with the token of somebody who may manage all jobs."""

    url: str
    token: str
    home: Path

    def client(self) -> Client:
        return Client(self.url, token=self.token, timeout="60 seconds")

    def post(self, path: str, **sent: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **sent.pop("headers", {})}
        return httpx.post(f"{self.url}{path}", headers=headers, **sent)

    def submitted(self, timeout: float | None = 5.0, **changed: Any) -> httpx.Response:
        whole = {"name": "shop", "document": json.loads(document(self.home)), **changed}
        return self.post("/submitted", json=whole, timeout=timeout)


@contextmanager
def job_server(home: Path, **others: Any) -> Iterator[JobServer]:
    tokens = home / "tokens.json"
    token = add_token(tokens, "deploy", [], ["*"], replace=True)
    options = JobServerOptions(
        allow=[MODULE],
        checkpoints_below=[str(home / "state")],
        data_below=[str(home)],
        tokens=tokens,
        **others,
    )
    service = job_service(str(home / "registry"), options)
    with server({}, service=service, tokens=tokens) as url:
        yield JobServer(url, token, home)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """A server that nothing was submitted to."""
    with job_server(tmp_path_factory.mktemp("idle")) as running:
        yield running


def test_a_job_is_submitted_stopped_started_rescaled_rolled_back_and_saved(tmp_path: Path) -> None:
    with job_server(tmp_path) as running, running.client() as client:
        text = document(tmp_path)
        assert client.submit(text, "shop")["desired"] == "running"
        assert client.submit(text, "shop")["name"] == "shop"  # once
        order(tmp_path, "a", ("ada", 1))
        until(lambda: totals(tmp_path) == [("ada", 1)])
        until(lambda: client.submitted_job("shop")["epoch"] == 0)
        (found,) = client.submitted_jobs()
        assert (found["status"], found["failures"], found["lag"]) == ("running", 0, {})
        assert found["checkpoint"] == str(tmp_path / "state" / "shop")
        assert found["last_epoch_age_s"] < 60
        client.stop_job("shop")
        until(lambda: client.submitted_job("shop")["status"] == "stopped")
        order(tmp_path, "b", ("ada", 1))
        client.rescale_job("shop", 2)
        assert client.submitted_job("shop")["status"] == "stopped"
        client.start_job("shop")
        until(lambda: totals(tmp_path) == [("ada", 1), ("ada", 2)])
        client.save_job("shop", "first")
        until(lambda: client.submitted_job("shop")["done"] is not None)
        assert client.submitted_job("shop")["done"]["error"] is None
        client.roll_back_job("shop", 0)
        until(lambda: client.submitted_job("shop")["done"]["operation"] == "rollback")
        assert client.submitted_job("shop")["done"]["error"] is None
        until(lambda: totals(tmp_path) == [("ada", 1), ("ada", 2)])
        before = client.submitted_job("shop")
        client.submit(text, "shop", replace=True, parallelism=3)
        until(lambda: client.submitted_job("shop")["parallelism"] == 3)
        assert before["parallelism"] == 2
        assert any('"epoch": 0' in line for line in client.job_log("shop"))
        with pytest.raises(sk.StateTypeError, match="job shop is to run, and was not deleted"):
            client.delete_job("shop")
        client.stop_job("shop")
        assert client.delete_job("shop")["status"] == "deleting"
        with pytest.raises(sk.StateTypeError, match="submit it again after that"):
            client.start_job("shop")
        until(lambda: client.submitted_jobs() == [])
        with pytest.raises(sk.QueryError, match="no job shop was submitted"):
            client.delete_job("shop")
        assert (tmp_path / "state" / "shop").exists()


def test_a_module_that_prints_cannot_pretend_to_be_at_an_epoch(tmp_path: Path) -> None:
    with job_server(tmp_path) as running, running.client() as client:
        client.submit(document(tmp_path), "shop")
        order(tmp_path, "a", ("printing", 1))
        until(lambda: client.submitted_job("shop")["epoch"] == 0, 40)
        reader = add_token(tmp_path / "tokens.json", "reader", ["*"], ["*"], replace=True)
        cookie = f"statekit-token-{httpx.URL(running.url).port}={quote(reader, safe='')}"
        for path in ("/submitted", "/metrics", "/-/submitted", "/-/submitted/shop"):
            sent = {"Cookie": cookie} if "-" in path else {"Authorization": f"Bearer {reader}"}
            assert httpx.get(running.url + path, headers=sent).status_code == 200, path
        log = client.job_log("shop")
        assert all(line[:60_000] in {own[:60_000] for own in log} for line in HOSTILE_LINES)
        printed = CliRunner(env={"STATEKIT_TOKEN": running.token}).invoke(
            app, ["logs", running.url, "shop"]
        )
        assert "\\x1b]0;owned" in printed.output
        assert "\x1b" not in printed.output
        order(tmp_path, "b", ("ada", 1))
        until(lambda: client.submitted_job("shop")["epoch"] == 1, 40)
        client.stop_job("shop")


def test_the_client_of_an_event_loop_does_the_same(idle: JobServer) -> None:
    async def ask() -> None:
        async with AsyncClient(idle.url, token=idle.token) as client:
            assert await client.submitted_jobs() == []
            with pytest.raises(sk.QueryError, match="no job absent was submitted"):
                await client.stop_job("absent")

    asyncio.run(ask())


# ------------------------------------------------------------------------------------- tokens


def test_a_token_changes_the_jobs_that_it_may_manage_and_no_others(idle: JobServer) -> None:
    tokens = idle.home / "tokens.json"
    reader = add_token(tokens, "reader", ["*"], replace=True)
    other = add_token(tokens, "other", [], ["bank"], replace=True)
    paths = ["/submitted/shop", "/submitted/shop/log", "/submitted/shop/document"]
    for secret in (reader, other):
        headers = {"Authorization": f"Bearer {secret}"}
        for path in paths:
            assert httpx.get(idle.url + path, headers=headers).status_code == 403
        for action in ("start", "stop", "restart"):
            answer = httpx.post(f"{idle.url}/submitted/shop/{action}", headers=headers)
            assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
        whole = {"name": "shop", "document": json.loads(document(idle.home))}
        assert httpx.post(f"{idle.url}/submitted", json=whole, headers=headers).status_code == 403
        assert httpx.get(f"{idle.url}/submitted", headers=headers).json() == []
    assert httpx.get(f"{idle.url}/submitted").status_code == 401
    assert httpx.post(f"{idle.url}/submitted/shop/stop").status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_page_of_another_site_changes_nothing(idle: JobServer, headers: dict[str, str]) -> None:
    answer = idle.post("/submitted/shop/stop", headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
    whole = {"name": "shop", "document": json.loads(document(idle.home))}
    assert idle.post("/submitted", headers=headers, json=whole).status_code == 403


def test_a_server_of_checkpoints_runs_no_jobs(tmp_path: Path) -> None:
    document(tmp_path)
    order(tmp_path, "a", ("ada", 1))
    sk.Job.from_json(document(tmp_path)).run(checkpoint=str(tmp_path / "state"))
    with server({"shop": tmp_path / "state"}) as url:
        answer = httpx.get(f"{url}/submitted")
        assert (answer.status_code, answer.json()["kind"]) == (404, "not_found")


# ------------------------------------------------------------------------- hostile documents


def changed(home: Path, part: str, value: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(document(home))
    for step in whole["steps"]:
        if part in step.get("with", {}):
            step["with"][part] = value
    return whole


def file_source(path: Any) -> dict[str, Any]:
    return {"$call": "sources.json_lines", "with": {"path": path}}


EVIL = "evil_module_of_a_test"

HOSTILE: dict[str, tuple[str, Any, str]] = {
    "another module": ("declared", {"$process": f"{EVIL}:run"}, "may not be imported here"),
    "the module of the system": ("declared", {"$function": "os:system"}, "may not be imported"),
    "an import of an allowed module": (
        "declared",
        {"$process": f"{MODULE}:json.loads"},
        "does not define",
    ),
    "a class of another module": ("types", [{"$type": "subprocess:Popen"}], "may not be imported"),
    "an object of another module": ("target", {"$object": f"{EVIL}:Sink"}, "may not be imported"),
    "a file of the system": ("source", file_source("/etc/passwd"), "not in a place"),
    "a relative path": ("source", file_source("orders"), "not in a place"),
    "a path that climbs": ("source", file_source("{home}/a/../../etc"), "not in a place"),
    "a URL of a file": ("source", file_source("file:///etc/passwd"), "not in a place"),
    "another bucket": ("source", file_source("s3://other/orders"), "not in a place"),
    "a secret as a path": ("source", file_source({"$secret": {"env": "HOME"}}), "place as a text"),
    "a secret of the server": (
        "source",
        {
            "$call": "sources.kafka",
            "with": {
                "servers": "k:9092",
                "topics": "t",
                "options": {"sasl.password": {"$secret": {"env": "AWS_SECRET_ACCESS_KEY"}}},
            },
        },
        "documents may read",
    ),
    "a file of a secret": (
        "target",
        {
            "$call": "sinks.postgres",
            "with": {"url": {"$secret": {"file": "/etc/shadow"}}, "table": "t"},
        },
        "not in a place",
    ),
    "a password": (
        "target",
        {"$call": "sinks.postgres", "with": {"url": "postgresql://a:pw@b/c", "table": "t"}},
        "contains a password",
    ),
    "a library of Kafka": (
        "source",
        {
            "$call": "sources.kafka",
            "with": {
                "servers": "k:9092",
                "topics": "t",
                "options": {"plugin.library.paths": "/tmp/evil.so"},
            },
        },
        "none of the options",
    ),
    "a catalog of another module": (
        "target",
        {
            "$call": "sinks.iceberg",
            "with": {"table": "a.b", "catalog": {"py-catalog-impl": f"{EVIL}.Catalog"}},
        },
        "none of the options",
    ),
    "a catalog in a file": (
        "target",
        {
            "$call": "sinks.iceberg",
            "with": {
                "table": "a.b",
                "catalog": {"type": "sql", "uri": "sqlite:////etc/catalog.db"},
            },
        },
        "not in a place",
    ),
    "any format of Spark": (
        "source",
        {"$call": "sources.spark", "with": {"format": "text", "options": {"path": "/etc"}}},
        "cannot check",
    ),
    "a function without its digest": ("declared", {"$process": f"{MODULE}:counted"}, "no digest"),
    "a function with a digest of null": (
        "declared",
        {"$process": f"{MODULE}:counted", "digest": None},
        "no digest",
    ),
    "a form that calls": ("declared", {"$eval": "__import__('os')"}, "no form of a value"),
}


def iceberg(**catalog: Any) -> dict[str, Any]:
    return {"$call": "sinks.iceberg", "with": {"table": "a.b", "catalog": catalog}}


def kafka(**options: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {"$call": "sinks.kafka", "with": {"servers": "k:9", "topic": "t", "options": named}}


def postgres(url: str) -> dict[str, Any]:
    return {"$call": "sinks.postgres", "with": {"url": url, "table": "t"}}


HTTP = "http://catalog.example"
CUSTOM = {"type": "custom", "impl": "os.system", "custom": {"command": "touch /tmp/pwned"}}

HOSTILE |= {
    f"{number}: {message}": ("target", target, message)
    for number, (target, message) in enumerate(
        [
            (iceberg(type="rest", uri=HTTP, auth=CUSTOM), "none of the options"),
            (iceberg(**{"$mapping": {"type": "rest", "uri": HTTP, "auth": CUSTOM}}), "catalog="),
            (iceberg(type="rest", uri=HTTP, ssl={"cabundle": "/etc/shadow"}), "none of the opt"),
            (iceberg(type="rest", uri=HTTP, token={"a": "b"}), "a single value"),
            (iceberg(type="rest", uri=f"{HTTP}.evil/a"), "not the URL of a service"),
            (iceberg(type="rest", uri=f"{HTTP}/iceberg/../x"), "not the URL of a service"),
            (iceberg(type="rest", uri=f"{HTTP}@evil.example/iceberg"), "not the URL of a service"),
            (iceberg(type="sql", uri="postgresql://evil/db"), "not the URL of a service"),
            (iceberg(type="sql", uri="sqlite:///relative.db"), "with an absolute path"),
            (iceberg(type="sql", uri="mysql://db/catalog"), "with an absolute path"),
            (iceberg(type="hive", uri="thrift://a"), "give one of rest, sql"),
            (iceberg(type="rest", uri=HTTP, name="production"), "none of the options"),
            (
                iceberg(**{"type": "rest", "uri": f"{HTTP}/iceberg", "s3.endpoint": "http://evil"}),
                "s3.endpoint is not the URL",
            ),
            (iceberg(**{"s3.retry-strategy-impl": "os.system"}), "none of the options"),
            (
                {"$call": "sinks.iceberg", "with": {"table": "a.b", "catalog": "production"}},
                "configured",
            ),
            (kafka(sasl_kerberos_kinit_cmd="touch /tmp/pwned"), "none of the options"),
            (kafka(sasl_kerberos_principal="a; touch /tmp/pwned"), "none of the options"),
            (kafka(sasl_mechanism="GSSAPI"), "give PLAIN"),
            (kafka(ssl_engine_location="/data/evil.so"), "none of the options"),
            (kafka(ssl_key_location="/etc/shadow"), "not in a place"),
            (kafka(client_id={"a": "b"}), "a single value"),
            (postgres("host=proddb hostaddr=127.0.0.1 port=8347 user=x"), "none of the options"),
            (postgres("postgresql://u@h/db?hostaddr=127.0.0.1"), "none of the options"),
            (postgres("host=h service=production"), "none of the options"),
            (postgres("host=h passfile=/etc/passwd"), "none of the options"),
            (postgres("host=h sslkey=/etc/shadow"), "not in a place"),
            (postgres("host=h options='-c role=admin'"), "none of the options"),
            (postgres("host=/var/run/postgresql user=postgres"), "names no host"),
            (postgres("postgresql://%2Fvar%2Frun/db"), "names no host"),
            (postgres("dbname=a"), "names no host"),
            ({"$call": "sinks.json_lines", "with": {"path": "{home}/a", "mode": "b"}}, "none of"),
        ]
    )
}
HOSTILE |= {
    "a path among other options": (
        "source",
        {
            "$call": "sources.json_lines",
            "with": {"path": "{home}/orders", "options": {"path": "/etc/passwd"}},
        },
        "none of the options",
    )
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_document_is_refused_and_nothing_runs(
    idle: JobServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    part, value, message = HOSTILE[case]
    mark = idle.home / "ran"
    (idle.home / f"{EVIL}.py").write_text(f"open({str(mark)!r}, 'w')\nrun = Sink = print\n")
    monkeypatch.setenv("PYTHONPATH", f"{idle.home}:{Path.cwd()}")
    given = json.loads(json.dumps(value).replace("{home}", str(idle.home)))
    refused(idle, {"document": changed(idle.home, part, given)}, message)
    assert not mark.exists()


ALLOWED = [
    iceberg(type="rest", uri=f"{HTTP}/iceberg/v1", warehouse="production", scope="a"),
    iceberg(type="sql", uri="sqlite:////data/catalog.db", warehouse="/data/tables"),
    iceberg(type="sql", uri="postgresql+psycopg2://statekit@catalog-db/iceberg"),
    kafka(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", linger_ms=5),
    kafka(ssl_ca_location="/data/ca.pem", ssl_key_location="/run/secrets/key.pem"),
    kafka(sasl_password={"$secret": {"env": "KAFKA_PASSWORD"}}),
    postgres("host=db user=a sslmode=verify-full sslrootcert=system sslkey=/run/secrets/key"),
    postgres("postgresql://a@db:5432/shop?sslmode=require"),
]


@pytest.mark.parametrize("target", ALLOWED)
def test_connectors_with_allowed_options_are_accepted(target: dict[str, Any]) -> None:
    limits = SubmissionLimits(
        modules=[MODULE],
        checkpoints_below=["/data"],
        data_below=["/data", f"{HTTP}/iceberg", "postgresql://catalog-db"],
        secrets=["KAFKA_PASSWORD", "/run/secrets"],
    )
    sink = {"call": "stream.sink", "of": ["a"], "with": {"name": "b", "target": target}}
    whole = {"statekit": "job", "version": 1, "name": "shop", "steps": [sink]}
    limits.check(read_document(json.dumps(whole)))


def test_the_lists_have_each_source_and_sink_with_its_parameters() -> None:
    made = {name: of for name, of in DECLARABLE.items() if name.startswith(("sources.", "sinks."))}
    assert made.keys() - CONNECTORS.keys() == {"sources.spark", "sinks.writer"}
    for name, checks in CONNECTORS.items():
        assert checks.keys() == inspect.signature(made[name]).parameters.keys()


def test_a_secret_in_the_arguments_of_a_window_is_refused(idle: JobServer) -> None:
    size = {"$secret": {"file": "/etc/passwd"}}
    window = {"$call": "tumbling", "with": {"size": size}}
    of = {"of": ["orders"], "with": {"window": window, "key": "customer"}}
    step = {"call": "window.aggregate", "of": of}
    whole = json.loads(document(idle.home))
    whole["steps"].insert(1, step)
    refused(idle, {"document": whole}, "of.with.window.with.size: the file of a secret=")


def test_a_job_without_an_operator_is_refused(idle: JobServer) -> None:
    whole = json.loads(document(idle.home))
    source, _, sink = whole["steps"]
    whole["steps"] = [source, {**sink, "of": ["orders"]}]
    refused(idle, {"document": whole}, "has no operator")


def test_a_job_has_the_environment_of_the_server_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "PGPASSWORD": "a",
        "PGUSER": "a",
        "PYICEBERG_CATALOG__DEFAULT__TOKEN": "a",
        "STATEKIT_TOKEN": "a",
        "SHOP_URL": "postgresql://a:b@c/d",
        "AWS_SECRET_ACCESS_KEY": "kept",
        "SHOP_PASSWORD": "kept",
        "SHOP_REGION": "kept",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    log = JobLog(tmp_path)
    lock = taken_lock(tmp_path / "lock")
    assert lock is not None
    process = ChildProcess(["--version"], log, lock, ["SHOP_PASSWORD"])
    raw = Path(f"/proc/{process.id}/environ").read_bytes().decode()
    found = dict(each.split("=", 1) for each in raw.split("\0") if each)
    process.wait(60.0)
    assert {name: found.get(name) for name in given if name in found} == {
        name: value for name, value in given.items() if value == "kept"
    }
    assert found["PGPASSFILE"] == "/dev/null"
    log.close()


@pytest.mark.parametrize(
    "sql",
    [
        "cents > 0; drop table orders",
        "(select count(*) from read_csv('/etc/passwd')) > 0",
        "pg_read_file('/etc/passwd') = 'a'",
        "exists (delete from orders returning *)",
        "cents > " + "(" * 5_000 + "1" + ")" * 5_000,
    ],
)
def test_sql_with_side_effects_is_refused(idle: JobServer, sql: str) -> None:
    whole = json.loads(document(idle.home))
    step = {"call": "stream.filter", "of": ["orders"], "with": {"fn": sql}}
    whole["steps"].insert(1, step)
    refused(idle, {"document": whole}, "expression")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "../shop"}, "cannot be named"),
        ({"name": "a/b"}, "cannot be named"),
        ({"name": "shop\n"}, "cannot be named"),
        ({"checkpoint": "/etc/state"}, "not in a place"),
        ({"checkpoint": "../other"}, "not in a place"),
        ({"checkpoint": "a/../../other"}, "not in a place"),
        ({"checkpoint": "a/%2e%2e/%2e%2e/other"}, "not in a place"),
        ({"checkpoint": "file:///etc/state"}, "not in a place"),
        ({"checkpoint": "s3://bucket/state"}, "not in a place"),
        ({"checkpoint": "memory://"}, "not in a place"),
        ({"checkpoint": "link/state"}, "not in a place"),
        ({"checkpoint": ""}, "not in a place"),
        ({"spark": "local[2]"}, "not allowed on this server"),
        ({"restart": "always"}, "say how often"),
        ({"trigger": "--checkpoint=/etc"}, "trigger"),
        ({"parallelism": 0}, "parallelism"),
        ({"settings": ["source.orders.path=/etc/passwd"]}, "not in a place"),
        ({"settings": ["source.orders.path=../../etc"]}, "not in a place"),
        ({"settings": ["source.orders.path=" + "[" * 100_000]}, "not in a place"),
        ({"settings": ["a" * 100_000]}, "sets nothing"),
        ({"unknown": 1}, "unknown field"),
        ({"document": "text"}, "the document of the job"),
        ({"document": {"statekit": "job", "version": 2}}, "version"),
    ],
)
def test_a_hostile_option_is_refused(
    idle: JobServer, options: dict[str, Any], message: str
) -> None:
    (idle.home / "state").mkdir(exist_ok=True)
    link = idle.home / "state" / "link"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc")
    refused(idle, options, message)


def refused(idle: JobServer, changed: dict[str, Any], message: str) -> None:
    """Submit a document, and check that it is refused with a message, and that nothing is there."""
    answer = idle.submitted(**changed)
    problem = answer.json()
    assert answer.status_code == 400, problem
    assert problem["kind"] in ("state_type", "bad_request")
    assert message in problem["detail"]
    headers = {"Authorization": f"Bearer {idle.token}"}
    assert httpx.get(f"{idle.url}/submitted", headers=headers).json() == []


def test_a_document_of_100_mb_is_refused_before_it_is_read(idle: JobServer) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"name": "shop", "document": {"statekit": "job", "steps": ["'
        for _ in range(100):
            yield b"a" * 2**20
        yield b'"]}}'

    try:
        answer = idle.post("/submitted", content=parts())
    except (httpx.WriteError, httpx.RemoteProtocolError):
        return  # the server has closed the connection before the end
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\u0000"', b"\xff", b"NaN", b"1e999", b"'a'"])
def test_a_document_with_a_text_or_number_that_is_none_is_refused(
    idle: JobServer, text: bytes
) -> None:
    whole = json.dumps({"name": "shop", "document": changed(idle.home, "name", "HERE")}).encode()
    answer = idle.post("/submitted", content=whole.replace(b'"HERE"', text))
    assert answer.status_code == 400, answer.text[:200]
    assert answer.json()["kind"] in ("state_type", "bad_request")


@pytest.mark.parametrize("depth", [500, 50_000, 2_000_000])
@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_a_deep_document_is_refused(idle: JobServer, pair: str, depth: int) -> None:
    begin, end = (pair[:-1], pair[-1]) if pair == "[]" else ('{"a":', "}")
    depth = min(depth, 8 * 2**20 // (len(begin) + 1) - 100)
    body = '{"name": "shop", "document": ' + begin * depth + "1" + end * depth + "}"
    answer = idle.post("/submitted", content=body.encode())
    assert answer.status_code == 400, answer.text[:200]
    assert answer.json()["kind"] in ("state_type", "bad_request")


def test_modules_that_hang_take_one_place_of_their_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = tmp_path / "begun", tmp_path / "released"
    begun.mkdir()
    (tmp_path / "hanging_module.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}, str(os.getpid())).touch()\n"
        f"while not os.path.exists({str(released)!r}):\n"
        "    time.sleep(0.02)\n"
        "os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    tokens = tmp_path / "tokens.json"
    greedy, other = (add_token(tokens, name, [], ["*"]) for name in ("greedy", "other"))
    options = JobServerOptions(
        allow=["hanging_module", MODULE],
        checkpoints_below=[str(tmp_path / "state")],
        data_below=[str(tmp_path)],
    )
    wrong = changed(tmp_path, "declared", {"$process": "hanging_module:run"})
    wrong["steps"][0]["with"]["types"] = [{"$type": "hanging_module:Order"}]
    with server({}, service=job_service(str(tmp_path / "jobs"), options), tokens=tokens) as url:
        running = JobServer(url, greedy, tmp_path)
        details: list[str] = []

        def submit() -> None:
            details.append(running.submitted(document=wrong, timeout=None).json()["detail"])

        asked = [threading.Thread(target=submit) for _ in range(3)]
        for thread in asked:
            thread.start()
        until(lambda: any(begun.iterdir()))
        with JobServer(url, other, tmp_path).client() as client:
            client.submit(document(tmp_path / "other"), "other")
        assert len(list(begun.iterdir())) == 1
        released.touch()
        for thread in asked:
            thread.join()
        assert len(list(begun.iterdir())) == 3
    assert all("ended the process that imported them (exit code 3)" in each for each in details)


def test_a_module_that_hangs_is_ended_with_the_processes_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.service.document_check._WITHIN_S", 3.0)
    child = tmp_path / "child"
    (tmp_path / "sleeping_module.py").write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    wrong = changed(tmp_path, "declared", {"$process": "sleeping_module:run"})
    wrong["steps"][0]["with"]["types"] = [{"$type": "sleeping_module:Order"}]
    with pytest.raises(sk.StateTypeError, match="were not imported within 3 s"):
        checked_document(json.dumps(wrong), ["sleeping_module", MODULE])
    until(lambda: not is_running(int(child.read_text())))


def is_running(process: int) -> bool:
    """Return whether a process is there, and not only its exit code."""
    try:
        return "(sleep) Z" not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_module_that_ends_its_process_or_prints_does_not_affect_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_module.py").write_text("import os\nprint('{}')\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, "deploy", [], ["*"])
    options = JobServerOptions(
        allow=["ending_module"], checkpoints_below=[str(tmp_path)], data_below=[str(tmp_path)]
    )
    with server({}, service=job_service(str(tmp_path / "jobs"), options), tokens=tokens) as url:
        running = JobServer(url, token, tmp_path)
        wrong = changed(tmp_path, "declared", {"$process": "ending_module:run"})
        wrong["steps"][0]["with"]["types"] = [{"$type": "ending_module:Order"}]
        refused(running, {"document": wrong}, "ended the process that imported them (exit code 7)")
