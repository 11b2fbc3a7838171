"""Sources for trying things: records at a rate, and lines of a socket."""

from __future__ import annotations

import datetime as dt
import logging
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.errors import ConnectorError, StateTypeError
from statekit.records.union import records_of
from statekit.sources import Source


class Tick(NamedTuple):
    number: int
    at: dt.datetime


class Text(NamedTuple):
    value: str


class Order(NamedTuple):
    number: int


def read(source: Source, cls: Any, start: Any, end: Any) -> list[Any]:
    decode = source.decoder(records_of(cls, where="test"), "test")
    batches = source.read("all", start["all"], end["all"])
    return [record for batch in batches for record in decode("all", batch).records]


def test_a_rate_gives_each_number_its_time_and_the_same_again() -> None:
    source = sk.sources.rate(3)
    begun = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    start = {"all": {"begin": int(begun.timestamp() * 1e6), "number": 0}}
    end = source.latest(start, 4, 0.0)
    after = source.latest(end, 2, 0.0)
    ticks = read(source, Tick, start, end) + read(source, Tick, end, after)
    assert [tick.number for tick in ticks] == list(range(6))
    since = [(tick.at - begun) // dt.timedelta(microseconds=1) for tick in ticks]
    assert since == [0, 333_333, 666_666, 1_000_000, 1_333_333, 1_666_666]
    assert read(sk.sources.rate(3), Tick, end, after) == ticks[4:]


def test_a_rate_waits_for_the_next_record_and_reports_its_lag() -> None:
    source = sk.sources.rate(50)
    start = source.earliest()
    first = source.latest(start, 100, 0.0)
    assert first["all"]["number"] >= 1
    second = source.latest(first, 1, 1.0)
    assert second["all"]["number"] == first["all"]["number"] + 1
    assert source.lag({"all": {"begin": 0, "number": 0}})
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(StateTypeError, match="number of records per second"):
            sk.sources.rate(wrong)


def test_a_job_counts_what_a_rate_gives(tmp_path: Any) -> None:
    job = sk.Job("ticks")
    job.source("ticks", Tick, sk.sources.rate(4)).process(numbered).sink("counts")
    runs = [job.run(checkpoint=tmp_path / "checkpoint", epoch_size=500) for _ in range(2)]
    numbers: list[Any] = [number for run in runs for number in run["counts"]]
    assert sorted(numbers) == list(range(len(numbers)))


@sk.process(key="number")
def numbered(tick: Tick, seen: sk.ValueState[int]) -> Iterator[int]:
    assert seen.get() is None
    seen.update(1)
    yield tick.number


@contextmanager
def server(*connections: bytes) -> Iterator[int]:
    """A server that sends one of the texts to each client, then closes; then it sends no more."""
    texts = iter(connections)
    done = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            text = next(texts, None)
            if text is None:
                done.wait()
            else:
                self.request.sendall(text)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as tcp:
        thread = threading.Thread(target=tcp.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield tcp.server_address[1]
        finally:
            done.set()
            tcp.shutdown()
            thread.join()


@contextmanager
def opened(source: Source) -> Iterator[Source]:
    source.open(reads_here=True)
    try:
        yield source
    finally:
        source.close()


def collect(source: Source, cls: Any, count: int, limit: int = 2) -> list[Any]:
    """Read so many records, in epochs that run twice."""
    at, found = source.earliest(), list[Any]()
    while len(found) < count:
        end = source.latest(at, limit, 10.0)
        assert end["all"] - at["all"] <= limit
        some = read(source, cls, at, end)
        assert some == read(source, cls, at, end)
        found += some
        at = end
    return found


def test_lines_of_a_socket_are_read_and_a_server_that_closes_is_connected_again() -> None:
    texts = (b'{"number":1}\n\r\n{"number":2}\r\n{"num', b'{"number":3}\n{"number":4}')
    with server(*texts) as port, opened(sk.sources.socket("127.0.0.1", port)) as source:
        assert collect(source, Order, 4) == [Order(n) for n in (1, 2, 3, 4)]
        assert source.latest({"all": 5}, 5, 0.01) == {"all": 5}, "with the line that is no JSON"
    with server(b"a b\nc\n") as port:
        source = sk.sources.socket("127.0.0.1", port, "text")
        with opened(source):
            assert collect(source, Text, 2) == [Text("a b"), Text("c")]


def test_lines_that_a_crash_lost_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with server() as port, opened(sk.sources.socket("127.0.0.1", port)) as source:
        assert list(source.read("all", 3, 5)) == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "2 lines of an epoch that had begun before a crash are lost" in record.getMessage()


def test_a_server_that_does_not_answer_and_spark_are_refused() -> None:
    with server() as port:
        pass
    source = sk.sources.socket("127.0.0.1", port, connect_s=0.1)
    with pytest.raises(ConnectorError, match=rf"127\.0\.0\.1:{port}: cannot connect"):
        source.open(reads_here=True)
    with pytest.raises(StateTypeError, match="tasks of Spark cannot read it"):
        source.open(reads_here=False)
