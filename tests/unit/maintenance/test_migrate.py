"""`statekit migrate`: all rows become what they would be if written now, or nothing changes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from statekit.checkpoint.manifest import EpochNote
from statekit.checkpoint.repository import Repository
from statekit.errors import FencedError, RestoreError, StateSchemaError, StateTypeError
from statekit.job.job import Job
from statekit.job.loader import load_job
from statekit.maintenance.migrate import Migration
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.command_line import statekit
from tests.support.evolution_driver import Act, Kind, evolving, meant
from tests.support.killable_processes import die_at, exit_code
from tests.support.places import ROOT

KEYS = [f"k{number}" for number in range(40)]


def job_as(kind: Kind, *, hooks: bool = True) -> Job:
    job = Job("evolve")
    job.source("records", Act).process(evolving(kind, hooks=hooks)).sink("outputs")
    return job


def job_of_text() -> Job:
    return job_as("text")


def job_of_int() -> Job:
    return job_as("int")


def job_with_a_hook_that_fails() -> Job:
    declared = evolving("text", hooks=False)
    hooks: Any = {spec.name: ((_fails, int),) for spec in declared.states}
    made = type(declared)(declared.fn, ("key",), declared.signature.hints, hooks=hooks)
    job = Job("evolve")
    job.source("records", Act).process(made).sink("outputs")
    return job


def _fails(value: int) -> str:
    if value == 7:
        raise ValueError("seven")
    return str(value)


def filled(place: Path, keys: list[str] = KEYS, parallelism: int = 3) -> Harness:
    """A checkpoint of ints, in two epochs; each key holds its number in every state."""
    harness = Harness(evolving("int"), parallelism, checkpoint=place)
    for what in ("set", "append", "put", "add"):
        harness.send(*(Act(key, what, int(key[1:])) for key in keys))
    return harness


def holds(harness: Harness, kind: Kind, keys: list[str] = KEYS) -> bool:
    def all_of(key: str) -> bool:
        value = meant(kind, int(key[1:]))
        return [harness.state(name, key) for name in ("held", "listed", "mapped", "most")] == [
            value,
            [value],
            {str(int(key[1:]) % 3): value},
            value,
        ]

    return all(map(all_of, keys))


def files_of(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "statekit.cli", *map(str, words)]


def environment() -> dict[str, Any]:
    found = {"COLUMNS": "160", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    return {"env": found, "cwd": ROOT}


def nothing(*_: object) -> None: ...


def test_all_rows_are_rewritten_in_one_epoch_that_changes_nothing_else(tmp_path: Path) -> None:
    before = filled(tmp_path)._runner.coordinator.last
    assert before is not None
    made = Migration(job_of_text(), tmp_path).run(nothing)
    assert made is not None
    assert (made.epoch, made.previous, made.cause) == (4, 3, "migrate")
    for name in ("batch", "offsets", "parallelism", "processing_time_us", "drained", "key_groups"):
        assert getattr(made, name) == getattr(before, name)
    (operator,) = made.operators.values()
    assert (operator.records_in, operator.records_out) == (0, 0)
    held = next(iter(before.operators.values())).shards
    for shard, old in zip(operator.shards, held, strict=True):
        assert shard.files[:-1] == old.files
    assert sum(shard.files[-1].rows for shard in operator.shards) == 4 * len(KEYS)
    harness = Harness(evolving("text", hooks=False), checkpoint=tmp_path)
    assert holds(harness, "text")
    (state, *_) = harness._runner.coordinator.job_file.operators[0].states
    assert (state.generation, state.past) == (0, ())


def test_rows_and_bytes_are_counted_exactly(tmp_path: Path) -> None:
    filled(tmp_path / "c")
    Migration(job_of_text(), tmp_path / "c").run(nothing)
    reader = CheckpointReader(tmp_path / "c")
    sizes = counted_sizes(reader, "evolve").states
    counted = reader.manifest.operators["evolve"]
    for name, size in sizes.items():
        assert size.rows == counted.rows.get(name, 0)
        assert size.bytes == counted.bytes.get(name, 0)


def test_epochs_before_are_read_as_they_were(tmp_path: Path) -> None:
    filled(tmp_path)
    done = statekit("migrate", tmp_path, "--app", "tests.unit.maintenance.test_migrate:job_of_text")
    assert done.returncode == 0

    for epoch, held in ((3, 5), (4, "5")):
        done = statekit("get", tmp_path, "evolve", "held", "k5", "--epoch", epoch)
        assert json.loads(done.stdout) == held


def test_the_table_shows_the_result_for_each_state(tmp_path: Path) -> None:
    filled(tmp_path)
    done = statekit("migrate", tmp_path, "--app", "tests.unit.maintenance.test_migrate:job_of_text")
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
    assert ["evolve.held", "value[int]", "value[str]", "migrated", "40", "40"] in words
    mapped = ["evolve.mapped", "map[str", "→", "int]", "map[str", "→", "str]"]
    assert [*mapped, "migrated", "40", "40"] in words
    assert "Committed as epoch 4" in done.stdout
    again = statekit(
        "migrate", tmp_path, "--app", "tests.unit.maintenance.test_migrate:job_of_text"
    )
    assert "there was nothing to do" in again.stdout
    assert again.stdout.count("same") == 4


def test_a_dry_run_shows_the_same_and_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    before = files_of(tmp_path)
    app = ("--app", "tests.unit.maintenance.test_migrate:job_of_text")
    dry = statekit("migrate", tmp_path, *app, "--dry-run")
    assert dry.returncode == 0
    assert files_of(tmp_path) == before
    done = statekit("migrate", tmp_path, *app)
    assert dry.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]


def test_a_dry_run_counts_the_rows_that_fail_and_names_the_first(tmp_path: Path) -> None:
    filled(tmp_path)
    before = files_of(tmp_path)
    app = ("--app", "tests.unit.maintenance.test_migrate:job_with_a_hook_that_fails")
    dry = statekit("migrate", tmp_path, *app, "--dry-run")
    assert dry.returncode == 1
    assert "evolve.held: 1 rows cannot be converted. The first: at key 'k7': migrate" in dry.stdout
    done = statekit("migrate", tmp_path, *app)
    assert done.returncode == 1
    assert "at key 'k7' in epoch 4 failed with ValueError: seven" in done.stderr
    assert files_of(tmp_path) == before


def test_refused_states_are_in_the_table_with_the_reason(tmp_path: Path) -> None:
    harness = Harness(evolving("text"), checkpoint=tmp_path)
    harness.send(Act("k1", "set", 1))
    with pytest.raises(StateSchemaError, match="was str and is int"):
        Migration(job_as("int", hooks=False), tmp_path).run(nothing)
    migration = Migration(job_as("int", hooks=False), tmp_path)
    assert migration.run(nothing, dry=True) is None
    assert [report.succession.verdict for report in migration.reports] == ["refused"] * 4
    assert migration.reports[0].rows == 1


def test_compatible_rows_are_rewritten_too_so_that_former_types_are_forgotten(
    tmp_path: Path,
) -> None:
    filled(tmp_path, KEYS[:4])
    migration = Migration(job_as("float", hooks=False), tmp_path)
    assert migration.run(nothing) is not None
    assert [report.succession.verdict for report in migration.reports] == ["compatible"] * 4
    assert [(report.rows, report.rewritten) for report in migration.reports] == [(4, 4)] * 4
    assert holds(Harness(evolving("float"), checkpoint=tmp_path), "float", KEYS[:4])


def test_only_rows_of_another_form_are_rewritten(tmp_path: Path) -> None:
    filled(tmp_path, KEYS[:4])
    harness = Harness(evolving("text"), checkpoint=tmp_path)
    harness.send(Act("k1", "set", 1))
    harness = Harness(evolving("text"), checkpoint=tmp_path)
    Migration(job_of_text(), tmp_path).run(nothing)
    harness = Harness(evolving("text"), checkpoint=tmp_path)
    harness.send(Act("k0", "set", 0))
    migration = Migration(job_of_text(), tmp_path)
    assert migration.run(nothing) is None
    assert holds(harness, "text", KEYS[:4])


def test_a_writer_that_commits_meanwhile_fences_the_migration(tmp_path: Path) -> None:
    harness = filled(tmp_path, KEYS[:4])

    def told(done: int, shards: int) -> None:
        if done == 0:
            harness.send(Act("k1", "set", 1))

    with pytest.raises(FencedError, match="another run of this job"):
        Migration(job_of_text(), tmp_path).run(told)
    assert holds(Harness(evolving("int"), checkpoint=tmp_path), "int", KEYS[:4])
    other = Harness(evolving("int"), checkpoint=tmp_path)
    Migration(job_of_text(), tmp_path).run(nothing)
    with pytest.raises(FencedError):
        other.send(Act("k1", "set", 5))


@pytest.mark.parametrize("left", ["note", "spark"])
def test_an_epoch_that_was_begun_has_to_be_finished_first(tmp_path: Path, left: str) -> None:
    filled(tmp_path, KEYS[:4])
    if left == "note":
        note = EpochNote(epoch=4, what="batch 7", processing_time_us=0)
        Repository(tmp_path).write_note(note)
    else:
        (tmp_path / "spark" / "offsets").mkdir(parents=True)
        (tmp_path / "spark" / "offsets" / "0").write_text("")
    with pytest.raises(RestoreError, match=r"epoch 4 of .* was begun as"):
        Migration(job_of_text(), tmp_path).run(nothing)
    assert Repository(tmp_path).latest_epoch() == 3


def test_a_checkpoint_that_cannot_be_migrated_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="no checkpoint at"):
        Migration(job_of_text(), tmp_path / "nowhere")
    with pytest.raises(RestoreError, match="no committed epoch"):
        Migration(job_of_text(), tmp_path)
    filled(tmp_path, KEYS[:4])
    with pytest.raises(RestoreError, match="is a checkpoint of job 'evolve', not of 'other'"):
        Migration(Job("other"), tmp_path)
    with pytest.raises(StateSchemaError, match="has an operator 'evolve'"):
        Migration(Job("evolve"), tmp_path).run(nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tests.unit.maintenance.test_migrate", "write module:attribute"),
        ("tests.nowhere:job", "cannot be imported from"),
        ("tests.unit.maintenance.test_migrate:nothing_here", "did you mean nothing"),
        ("tests.unit.maintenance.test_migrate:zzzzzz", "has no zzzzzz: give a name"),
        ("tests.unit.maintenance.test_migrate:job_of_txt", "did you mean job_of_text"),
        ("tests.unit.maintenance.test_migrate:KEYS", "is no Job|and no Job"),
        ("tests.unit.maintenance.test_migrate:holds", "failed with TypeError"),
    ],
)
def test_an_argument_that_names_no_job_is_refused(text: str, said: str) -> None:
    with pytest.raises(StateTypeError, match=said):
        load_job(text)
    assert load_job("tests.unit.maintenance.test_migrate:job_of_text").name == "evolve"


def migrate_and_die(place: str, point: str) -> None:
    """Migrate in a process that ends at a point, as if the power were cut."""
    owner, name, when = POINTS[point]
    die_at(owner, name, before=when > 0, call=abs(when))
    Migration(job_of_text(), place).run(nothing)


POINTS: dict[str, tuple[Any, str, int]] = {
    "before a change file": (Repository, "put_changes", 1),
    "between two change files": (Repository, "put_changes", 2),
    "before the job file": (Repository, "ensure_job_file", 1),
    "behind the job file": (Repository, "ensure_job_file", -1),
    "between the manifest's content and its name": (os, "link", 2),
    "behind the manifest": (Repository, "commit", -1),
}
"""Where it dies: at a call of what, before it or (negative) behind it, at which call."""


@pytest.mark.parametrize("point", POINTS)
def test_a_power_cut_leaves_the_old_state_or_the_new_one(tmp_path: Path, point: str) -> None:
    filled(tmp_path, KEYS[:8])
    assert exit_code(migrate_and_die, str(tmp_path), point) == -signal.SIGKILL
    is_done = point == "behind the manifest"
    if not is_done:
        assert holds(Harness(evolving("int", hooks=False), checkpoint=tmp_path), "int", KEYS[:8])
    made = Migration(job_of_text(), tmp_path).run(nothing)
    assert (made is None) == is_done
    assert Repository(tmp_path).latest_epoch() == 4
    assert holds(Harness(evolving("text", hooks=False), checkpoint=tmp_path), "text", KEYS[:8])


def test_a_migration_that_is_killed_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(1500)]
    filled(tmp_path, keys, parallelism=8)
    draw = random.Random(1)
    app = ("--app", "tests.unit.maintenance.test_migrate:job_of_text")
    finished = 0
    for _ in range(5):
        victim = subprocess.Popen(
            command("migrate", tmp_path, *app),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **environment(),
        )
        time.sleep(draw.uniform(0.4, 1.6))
        if victim.poll() is None:
            os.kill(victim.pid, signal.SIGKILL)
        finished += victim.wait() == 0
        latest = Repository(tmp_path).latest_epoch()
        reader = CheckpointReader(tmp_path)
        shown = [reader.get("evolve", "held", key) for key in keys[:3]]
        assert (latest, shown) in ((3, [0, 1, 2]), (4, ["0", "1", "2"]))
        if latest == 4:
            break
    if Repository(tmp_path).latest_epoch() == 3:
        assert statekit("migrate", tmp_path, *app).returncode == 0
    assert holds(Harness(evolving("text", hooks=False), checkpoint=tmp_path), "text", keys[::100])
