"""The registry of submitted jobs: changes of several servers at once, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.service.job_record import (
    DoneOperation,
    JobEnd,
    PendingOperation,
    RunChoice,
    SubmittedJob,
)
from statekit.service.registry import JobRegistry

RUN = RunChoice(checkpoint="/data/shop")


def test_changes_of_several_servers_are_all_kept(tmp_path: Path) -> None:
    JobRegistry.at(tmp_path).submit("shop", "{}", RUN)

    def restart() -> None:
        own = JobRegistry.at(tmp_path)
        for _ in range(20):
            own.change("shop", SubmittedJob.restarted)
            own.collect("shop")

    threads = [threading.Thread(target=restart) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = JobRegistry.at(tmp_path)
    assert (found.job("shop").generation, found.job("shop").version) == (80, 80)
    assert len(list(found.store.names("submitted/shop"))) == 20


def test_the_same_submission_is_made_once_and_another_one_is_refused() -> None:
    registry = JobRegistry(Store.in_memory())
    first = registry.submit("shop", "{}", RUN)
    assert registry.submit("shop", "{}", RUN) == first
    with pytest.raises(sk.StateTypeError, match="exists with another document"):
        registry.submit("shop", "[]", RUN)
    with pytest.raises(sk.StateTypeError, match="each job needs one of its own"):
        registry.submit("other", "{}", RunChoice(checkpoint="/data/shop/inner"))
    with pytest.raises(sk.StateTypeError, match="cannot be named"):
        registry.submit("../shop", "{}", RUN)
    with pytest.raises(sk.QueryError, match="no job absent was submitted"):
        registry.job("absent")


def test_a_submission_is_known_after_its_first_record_was_collected() -> None:
    registry = JobRegistry(Store.in_memory())
    registry.submit("shop", "{}", RUN)
    for _ in range(30):
        registry.change("shop", SubmittedJob.restarted)
    registry.collect("shop")
    assert registry.submit("shop", "{}", RUN).generation == 30
    with pytest.raises(sk.StateTypeError, match="exists with another document"):
        registry.submit("shop", "[]", RUN)


def test_a_job_that_does_not_run_is_deleted_and_its_name_is_free() -> None:
    registry = JobRegistry(Store.in_memory())
    registry.submit("shop", '{"old": 1}', RUN)
    with pytest.raises(sk.StateTypeError, match="stop it first"):
        registry.change("shop", SubmittedJob.deleted)
    registry.change("shop", SubmittedJob.stopped)
    before = registry.change("shop", SubmittedJob.deleted)
    with pytest.raises(sk.StateTypeError, match="submit it again after that"):
        registry.submit("shop", '{"old": 1}', RUN)
    with pytest.raises(sk.StateTypeError, match="submit it again after that"):
        registry.change("shop", lambda job: job.kept().started())
    registry.remove("shop")
    assert registry.jobs() == {}
    with pytest.raises(sk.QueryError, match="no job shop was submitted"):
        registry.change("shop", SubmittedJob.started)
    (left,) = registry.store.names("submitted/shop")
    assert b"old" not in registry.store.read(left)
    again = registry.submit("shop", '{"new": 1}', RUN)
    assert (again.desired, again.generation) == ("running", before.generation + 1)
    assert registry.jobs() == {"shop": again}
    assert registry.submit("shop", '{"new": 1}', RUN) == again


def test_deleted_jobs_are_submitted_once_by_many_servers(tmp_path: Path) -> None:
    first = JobRegistry.at(tmp_path)
    first.submit("shop", "{}", RUN)
    first.change("shop", SubmittedJob.stopped)
    first.change("shop", SubmittedJob.deleted)
    first.remove("shop")
    found: list[object] = []

    def submit(number: int) -> None:
        with contextlib.suppress(sk.StateTypeError):  # it exists with another document
            JobRegistry.at(tmp_path).submit("shop", f'{{"number": {number}}}', RUN)
            found.append(number)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = found
    assert JobRegistry.at(tmp_path).job("shop").document == f'{{"number": {winner}}}'


def test_an_ended_job_runs_again_only_if_it_is_asked_to() -> None:
    registry = JobRegistry(Store.in_memory())
    registry.submit("shop", "{}", RUN)
    end = JobEnd(generation=0, failed=True, reason="it cannot", at_us=0)
    assert registry.change("shop", lambda job: job.ended(end)).has_ended
    assert registry.change("shop", SubmittedJob.stopped).has_ended
    started = registry.change("shop", SubmittedJob.started)
    assert (started.has_ended, started.generation, started.desired) == (False, 1, "running")
    assert registry.change("shop", SubmittedJob.started) == started
    assert registry.change("shop", lambda job: job.ended(end)) == started  # of another generation
    assert registry.change("shop", lambda job: job.rescaled(7)).run.parallelism == 7


def test_one_operation_at_a_time_and_each_ends_once() -> None:
    registry = JobRegistry(Store.in_memory())
    registry.submit("shop", "{}", RUN)
    back = PendingOperation(kind="rollback", id=unique_id(), epoch=3)
    registry.change("shop", lambda job: job.operated(back))
    assert registry.change("shop", lambda job: job.operated(back)).version == 1
    other = PendingOperation(kind="rollback", id=unique_id(), epoch=4)
    with pytest.raises(sk.StateTypeError, match="the rollback of job shop is not done yet"):
        registry.change("shop", lambda job: job.operated(other))
    done = DoneOperation(operation=back, error=None, at_us=0)
    for _ in range(2):
        found = registry.change("shop", lambda job: job.after(done))
        assert (found.operation, found.done, found.generation) == (None, done, 1)


def test_a_damaged_record_does_not_hide_the_other_jobs(tmp_path: Path) -> None:
    registry = JobRegistry.at(tmp_path)
    registry.submit("bank", "{}", RunChoice(checkpoint="/data/bank"))
    registry.submit("shop", "{}", RUN)
    (tmp_path / "submitted" / "bank" / f"{0:020d}.json").write_text("{")
    fresh = JobRegistry.at(tmp_path)
    assert list(fresh.jobs()) == ["shop"]
    with pytest.raises(sk.CorruptCheckpointError):
        fresh.job("bank")
