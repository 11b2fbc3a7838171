"""Limits: memory, disk, time, files, refused requests; and what of a killed server is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.server.admission.options import ServerOptions
from statekit.server.jobs.disk import Disk, bytes_below
from statekit.server.serve import rocks_options, uvicorn_config
from tests.support.served import Sale, sell, server
from tests.support.small_disk import small_disk
from tests.support.waiting import until
from tests.unit.server.test_access import SECRET, kind, token_file
from tests.unit.server.test_metrics import metrics


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served") / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    return home


# ---------------------------------------------------------------------------------- the disk


def test_at_its_disk_limit_a_server_answers_from_what_it_has_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    copies = tmp_path / "copies"
    with server({"shop": home}, directory=copies):
        most = (bytes_below([copies]) + 2**20) // 2**10 * 2**10
    options = {"directory": copies, "disk": f"{most // 2**10}KB"}
    with (
        server({"shop": home}, **options) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/shop/sales/total.parquet", follow_redirects=True).status_code == 200
        ballast = copies / "shop" / "ballast"
        ballast.write_bytes(bytes(2 * 2**20))
        until(lambda: client.get("/readyz").json() == {"status": "disk_full"})
        sell(home, [Sale("rome", "tea", 400), Sale("rome", "tea", 1)])
        until(lambda: client.get("/jobs").json()[0]["has_error"])
        later = Repository(home).manifest(1).id  # as another server of the checkpoint names it
        given: dict[str, Any] = {"epoch": 1, "manifest": later.manifest}
        assert kind(client.get("/shop/sales/total/rome", params=given)) == (409, "behind")
        found = client.get("/shop/sales/total/rome").json()
        assert (found["value"], found["epoch"]) == (400, 0)
        assert kind(client.get("/shop/sales/log.parquet")) == (503, "disk_full")
        sql = {"job": "shop", "sql": "select 1"}
        assert kind(client.post("/sql", json=sql)) == (503, "disk_full")
        found = metrics(client.get("/metrics").text)
        assert found["statekit_disk_limit_bytes", ()] == most
        assert found["statekit_disk_bytes", ()] > most
        assert found["statekit_follow_failing", ("shop",)] == 1
        assert "bytes of disk for its copies and files (--disk)" in caplog.text
        ballast.unlink()
        until(lambda: client.get("/shop/sales/total/rome").json()["value"] == 401)
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/shop/sales/log.parquet", follow_redirects=True).status_code == 200


def test_a_disk_without_space_is_reported_and_the_server_answers_from_what_it_has(
    tmp_path: Path,
) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale("rome", "tea", 400)])
    with (
        small_disk(tmp_path / "disk") as disk,
        server({"shop": home}, directory=disk.path / "copies") as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=30) as client,
    ):
        assert client.get("/readyz").json() == {"status": "ok"}
        disk.fill()
        until(lambda: client.get("/readyz").json() == {"status": "disk_full"})
        sell(home, [Sale("rome", "tea", 400), Sale("rome", "tea", 1)])
        until(lambda: client.get("/jobs").json()[0]["has_error"])
        assert client.get("/shop/sales/total/rome").json()["value"] == 400
        assert kind(client.get("/shop/sales/log.parquet")) == (503, "disk_full")
        disk.make_space()
        until(lambda: client.get("/shop/sales/total/rome").json()["value"] == 401)
        assert client.get("/readyz").json() == {"status": "ok"}


def test_a_server_whose_copies_are_too_large_is_refused_at_the_start(
    home: Path, tmp_path: Path
) -> None:
    options = ServerOptions(directory=tmp_path / "copies", disk="1KB")
    with pytest.raises(sk.StorageError, match="may take 1,024 bytes of disk"):
        uvicorn_config({"shop": str(home)}, options)
    with sk.Replica(home, directory=tmp_path / "copies" / "shop") as replica:  # is free again
        assert replica.epoch == 0


def test_files_that_are_linked_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(bytes(1_000))
    os.link(tmp_path / "a" / "one", tmp_path / "a" / "two")
    assert bytes_below([tmp_path, tmp_path / "none"]) == 1_000


COMMAND = [sys.executable, "-m", "statekit.cli", "serve", "--port", "0"]


def start(home: Path, temporary: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(home), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


def address_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


def test_files_of_a_killed_server_are_removed_by_the_next_one_and_of_no_other(
    home: Path, tmp_path: Path
) -> None:
    with start(home, tmp_path) as killed, start(home, tmp_path) as other:
        try:
            for process in (killed, other):
                address = address_from(process)
                assert (
                    httpx.get(
                        f"{address}/sales/sales/total.parquet", follow_redirects=True
                    ).status_code
                    == 200
                )
            own = set(tmp_path.glob("statekit-server-*"))
            assert len(own) == 2
            killed.send_signal(signal.SIGKILL)
            killed.wait(20)
            with start(home, tmp_path) as third:
                try:
                    address_from(third)
                    assert len(own & set(tmp_path.glob("statekit-server-*"))) == 1
                    assert len(list(tmp_path.glob("statekit-replica-*"))) == 2
                    assert (
                        httpx.get(
                            f"{address}/sales/sales/log.parquet", follow_redirects=True
                        ).status_code
                        == 200
                    )
                finally:
                    third.terminate()
            other.terminate()
            other.wait(20)
        finally:
            killed.kill()
            other.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_server_with_a_directory_removes_the_files_of_killed_servers(
    home: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    kept = ("--directory", str(tmp_path / "copies"))
    with start(home, temporary) as plain, start(home, temporary, *kept) as keeping:
        for process in (plain, keeping):
            address_from(process)  # by then, it has removed what killed ones have left
        for process in (plain, keeping):
            process.send_signal(signal.SIGKILL)
            process.wait(20)
    assert len(list(temporary.iterdir())) == 3
    with start(home, temporary, *kept) as third:
        assert httpx.get(f"{address_from(third)}/healthz").status_code == 200
        (own,) = temporary.iterdir()
        assert own.name.startswith("statekit-server-")
        third.terminate()
    assert list(temporary.iterdir()) == []
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["sales"]


# ---------------------------------------------------------------------------------- descriptors

SERVE_MANY = """
import resource, sys
from statekit.server.admission.options import ServerOptions
from statekit.server.serve import uvicorn_config
limit = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
try:
    uvicorn_config({f"job{n}": sys.argv[3] for n in range(20)}, ServerOptions())
except Exception as error:
    print(type(error).__name__, error)
else:
    import os
    files = len(os.listdir("/proc/self/fd"))
    print("served with", files, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def served_many(home: Path, temporary: Path, soft: int, hard: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SERVE_MANY, str(soft), str(hard), str(home)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    return done.stdout


@pytest.mark.slow
def test_twenty_jobs_start_with_1024_descriptors(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    sell(home, [Sale(f"s{n}", f"i{n}", n) for n in range(40)], epoch_size=1)
    assert served_many(home, tmp_path, 1_024, 1_024).startswith("served with ")
    # The soft limit is raised: it is what shells give, and not what the system allows.
    assert served_many(home, tmp_path, 90, 2_048).split()[-1] == "2048"


def test_a_server_without_descriptors_names_the_limit(home: Path, tmp_path: Path) -> None:
    told = served_many(home, tmp_path, 90, 90)
    assert told.startswith("StorageError the server may have 90 open files (ulimit -n; the hard")
    assert "of 20 jobs: it was not started" in told


# --------------------------------------------------------------------------------- the memory


@pytest.mark.parametrize("memory", ["1MB", "much"])
def test_a_server_with_a_wrong_limit_of_memory_leaves_no_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(sk.StatekitError, match="--memory"):
        uvicorn_config({"shop": str(home)}, ServerOptions(memory=memory))
    assert list(tmp_path.iterdir()) == []


def test_a_server_takes_no_more_memory_than_it_is_given(home: Path) -> None:
    options = rocks_options(64 * 2**20)
    assert options.block_cache_bytes + 1.5 * options.write_memory_bytes <= 64 * 2**20
    with pytest.raises(sk.StateTypeError, match=r"give 16 MB or more \(--memory\)"):
        uvicorn_config({"shop": str(home)}, ServerOptions(memory="1MB"))
    with server({"shop": home}, memory="16MB") as address:
        assert httpx.get(f"{address}/shop/sales/total/rome").json()["value"] == 400


# ------------------------------------------------------------------------------------ requests


def test_an_answer_that_does_not_begin_in_time_is_503(home: Path) -> None:
    with server({"shop": home}, timeout=0.5) as address:
        slow = httpx.get(f"{address}/shop/sales/total/rome?min_epoch=9&wait=30", timeout=10)
        assert kind(slow) == (503, "timeout")
        assert httpx.get(f"{address}/shop/sales/total/rome").status_code == 200
        accept = {"Accept": "text/event-stream"}
        with httpx.stream("GET", f"{address}/shop/sales/total", headers=accept) as stream:
            time.sleep(1)  # a stream has begun
            assert next(stream.iter_lines()) == "retry: 1000"


def test_a_body_that_does_not_come_in_time_is_503(home: Path) -> None:
    with server({"shop": home}, timeout=0.5) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            path = "/shop/sales/total/query"
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99\r\n\r\n"
            connection.sendall(head.encode() + b'{"keys"')
            assert connection.recv(20).startswith(b"HTTP/1.1 503")


def test_not_all_files_are_written_at_once(home: Path) -> None:
    with server({"shop": home}, tables=1) as address:
        paths = [f"/shop/sales/{name}.{to}" for name in ("total", "log") for to in ("csv", "arrow")]
        with ThreadPoolExecutor(8) as threads:
            answers = list(
                threads.map(
                    lambda path: httpx.get(address + path, follow_redirects=True), paths * 2
                )
            )
        statuses = {answer.status_code for answer in answers}
        assert 200 in statuses
        assert statuses <= {200, 503}
        assert all(kind(answer)[1] == "too_many" for answer in answers if answer.status_code == 503)
        assert httpx.get(address + paths[0], follow_redirects=True).status_code == 200


def test_an_address_that_is_refused_often_has_to_wait(home: Path, tmp_path: Path) -> None:
    tokens = token_file(
        tmp_path / "tokens.json", ("old", "old", ["*"]), ("new", "new", ["*"]), ("no", "no", [])
    )
    with server({"shop": home}, tokens=tokens, refusals=0.5) as address:

        def status(token: str, path: str = "/shop/sales/total/rome") -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.get(address + path, headers=headers).status_code

        assert status("old") == 200
        assert [status("no") for _ in range(2)] == [403, 403]
        assert [status(f"guess {n}") for n in range(3)] == [401] * 3
        late = httpx.get(f"{address}/shop/sales/total/rome")
        assert kind(late) == (429, "too_many")
        assert int(late.headers["retry-after"]) >= 1
        assert status("new") == 429  # a right guess looks like a wrong one
        assert status("no") == 429
        assert status("no", "/shop/sales/total?limit=1") == 429
        assert status("old") == 200  # was used from here before
        assert httpx.get(f"{address}/healthz").status_code == 200
        time.sleep(2.5)
        assert status("new") == 200


def test_a_server_with_tokens_counts_no_right_requests(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("all", SECRET, ["*"]))
    headers = {"Authorization": f"Bearer {SECRET}"}
    with server({"shop": home}, tokens=tokens, refusals=0.1) as address:
        for _ in range(20):
            answer = httpx.get(f"{address}/shop/sales/total/rome", headers=headers)
            assert answer.status_code == 200


# ------------------------------------------------------------------------ headers and origins

PATHS = [
    "/shop/sales/total/rome",
    "/shop/sales/total",
    "/shop/none/x/y",
    "/jobs",
    "/nothing/at/all",
]
ORIGIN = "https://board.example"


def test_every_answer_has_the_headers_that_keep_pages_out(home: Path) -> None:
    with server({"shop": home}) as address:
        answers = [httpx.get(address + path) for path in (*PATHS, "/shop/sales/total/%FF")]
        answers.append(httpx.get(address + PATHS[0], headers={"Host": "evil.example"}))
        answers.append(httpx.request("DELETE", address + "/jobs"))
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers


def test_pages_of_an_allowed_origin_read_answers_and_errors(home: Path, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.json", ("all", SECRET, ["*"]))
    given = {"Authorization": f"Bearer {SECRET}"}
    with server({"shop": home}, tokens=tokens, allow_origin=[ORIGIN]) as address:
        for path in PATHS:
            for headers in (given, {}):
                ours = httpx.get(address + path, headers={**headers, "Origin": ORIGIN})
                assert ours.headers["access-control-allow-origin"] == ORIGIN
                assert "etag" in ours.headers["access-control-expose-headers"].lower()
                assert "access-control-allow-credentials" not in ours.headers
                for other in ("https://evil.example", "null", f"{ORIGIN}.evil.example", ""):
                    theirs = httpx.get(address + path, headers={**headers, "Origin": other})
                    assert "access-control-allow-origin" not in theirs.headers
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        preflight = httpx.options(address + PATHS[1], headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        refused = httpx.options(
            address + PATHS[1], headers={**asked, "Access-Control-Request-Method": "DELETE"}
        )
        assert refused.status_code == 400


@pytest.mark.parametrize(
    "origin", ["*", "null", "board.example", "https://board.example/", "https://*.example", ""]
)
def test_an_origin_is_exact(home: Path, origin: str) -> None:
    with pytest.raises(sk.StateTypeError, match="is not the origin of a site"):
        uvicorn_config({"shop": str(home)}, ServerOptions(allow_origin=[origin]))


def test_the_directory_of_a_server_is_its_own() -> None:
    first, second = Disk(), Disk()
    try:
        assert first.directory != second.directory
        assert first.directory.parent == Path(tempfile.gettempdir())
    finally:
        first.close()
        second.close()
    assert not first.directory.exists()
