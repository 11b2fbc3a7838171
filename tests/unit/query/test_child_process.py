"""Child processes: their limits, and the process that forks them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from statekit.errors import QueryError
from statekit.query.tables.child_process import ChildLimitError, ForkServer, run_child
from tests.support.greedy_child import Memory
from tests.support.waiting import until


def test_a_child_takes_no_more_memory_than_it_is_given() -> None:
    def answer(size: int) -> bytes:
        return run_child(
            "tests.support.greedy_child",
            Memory(size),
            "count",
            timeout_s=60,
            memory_bytes=2**30,
            advice="count fewer",
        )

    assert answer(10_000) == b"10000"
    with pytest.raises(ChildLimitError, match=r"took more than 1,024 MB of memory: count fewer"):
        answer(2**30)


def test_a_fork_server_forks_a_child_for_each_request_and_starts_again_if_killed() -> None:
    others = set(psutil.Process().children())  # of tests before this one
    with ForkServer(niceness=3) as forks:

        def answer(size: int) -> bytes:
            return run_child(
                "tests.support.greedy_child", Memory(size), "count", timeout_s=60, forks=forks
            )

        assert [answer(size) for size in (1, 2, 3)] == [b"1", b"2", b"3"]
        (server,) = set(psutil.Process().children()) - others
        assert server.nice() - os.nice(0) == 3
        assert server.num_threads() == 1  # others would be missing in its children
        server.kill()
        server.wait(20)
        assert answer(4) == b"4"
    assert set(psutil.Process().children()) == others
    assert answer_alone(5) == b"5"
    assert set(psutil.Process().children()) == others
    with pytest.raises(QueryError, match="were ended"):
        answer(6)


def test_the_modules_of_queries_rankings_and_exports_start_no_threads() -> None:
    """A process with threads cannot be forked safely."""
    modules = ("query.tables.export_in_child", "query.tables.top_in_child", "sql.worker")
    with ForkServer() as forks:
        for module in modules:
            with forks.connect(f"statekit.{module}") as child:
                child.shutdown(socket.SHUT_WR)  # no request
                while child.recv(64):
                    pass
        assert forks.pid is not None
        assert psutil.Process(forks.pid).num_threads() == 1


def test_a_child_whose_parent_sends_no_request_ends() -> None:
    with ForkServer() as forks:
        with forks.connect("tests.support.greedy_child"):
            (child,) = children_of(forks)
        until(lambda: not child.is_running())


def test_requests_at_once_have_a_child_each() -> None:
    with ForkServer() as forks, ThreadPoolExecutor(8) as threads:

        def answer(size: int) -> bytes:
            return run_child(
                "tests.support.greedy_child", Memory(size), "count", timeout_s=60, forks=forks
            )

        assert list(threads.map(answer, range(16))) == [str(size).encode() for size in range(16)]


@pytest.mark.parametrize("reason", ["time", "nobody"])
def test_a_child_that_takes_too_long_or_is_unwanted_is_killed(reason: str, tmp_path: Path) -> None:
    with ForkServer() as forks:

        def answer(size: int, timeout_s: float, *, is_unwanted: bool) -> bytes:
            return run_child(
                "tests.support.greedy_child",
                Memory(size, rests_s=60),
                "count",
                timeout_s=timeout_s,
                is_unwanted=lambda: is_unwanted,
                below=tmp_path,
                forks=forks,
            )

        if reason == "time":
            with pytest.raises(ChildLimitError, match=r"the count took more than 1 s"):
                answer(1, 1, is_unwanted=False)
        else:
            with pytest.raises(QueryError, match="nobody waits for its result"):
                answer(1, 60, is_unwanted=True)
        assert forks.pid is not None
        server = psutil.Process(forks.pid)
        until(lambda: not server.children())
        assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_code_of_a_child_names_itself() -> None:
    with pytest.raises(ChildLimitError, match=r"without an answer \(ValueError: negative"):
        answer_alone(-1)


def test_a_fork_server_ends_with_its_parent() -> None:
    code = (
        "from statekit.query.tables.child_process import ForkServer; import os, signal; "
        "from tests.unit.query.test_child_process import children_of; "
        "forks = ForkServer(); child = forks.connect('tests.support.greedy_child'); "
        "(child,) = children_of(forks); print(forks.pid, child.pid, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    until(lambda: not any(_runs(pid) for pid in pids))


def answer_alone(size: int) -> bytes:
    return run_child("tests.support.greedy_child", Memory(size), "count", timeout_s=60)


def children_of(forks: ForkServer) -> list[psutil.Process]:
    """Wait until there is a child, and return all."""
    assert forks.pid is not None
    server = psutil.Process(forks.pid)
    until(lambda: bool(server.children()))
    return list(server.children())


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
