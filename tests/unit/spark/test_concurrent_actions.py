"""Actions that run beside each other: their order, their number, and what errors do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from statekit.spark.concurrent_actions import Action, run_all

PATIENCE_S = 30


class Journal:
    """When actions began and ended, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.most = self._running = 0
        self._lock = threading.Lock()

    def action(self, name: str, *after: str, then: Callable[[], object] = lambda: None) -> Action:
        def run() -> None:
            with self._lock:
                self._running += 1
                self.most = max(self.most, self._running)
                self.lines.append(f"{name} begins")
            try:
                then()
            finally:
                with self._lock:
                    self._running -= 1
                    self.lines.append(f"{name} ends")

        return Action(name, run, frozenset(after))

    def is_before(self, one: str, other: str) -> bool:
        return self.lines.index(one) < self.lines.index(other)


def test_actions_that_do_not_need_each_other_run_at_the_same_time() -> None:
    both, journal = threading.Barrier(2), Journal()
    run_all([journal.action(name, then=lambda: both.wait(PATIENCE_S)) for name in "ab"])
    assert journal.most == 2


def test_an_action_begins_after_those_that_it_needs() -> None:
    journal = Journal()
    run_all(
        [
            journal.action("source"),
            journal.action("left", "source"),
            journal.action("right", "source"),
            journal.action("join", "left", "right"),
        ]
    )
    for name in ("left", "right"):
        assert journal.is_before("source ends", f"{name} begins")
        assert journal.is_before(f"{name} ends", "join begins")


def test_no_more_run_at_a_time_than_may() -> None:
    journal, pause = Journal(), threading.Event()
    actions = [journal.action(str(n), then=lambda: pause.wait(0.01)) for n in range(9)]
    run_all(actions, at_once=3)
    assert journal.most <= 3
    assert len(journal.lines) == 18


def test_a_single_action_runs_in_the_thread_of_the_caller() -> None:
    threads: list[threading.Thread] = []
    run_all([Action("a", lambda: threads.append(threading.current_thread()))])
    assert threads == [threading.current_thread()]


def test_after_an_error_nothing_begins_and_everything_that_runs_ends() -> None:
    journal, failed = Journal(), threading.Event()

    def fail() -> None:
        failed.set()
        raise ValueError("b failed")

    actions = [
        journal.action("a", then=lambda: failed.wait(PATIENCE_S)),
        journal.action("b", then=fail),
        journal.action("c", "a"),
    ]
    with pytest.raises(ValueError, match="b failed"):
        run_all(actions)
    assert "a ends" in journal.lines
    assert "c begins" not in journal.lines


def test_of_several_errors_the_first_in_the_given_order_is_raised() -> None:
    second = threading.Event()

    def fail_late() -> None:
        second.wait(PATIENCE_S)
        raise ValueError("first")

    def fail() -> None:
        second.set()
        raise ValueError("second")

    journal = Journal()
    with pytest.raises(ValueError, match="first"):
        run_all([journal.action("a", then=fail_late), journal.action("b", then=fail)])
