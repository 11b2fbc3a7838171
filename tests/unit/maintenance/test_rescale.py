"""`statekit rescale`: what it shows, what it commits, and what it refuses."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statekit.backend.interface import StateSize
from statekit.checkpoint.manifest import EpochManifest, EpochNote
from statekit.checkpoint.paths import PAGE
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import checksum_of
from statekit.checkpoint.shard_layout import rescaled
from statekit.cli.rescale import print_plan
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RescaleError,
    RestoreError,
    StateSchemaError,
    StateTypeError,
)
from statekit.job.loader import load_job
from statekit.job.options import RunOptions
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rescale.plan import Load, Move, OperatorPlan, plan_of_rescale, skew_of
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies
from tests.support.command_line import statekit
from tests.support.counting_job import committed_rows, comparable, copied_rows, entries, tally_job
from tests.support.killable_processes import start
from tests.support.printed import printed

GROUPS = 13


def advanced(home: Path, parallelism: int | None = None, epochs: int = 1) -> LocalRunner:
    repository, copies = Repository(home / "checkpoint"), DiskCopies(home / "local")
    made = LocalRunner(
        tally_job(GROUPS).plan, repository, copies, RunOptions(parallelism=parallelism)
    )
    for _ in range(epochs):
        made.epoch({"records": entries(made.coordinator.epoch, 80)})
    return made


def files(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): checksum_of(path.read_bytes())
        for path in home.rglob("*")
        if path.is_file()
    }


def held(home: Path) -> dict[str, Any]:
    return comparable(committed_rows(Repository(home / "checkpoint"), GROUPS))


# ----------------------------------------------------------------------------------- what it does


def test_it_commits_an_epoch_that_only_changes_the_shards(tmp_path: Path) -> None:
    before = advanced(tmp_path, 3, epochs=3).coordinator.last
    state, stored = held(tmp_path), files(tmp_path / "checkpoint" / "data")
    done = statekit("rescale", tmp_path / "checkpoint", "--to", 5, columns=200)
    assert done.returncode == 0, done.stderr
    assert "parallelism 3 → 5, committed as epoch 3" in done.stdout
    after = Repository(tmp_path / "checkpoint").manifest(3)
    assert before is not None
    assert (after.cause, after.parallelism, after.offsets) == ("rescale", 5, before.offsets)
    assert held(tmp_path) == state
    made = files(tmp_path / "checkpoint" / "data").items() - stored.items()
    assert all(path.endswith(PAGE) for path, _ in made), "no row was written again"
    assert Repository(tmp_path / "checkpoint").manifest(2) == before, "the old layout is kept"
    continued = advanced(tmp_path)
    assert continued.coordinator.parallelism == 5, "what is stored is taken"
    assert comparable(copied_rows(continued.coordinator, continued.copies)) == held(tmp_path)


def test_an_offline_rescale_reports_the_files_that_it_verified(tmp_path: Path) -> None:
    repository = advanced(tmp_path, 4, epochs=2).coordinator.repository
    found = verify(repository, epoch=1, rows=False)
    done = rescale_offline(repository, 2)
    assert (done.files, done.bytes) == (found.files, found.bytes)
    assert done.files > 4


def test_it_does_nothing_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    advanced(tmp_path, 3)
    before = files(tmp_path)
    done = statekit("rescale", tmp_path / "checkpoint", "--to", 3, columns=200)
    assert (done.returncode, files(tmp_path)) == (0, before)
    assert "parallelism is 3 already" in done.stdout


def test_copies_are_shared_after_any_number_of_offline_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advanced(tmp_path, 4)
    for parallelism in (8, 2, 5, 4):
        rescale_offline(Repository(tmp_path / "checkpoint"), parallelism)
    replayed: list[Any] = []
    inner = Repository.replay

    def replay(self: Repository, backend: Any, refs: list[Any], first: int, last: int) -> None:
        replayed.extend(refs)
        inner(self, backend, refs, first, last)

    monkeypatch.setattr(Repository, "replay", replay)
    advanced(tmp_path)
    assert replayed == []


# -------------------------------------------------------------------------------------- the plan


def test_a_plan_shows_moves_and_changes_nothing(tmp_path: Path) -> None:
    made = advanced(tmp_path, 2, epochs=2)
    before = files(tmp_path)
    done = statekit("rescale", tmp_path / "checkpoint", "--to", 4, "--plan", columns=200)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == before
    assert "operator tally: 2 → 4 shards" in done.stdout
    (plan,) = plan_of_rescale(CheckpointReader(tmp_path / "checkpoint"), 4)
    rows = committed_rows(made.coordinator.repository, GROUPS)
    told: list[Load | Move] = [*plan.before, *plan.after, *plan.moves]
    for load in told:
        first, last = load.groups
        own = [
            (key, row)
            for held in rows.values()
            for key, row in held.items()
            if first <= key[1] <= last
        ]
        size = sum(len(key) + len(row) for key, row in own)
        assert load.size == (len(own), size)
    assert [move.groups for move in plan.moves] == [(0, 3), (4, 6), (7, 9), (10, 12)]
    assert [(move.source, move.target) for move in plan.moves] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    by_group = {group: sum(key[1] == group for held in rows.values() for key in held)
                for group in range(GROUPS)}  # fmt: skip
    assert [size.rows for _, size in plan.hot] == sorted(by_group.values(), reverse=True)[:5]
    group, fullest = plan.hot[0]
    assert f"fullest key groups: {group} ({fullest.rows:,}, " in done.stdout


def test_a_fast_plan_uses_the_manifest(tmp_path: Path) -> None:
    advanced(tmp_path, 4, epochs=2)
    reader = CheckpointReader(tmp_path / "checkpoint")
    (exact,), (fast,) = plan_of_rescale(reader, 2), plan_of_rescale(reader, 2, fast=True)
    timers_aside = [load.size and load.size.rows for load in fast.after]
    assert timers_aside == [load.size and load.size.rows for load in exact.after]
    (divided,) = plan_of_rescale(reader, 8, fast=True)
    assert any(load.size is None for load in divided.after)
    assert skew_of(divided.after) is None
    done = statekit("rescale", tmp_path / "checkpoint", "--to", 8, "--plan", "--fast", columns=200)
    assert "leave out --fast to count" in done.stdout
    assert (
        statekit("rescale", tmp_path / "checkpoint", "--to", 8, "--fast", columns=200).returncode
        == 2
    )


def test_skew_is_the_fullest_shard_against_the_mean() -> None:
    loads = [Load((n, n), StateSize(rows, 0)) for n, rows in enumerate((1, 2, 9))]
    assert skew_of(loads) == pytest.approx(9 / 4)
    assert skew_of([Load((0, 0), StateSize(0, 0))]) is None


def test_a_plan_of_ten_thousand_shards_is_a_page() -> None:
    loads = [Load((n, n), StateSize(n % 977, n)) for n in range(10_000)]
    plans = [OperatorPlan("o", loads, loads, [], [])]
    text = printed(lambda: print_plan(plans, counted=True))
    assert len(text.splitlines()) < 40
    assert "9999" in text
    assert " 976 " in text, "the fullest are shown"


# ------------------------------------------------------------------------------------- refusals


def test_a_checkpoint_without_an_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="has no committed epoch"):
        rescale_offline(Repository(tmp_path), 2)
    done = statekit("rescale", tmp_path / "nowhere", "--to", 2, columns=200)
    assert done.returncode == 1
    assert "there is no checkpoint at" in done.stderr


@pytest.mark.parametrize("parallelism", [0, GROUPS + 1])
def test_a_parallelism_that_cannot_be_is_refused(tmp_path: Path, parallelism: int) -> None:
    advanced(tmp_path, 2)
    with pytest.raises(RescaleError, match=f"parallelism={parallelism}"):
        rescale_offline(Repository(tmp_path / "checkpoint"), parallelism)


@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_a_damaged_file_is_found_and_nothing_is_committed(tmp_path: Path, damage: str) -> None:
    advanced(tmp_path, 2)
    path = next((tmp_path / "checkpoint" / "data" / "tally").iterdir())
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        half = len(content) // 2
        path.write_bytes(content[:half] if damage == "truncated" else b"x" + content[1:])
    with pytest.raises(CorruptCheckpointError, match=path.name):
        rescale_offline(Repository(tmp_path / "checkpoint"), 5)
    assert Repository(tmp_path / "checkpoint").epochs() == [0]


def test_a_layout_that_loses_rows_is_refused_and_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = advanced(tmp_path, 2).coordinator.repository

    def without_first_shard(last: EpochManifest, parallelism: int) -> EpochManifest:
        planned = rescaled(last, parallelism)
        operator = planned.operators["tally"]
        first, *others = operator.shards
        first = first.model_copy(update={"slices": (), "attempt": None})
        operator = operator.model_copy(update={"shards": (first, *others)})
        return planned.model_copy(update={"operators": {**planned.operators, "tally": operator}})

    monkeypatch.setattr("statekit.maintenance.rescale.offline.rescaled", without_first_shard)
    message = r"the new layout is not the old one: .* would be lost\. Nothing was changed"
    with pytest.raises(CorruptCheckpointError, match=message):
        rescale_offline(repository, 4)
    assert repository.epochs() == [0]


def test_a_manifest_that_does_not_read_back_is_an_error_that_names_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = advanced(tmp_path, 2).coordinator.repository
    first = repository.manifest(0)
    monkeypatch.setattr(repository, "manifest", lambda epoch: first)
    message = "epoch 1 of .* does not read back as it was written: check the store"
    with pytest.raises(CorruptCheckpointError, match=message):
        rescale_offline(repository, 4)


def test_an_epoch_that_was_begun_keeps_its_number(tmp_path: Path) -> None:
    repository = advanced(tmp_path, 2).coordinator.repository
    repository.write_note(EpochNote(epoch=1, what="records", processing_time_us=5))
    with pytest.raises(RestoreError, match=r"epoch 1 .* was begun as 'records' and not committed"):
        rescale_offline(repository, 4)
    assert repository.epochs() == [0]


def test_a_micro_batch_that_spark_has_planned_is_finished_first(tmp_path: Path) -> None:
    repository = advanced(tmp_path, 2).coordinator.repository
    offsets = tmp_path / "checkpoint" / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    with pytest.raises(RestoreError, match=r"was begun as 'batch 0'.*\. To rescale, start it with"):
        rescale_offline(repository, 4)
    assert repository.epochs() == [0]


def test_outputs_of_a_run_that_was_killed_are_not_published_under_another_number(
    tmp_path: Path,
) -> None:
    """Between its outputs and its commit a run is noted, so that nobody takes its number."""
    published: list[tuple[int, int]] = []

    def publish(records: list[Any], epoch: int) -> None:
        published.append((epoch, len(records)))
        raise KeyboardInterrupt

    arguments: Any = {"checkpoint": tmp_path / "c", "parallelism": 2, "drain": False}
    with pytest.raises(KeyboardInterrupt):
        tally_job(GROUPS).run({"records": entries(0, 9)}, outputs={"outputs": publish}, **arguments)
    assert published == [(0, 9)]
    tally_job(GROUPS).run({"records": entries(0, 9)}, **arguments)
    with pytest.raises(KeyboardInterrupt):
        tally_job(GROUPS).run(
            {"records": [*entries(0, 9), *entries(1, 5)]}, outputs={"outputs": publish}, **arguments
        )
    assert published[1:] == [(1, 5)]
    with pytest.raises(RestoreError, match="was begun as 'records'"):
        rescale_offline(Repository(tmp_path / "c"), 4)
    tally_job(GROUPS).run(
        {"records": [*entries(0, 9), *entries(1, 5)]},
        outputs={"outputs": lambda records, epoch: published.append((epoch, len(records)))},
        **{**arguments, "parallelism": 4},
    )
    assert published[2:] == [(1, 5)], "under the same number, with another parallelism"
    assert Repository(tmp_path / "c").manifest(1).parallelism == 4


def test_a_job_that_runs_is_fenced_at_its_next_commit(tmp_path: Path) -> None:
    running = advanced(tmp_path, 2)
    rescale_offline(running.coordinator.repository, 4)
    with pytest.raises(FencedError, match="committed by another run"):
        running.epoch({"records": entries(1, 20)})


# ------------------------------------------------------------------------------------------ jobs


JOB = """
import statekit as sk
from tests.support.counting_job import Entry, tally, tally_job

job = tally_job()
other = sk.Job("other")
no_job = 5

def made():
    return tally_job()

def fails():
    raise ValueError("no luck")

@sk.process(key="key")
def changed(entry: Entry, total: sk.ValueState[str]) -> None: ...

changed_job = sk.Job("tally")
changed_job.source("records", Entry).process(changed, name="tally")
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current directory."""
    (tmp_path / "some_jobs.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield "some_jobs"
    sys.modules.pop("some_jobs", None)


@pytest.mark.parametrize("name", ["job", "made"])
def test_a_job_is_found_by_its_name(jobs: str, name: str) -> None:
    assert load_job(f"{jobs}:{name}").name == "tally"


@pytest.mark.parametrize(
    "text",
    ["some_jobs", ":job", "some_jobs:", "nowhere:job", "some_jobs:nothing", "some_jobs:no_job",
     "some_jobs:fails"],
)  # fmt: skip
def test_an_argument_that_names_no_job_is_refused(jobs: str, text: str) -> None:
    with pytest.raises(StateTypeError):
        load_job(text)


def test_a_module_that_fails_is_refused_with_its_line(jobs: str, tmp_path: Path) -> None:
    (tmp_path / "wrong_jobs.py").write_text("\nimport statekit as sk\n\njob = sk.Job()\n")
    with pytest.raises(StateTypeError, match=r"TypeError.* at line 4 of .*wrong_jobs\.py"):
        load_job("wrong_jobs:job")


def test_a_job_is_checked_against_the_checkpoint(jobs: str, tmp_path: Path) -> None:
    repository = advanced(tmp_path, 2).coordinator.repository
    with pytest.raises(RestoreError, match="of job 'tally', not of 'other'"):
        rescale_offline(repository, 4, job=load_job(f"{jobs}:other"))
    with pytest.raises(StateSchemaError):
        rescale_offline(repository, 4, job=load_job(f"{jobs}:changed_job"))
    assert repository.epochs() == [0]
    assert rescale_offline(repository, 4, job=load_job(f"{jobs}:job")).after.parallelism == 4


# ---------------------------------------------------------------------------------------- killed


def rescale_forever(checkpoint: str, seed: int) -> None:
    chosen = random.Random(seed)
    while True:
        rescale_offline(Repository(checkpoint), chosen.randrange(1, GROUPS + 1))


def test_killed_at_any_point_the_checkpoint_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    advanced(tmp_path, 4, epochs=2)
    checkpoint = tmp_path / "checkpoint"
    state, chosen, seen = held(tmp_path), random.Random(3), 0
    for seed in range(12):
        process = start(rescale_forever, str(checkpoint), seed)
        deadline = time.monotonic() + 60
        while len(Repository(checkpoint).epochs()) <= seen:
            assert time.monotonic() < deadline, "nothing was committed"
            time.sleep(0.002)
        time.sleep(chosen.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -9
        epochs = Repository(checkpoint).epochs()
        seen = len(epochs)
        assert epochs == list(range(seen)), "none is missing"
        assert held(tmp_path) == state
    made = advanced(tmp_path)
    assert comparable(copied_rows(made.coordinator, made.copies)) == held(tmp_path)
    assert made.coordinator.last is not None
    assert made.coordinator.last.epoch == seen


def test_the_command_killed_at_random_points_can_be_run_again(tmp_path: Path) -> None:
    advanced(tmp_path, 4, epochs=2)
    state, chosen = held(tmp_path), random.Random(9)
    for _ in range(4):
        last = Repository(tmp_path / "checkpoint").latest_epoch()
        assert last is not None
        to = 3 if Repository(tmp_path / "checkpoint").manifest(last).parallelism != 3 else 8
        command = [sys.executable, "-m", "statekit.cli", "rescale", str(tmp_path / "checkpoint")]
        process = subprocess.Popen(
            [*command, "--to", str(to)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chosen.uniform(0.3, 1.2))
        process.kill()
        process.wait()
        assert held(tmp_path) == state
        assert Repository(tmp_path / "checkpoint").latest_epoch() in (last, last + 1)
        again = statekit("rescale", tmp_path / "checkpoint", "--to", to, columns=200)
        assert again.returncode == 0, again.stderr
        assert Repository(tmp_path / "checkpoint").latest_epoch() == last + 1
        assert held(tmp_path) == state
