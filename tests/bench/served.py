"""The server: single reads, many keys at once, and watchers, while the state changes.

Each server has one core, and whoever calls it the other.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from statekit.query import Client
from tests.bench import served_dicts, served_objects
from tests.bench.peers.environments import NotAvailable
from tests.bench.redis_server import Redis, value_of
from tests.bench.report import NOT_DURABLE, STATEKIT_DURABLE, Arm, Row
from tests.bench.served_state import CHANGES_PER_S, EPOCHS_PER_S, KEYS, Value, fill, store

SECONDS, ROUNDS, CONNECTIONS = 5, 3, 32
KEYS_AT_ONCE, REQUESTS, CPU_ROUNDS = 1_000, 400, 7
WATCHERS, WATCHED_CHANGES, WATCHED_S = 200, 1_000, 20
CROWD, CROWD_S, CROWD_REST_S = 200, 60, 0.15
_SERVER, _CALLER = "0", "1"
_LUA = """
request = function()
    return wrk.format("GET", "/store/store/value/" .. math.random(0, {}))
end
"""


@contextlib.contextmanager
def _process(core: str, *words: str, says: str) -> Iterator[str]:
    """A process on a core, until the end. Yields the line in which it says that it is ready."""
    given = ["taskset", "-c", core, *words]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as it:
        try:
            assert it.stdout is not None
            for line in it.stdout:
                if says in line:
                    threading.Thread(target=it.stdout.read, daemon=True).start()
                    yield line
                    break
            else:
                raise RuntimeError(f"{words} ended")
        finally:
            it.kill()


@contextlib.contextmanager
def _ours(home: Path) -> Iterator[str]:
    command = (sys.executable, "-m", "statekit.cli", "serve", f"store={home}", "--port", "0")
    with _process(_SERVER, *command, says="http://") as line:
        address = line.split()[-1]
        while httpx.get(f"{address}/readyz").status_code != 200:
            time.sleep(0.1)
        yield address


@contextlib.contextmanager
def _changing(
    home: Path, epochs_per_s: float = EPOCHS_PER_S, changes_per_s: int = CHANGES_PER_S
) -> Iterator[None]:
    rates = (str(epochs_per_s), str(changes_per_s))
    command = (sys.executable, "-m", "tests.bench.served_state", str(home), *rates)
    with _process(_CALLER, *command, says="changing"):
        yield


@contextlib.contextmanager
def _fastapi() -> Iterator[str]:
    words = ("-m", "uvicorn", "tests.bench.fastapi_dict:app", "--port", "8399", "--no-access-log")
    with _process(_SERVER, sys.executable, *words, says="running on"):
        yield "http://127.0.0.1:8399"


def _load(address: str, directory: Path) -> tuple[float, float]:
    """Requests per second, and the seconds of 99 of 100."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise NotAvailable("there is no wrk: apt-get install wrk")
    script = directory / "get.lua"
    script.write_text(_LUA.format(KEYS - 1))
    options = ["-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", "--latency", "-s", str(script)]
    said = _said("taskset", "-c", _CALLER, wrk, *options, address)
    if "Non-2xx" in said:
        raise RuntimeError(said)
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    p99 = re.search(r"99%\s+([0-9.]+)(us|ms|s)", said)
    assert rate is not None
    assert p99 is not None
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[p99[2]]
    return float(rate[1]), float(p99[1]) * unit


def _said(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def _redis_load(port: int) -> float:
    """Unpipelined reads per second of redis-benchmark."""
    program = shutil.which("redis-benchmark")
    if program is None:
        raise NotAvailable("there is no redis-benchmark: apt-get install redis-tools")
    options = ["-p", str(port), "-c", "64", "-n", "200000", "-r", str(KEYS), "-t", "get", "-q"]
    said = _said("taskset", "-c", _CALLER, program, *options)
    rates = re.findall(r"GET: ([0-9.]+) requests per second", said)
    return float(rates[-1])


def single_reads() -> list[Row]:
    """Single reads per second, beside a handler over a dict, and Redis."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "c")
        fill(home)
        ours, handler, redis = [], [], []
        for _ in range(ROUNDS):
            with _ours(home) as address, _changing(home):
                ours.append(_load(address, Path(place)))
            with _fastapi() as address:
                handler.append(_load(address, Path(place)))
            with Redis(Path(place)) as server:
                _pin(server.pid, _SERVER)
                redis.append(_redis_load(server.port))
    rate, p99 = (statistics.median(values) for values in zip(*ours, strict=True))
    other = statistics.median(rate for rate, _ in handler)
    share = rate / statistics.median(redis)
    arms = (
        Arm("statekit serve", 1 / rate, STATEKIT_DURABLE, 1, p99=p99),
        Arm("a FastAPI handler over a dict", 1 / other, NOT_DURABLE, 1),
    )
    return [
        Row(
            f"serve: single reads per core, while {CHANGES_PER_S:,} keys a second change",
            f"{rate:,.0f}/s, 99 of 100 in {1000 * p99:.1f} ms; a FastAPI handler over a dict "
            f"{other:,.0f}/s; {share:.0%} of redis-benchmark",
            "10,000/s, 10 ms",
            arms,
            note="The handler has no other work.",
        )
    ]


def many_keys() -> list[Row]:
    """Keys per second of requests for many keys as JSON, and the CPU of client and server."""

    def ask(address: str, lists: list[list[int]]) -> None:
        with httpx.Client() as client:
            _ask(client, address, lists)

    return _many_keys("as JSON", "100,000 keys/s", ask, value_of)


def stored_keys() -> list[Row]:
    """The same of the typed client, which gets rows as they are stored, decoded to several types.

    Redis has the same bytes, and a function that decodes them to the same type; for named tuples
    bytes without the names of the fields, as MessagePack decodes to named tuples.
    """
    types: list[tuple[str, Any, type, Any]] = [
        ("dicts", served_dicts.store, dict, served_dicts.Value),
        ("objects of a dataclass", served_objects.store, served_objects.Value, None),
        ("named tuples", store, Value, None),
    ]
    rows = []
    for name, function, cls, wire in types:
        decode = msgspec.msgpack.Decoder(wire or cls).decode

        def ask(
            address: str, lists: list[list[int]], function: Any = function, cls: type = cls
        ) -> None:
            with Client(address, functions=[function]) as client:
                for keys in lists:
                    values = client.get_many("store", "store", "value", keys).value
                    assert type(values[0]) is cls

        how = f"as stored bytes, decoded to {name}"
        rows += _many_keys(how, "250,000 keys/s", ask, decode, with_names=cls is not Value)
    return rows


def _many_keys(
    how: str,
    wanted: str,
    ask: Callable[[str, list[list[int]]], None],
    decode: Callable[[Any], Any],
    *,
    with_names: bool = True,
) -> list[Row]:
    chosen = random.Random(1)
    lists = [[chosen.randrange(KEYS) for _ in range(KEYS_AT_ONCE)] for _ in range(REQUESTS)]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "c")
        fill(home)
        with _ours(home) as address, Redis(Path(place)) as redis, _on_core(_CALLER):
            _pin(redis.pid, _SERVER)
            values = ((key, Value(0, f"text {key}")) for key in range(KEYS))
            redis.fill((key, of._asdict() if with_names else of) for key, of in values)
            server = _listening(int(address.rpartition(":")[2]))
            ask(address, lists)
            redis.get_many(lists, decode)
            ours, theirs, of_server = [], [], []
            for _ in range(CPU_ROUNDS):
                spent, served = _cpu_with(server, partial(ask, address, lists))
                ours.append(spent + served)
                of_server.append(served)
                get_many = partial(redis.get_many, lists, decode)
                theirs.append(sum(_cpu_with(psutil.Process(redis.pid), get_many)))
    keys = KEYS_AT_ONCE * REQUESTS
    rate = keys / statistics.median(of_server)
    each = [statistics.median(cpu) / keys * 1e6 for cpu in (ours, theirs)]
    arms = (
        Arm("statekit serve", statistics.median(ours), STATEKIT_DURABLE, keys, turns=tuple(ours)),
        Arm("Redis, MGET", statistics.median(theirs), NOT_DURABLE, keys, turns=tuple(theirs)),
    )
    return [
        Row(
            f"serve: requests for {KEYS_AT_ONCE:,} keys, {how}",
            f"{rate:,.0f} keys/s per core of the server; client and server {each[0]:.2f} µs a key, "
            f"redis-py's MGET {each[1]:.2f} µs",
            wanted,
            arms,
        )
    ]


def watchers() -> list[Row]:
    """How long after the beginning of an epoch all who watch a state have its changes."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "c")
        fill(home)
        with _ours(home) as address, _changing(home, 1, WATCHED_CHANGES):
            server = _listening(int(address.rpartition(":")[2]))
            words = ("-m", "tests.bench.watchers", address, str(WATCHERS), str(WATCHED_S))
            before = _cpu(server)
            found = json.loads(_said("taskset", "-c", _CALLER, sys.executable, *words))
            spent = _cpu(server) - before
    lags = found["lags"]
    middle, last = statistics.median(lags), lags[-1]
    return [
        Row(
            f"serve: {WATCHERS} watchers of a state, an epoch with {WATCHED_CHANGES:,} changes a "
            "second",
            f"all have an epoch {middle:.2f} s after it began in the median, {last:.2f} s at most; "
            f"{found['fewest']} epochs with {found['changes']:,} changes each in "
            f"{WATCHED_S} s; the server takes "
            f"{spent / (1.25 * WATCHED_S):.0%} of a core",
            "less than 1 s",
            (Arm("statekit serve", middle, STATEKIT_DURABLE, WATCHERS, p99=last),),
            without="Redis publishes messages, and keeps none for those who come back.",
        )
    ]


def crowd() -> list[Row]:
    """How long single reads take among many clients that also read files, pages and SQL."""
    return [
        _crowd(0, "without a rest"),
        _crowd(CROWD_REST_S, f"{CROWD_REST_S * 1e3:.0f} ms of rest after each"),
    ]


def _crowd(pause_s: float, how: str) -> Row:
    """Return the row of clients that rest for so long on average."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "c")
        fill(home)
        with _ours(home) as address, _changing(home):
            given = (address, *map(str, (CROWD, CROWD_S, KEYS, pause_s)))
            words = (sys.executable, "-m", "tests.bench.crowd", *given)
            found = json.loads(_said("taskset", "-c", _CALLER, *words))
    single, answers = found["single"], found["answers"]
    middle, p99 = (single[int(len(single) * part)] for part in (0.5, 0.99))
    others = ", ".join(f"{count:,} {kind}" for kind, count in answers.items() if kind != "single")
    return Row(
        f"serve: single reads among {CROWD} clients for {CROWD_S} s, {how}, beside a job that "
        "commits",
        f"{middle * 1e3:.0f} ms in the median, {p99 * 1e3:.0f} ms for 99 of 100; "
        f"{len(single) / CROWD_S:,.0f} single reads/s, beside them {others} in all",
        "99 of 100 in less than 100 ms",
        (Arm("statekit serve", middle, STATEKIT_DURABLE, len(single), p99=p99),),
        without="Redis has no files of states, no pages of an epoch and no SQL.",
    )


def _ask(client: httpx.Client, address: str, lists: list[list[int]]) -> None:
    for keys in lists:
        body = msgspec.json.encode({"keys": keys})
        answer = client.post(f"{address}/store/store/value/query", content=body)
        assert len(msgspec.json.decode(answer.content)["value"]) == len(keys)


def _cpu_with(server: psutil.Process, turn: Callable[[], None]) -> tuple[float, float]:
    """Seconds of CPU that this process and a server take for a turn."""
    # This process has imported Spark and more. A collection of all that would fall into some turns.
    gc.collect()
    gc.freeze()
    before, start = _cpu(server), time.process_time()
    turn()
    return time.process_time() - start, _cpu(server) - before


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _listening(port: int) -> psutil.Process:
    """The process that listens on a port."""
    for process in psutil.Process().children(recursive=True):
        if any(own.laddr.port == port for own in process.net_connections()):
            return process
    raise RuntimeError(f"nobody listens on port {port}")


def _pin(pid: int, core: str) -> None:
    os.sched_setaffinity(pid, {int(core)})


@contextlib.contextmanager
def _on_core(core: str) -> Iterator[None]:
    """Run this process on one core."""
    before = os.sched_getaffinity(0)
    _pin(0, core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


BENCHMARKS = {
    "serve-get": single_reads,
    "serve-multi_get": many_keys,
    "serve-stored": stored_keys,
    "serve-watch": watchers,
    "serve-crowd": crowd,
}
