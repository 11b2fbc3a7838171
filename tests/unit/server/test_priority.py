"""Single reads go before reads of many rows, and before processes of queries."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from statekit.query.replica import state_view
from statekit.query.tables.child_process import ForkServer
from statekit.server.admission import queues as admission
from statekit.server.admission.options import ServerOptions
from statekit.server.admission.queues import Admission
from statekit.server.answers.problems import Problem
from statekit.server.jobs.priority import NICENESS, prefer_single_reads
from tests.support.served import Sale, sell, server
from tests.unit.query.test_child_process import children_of


def test_few_reads_of_many_rows_run_at_a_time() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def read(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return number

    async def all_of_them() -> list[int]:
        queues = Admission(ServerOptions())
        return await asyncio.gather(*(queues.read(read, n) for n in range(10)))

    assert asyncio.run(all_of_them()) == list(range(10))
    assert most == 2


def test_a_read_that_fails_leaves_its_place_to_the_next() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def several() -> str:
        queues = Admission(ServerOptions())
        for _ in range(5):
            with pytest.raises(ValueError, match="no"):
                await queues.read(fail)
        return await queues.read(lambda: "yes")

    assert asyncio.run(several()) == "yes"


def test_single_reads_are_answered_while_pages_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sell(tmp_path / "sales", [Sale("rome", "tea", 400)])
    goes_on = threading.Event()
    page = state_view.StateView.page

    def slow(*args: object, **options: object) -> object:
        goes_on.wait(120)
        return page(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(state_view.StateView, "page", slow)
    with server({"shop": tmp_path / "sales"}) as address:
        statuses: list[int] = []

        def ask() -> None:
            url = f"{address}/shop/sales/total?limit=5"
            statuses.append(httpx.get(url, timeout=120).status_code)

        asking = [threading.Thread(target=ask) for _ in range(50)]  # more than there are threads
        for each in asking:
            each.start()
        for _ in range(20):
            for path in ("total/rome", 'total?key="rome"', "total/rome?epoch=0"):
                found = httpx.get(f"{address}/shop/sales/{path}", timeout=60)
                assert found.json()["value"] == 400
        assert httpx.get(f"{address}/readyz", timeout=60).status_code == 200
        assert statuses == []
        goes_on.set()
        for each in asking:
            each.join()
    assert statuses == [200] * 50


def test_reads_of_many_rows_pause_as_long_as_they_took_while_there_are_single_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read takes 100 s, by the clock of the server."""
    seconds = itertools.count(0, 100)
    monkeypatch.setattr(admission, "stopwatch_s", lambda: float(next(seconds)))
    monkeypatch.setattr(admission, "_PAUSE_MAX_S", 1_000.0)

    async def ended(singles: int) -> int:
        queues = Admission(ServerOptions())

        def read() -> None:
            queues.single_reads += singles

        reads = [asyncio.ensure_future(queues.read(read)) for _ in range(6)]
        done, waiting = await asyncio.wait(reads, timeout=1 if singles else 20)
        for each in waiting:
            each.cancel()
        return len(done)

    assert asyncio.run(ended(singles=0)) == 6
    assert asyncio.run(ended(singles=1)) == 2


def test_threads_give_way_to_the_event_loop_and_collections_leave_out_modules() -> None:
    """A full collection would stop the event loop for as long as it takes."""
    before = sys.getswitchinterval()
    try:
        prefer_single_reads()
        assert sys.getswitchinterval() <= 0.0005
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 10_000
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def test_a_child_has_the_session_of_its_parent() -> None:
    """Linux shares the machine between sessions first, whatever the priorities in them are."""
    with ForkServer(NICENESS) as forks, forks.connect("tests.support.greedy_child"):
        pid = children_of(forks)[0].pid
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == forks.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) >= NICENESS


def test_a_place_of_a_queue_is_free_for_the_next_request_after_it_is_left() -> None:
    queues = Admission(ServerOptions(watchers=1))
    leave = queues.enter("watchers")
    with pytest.raises(Problem, match="too many watch already") as refused:
        queues.enter("watchers")
    assert refused.value.headers == {"Retry-After": "10"}
    leave()
    queues.enter("watchers")


def test_a_token_has_a_part_of_the_places_of_a_queue() -> None:
    queues = Admission(ServerOptions(waits=3, waits_of_token=1))
    with queues.place("waits", "one"), queues.place("waits", "two"):
        with pytest.raises(Problem, match="for this token"):
            queues.enter("waits", "one")
        assert queues.taken("waits") == 2
    assert queues.taken("waits") == 0
