"""Clients: the values of a replica, over HTTP, while servers start, restart and refuse."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import pytest

import statekit as sk
from statekit.codec.json_form import instant_text
from statekit.query import AsyncClient, Client
from statekit.server.admission.access import digest_of
from statekit.server.admission.options import ServerOptions
from statekit.server.serve import StateServer, bound_socket, uvicorn_config
from statekit.testing import Harness
from tests.support.invoked import invoked
from tests.support.served import Sale, sales, sell, server
from tests.support.waiting import until


class Visit(NamedTuple):
    day: dt.date
    page: str
    at: dt.datetime


@dataclass
class Last:
    page: str
    at: dt.datetime


@sk.process(key=("day", "page"))
def visits(
    visit: Visit,
    last: sk.ValueState[Last],
    times: sk.ListState[dt.datetime],
    by_hour: sk.MapState[dt.datetime, Last],
) -> None:
    last.update(Last(visit.page, visit.at))
    times.append(visit.at)
    by_hour[visit.at] = Last(visit.page, visit.at)


DAY = dt.date(2026, 1, 1)
AT = [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in range(3)]
VISITS = [Visit(DAY, "a/b", AT[0]), Visit(DAY, "a/b", AT[1]), Visit(DAY, "", AT[2])]


def visits_job() -> sk.Job:
    job = sk.Job("site")
    job.source("records", Visit).process(visits)
    return job


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("served")
    visits_job().run({"records": VISITS}, checkpoint=home / "site")
    sell(home / "sales", [Sale("rome", "tea", 400), Sale("oslo", "cup", 900)])
    with server({"site": home / "site", "shop": home / "sales"}) as address:
        yield address


KEYS = [(DAY, "a/b"), (DAY, ""), (DAY, "nowhere")]
EXPECTED: dict[str, list[Any]] = {
    "last": [Last("a/b", AT[1]), Last("", AT[2]), None],
    "times": [[AT[0], AT[1]], [AT[2]], []],
    "by_hour": [
        {AT[0]: Last("a/b", AT[0]), AT[1]: Last("a/b", AT[1])},
        {AT[2]: Last("", AT[2])},
        {},
    ],
}


@pytest.mark.parametrize("state", list(EXPECTED))
def test_with_the_process_function_keys_and_values_have_its_types(address: str, state: str) -> None:
    with Client(address, functions=[visits]) as client:
        assert client.get_many("site", "visits", state, KEYS) == (EXPECTED[state], 0)
        assert client.get("site", "visits", state, KEYS[0]).value == EXPECTED[state][0]
        with pytest.raises(sk.StateTypeError):
            client.get("site", "visits", state, "no key")

    async def again() -> None:
        async with AsyncClient(address, functions={"visits": visits}) as client:
            assert await client.get_many("site", "visits", state, KEYS) == (EXPECTED[state], 0)
            found = await asyncio.gather(
                *(client.get("site", "visits", state, key) for key in KEYS)
            )
            assert [answer.value for answer in found] == EXPECTED[state]

    asyncio.run(again())


@pytest.mark.parametrize("state", list(EXPECTED))
def test_scans_with_the_process_function_have_its_types(address: str, state: str) -> None:
    expected = [(KEYS[1], EXPECTED[state][1]), (KEYS[0], EXPECTED[state][0])]
    with Client(address, functions=[visits]) as client:
        assert list(client.scan("site", "visits", state)) == expected
        assert list(client.scan("site", "visits", state, start=KEYS[0])) == expected[1:]
        assert list(client.scan("site", "visits", state, end=KEYS[0])) == expected[:1]

    async def again() -> None:
        async with AsyncClient(address, functions=[visits]) as client:
            assert [item async for item in client.scan("site", "visits", state)] == expected

    asyncio.run(again())


ROWS: dict[str, list[Any]] = {
    "last": [(KEYS[1], None, Last("", AT[2])), (KEYS[0], None, Last("a/b", AT[1]))],
    "by_hour": [
        (KEYS[1], AT[2], Last("", AT[2])),
        (KEYS[0], AT[0], Last("a/b", AT[0])),
        (KEYS[0], AT[1], Last("a/b", AT[1])),
    ],
}


@pytest.mark.parametrize("state", list(ROWS))
def test_followed_rows_have_the_types_of_the_process_function(address: str, state: str) -> None:
    found = []
    with Client(address, functions=[visits]) as client:
        for event in client.follow("site", "visits", state):
            if event.name == "row":
                found.append((event.data["key"], event.data.get("place"), event.data["value"]))
            if event.name == "epoch":
                break
    assert sorted(found, key=repr) == sorted(ROWS[state], key=repr)


def test_followed_changes_have_the_types_of_the_process_function(tmp_path: Path) -> None:
    visits_job().run({"records": VISITS[:1]}, checkpoint=tmp_path / "site", drain=False)
    with server({"site": tmp_path / "site"}) as served:

        async def changes() -> list[Any]:
            async with AsyncClient(served, functions=[visits]) as client:
                async for event in client.follow("site", "visits", "last", key=KEYS[0]):
                    if event.name == "epoch" and event.data["epoch"] == 0:
                        job, run = visits_job(), {"records": VISITS[:2]}
                        await asyncio.to_thread(job.run, run, checkpoint=tmp_path / "site")
                    if event.name == "change":
                        return [event.data[name] for name in ("key", "before", "value")]
            raise AssertionError("no change was sent")

        found = asyncio.run(changes())
    assert found == [KEYS[0], Last("a/b", AT[0]), Last("a/b", AT[1])]


def test_without_it_they_are_what_json_can_hold(address: str) -> None:
    with Client(address) as client:
        assert client.get("shop", "sales", "total", "rome") == (400, 1)
        assert client.get("shop", "sales", "items", "rome").value == {"tea": 400}
        assert client.get("site", "visits", "last", ["2026-01-01", ""]).value == {
            "page": "",
            "at": "2026-01-01T02:00:00Z",
        }
        assert list(client.scan("shop", "sales", "total")) == [("oslo", 900), ("rome", 400)]
        assert list(client.scan("shop", "sales", "total", prefix="ro")) == [("rome", 400)]
        assert list(client.scan("shop", "sales", "total", "p")) == [("rome", 400)]
        of_day = list(client.scan("site", "visits", "last", prefix=["2026-01-01"]))
        assert {key[0] for key, _ in of_day} == {"2026-01-01"}
        assert [job["job"] for job in client.jobs()] == ["site", "shop"]

    async def again() -> None:
        async with AsyncClient(address) as client:
            assert await client.get("shop", "sales", "total", "rome") == (400, 1)
            found = [item async for item in client.scan("shop", "sales", "total", end="p")]
            assert found == [("oslo", 900)]
            assert len(await client.jobs()) == 2

    asyncio.run(again())


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no repr")


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "key",
    [object(), {"rome"}, ["rome", {1}], 1j, "\ud800", {(1, 2): 3}, Unprintable(), ENDLESS],
    ids=["object", "set", "set_inside", "complex", "surrogate", "dict", "unprintable", "endless"],
)
def test_a_key_that_json_cannot_hold_is_a_type_error_in_each_call(address: str, key: Any) -> None:
    place = ("shop", "sales", "total")
    with Client(address) as client:
        for call in (
            lambda: client.get(*place, key),
            lambda: client.get_many(*place, ["rome", key]),
            lambda: next(client.scan(*place, key)),
            lambda: next(client.scan(*place, end=key)),
            lambda: next(client.follow(*place, key=key)),
            lambda: next(client.follow(*place, prefix=key)),
        ):
            with pytest.raises(sk.StateTypeError, match="Give keys as the operator has them"):
                call()

    async def again() -> None:
        async with AsyncClient(address) as client:
            for call in (
                lambda: client.get(*place, key),
                lambda: client.get_many(*place, ["rome", key]),
                lambda: anext(client.scan(*place, key)),
                lambda: anext(client.follow(*place, key=key)),
            ):
                with pytest.raises(sk.StateTypeError, match="Give keys as the operator has them"):
                    await call()

    asyncio.run(again())


def test_names_and_texts_that_are_no_text_are_type_errors(address: str) -> None:
    with Client(address) as client:
        for call in (
            lambda: client.get("shop", "sales", 5, "rome"),  # type: ignore[arg-type]
            lambda: client.get_text("shop", "sales", "total", 5),  # type: ignore[arg-type]
            lambda: client.get_text("shop", "sales", "total", "\ud800"),
            lambda: next(client.scan("shop", ["sales"], "total")),  # type: ignore[arg-type]
        ):
            with pytest.raises(sk.StateTypeError, match="the key of get_text as text"):
                call()


@pytest.mark.parametrize("key", [[DAY, "a/b"], "a/b", (DAY,), (DAY, "a/b", 1)])
def test_a_typed_key_of_other_parts_gets_an_example_of_the_tuple(address: str, key: Any) -> None:
    example = r"such as \(datetime.date\(2026, 1, 31\), 'p01'\)"
    with Client(address, functions=[visits]) as client:
        for state in EXPECTED:
            with pytest.raises(sk.StateTypeError, match=example):
                client.get("site", "visits", state, key)


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        (("none", "x", "y"), {}, "no job is served as 'none'"),
        (("shop", "sales", "none"), {}, "has no state 'none'"),
        (("shop", "sales", "total"), {"epoch": 0}, "can no longer be read"),
        (("shop", "sales", "total"), {"min_epoch": 9}, "was not reached"),
        (("shop", "sales", "total"), {"wrong": 9, "epoch": "x"}, "epoch"),
    ],
)
@pytest.mark.parametrize("functions", [[], [sales]])
def test_what_the_server_refuses_is_a_query_error_with_its_words(
    address: str, place: tuple[str, str, str], options: Any, said: str, functions: Any
) -> None:
    with Client(address, functions=functions) as client, pytest.raises(sk.QueryError, match=said):
        client.get(*place, "rome", **options)


@pytest.mark.parametrize("token", ["", "a token", "token\r\nX-Other: header", "tokén"])
def test_a_token_that_no_header_can_have_is_refused(token: str) -> None:
    with pytest.raises(sk.StateTypeError, match="remove blanks and line breaks"):
        Client("http://127.0.0.1:1", token=token)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_clients_refuse_tokens_and_addresses_that_are_none(client: Any) -> None:
    for token in (2, b"secret", ["secret"]):
        with pytest.raises(sk.StateTypeError, match="give the token as text") as refused:
            client("http://127.0.0.1:1", token=token)
        assert "secret" not in str(refused.value)
    for url in (2, b"http://localhost", "localhost:8321", "", "http://", "http://a\n", None):
        with pytest.raises(sk.StateTypeError, match="give the address of a server"):
            client(url)


@pytest.mark.parametrize("after", [5, b"5-0f", "5\r\nX-Other: header", "é", "", ["5"]])
def test_a_watch_after_what_is_no_id_of_an_event_is_refused(after: Any) -> None:
    async def first_event() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            await anext(client.follow("site", "visits", "last", after=after))

    with Client("http://127.0.0.1:1") as client, pytest.raises(sk.StateTypeError, match="after="):
        next(client.follow("site", "visits", "last", after=after))
    with pytest.raises(sk.StateTypeError, match="after="):
        asyncio.run(first_event())


def test_a_server_that_is_not_there_is_a_storage_error() -> None:
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with Client(address, retries=1) as client, pytest.raises(sk.StorageError, match=str(port)):
        client.jobs()


def test_a_token_of_one_state_decodes_its_rows_and_no_others(tmp_path: Path) -> None:
    visits_job().run({"records": VISITS}, checkpoint=tmp_path / "site")
    listed = [{"name": "some", "sha256": digest_of("some"), "read": ["site/visits/last"]}]
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tokens": listed}))
    with server({"site": tmp_path / "site"}, tokens=tokens) as address:
        with Client(address, token="some", functions=[visits]) as client:
            assert client.get("site", "visits", "last", KEYS[1]).value == Last("", AT[2])
            with pytest.raises(sk.QueryError, match="may not read site/visits/times"):
                client.get("site", "visits", "times", KEYS[1])
        with (
            Client(address, functions=[visits]) as client,
            pytest.raises(sk.QueryError, match="give a token"),
        ):
            client.get("site", "visits", "last", KEYS[1])


@contextmanager
def restartable(home: Path, port: int) -> Iterator[None]:
    """A server on a port."""
    with bound_socket("127.0.0.1", port) as listening:
        running = StateServer(uvicorn_config({"shop": str(home)}, ServerOptions()))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            running.should_exit = True
            thread.join(20)


def test_a_client_waits_for_a_server_that_starts_and_follows_it_over_a_restart(
    tmp_path: Path,
) -> None:
    home = tmp_path / "sales"
    records = [Sale("rome", "tea", 400), Sale("rome", "pot", 5), Sale("rome", "cup", 6)]
    sell(home, records[:1])
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    started = threading.Event()
    total: dict[str, int] = {}
    seen: list[int] = []

    def follow() -> None:
        with Client(f"http://127.0.0.1:{port}", retries=20) as client:
            started.set()
            for event in client.follow("shop", "sales", "total", key="rome"):
                if event.name in ("row", "change"):
                    total[event.data["key"]] = event.data["value"]
                elif event.name == "epoch":
                    seen.append(total["rome"])
                    if event.data["epoch"] == 2:
                        return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    started.wait(5)
    time.sleep(0.3)
    with restartable(home, port):
        until(lambda: 400 in seen)
        sell(home, records[:2])
        until(lambda: 405 in seen)
    sell(home, records)
    with restartable(home, port):
        thread.join(30)
    assert not thread.is_alive()
    assert total == {"rome": 411}
    assert seen == sorted(seen)


@pytest.mark.slow
def test_clients_outlive_a_restart_of_the_server_that_takes_half_a_minute(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    records = [Sale("rome", "tea", 400), Sale("rome", "pot", 5)]
    sell(home, records[:1])
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    read: list[int] = []
    followed: list[int] = []

    def reads() -> None:
        with Client(address) as client:
            read.append(client.get("shop", "sales", "total", "rome").value)
            until(down.is_set)
            read.append(client.get("shop", "sales", "total", "rome").value)

    def follows() -> None:
        with Client(address) as client:
            for event in client.follow("shop", "sales", "total"):
                if event.name in ("row", "change"):
                    followed.append(event.data["value"])
                if followed[-1:] == [405]:
                    return

    down = threading.Event()
    threads = [threading.Thread(target=target, daemon=True) for target in (reads, follows)]
    with restartable(home, port):
        for thread in threads:
            thread.start()
        until(lambda: bool(read and followed))
    down.set()
    sell(home, records)
    time.sleep(30)
    with restartable(home, port):
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert read == [400, 405]
    assert followed[0] == 400


def test_a_client_gives_up_soon_if_nothing_ever_answered() -> None:
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    start = time.monotonic()
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(sk.StorageError):
        client.jobs()
    assert time.monotonic() - start < 15


def test_the_command_prints_keys_and_ranges(address: str) -> None:
    def printed(*words: str) -> tuple[int, str]:
        done = invoked("query", address, *words)
        return done.exit_code, done.stdout

    assert printed("shop", "sales", "total", "rome") == (0, "400\n")
    assert printed("shop", "sales", "total", "nice") == (0, "null\n")
    assert printed("site", "visits", "last", '["2026-01-01", "nowhere"]') == (0, "null\n")
    assert printed("shop", "sales", "total") == (0, '["oslo",900]\n["rome",400]\n')
    assert printed("shop", "sales", "total", "rome", "--epoch", "1") == (0, "400\n")
    assert printed("shop", "sales", "total", "rome", "--follow")[0] == 2


def test_the_address_of_a_file_stays_of_its_epoch(address: str) -> None:
    with Client(address) as client:
        url = client.file_url("shop", "sales", "total", "csv", wide_ints="text")
        answer = httpx.get(url)
        assert (answer.status_code, answer.headers["content-type"][:8]) == (200, "text/csv")
        assert '"rome","400"' in answer.text
        assert "manifest=" in url
        with pytest.raises(sk.QueryError, match="cannot be read yet"):
            client.file_url("shop", "sales", "total", epoch=99)

    async def of_loop() -> str:
        async with AsyncClient(address) as client:
            return await client.file_url("shop", "sales", "total", "csv", wide_ints="text")

    assert asyncio.run(of_loop()) == url


def test_a_client_goes_where_a_proxy_sends_it(address: str) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(308)
            self.send_header("Location", address + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{proxy.server_port}", functions=[sales]) as client:
            assert client.get("shop", "sales", "total", "rome").value == 400
            assert dict(client.scan("shop", "sales", "total")) == {"oslo": 900, "rome": 400}
            events = client.follow("shop", "sales", "total", key="rome")
            assert [next(events).name for _ in range(3)] == ["reset", "row", "epoch"]
        proxy.shutdown()


def test_events_are_followed_in_a_loop(address: str) -> None:
    async def first() -> list[str]:
        names = []
        async with AsyncClient(address) as client:
            async for event in client.follow("shop", "sales", "total", prefix="ro"):
                names.append(event.name)
                if event.name == "epoch":
                    break
        return names

    assert asyncio.run(first()) == ["reset", "row", "epoch"]


# ------------------------------------------------------------------------------- types of keys


class Colour(enum.Enum):
    RED = "BLUE"  # the name of another one
    BLUE = "blue"


class Part(NamedTuple):
    colour: Colour
    raw: bytes
    number: int | None


TYPED_KEYS: dict[str, tuple[Any, Any, Any]] = {
    "uuid": (uuid.UUID, uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "enum": (Colour, Colour.RED, "BLUE"),
    "timedelta": (dt.timedelta, dt.timedelta(days=-1, seconds=1), "-PT23H59M59S"),
    "date": (dt.date, DAY, DAY.isoformat()),
    "datetime": (dt.datetime, AT[0], instant_text(AT[0])),
    "bytes": (bytes, b"\x00ab", "006162"),
    "named_tuple": (Part, Part(Colour.BLUE, b"a", None), ["blue", "61", None]),
    "literal": (Literal["a", "b"], "a", "a"),
    "bool": (bool, True, True),
}


@pytest.mark.parametrize("kind", list(TYPED_KEYS))
def test_keys_of_each_type_are_read_over_http_as_what_they_are_and_as_what_is_shown(
    tmp_path: Path, kind: str
) -> None:
    of, key, shown = TYPED_KEYS[kind]
    record: Any = make_dataclass("Record", [("key", of), ("n", int)])

    def summed(record: Any, total: sk.ValueState[int]) -> None:
        total.update((total.get() or 0) + record.n)

    summed.__annotations__["record"] = record
    function = sk.process(key="key")(summed)
    Harness(function, checkpoint=tmp_path / "c").send(record(key, 3))
    place = ("job", "summed", "total")
    with server({"job": tmp_path / "c"}) as address:
        with Client(address) as client:
            assert client.get(*place, key) == client.get(*place, shown) == (3, 0)
            assert client.get_many(*place, [key, shown]).value == [3, 3]
            assert list(client.scan(*place, start=key)) == [(shown, 3)]
        with Client(address, functions=[function]) as client:
            assert client.get(*place, key).value == 3
            assert list(client.scan(*place, start=key)) == [(key, 3)]
        given = {"key": json.dumps(shown)}
        assert httpx.get(f"{address}/job/summed/total", params=given).json()["value"] == 3
    for given_key in (key, shown):
        assert sk.read(tmp_path / "c", "summed", "total", key=given_key).read_all().num_rows == 1
