"""The OpenAPI document: what it says of types is what answers are, for what a token may read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import statekit as sk
from statekit.checkpoint.job_file import JobFile
from statekit.codec.schema_codec import json_key_decoder
from statekit.job.plan import Operator
from statekit.server.admission.access import digest_of
from statekit.server.app import ROUTES
from statekit.server.routes.openapi import Document
from tests.support import served_types
from tests.support.effort import SOAK
from tests.support.openapi_document import OpenApi
from tests.support.served import Sale, sales, sell, server

EXAMPLES = 200 if SOAK else 2
SALES = [Sale("rome", "tea", 400), Sale("oslo", "cup", 900), Sale("rome", "pot", 2100)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, SALES)
    return home


# ------------------------------------------------------------------------------- the types


@given(records=served_types.random_records())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_answers_of_all_types_are_what_the_document_says(
    tmp_path_factory: pytest.TempPathFactory, records: dict[str, list[Any]]
) -> None:
    home = tmp_path_factory.mktemp("types")
    served_types.run(home / "types", records)
    with (
        server({"types": home / "types"}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        api = OpenApi.of(address)
        api.check_references()
        for kind in served_types.KINDS:
            keys = [shown_key(kind, record) for record in records[kind.name]]
            for state in ("last", "by_place", "seen"):
                check_state(client, api, f"/types/{kind.name}/{state}", keys)
            check_map(client, api, f"/types/{kind.name}/by_place", keys[0])


def shown_key(kind: served_types.Kind, record: Any) -> Any:
    """The key of a record as JSON, as a reader without the classes has it."""
    codec = kind.function.key_codec
    fields = [getattr(record, name) for name in kind.function.key]
    key = fields[0] if len(fields) == 1 else tuple(fields)
    return json_key_decoder(codec.schema)(codec.encode(key))[0]


def check_state(client: httpx.Client, api: OpenApi, place: str, keys: list[Any]) -> None:
    """Read keys in every way, and compare the answers with each other and with the document."""
    several = client.post(f"{place}/query", json={"keys": keys})
    api.check(several, f"{place}/query")
    page = client.get(place)
    api.check(page, place)
    items = page.json()["value"]["items"]
    counted = client.get(place, params={"count": "true"})
    api.check(counted, place)
    assert counted.json()["value"] >= 0
    for key, value in zip(keys, several.json()["value"], strict=True):
        one = client.get(place, params={"key": json.dumps(key)})
        api.check(one, place)
        text = key if isinstance(key, str) and key not in (".", "..") else json.dumps(key)
        api.check(client.get(f"{place}/{quote(text, safe='')}"), f"{place}/{{key}}")
        if one.status_code == 200:
            assert one.json()["value"] == value
            assert [key, value] in items
        else:
            assert value is None
    for key, value in items:  # a key of an answer is one of a request
        again = client.get(place, params={"key": json.dumps(key)})
        assert (again.status_code == 404) if value is None else (again.json()["value"] == value)


def check_map(client: httpx.Client, api: OpenApi, place: str, key: Any) -> None:
    """Read the entries of a map one by one, and in ranges."""
    given = {"key": json.dumps(key)}
    pairs = client.get(place, params={**given, "limit": 10})
    api.check(pairs, place)
    counted = client.get(place, params={**given, "count": "true"})
    api.check(counted, place)
    assert counted.json()["value"] >= len(pairs.json()["value"])
    for map_key, value in pairs.json()["value"]:
        entry = json.dumps(map_key)
        one = client.get(place, params={**given, "entry": entry})
        api.check(one, place)
        assert value is None or one.json()["value"] == value
        first = client.get(place, params={**given, "start": entry, "limit": 1}).json()["value"]
        assert first == [[map_key, value]]


def test_keys_of_plain_dicts_have_no_declared_type(tmp_path: Path) -> None:
    @sk.process(key=("a", "b"))
    def count(record: dict[str, Any], n: sk.ValueState[int]) -> None:
        n.update((n.get() or 0) + 1)

    job = sk.Job("dicts")
    job.source("records", dict).process(count)
    keys: list[list[Any]] = [["x", 1], [None, True], ["1", "null"]]
    job.run({"records": [{"a": a, "b": b} for a, b in keys]}, checkpoint=tmp_path / "dicts")
    with (
        server({"dicts": tmp_path / "dicts"}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        api = OpenApi.of(address)
        api.check_references()
        check_state(client, api, "/dicts/count/n", keys)


def test_the_document_changes_with_the_types_of_the_job(tmp_path: Path) -> None:
    home = tmp_path / "visits"

    def run(value_type: Any, records: list[dict[str, Any]]) -> None:
        def visits(record: dict[str, Any], last: Any) -> None:
            last.update(value_type(len(record["user"])))

        visits.__annotations__ |= {"last": sk.ValueState[value_type]}
        migrate = {"last": lambda old: value_type(old)} if value_type is str else {}
        job = sk.Job("visits")
        job.source("records", dict).process(sk.process(key="user", migrate=migrate)(visits))
        job.run({"records": records}, checkpoint=home, epoch_size=1)

    run(int, [{"user": "ann"}])
    with (
        server({"site": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        before = client.get("/openapi.json")
        assert before.json()["components"]["schemas"]["site.visits.last"] == {"type": "integer"}
        tag = {"If-None-Match": before.headers["etag"]}
        assert client.get("/openapi.json", headers=tag).status_code == 304
        run(str, [{"user": "ann"}, {"user": "bob"}])
        assert client.get("/site?min_epoch=1&wait=20").status_code == 200
        after = client.get("/openapi.json", headers=tag)
        assert after.status_code == 200
        api = OpenApi(after.json())
        shown = api.document["components"]["schemas"]["site.visits.last"]
        assert shown == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
        for user in ("ann", "bob"):
            api.check(client.get(f"/site/visits/last/{user}"), "/site/visits/last/{key}")


def test_problems_are_what_the_document_says(home: Path) -> None:
    with (
        server({"shop": home}) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        api = OpenApi.of(address)
        state = "/shop/sales/total"
        for path, described in [
            (f"{state}/nowhere", f"{state}/{{key}}"),
            (f"{state}/rome?epoch=99", f"{state}/{{key}}"),
            (f"{state}/rome?epoch=x", f"{state}/{{key}}"),
            (f"{state}?key=5", state),
            (f"{state}?cursor=x", state),
            ("/none", "/{job}"),
            ("/shop/none/none.parquet", "/{job}/{operator}/{state}.{format}"),
        ]:
            answer = client.get(path)
            assert answer.status_code >= 400
            api.check(answer, described)
        for path in ("/healthz", "/readyz", "/metrics", "/jobs", "/openapi.json"):
            api.check(client.get(path), path)
        for path in ("/shop", "/shop/types"):
            api.check(client.get(path), path.replace("shop", "{job}"))
        file = client.get(f"{state}.parquet", headers={"Range": "bytes=0-3"})
        api.check(file, "/{job}/{operator}/{state}.{format}")
        reads = [{"operator": "sales", "state": "log", "keys": ["rome", "nowhere"]}]
        api.check(client.post("/shop/query", json={"reads": reads}), "/shop/query")
        for to in ("json", "csv", "arrow"):
            body = {"job": "shop", "sql": "select * from sales.total"}
            api.check(client.post(f"/sql?format={to}", json=body, timeout=30), "/sql")


def test_every_route_is_described(home: Path) -> None:
    with server({"shop": home}) as address:
        paths = OpenApi.of(address).paths
    assert all(
        operation["summary"] and operation["responses"]["500"]
        for item in paths.values()
        for operation in item.values()
    )
    names = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(set(names)) == len(names)


# ----------------------------------------------------------------------------- who may read it


def token_file(path: Path, read: list[str]) -> Path:
    path.write_text(
        json.dumps({"tokens": [{"name": "some", "sha256": digest_of("some"), "read": read}]})
    )
    return path


@pytest.mark.parametrize(
    ("read", "states"),
    [
        (["*"], {"last", "items", "log", "total"}),
        (["shop"], {"last", "items", "log", "total"}),
        (["shop/sales/total"], {"total"}),
        (["shop/sales/log", "shop/sales/none"], {"log"}),
        (["other"], set()),
        ([], set()),
    ],
)
def test_a_token_sees_what_it_may_read(
    home: Path, tmp_path: Path, read: list[str], states: set[str]
) -> None:
    tokens = token_file(tmp_path / "tokens.json", read)
    headers = {"Authorization": "Bearer some"}
    with server({"shop": home}, tokens=tokens) as address:
        assert httpx.get(f"{address}/openapi.json").status_code == 401
        api = OpenApi.of(address, headers=headers)
        one = httpx.get(f"{address}/openapi.json?job=shop&operator=sales", headers=headers)
    api.check_references()
    assert {path.split("/")[3] for path in api.paths if path.startswith("/shop/sales/")} == states
    text = json.dumps(api.document)
    assert not [n for n in ("items", "total") if f"sales.{n}" in text and n not in states]
    assert ("/metrics" in api.paths) == (read == ["*"])
    assert ("/{job}" in api.paths) == bool(states)
    assert api.document["security"] == [{"token": []}]
    assert one.status_code == (200 if states else 403)


def test_the_document_may_be_of_one_job_or_operator(home: Path) -> None:
    with server({"shop": home, "again": home}) as address:
        for query, jobs in [("", {"shop", "again"}), ("?job=again", {"again"})]:
            found = httpx.get(f"{address}/openapi.json{query}").json()["paths"]
            named = {path.split("/")[1] for path in found if "/sales/" in path}
            assert named == jobs
        assert httpx.get(f"{address}/openapi.json?job=shop&operator=sales").status_code == 200
        for query, status in [
            ("?job=none", 404),
            ("?job=shop&operator=none", 404),
            ("?operator=sales", 400),
        ]:
            assert httpx.get(f"{address}/openapi.json{query}").status_code == status


# ---------------------------------------------------------------------------------- its size


def test_a_job_of_many_operators_has_a_document_that_can_be_used() -> None:
    record = Operator("sales", sales, ("records",), ()).record()
    states = tuple(
        state.model_copy(update={"name": f"{state.name}_{number}"})
        for number in range(5)
        for state in record.states
    )
    operators = tuple(
        record.model_copy(update={"name": f"operator_{number}", "states": states})
        for number in range(100)
    )
    job = JobFile(id="0" * 32, name="large", key_groups=8, operators=operators)
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    began_s = time.process_time()
    Document(ROUTES).add("large", job, paths, schemas)
    assert time.process_time() - began_s < 10
    assert len(paths) == 100 * 20 * 3 + 1
    assert len(json.dumps([paths, schemas])) < 18_000_000
    assert "large..Row" in schemas
    assert "large..Row_2" not in schemas  # one definition for all operators


def test_names_of_components_are_of_one_thing(tmp_path: Path) -> None:
    record = Operator("sales", sales, ("records",), ()).record()
    first = record.states[0]
    operators = tuple(
        record.model_copy(
            update={"name": operator, "states": (first.model_copy(update={"name": state}),)}
        )
        for operator, state in (("a.b", "Key"), ("a", "b"), ("a", "b.Key"), ("a.b", "c"))[::2]
    )
    job = JobFile(id="0" * 32, name="dots", key_groups=8, operators=operators)
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    Document(ROUTES).add("x", job, paths, schemas)
    assert len([path for path in paths if path.endswith("{key}")]) == 2
    names = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(set(names)) == len(names)


@sk.process(key="shop")
def pickled(sale: Sale, one: Annotated[sk.ValueState[set], sk.PickleCodec()]) -> None:  # type: ignore[type-arg]
    one.update({sale.item})


def test_states_that_cannot_be_read_have_no_addresses(tmp_path: Path) -> None:
    job = sk.Job("pickled")
    job.source("records", Sale).process(pickled)
    job.run({"records": SALES}, checkpoint=tmp_path / "pickled")
    with server({"shop": tmp_path / "pickled"}) as address:
        assert not [path for path in OpenApi.of(address).paths if path.startswith("/shop/")]
        assert httpx.get(f"{address}/shop/pickled/one/rome").status_code == 404
