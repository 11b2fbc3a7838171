"""Random scopes: every route gives what its token names, and nothing else.

The oracle says what a token may read, by the words of the documentation alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekit.server.admission.access import digest_of
from tests.support import served_types
from tests.support.effort import SOAK
from tests.support.served import Sale, sell, server

EXAMPLES = 300 if SOAK else 30

STATES = [
    *(("shop", "sales", state) for state in ("last", "items", "log", "total")),
    *(("again", "sales", state) for state in ("total", "log")),
    *(("types", "text", state) for state in ("last", "by_place", "seen")),
    ("types", "number", "last"),
]
SCOPES = st.sampled_from(
    [
        *("*", "shop", "again", "types", "shop/sales", "types/text", "types/number"),
        *("/".join(state) for state in STATES),
        # Names of nothing, which look like some of the above.
        *(
            "",
            "/",
            "**",
            "sho",
            "shop/",
            "/shop",
            "SHOP",
            "shop/sales/",
            "shop/sales/tot",
            "shop/*",
        ),
        *(
            "*/sales",
            "shop//total",
            "shop/sales/total/rome",
            "../shop",
            "shop/../again",
            "types/tex",
        ),
        *("shop/sales/total.parquet", "shop\u002fsales", "shop/sales/total?x", "sales/total"),
    ]
)


class Place(NamedTuple):
    """A state, and whether it may be read."""

    job: str
    operator: str
    state: str

    @property
    def path(self) -> str:
        return "/" + "/".join(self)


def may_read(scopes: list[str], place: tuple[str, ...]) -> bool:
    """The oracle: a scope is "*", a job, an operator of a job, or a state of an operator."""
    job, operator, _ = place
    return any(scope in ("*", job, f"{job}/{operator}", "/".join(place)) for scope in scopes)


def sees(scopes: list[str], job: str) -> bool:
    return any(scope in ("*", job) or scope.startswith(f"{job}/") for scope in scopes)


class Reader(NamedTuple):
    """A client whose token is changed between examples."""

    client: httpx.Client
    tokens: Path

    def give(self, scopes: list[str]) -> None:
        listed = [{"name": "some", "sha256": digest_of("some"), "read": scopes}]
        self.tokens.write_text(json.dumps({"tokens": listed}))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home = tmp_path_factory.mktemp("served")
    sell(home / "sales", [Sale("rome", "tea", 400)])
    records: dict[str, list[Any]] = {kind.name: [] for kind in served_types.KINDS}
    records["text"] = [served_types.KINDS[0].record("rome", "oslo", 5)]
    served_types.run(home / "types", records)
    found = Reader(httpx.Client(timeout=30, follow_redirects=True), home / "tokens.json")
    found.give([])
    jobs = {"shop": home / "sales", "again": home / "sales", "types": home / "types"}
    with server(jobs, tokens=found.tokens, refusals=None) as address, found.client as client:
        client.base_url = httpx.URL(address)
        client.headers["Authorization"] = "Bearer some"
        yield found


def statuses_of(client: httpx.Client, place: Place) -> dict[str, int]:
    """The status of each way to read a state."""
    path = place.path
    key = {"key": '"rome"'} if place.operator != "number" else {"key": "5"}
    reads = [{"operator": place.operator, "state": place.state, "keys": []}]
    events = {"Accept": "text/event-stream"}
    with client.stream("GET", path, headers=events) as stream:
        watched = stream.status_code
    answers = {
        "single": client.get(f"{path}/5"),
        "routed": client.get(f"{path}/5?wait=0"),
        "json": client.get(path, params=key),
        "range": client.get(path),
        "head": client.head(path),
        "head of a key": client.head(f"{path}/5"),
        "keys": client.post(f"{path}/query", json={"keys": []}),
        "stored": client.post(f"{path}/stored", content=msgspec.msgpack.encode({"keys": []})),
        "several": client.post(f"/{place.job}/query", json={"reads": reads}),
        "parquet": client.get(f"{path}.parquet"),
        "csv": client.get(path, headers={"Accept": "text/csv"}),
        "history": client.get(
            f"/{place.job}/history",
            params={"operator": place.operator, "state": place.state, **key},
        ),
    }
    return {"events": watched, **{name: answer.status_code for name, answer in answers.items()}}


def states_in(document: dict[str, Any]) -> set[tuple[str, ...]]:
    """The states that have an address in an OpenAPI document."""
    paths = (path.split("/")[1:] for path in document["paths"] if path.endswith("/{key}"))
    return {tuple(parts[:3]) for parts in paths}


def states_listed(client: httpx.Client, job: str) -> set[tuple[str, ...]]:
    """The states that a job is said to have, which all its descriptions agree on."""
    described = client.get(f"/{job}").json()["operators"]
    types = client.get(f"/{job}/types").json()["operators"]
    of_types = {(job, own["name"], state["name"]) for own in types for state in own["states"]}
    listed: set[tuple[str, ...]] = {
        (job, own["operator"], state["state"]) for own in described for state in own["states"]
    }
    assert listed == of_types
    return listed


def check_insight(client: httpx.Client, scopes: list[str], place: Place) -> None:
    """What the dashboard shows of a job, an operator and a key has no other states."""
    job, operator, _ = place
    of_operator = [each for each in STATES if each[:2] == (job, operator)]
    states = {each[2] for each in of_operator if may_read(scopes, each)}
    known = {each[2] for each in of_operator}
    inside = f"{job}/{operator}"
    sees_operator = any(
        scope in ("*", job, inside) or scope.startswith(f"{inside}/") for scope in scopes
    )
    given = {"operator": operator, "key": '"rome"' if operator != "number" else "5"}
    found = client.get(f"/{job}/key", params=given)
    shards = client.get(f"/{job}/shards", params={"operator": operator})
    assert {found.status_code, shards.status_code} == ({200} if sees_operator else {403})
    if sees_operator:
        assert known & found.json()["value"]["states"].keys() == states
    epochs = client.get(f"/{job}/epochs", params={"operator": operator})
    assert epochs.status_code == (200 if sees(scopes, job) else 403)
    for epoch in epochs.json()["value"] if epochs.status_code == 200 else ():
        sizes = epoch["operators"].get(operator, {}).get("states", {})
        assert known & sizes.keys() == states


@given(
    scopes=st.lists(SCOPES, max_size=3), place=st.sampled_from(STATES).map(lambda of: Place(*of))
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_route_gives_what_the_token_names(
    reader: Reader, scopes: list[str], place: Place
) -> None:
    client = reader.client
    reader.give(scopes)
    for name, status in statuses_of(client, place).items():
        assert (status != 403) == may_read(scopes, place), (name, status, scopes, place)
        assert status in (200, 403, 404), (name, status)
    assert {job["job"] for job in client.get("/jobs").json()} == {
        job for job in ("shop", "again", "types") if sees(scopes, job)
    }
    for path in (f"/{place.job}", f"/{place.job}/types"):
        assert (client.get(path).status_code != 403) == sees(scopes, place.job), path
    assert (client.get("/metrics").status_code == 200) == ("*" in scopes)
    if sees(scopes, place.job):
        listed = states_listed(client, place.job)
        assert (tuple(place) in listed) == may_read(scopes, place)
        assert all(may_read(scopes, state) for state in listed)
    document = client.get("/openapi.json").json()
    assert all(may_read(scopes, state) for state in states_in(document))
    assert (tuple(place) in states_in(document)) == may_read(scopes, place)
    check_insight(client, scopes, place)
    several: list[dict[str, Any]] = [
        {"operator": "sales", "state": name, "keys": []} for name in ("log", "total")
    ]
    status = client.post("/shop/query", json={"reads": several}).status_code
    both = all(may_read(scopes, ("shop", "sales", name)) for name in ("log", "total"))
    assert status == (200 if both else 403)


@given(scopes=st.lists(SCOPES, max_size=3))
@settings(max_examples=max(4, EXAMPLES // 15), deadline=None)
def test_sql_sees_what_the_token_names(reader: Reader, scopes: list[str]) -> None:
    reader.give(scopes)

    def ask(sql: str) -> httpx.Response:
        return reader.client.post("/sql", json={"job": "shop", "sql": sql})

    states = ask("select operator, state from states")
    if not sees(scopes, "shop"):
        assert states.status_code == 403
        return
    expected = {
        state
        for job, _, state in STATES
        if job == "shop" and may_read(scopes, (job, "sales", state))
    }
    assert {state for _, state in states.json()["value"]["rows"]} == expected
    for state in ("last", "total"):
        found = ask(f"select count(*) from sales.{state}")
        assert found.status_code == (200 if state in expected else 400)
        if state not in expected:
            assert "400" not in found.json()["detail"]


@given(
    header=st.text(st.characters(codec="latin-1"), max_size=20)
    | st.sampled_from(
        [
            "Bearer",
            "Bearer ",
            "bearer  some ",
            "Bearer somes",
            "Bearer some some",
            "Basic c29tZTo=",
            "Bearer \xff",
        ]
    )
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_only_the_token_itself_is_one(reader: Reader, header: str) -> None:
    reader.give(["*"])
    try:
        answer = reader.client.get("/jobs", headers={"Authorization": header})
    except (httpx.LocalProtocolError, UnicodeEncodeError):
        return  # the client cannot send it
    scheme, _, given_token = header.partition(" ")
    is_token = scheme.lower() == "bearer" and given_token.strip(" \t") == "some"
    if answer.status_code == 400:
        assert answer.json()["detail"].startswith("this is no HTTP request")
    else:
        assert answer.status_code == (200 if is_token else 401)
