"""Leadership: at most one server acts, whatever happens to the others."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from statekit.checkpoint.store import Store
from statekit.clock import sleep_s
from statekit.service.leadership import Leadership
from tests.support.killable_processes import pipe, start
from tests.support.waiting import until


def test_one_of_several_servers_leads_and_the_next_one_follows_at_once(tmp_path: Path) -> None:
    servers = [Leadership(Store(tmp_path)) for _ in range(3)]
    for server in servers:
        server.look()
    assert [server.is_leader for server in servers] == [True, False, False]
    servers[0].close()
    for server in servers[1:]:
        server.look()
    assert [server.is_leader for server in servers] == [False, True, False]


def test_a_leader_that_is_too_slow_acts_no_more_before_the_next_one_does(tmp_path: Path) -> None:
    slow, other = Leadership(Store(tmp_path), term_s=0.3), Leadership(Store(tmp_path), term_s=0.3)
    slow.look()
    assert slow.is_leader

    def is_taken() -> bool:
        other.look()
        assert not (slow.is_leader and other.is_leader)
        return other.is_leader

    until(is_taken)
    slow.look()
    assert not slow.is_leader


def test_a_leader_that_renews_its_term_keeps_it(tmp_path: Path) -> None:
    leader, other = Leadership(Store(tmp_path), term_s=0.5), Leadership(Store(tmp_path), term_s=0.5)
    for _ in range(30):
        leader.look()
        other.look()
        assert (leader.is_leader, other.is_leader) == (True, False)
        sleep_s(0.05)


def lead(place: Path, reports: Connection) -> None:
    leadership = Leadership(Store(place))
    leadership.look()
    reports.send(leadership.is_leader)
    while True:
        sleep_s(1)


def test_a_killed_leader_is_followed_at_once_on_its_machine(tmp_path: Path) -> None:
    reports, own = pipe()
    process = start(lead, tmp_path, own)
    assert reports.recv()
    other = Leadership(Store(tmp_path))
    other.look()
    assert not other.is_leader
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    other.look()
    assert other.is_leader


def test_a_damaged_term_does_not_last_for_ever(tmp_path: Path) -> None:
    (tmp_path / "leader").mkdir()
    (tmp_path / "leader" / f"{7:020d}.json").write_text("{")
    leadership = Leadership(Store(tmp_path), term_s=0.2)
    leadership.look()
    assert not leadership.is_leader

    def leads() -> bool:
        leadership.look()
        return leadership.is_leader

    until(leads)
    assert leadership.term == 8
