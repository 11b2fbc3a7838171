"""Event loops: time that is not waited for, and clients that are opened once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from statekit.calls.event_loops import EventLoop, ThreadLoop, VirtualTimeLoop, event_loop
from statekit.calls.event_loops import with_event_loop as used
from tests.support.http_service import service


async def _after(seconds: float) -> float:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    return asyncio.get_running_loop().time() - began


def test_virtual_time_jumps_over_pauses_and_timeouts() -> None:
    async def hangs() -> None:
        async with asyncio.timeout(1_000_000):
            await asyncio.Event().wait()

    with VirtualTimeLoop() as loop:
        assert loop.run(_after(1_000_000.0)) == 1_000_000.0
        with pytest.raises(TimeoutError):
            loop.run(hangs())


def _slowly_done() -> str:
    time.sleep(0.05)
    return "done"


def test_virtual_time_waits_for_threads() -> None:
    async def in_a_thread() -> str:
        async with asyncio.timeout(1_000):
            return await asyncio.to_thread(_slowly_done)

    with VirtualTimeLoop() as loop:
        assert loop.run(in_a_thread()) == "done"


def test_virtual_time_waits_for_sockets() -> None:
    async def asked(url: str) -> bytes:
        host, _, port = url.removeprefix("http://").partition(":")
        async with asyncio.timeout(1_000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            text = await reader.read()
            writer.close()
            return text

    with service() as served, VirtualTimeLoop() as loop:
        assert loop.run(asked(served.url)).endswith(b"A")


class Opened:
    """Clients that know whether they are open."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails = 0

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[str]:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("refused")
        self.events.append("opened")
        yield "client"
        self.events.append("closed")


@pytest.mark.parametrize("kind", [ThreadLoop, VirtualTimeLoop])
def test_a_client_is_opened_once_and_closed_with_its_loop(kind: type[EventLoop]) -> None:
    opened = Opened()
    client = opened.client

    async def all_at_once(loop: EventLoop) -> list[Any]:
        return await asyncio.gather(*(loop.client(client) for _ in range(5)))

    with kind() as loop:
        assert loop.run(all_at_once(loop)) == ["client"] * 5
        assert loop.run(loop.client(client)) == "client"
        assert opened.events == ["opened"]
    assert opened.events == ["opened", "closed"]


def test_a_client_that_cannot_be_opened_is_tried_again() -> None:
    opened = Opened()
    opened.fails, client = 1, opened.client
    with ThreadLoop() as loop:
        with pytest.raises(ConnectionError, match="refused"):
            loop.run(loop.client(client))
        assert loop.run(loop.client(client)) == "client"


def test_a_loop_goes_on_after_a_task_that_exits() -> None:
    async def exits() -> None:
        task = asyncio.ensure_future(asyncio.sleep(0))
        task.get_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)

    with ThreadLoop() as loop:
        loop.run(exits())
        assert loop.run(_after(0.0)) >= 0


def test_the_loop_of_a_context_comes_before_that_of_the_process() -> None:
    of_process = event_loop()
    with used(VirtualTimeLoop()):
        assert isinstance(event_loop(), VirtualTimeLoop)
    assert event_loop() is of_process
