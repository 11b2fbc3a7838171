"""Many watchers of one state: `python -m tests.bench.watchers ADDRESS COUNT SECONDS`.

Prints, as JSON, how long after the beginning of its epoch each `epoch` event arrived, in seconds,
and how many epochs and changes the watcher with the fewest has seen.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import time

_REQUEST = "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"


class _Watcher(asyncio.Protocol):
    """One connection. It parses no more than the ends of epochs."""

    def __init__(self, path: str) -> None:
        self.lags: list[float] = []
        self.changes = 0
        self._path = path
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_REQUEST.format(self._path).encode())

    def data_received(self, data: bytes) -> None:
        now = time.time()
        self.changes += data.count(b"event: change")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if b'"processing_time":"' in line and line.startswith(b"data: "):
                began = json.loads(line[6:])["processing_time"]
                self.lags.append(now - dt.datetime.fromisoformat(began).timestamp())


async def watch(port: int, path: str, count: int, seconds: float) -> list[_Watcher]:
    loop, watchers = asyncio.get_running_loop(), [_Watcher(path) for _ in range(count)]
    opened = []
    for watcher in watchers:
        opened.append(await loop.create_connection(lambda own=watcher: own, "127.0.0.1", port))  # type: ignore[misc]
    await asyncio.sleep(seconds / 4)  # all have the rows they begin with
    for watcher in watchers:
        watcher.lags.clear()
        watcher.changes = 0
    await asyncio.sleep(seconds)
    for transport, _ in opened:
        transport.close()
    return watchers


def main(address: str, count: str, seconds: str) -> None:
    found = asyncio.run(
        watch(
            int(address.rpartition(":")[2]),
            "/store/store/value?rows=false",
            int(count),
            float(seconds),
        )
    )
    lags = sorted(lag for watcher in found for lag in watcher.lags)
    fewest = min(len(watcher.lags) for watcher in found)
    changes = min(watcher.changes for watcher in found)
    print(json.dumps({"lags": lags, "fewest": fewest, "changes": changes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
