from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from statekit.working_copy.uploader import Going, Uploader, uploader
from tests.support.timeouts import PATIENCE_S


def note(done: list[int], number: int, going: Going) -> None:
    done.append(number)


def test_work_is_done_in_order_and_drain_waits_for_it() -> None:
    made, done = Uploader(), list[int]()
    for number in range(20):
        assert made.submit(f"work {number}", partial(note, done, number))
    assert made.drain(30)
    assert done == list(range(20))
    made.close()


def test_queued_work_is_not_queued_twice() -> None:
    made, release = Uploader(), threading.Event()
    assert made.submit("slow", lambda going: release.wait(PATIENCE_S))
    assert not made.submit("slow", lambda going: None)
    assert not made.drain(0.01)
    release.set()
    assert made.drain(30)
    assert made.submit("slow", lambda going: None)
    made.close()


def test_a_failure_is_reported_and_the_next_work_runs(caplog: pytest.LogCaptureFixture) -> None:
    made, done = Uploader(), list[str]()

    def fail(going: Going) -> None:
        raise OSError("the store is gone")

    with caplog.at_level(logging.WARNING, "statekit.uploader"):
        made.submit("first", fail)
        made.submit("second", lambda going: done.append("second"))
        assert made.drain(30)
    assert done == ["second"]
    assert "first failed and is tried again with a later epoch" in caplog.text
    assert "the store is gone" in caplog.text
    made.close()


def test_closing_ends_work_that_takes_long() -> None:
    made, begun = Uploader(), threading.Event()

    def endless(going: Going) -> None:
        begun.set()
        while True:
            going()
            time.sleep(0.001)

    made.submit("endless", endless)
    made.submit("never", lambda going: pytest.fail("it was to be left"))
    assert begun.wait(PATIENCE_S)
    made.close()
    assert not made.submit("late", lambda going: None)
    assert made.drain(0)


PROGRAM = """
import os, sys, time
from statekit.working_copy.uploader import uploader

def endless(going):
    while True:
        going()
        time.sleep(0.001)

uploader().submit("endless", endless)
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        done = []
        assert uploader().submit("of the child", lambda going: done.append(1))
        assert uploader().drain(30)
        sys.exit(7 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("end")
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_process_ends_although_an_upload_runs(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_there_is_one_for_each_process() -> None:
    assert uploader() is uploader()
    assert uploader()._pid == os.getpid()


def test_work_in_a_removed_directory_is_dropped() -> None:
    made, begun, done = Uploader(), threading.Event(), list[int]()

    def endless(going: Going) -> None:
        begun.set()
        while True:
            going()
            time.sleep(0.001)

    made.submit("/a/1", endless)
    made.submit("/a/2", lambda going: pytest.fail("it was to be left"))
    made.submit("/b/1", partial(note, done, 1))
    assert begun.wait(PATIENCE_S)
    made.give_up("/a")
    assert made.drain(30)
    assert done == [1]
    assert made.submit("/a/1", partial(note, done, 2))
    assert made.drain(30)
    assert done == [1, 2]
    made.close()


def test_work_that_fails_after_it_was_given_up_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, begun, is_gone = Uploader(), threading.Event(), threading.Event()

    def stuck(going: Going) -> None:
        begun.set()
        assert is_gone.wait(PATIENCE_S)
        raise FileNotFoundError("its files were removed")

    with caplog.at_level(logging.WARNING, "statekit.uploader"):
        made.submit("/a/1", stuck)
        assert begun.wait(PATIENCE_S)
        assert not made.give_up("/a", timeout_s=0.001)
        is_gone.set()
        assert made.give_up("/a")
        assert made.drain(PATIENCE_S)
        made.submit("/a/2", stuck)
        assert made.drain(PATIENCE_S)
    assert "/a/1" not in caplog.text
    assert "/a/2 failed and is tried again" in caplog.text
    made.close()


def test_work_that_gives_itself_up_does_not_wait_for_itself() -> None:
    made, answers = Uploader(), list[bool]()
    made.submit("/a/1", lambda going: answers.append(made.give_up("/a")))
    assert made.drain(PATIENCE_S)
    assert answers == [False]
    made.close()
