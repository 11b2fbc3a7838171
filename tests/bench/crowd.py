"""Many clients of one server. Most read single keys; others read files, pages, many keys and SQL:
`python -m tests.bench.crowd ADDRESS CLIENTS SECONDS KEYS PAUSE`. Those that read single keys pause
after each answer, for PAUSE seconds on average.

Prints, as JSON, the seconds that each single read took, in order, the number of answers of each
kind, and what was no answer. It needs nothing of statekit, so that it takes little of the machine.
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import sys
import time

KINDS = {"single": 170, "page": 14, "many": 10, "file": 4, "sql": 2}
"""Of 200 clients, how many do what."""

_ANSWERED = {200, 206}
_BUSY = {410, 429, 503}  # 410: the job commits so often that the epoch is gone


def request_of(kind: str, keys: int) -> bytes:
    """Return a request of a kind, for random keys."""
    key = random.randrange(keys)
    body = b""
    path = {
        "single": f"/store/store/value/{key}",
        "page": f"/store/store/value?start={key}&limit=1000",
        "many": "/store/store/value/query",
        "file": "/store/store/value.parquet",
        "sql": "/sql",
    }[kind]
    if kind == "many":
        body = json.dumps({"keys": [random.randrange(keys) for _ in range(500)]}).encode()
    elif kind == "sql":
        sql = "select count(*), max(number) from store.value"
        body = json.dumps({"job": "store", "sql": sql}).encode()
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request, read its answer, and return its status. A redirect is followed."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    if "content-length" in fields:
        await reader.readexactly(int(fields["content-length"]))
    elif fields.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    status = int(head[0].split()[1])
    if status in (302, 303, 307, 308):
        place = fields["location"]
        return await _ask(
            reader, writer, f"GET {place} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )
    return status


async def _client(
    kind: str, port: int, keys: int, until: float, pause: float, found: _Found
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    while time.perf_counter() < until:
        began = time.perf_counter()
        status = await _ask(reader, writer, request_of(kind, keys))
        if status in _ANSWERED:
            found.seconds[kind].append(time.perf_counter() - began)
        else:
            found.others[f"{kind} {status}"] += 1
            if status not in _BUSY:
                raise RuntimeError(f"{kind}: {status}")
            await asyncio.sleep(0.5)
        if pause and kind == "single":
            await asyncio.sleep(2 * pause * random.random())
    writer.close()


class _Found:
    """What all clients have seen."""

    def __init__(self) -> None:
        self.seconds = collections.defaultdict[str, list[float]](list)
        self.others = collections.Counter[str]()


async def crowd(port: int, clients: int, seconds: float, keys: int, pause: float) -> _Found:
    """Let clients read for a while."""
    found, until = _Found(), time.perf_counter() + seconds
    of_all = sum(KINDS.values())
    kinds = [kind for kind, count in KINDS.items() for _ in range(count * clients // of_all)]
    await asyncio.gather(*(_client(kind, port, keys, until, pause, found) for kind in kinds))
    return found


def main(address: str, clients: str, seconds: str, keys: str, pause: str) -> None:
    port = int(address.rpartition(":")[2])
    found = asyncio.run(crowd(port, int(clients), float(seconds), int(keys), float(pause)))
    answers = {kind: len(each) for kind, each in found.seconds.items()}
    single = sorted(found.seconds["single"])
    print(json.dumps({"single": single, "answers": answers, "others": found.others}))


if __name__ == "__main__":
    main(*sys.argv[1:])
