"""Child processes: the limit of their memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from statekit.query.tables.child_process import ChildLimitError, WarmChild, run_child
from tests.support.greedy_child import Memory


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


def test_a_warm_child_answers_one_request_and_the_next_one_is_started() -> None:
    warm = WarmChild("tests.support.greedy_child", niceness=3)
    others = set(psutil.Process().children())  # of tests before this one

    def answer(size: int) -> bytes:
        return run_child(
            "tests.support.greedy_child", Memory(size), "count", timeout_s=60, warm=warm
        )

    try:
        assert [answer(size) for size in (1, 2, 3)] == [b"1", b"2", b"3"]
        (waiting,) = set(psutil.Process().children()) - others
        assert waiting.nice() - os.nice(0) in (0, 3)  # it may be starting
        waiting.kill()
        waiting.wait(20)
        assert answer(4) == b"4"  # another one is started in its place
    finally:
        warm.close()
    assert set(psutil.Process().children()) == others
    assert answer(5) == b"5"
    assert set(psutil.Process().children()) == others


def test_a_warm_child_ends_with_its_parent() -> None:
    code = (
        "from statekit.query.tables.child_process import WarmChild; import os, signal; "
        "child = WarmChild('tests.support.greedy_child').take(); print(child.pid, flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    ends = time.monotonic() + 30
    while _runs(int(done.stdout)):
        assert time.monotonic() < ends
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
