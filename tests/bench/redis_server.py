"""A Redis server of Debian's package on loopback, and operations on it in the tasks of Spark.

As a user would do it: hiredis, pipelines of 500, values in MessagePack, `appendfsync everysec`.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa

from tests.bench.peers.environments import NotAvailable
from tests.support.ports import free_port

PIPELINE = 500
_STARTING_S = 20
_VALUE = pa.struct([("number", pa.int64()), ("text", pa.string())])
_VALUE_DDL = "struct<number:long,text:string>"

Batches = Iterator[pa.RecordBatch]
Step = Callable[[Batches], Batches]

_packed = msgspec.msgpack.encode
_unpacked = msgspec.msgpack.decode


class Redis:
    """A server, from `with` to its end.

    Parameters:
        home: where it keeps its files.

    Raises:
        NotAvailable: there is no server, or no client.
    """

    def __init__(self, home: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise NotAvailable("there is no redis-server: apt-get install redis-server")
        self.port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": home,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        words = [str(word) for name, of in options.items() for word in (f"--{name}", of)]
        self._server = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        until = time.monotonic() + _STARTING_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self
            if time.monotonic() > until:
                raise NotAvailable("redis-server does not listen")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._server.pid

    def get_many(self, lists: Iterable[Sequence[int]], decode: Callable[[bytes], Any]) -> None:
        """Read the values of each list of keys with one command, and decode them.

        Parameters:
            decode: returns the value of MessagePack.
        """
        client = client_of(self.port)
        for keys in lists:
            assert all(list(map(decode, client.mget(keys))))

    def fill(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """Set values as MessagePack."""
        client = client_of(self.port)
        remaining = iter(pairs)
        while some := list(islice(remaining, PIPELINE)):
            with client.pipeline(transaction=False) as pipeline:
                for key, value in some:
                    pipeline.set(key, _packed(value))
                pipeline.execute()


def client_of(port: int) -> Any:
    """Return a client of the server at a port of loopback."""
    try:
        import hiredis  # noqa: F401  the client uses it if it is there
        import redis
    except ImportError as error:
        raise NotAvailable("there is no client: pip install redis hiredis") from error
    return redis.Redis(port=port)


def operations_of(kind: str, port: int) -> tuple[Step, str]:
    """A function of a partition that runs one kind of operation, and the columns it returns."""
    run, values, ddl = _KINDS[kind]

    def step(batches: Batches) -> Batches:
        client = client_of(port)
        for batch in batches:
            rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            answers = []
            for start in range(0, len(rows), PIPELINE):
                answers += run(client, rows[start : start + PIPELINE])
            columns = [*batch.columns, pa.array(answers, values)]
            yield pa.record_batch(columns, names=[*batch.schema.names, "answer"])

    given = "id long, keys array<long>" if kind == "multi_get" else f"key long, value {_VALUE_DDL}"
    return step, f"{given}, answer {ddl}"


def _put(client: Any, rows: Sequence[Any]) -> list[Any]:
    with client.pipeline(transaction=False) as pipeline:
        for key, value in rows:
            pipeline.set(key, _packed((value["number"], value["text"])))
        pipeline.execute()
    return [value for _, value in rows]


def _get(client: Any, rows: Sequence[Any]) -> list[Any]:
    with client.pipeline(transaction=False) as pipeline:
        for key, _ in rows:
            pipeline.get(key)
        return list(map(value_of, pipeline.execute()))


def _update(client: Any, rows: Sequence[Any]) -> list[Any]:
    """Read, then write: nothing else may write these keys meanwhile."""
    held = dict(zip((key for key, _ in rows), _get(client, rows), strict=True))
    for key, value in rows:
        before = held[key]
        number = (before["number"] if before else 0) + value["number"]
        held[key] = {"number": number, "text": value["text"]}
    _put(client, list(held.items()))
    return [held[key] for key, _ in rows]


def _multi_get(client: Any, rows: Sequence[Any]) -> list[Any]:
    with client.pipeline(transaction=False) as pipeline:
        for _, keys in rows:
            pipeline.mget(keys)
        return [list(map(value_of, found)) for found in pipeline.execute()]


def value_of(packed: bytes | None) -> dict[str, Any] | None:
    return None if packed is None else dict(zip(("number", "text"), _unpacked(packed), strict=True))


_KINDS: dict[str, tuple[Callable[[Any, Sequence[Any]], list[Any]], pa.DataType, str]] = {
    "get": (_get, _VALUE, _VALUE_DDL),
    "get_with": (_get, _VALUE, _VALUE_DDL),
    "put": (_put, _VALUE, _VALUE_DDL),
    "update": (_update, _VALUE, _VALUE_DDL),
    "multi_get": (_multi_get, pa.list_(_VALUE), f"array<{_VALUE_DDL}>"),
}
