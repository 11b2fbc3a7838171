"""The supervisor: processes are what the records of their jobs ask for."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.clock import unique_id
from statekit.service.job_log import last_lines
from statekit.service.job_record import PendingOperation, RunChoice, SubmittedJob
from statekit.service.registry import JobRegistry
from statekit.service.run_report import JobProgress
from statekit.service.submission_limits import SubmissionLimits
from statekit.service.supervised_job import ObservedJob, has_savepoint
from statekit.service.supervisor import ObservedJobs, Supervisor
from tests.support.submitted_jobs import MODULE, document, order, totals
from tests.support.waiting import until


def limits(home: Path, **narrower: list[str]) -> SubmissionLimits:
    below = [str(home)]
    given = {"modules": [MODULE], "checkpoints_below": below, "data_below": below, **narrower}
    return SubmissionLimits(**given)


@contextmanager
def supervised(home: Path, **narrower: list[str]) -> Iterator[Supervisor]:
    registry = JobRegistry.at(home / "registry")
    with Supervisor(registry, home / "work", limits(home, **narrower)) as running:
        running.start()
        yield running


def submit(supervisor: Supervisor, home: Path, **options: object) -> None:
    run = RunChoice.model_validate({"checkpoint": str(home / "state"), **options})
    supervisor.registry.submit("shop", document(home), run)
    supervisor.look()


def change(supervisor: Supervisor, change: object) -> None:
    assert callable(change)
    supervisor.registry.change("shop", change)
    supervisor.look()


def shop(supervisor: Supervisor) -> ObservedJob:
    return supervisor.observed().get("shop") or ObservedJob(status="starting")


def parallelism(checkpoint: Path) -> int:
    repository = Repository(checkpoint)
    last = repository.latest_epoch()
    assert last is not None
    return repository.manifest(last).parallelism


def test_a_job_runs_stops_goes_on_and_its_process_is_replaced(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: totals(tmp_path) == [("ada", 5)])
        until(lambda: shop(running).progress is not None)
        first = shop(running)
        assert first.progress is not None
        assert (first.status, first.progress.epoch, first.failures) == ("running", 0, 0)
        change(running, SubmittedJob.stopped)
        until(lambda: shop(running).status == "stopped")
        order(tmp_path, "b", ("ada", 1))
        change(running, SubmittedJob.started)
        until(lambda: totals(tmp_path) == [("ada", 5), ("ada", 6)])
        change(running, lambda job: job.rescaled(3))
        order(tmp_path, "c", ("ada", 1))
        until(lambda: totals(tmp_path) == [("ada", 5), ("ada", 6), ("ada", 7)])
        # The output of an epoch is visible just before its commit.
        until(lambda: parallelism(tmp_path / "state") == 3)
    assert running.registry.job("shop").desired == "running"


def test_a_killed_process_is_started_again_and_a_useless_start_is_not(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: shop(running).status == "running")
        killed = shop(running).process
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        order(tmp_path, "b", ("bob", 1))
        until(lambda: totals(tmp_path) == [("ada", 5), ("bob", 1)])
        until(lambda: shop(running).status == "running")
        assert (shop(running).failures, shop(running).last_failure) == (1, "ended by SIGKILL")
        change(running, lambda job: job.rescaled(20_000))
        until(lambda: shop(running).status == "failed")
        reason = shop(running).last_failure
        assert reason is not None
        assert "RescaleError" in reason
        assert running.registry.job("shop").has_ended
        change(running, lambda job: job.rescaled(1))
        until(lambda: shop(running).status == "running")


def test_a_job_goes_back_to_an_epoch_and_writes_a_savepoint(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        for number, name in enumerate("abc"):
            order(tmp_path, name, ("ada", 1))
            until(lambda: len(totals(tmp_path)) == number + 1)  # noqa: B023
        saved = PendingOperation(kind="savepoint", id=unique_id(), savepoint="first")
        change(running, lambda job: job.operated(saved))
        until(lambda: running.registry.job("shop").done is not None)
        assert has_savepoint(str(tmp_path / "state"), "first")
        back = PendingOperation(kind="rollback", id=unique_id(), epoch=0)
        change(running, lambda job: job.operated(back))
        until(lambda: running.registry.job("shop").operation is None)
        done = running.registry.job("shop").done
        assert done is not None
        assert (done.operation, done.error) == (back, None)
        # The two files after that epoch are read again.
        until(lambda: totals(tmp_path) == [("ada", 1), ("ada", 2), ("ada", 3)])
        wrong = PendingOperation(kind="rollback", id=unique_id(), epoch=99)
        change(running, lambda job: job.operated(wrong))
        until(lambda: running.registry.job("shop").operation is None)
        done = running.registry.job("shop").done
        assert done is not None
        assert done.error is not None
        assert "99" in done.error
        assert "RestoreError" in done.error
        assert last_lines(tmp_path / "work" / "shop", 1000)


def test_a_job_that_reads_its_input_once_ends_and_a_failing_one_is_given_up(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        document(tmp_path)
        order(tmp_path, "a", ("ada", 5))
        submit(running, tmp_path, follow=False, restart="1 in 1 minute")
        until(lambda: shop(running).status == "ended")
        order(tmp_path, "b", ("unlucky", 5))
        change(running, SubmittedJob.started)
        until(lambda: shop(running).status == "failed")
        assert shop(running).failures == 2
        assert "an unlucky order" in (shop(running).last_failure or "")
        assert totals(tmp_path) == [("ada", 5)]


@pytest.mark.parametrize("customer", ["forking", "leaving"])
def test_a_process_that_a_job_has_left_does_not_keep_it_from_a_restart(
    tmp_path: Path, customer: str
) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path, restart="1 in 1 minute")
        order(tmp_path, "a", (customer, 1))
        until(lambda: shop(running).failures == 2, 25)  # before the child ends
        until(lambda: shop(running).status == "failed", 20)
        assert shop(running).last_failure == "it ended with exit code 7"


def test_a_job_whose_checkpoint_has_vanished_is_not_started(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: running.registry.job("shop").checkpoint_id is not None, 40)
    (tmp_path / "state").rename(tmp_path / "unmounted")
    with supervised(tmp_path) as running:
        until(lambda: shop(running).status == "failed", 40)
        assert "Mount or restore the checkpoint" in (shop(running).last_failure or "")
        assert totals(tmp_path) == [("ada", 5)]
        (tmp_path / "state").mkdir(exist_ok=True)  # the place where a volume is mounted
        change(running, SubmittedJob.started)
        until(lambda: shop(running).failures == 2, 40)
        (tmp_path / "state").rmdir()
        (tmp_path / "unmounted").rename(tmp_path / "state")
        order(tmp_path, "b", ("ada", 1))
        change(running, SubmittedJob.started)
        until(lambda: totals(tmp_path) == [("ada", 5), ("ada", 6)], 40)


def test_a_job_begins_anew_if_its_user_says_so(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: running.registry.job("shop").checkpoint_id is not None, 40)
        change(running, SubmittedJob.stopped)
        until(lambda: shop(running).status == "stopped")
        first = running.registry.job("shop").checkpoint_id
        (tmp_path / "state").rename(tmp_path / "before")
        change(running, SubmittedJob.begun_anew)
        until(lambda: running.registry.job("shop").checkpoint_id not in (None, first), 40)


def test_a_deleted_job_leaves_its_checkpoint_and_another_one_may_have_its_name(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: shop(running).progress is not None, 40)
        change(running, SubmittedJob.stopped)  # its process has not ended yet
        change(running, SubmittedJob.deleted)
        until(lambda: running.registry.jobs() == {}, 40)
        assert not running.directory_of("shop").exists()
        assert Repository(tmp_path / "state").latest_epoch() == 0
        until(lambda: "shop" not in running.observed(), 40)
        run = RunChoice(checkpoint=str(tmp_path / "other"))
        running.registry.submit("shop", document(tmp_path), run)
        running.look()
        until(lambda: shop(running).progress is not None, 40)
        assert shop(running).failures == 0
        assert Repository(tmp_path / "other").latest_epoch() == 0


def test_a_job_is_deleted_by_the_next_leader_if_the_one_before_was_killed(tmp_path: Path) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        until(lambda: shop(running).status == "running", 40)
    registry = JobRegistry.at(tmp_path / "registry")
    registry.change("shop", SubmittedJob.stopped)
    registry.change("shop", SubmittedJob.deleted)
    with supervised(tmp_path) as running:
        until(lambda: registry.jobs() == {}, 40)
        assert not running.directory_of("shop").exists()


@pytest.mark.parametrize(
    ("narrower", "reason"),
    [
        ({"modules": ["json"]}, "tests.support.submitted_jobs"),
        ({"checkpoints_below": ["/elsewhere"]}, "allowed are /elsewhere (--checkpoints-below)"),
        ({"data_below": ["/elsewhere"]}, "allowed are /elsewhere (--data-below)"),
    ],
    ids=lambda of: next(iter(of)) if isinstance(of, dict) else "",
)
def test_a_job_that_a_server_does_not_allow_any_more_is_not_run(
    tmp_path: Path, narrower: dict[str, list[str]], reason: str
) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        order(tmp_path, "a", ("ada", 5))
        until(lambda: running.registry.job("shop").checkpoint_id is not None, 40)
    order(tmp_path, "b", ("ada", 1))
    with supervised(tmp_path, **narrower) as running:
        until(lambda: shop(running).status == "failed", 40)
        assert reason in (shop(running).last_failure or "")
        back = PendingOperation(kind="savepoint", id=unique_id(), savepoint="first")
        change(running, lambda job: job.operated(back))
        until(lambda: running.registry.job("shop").done is not None, 40)
        done = running.registry.job("shop").done
        assert "modules" in narrower or (done is not None and reason in (done.error or ""))
    assert totals(tmp_path) == [("ada", 5)]
    with supervised(tmp_path) as running:
        change(running, SubmittedJob.started)
        until(lambda: totals(tmp_path) == [("ada", 5), ("ada", 6)], 40)


def test_a_job_with_the_name_of_a_deleted_one_has_none_of_its_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statekit.service.supervisor._REPORT_S", 0.0)
    document(tmp_path)
    with supervised(tmp_path) as running:
        order(tmp_path, "a", ("unlucky", 5))
        submit(running, tmp_path, follow=False, restart="1 in 1 minute")
        until(lambda: shop(running).failures == 2, 40)
        (tmp_path / "orders" / "a.jsonl").unlink()
    with supervised(tmp_path) as running:
        until(lambda: shop(running).failures == 2, 40)
        change(running, SubmittedJob.deleted)
        until(lambda: running.registry.jobs() == {}, 40)
        until(lambda: "shop" not in running.observed(), 40)
        submit(running, tmp_path, follow=False, checkpoint=str(tmp_path / "other"))
        until(lambda: shop(running).status == "ended", 40)
        assert (shop(running).failures, shop(running).last_failure) == (0, None)


def test_a_job_is_deleted_although_the_registry_could_not_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, asked = JobRegistry.remove, []

    def fails_once(registry: JobRegistry, name: str) -> None:
        asked.append(name)
        if len(asked) == 1:
            raise sk.StorageError("the store does not answer")
        remove(registry, name)

    monkeypatch.setattr(JobRegistry, "remove", fails_once)
    with supervised(tmp_path) as running:
        submit(running, tmp_path)
        change(running, SubmittedJob.stopped)
        change(running, SubmittedJob.deleted)
        until(lambda: running.registry.jobs() == {}, 40)
    assert asked == ["shop", "shop"]


def test_the_reason_of_a_failure_is_its_error_and_not_what_the_module_printed(
    tmp_path: Path,
) -> None:
    with supervised(tmp_path) as running:
        submit(running, tmp_path, restart="1 in 1 minute")
        order(tmp_path, "a", ("printing", 1), ("unlucky", 1))
        until(lambda: shop(running).last_failure is not None, 40)
        reason = shop(running).last_failure or ""
        assert reason.startswith("ProcessError"), reason
        assert "owned" not in reason


def test_a_stored_report_with_a_wrong_epoch_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = JobRegistry.at(tmp_path / "registry")
    progress = JobProgress.model_construct(epoch="x", lag=5)
    seen = ObservedJob.model_construct(status="running", failures=0, progress=progress)
    with warnings.catch_warnings(action="ignore"):  # of the serializer
        report = ObservedJobs.model_construct(term=0, at_us=0, jobs={"shop": seen}).to_bytes()
    registry.store.replace("observed.json", report)
    with Supervisor(registry, tmp_path / "work", limits(tmp_path)) as other:
        assert other.observed() == {}
    assert "the report of the leader cannot be read" in caplog.text
