"""Going back to an epoch: the state is exactly that one, whatever happened since or meanwhile."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import statekit as sk
from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.manifest import EpochManifest, EpochNote
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.job.options import RunOptions
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from statekit.runtime.local import LocalRunner
from statekit.runtime.shard_reports import unchanged
from statekit.testing import Harness
from statekit.timestamp import instant
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies
from tests.support.counting_job import (
    STATES,
    Entry,
    Plain,
    Rows,
    copied_rows,
    entries,
    plain_outputs,
    plain_state,
    rows_of,
    tally,
    tally_job,
)
from tests.support.effort import SOAK
from tests.support.loaded_rows import load
from tests.unit.checkpoint.test_spark_log import part, seen_files

GROUPS = 8


def rows_after(repository: Repository, epoch: int) -> Rows:
    """Everything that an epoch holds, replayed."""
    backend = MemoryBackend(STATES)
    load(repository, backend, "tally", 0, GROUPS - 1, epoch)
    return rows_of(backend)


def plain_of(rows: Rows) -> Plain:
    """Rows as plain Python; without keys that hold nothing."""
    found: Plain = {}

    def states_of(row_key: bytes) -> tuple[dict[str, Any], bytes]:
        key, _, rest = row_key[2:].partition(b"\0\0")
        blank: dict[str, Any] = {"total": 0, "seen": [], "parity": {}}
        return found.setdefault(key.decode(), blank), rest

    for row_key, row in rows["total"].items():
        states_of(row_key)[0]["total"] = msgspec.msgpack.decode(row)
    for row_key, row in sorted(rows["seen"].items()):
        states_of(row_key)[0]["seen"].append(msgspec.msgpack.decode(row))
    for row_key, row in rows["parity"].items():
        states, subkey = states_of(row_key)
        states["parity"][subkey.rstrip(b"\0").decode()] = msgspec.msgpack.decode(row)
    return found


class Rollbacks(RuleBasedStateMachine):
    """Epochs, crashes, other parallelism and rollbacks, against the records of every epoch.

    Working copies, in memory and on disk, outlive all of it: they must never be taken for another
    history's.
    """

    backend = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="statekit-rollbacks-"))
        on_disk = self.backend == "rocksdb"
        self.repository = Repository(self.home) if on_disk else Repository.in_memory()
        self.copies: WorkingCopies = DiskCopies(self.home / "copies") if on_disk else MemoryCopies()
        self.records: dict[int | None, list[Entry]] = {None: []}
        self.rows: dict[int, Rows] = {}
        self.inputs = 0
        self.parallelism = 2
        self.zombie: LocalRunner | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @initialize(parallelism=st.integers(1, 4))
    def first(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.restart(parallelism)
        self.epoch(3)

    @rule(count=st.integers(0, 6))
    def epoch(self, count: int) -> None:
        last = self.runner.coordinator.last
        given = entries(self.inputs, count, keys=5)
        self.inputs += 1
        self.runner.epoch({"records": given})
        made = self.repository.latest_epoch()
        assert made is not None
        self.records[made] = self.records[None if last is None else last.epoch] + given
        self.rows[made] = rows_after(self.repository, made)

    @rule(count=st.integers(1, 6))
    def epoch_that_is_not_committed(self, count: int) -> None:
        """Its change files are written, and the working copies stand at it."""
        given = entries(1000 + self.inputs, count, keys=5)

        def fail(*_: object) -> None:
            raise OSError("the sink is full")

        with pytest.raises(sk.ProcessError, match="full"):
            self.runner.epoch({"records": given}, outputs={"outputs": fail})

    @rule(parallelism=st.integers(1, 4))
    def restart(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.runner = LocalRunner(
            tally_job(GROUPS).plan,
            self.repository,
            self.copies,
            RunOptions(parallelism=parallelism),
        )

    @rule(data=st.data(), restarted=st.booleans())
    def roll_back(self, data: st.DataObject, restarted: bool) -> None:
        epochs = self.repository.epochs()
        if len(epochs) < 2:
            return
        to = data.draw(st.sampled_from(epochs[:-1]), label="to")
        again = self.repository.manifest(epochs[-1]).previous == to and (
            self.repository.manifest(epochs[-1]).cause == "rollback"
        )
        zombie = self.runner
        plan(self.repository, to).carry_out()
        made = self.repository.epochs()[-1]
        assert made == epochs[-1] + (0 if again else 1)
        self.records[made] = self.records[to]
        self.rows[made] = self.rows[to]
        if not again:
            with pytest.raises(sk.FencedError):
                zombie.epoch({"records": entries(7, 2)})
        self.restart(self.parallelism if restarted else self.repository.manifest(to).parallelism)

    @rule(data=st.data())
    def look_at_any_epoch(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.repository.epochs()), label="epoch")
        assert rows_after(self.repository, epoch) == self.rows[epoch]

    @invariant()
    def state_is_that_of_the_records_in_the_history(self) -> None:
        last = self.runner.coordinator.last
        if last is None:
            return
        rows = rows_after(self.repository, last.epoch)
        assert rows == self.rows[last.epoch]
        expected = plain_state(self.records[last.epoch])
        assert plain_of(rows) == expected
        assert copied_rows(self.runner.coordinator, self.copies) == rows

    @invariant()
    def abandoned_epochs_are_those_that_are_not_in_the_history(self) -> None:
        last = self.runner.coordinator.last
        if last is None:
            return
        history, epoch = {last.epoch}, last.previous
        while epoch is not None:
            history.add(epoch)
            epoch = self.repository.manifest(epoch).previous
        others = set(range(last.epoch)) - history
        assert {n for n in range(last.epoch) if last.has_abandoned(n)} == others


class RollbacksOnDisk(Rollbacks):
    backend = "rocksdb"


def machines(examples: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=25, deadline=None)


def test_state_after_any_rollbacks_is_that_of_the_records_in_its_history() -> None:
    run_state_machine_as_test(
        Rollbacks, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )


def test_working_copies_on_disk_are_never_of_an_abandoned_history() -> None:
    run_state_machine_as_test(
        RollbacksOnDisk, settings=settings(max_examples=6, stateful_step_count=25, deadline=None)
    )


# ---------------------------------------------------------------------------------- one rollback


def tallied(path: Path, epochs: int, **options: Any) -> list[Entry]:
    """A checkpoint of epochs of ten records each; returns those records and as many more."""
    given = [entry for number in range(2 * epochs) for entry in entries(number, 10)]
    tally_job(GROUPS).run(
        {"records": given[: 10 * epochs]}, checkpoint=path, epoch_size=10, **options
    )
    assert Repository(path).epochs() == list(range(epochs))
    return given


def files(path: Path) -> dict[str, bytes]:
    """All files of a checkpoint but drafts, with their content."""
    found = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if not name.startswith("tmp/")}


def test_a_rollback_adds_one_manifest_and_changes_no_file(tmp_path: Path) -> None:
    tallied(tmp_path, 5, parallelism=3)
    before, repository = files(tmp_path), Repository(tmp_path)
    found = plan(repository, 1)
    assert files(tmp_path) == before, "planning changes nothing"
    found.carry_out()
    after = files(tmp_path)
    assert set(after) - set(before) == {epoch_path(5)}
    assert before.items() < after.items()
    made, target = repository.manifest(5), repository.manifest(1)
    assert (made.previous, made.cause, made.abandoned) == (1, "rollback", ((2, 4),))
    assert (made.offsets, made.parallelism) == (target.offsets, 3)
    assert made.operators["tally"].shards == target.operators["tally"].shards
    assert rows_after(repository, 5) == rows_after(repository, 1)


def test_a_run_continues_with_the_record_after_the_epoch_of_a_rollback(tmp_path: Path) -> None:
    given = tallied(tmp_path, 5)
    job = tally_job(GROUPS)
    run = job.run({"records": given}, checkpoint=tmp_path, from_epoch=1, parallelism=3)
    assert sorted(run.outputs["outputs"]) == sorted(plain_outputs(given)[20:])
    assert run.last_epoch == 6
    assert plain_of(rows_after(Repository(tmp_path), 6)) == plain_state(given)


def test_the_parallelism_is_that_of_the_epoch_gone_back_to(tmp_path: Path) -> None:
    given = tallied(tmp_path, 2, parallelism=3)
    tally_job(GROUPS).run({"records": given}, checkpoint=tmp_path, parallelism=2)
    plan(Repository(tmp_path), 1).carry_out()
    run = tally_job(GROUPS).run({"records": given}, checkpoint=tmp_path)
    assert run.last_epoch is not None
    assert Repository(tmp_path).manifest(run.last_epoch).parallelism == 3


def test_a_rollback_can_be_undone(tmp_path: Path) -> None:
    given = tallied(tmp_path, 5)
    repository = Repository(tmp_path)
    plan(repository, 1).carry_out()
    plan(repository, 4).carry_out()
    made = repository.manifest(6)
    assert (made.previous, made.abandoned) == (4, ((5, 5),))
    assert plain_of(rows_after(repository, 6)) == plain_state(given[:50])


def test_rolling_back_again_to_the_same_epoch_does_nothing(tmp_path: Path) -> None:
    tallied(tmp_path, 5)
    plan(Repository(tmp_path), 1).carry_out()
    before = files(tmp_path)
    again = plan(Repository(tmp_path), 1)
    assert again.is_committed
    again.carry_out()
    assert files(tmp_path) == before


@pytest.mark.parametrize("to", [4, 5, -1, 2**70, True, None, "1"])
def test_an_epoch_that_is_the_last_one_or_none_is_refused(tmp_path: Path, to: Any) -> None:
    tallied(tmp_path, 5)
    before = files(tmp_path)
    with pytest.raises(sk.RestoreError, match=r"nothing to roll back|its epochs are 0 to 4"):
        plan(Repository(tmp_path), to)
    assert files(tmp_path) == before


def test_a_checkpoint_without_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sk.RestoreError, match="nothing is committed"):
        plan(Repository(tmp_path), 0)
    with pytest.raises(sk.RestoreError, match="nothing is committed"):
        tally_job().run({"records": []}, from_epoch=0)


def test_a_damaged_manifest_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    tallied(tmp_path, 5)
    damaged = tmp_path / epoch_path(1)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    before = files(tmp_path)
    with pytest.raises(sk.CorruptCheckpointError, match=epoch_path(1)):
        plan(Repository(tmp_path), 1)
    assert files(tmp_path) == before


def test_a_run_that_commits_first_keeps_its_epoch(tmp_path: Path) -> None:
    given = tallied(tmp_path, 5)
    found = plan(Repository(tmp_path), 1)
    tally_job(GROUPS).run({"records": given[:55]}, checkpoint=tmp_path)
    before = files(tmp_path)
    with pytest.raises(sk.FencedError, match="nothing is lost"):
        found.carry_out()
    assert files(tmp_path) == before


def test_a_manifest_whose_abandoned_epochs_cannot_be_is_refused(tmp_path: Path) -> None:
    tallied(tmp_path, 5)
    manifest = Repository(tmp_path).manifest(4)
    for wrong in [((2, 4),), ((3, 2),), ((1, 1), (2, 2)), ((2, 2), (0, 0))]:
        with pytest.raises(ValueError, match="abandoned epochs"):
            EpochManifest.model_validate({**manifest.model_dump(), "abandoned": wrong})


# ------------------------------------------------------------------------------------ from_epoch


def test_a_second_start_with_from_epoch_does_not_roll_back_again(tmp_path: Path) -> None:
    given = tallied(tmp_path, 5)
    job, nothing_new = tally_job(GROUPS), given[:20]
    for _ in range(2):
        run = job.run({"records": nothing_new}, checkpoint=tmp_path, from_epoch=1)
        assert (run.epochs, run.last_epoch) == (0, 5)


def test_a_start_from_the_last_epoch_continues(tmp_path: Path) -> None:
    given = tallied(tmp_path, 5)
    run = tally_job(GROUPS).run({"records": given[:60]}, checkpoint=tmp_path, from_epoch=4)
    assert (run.epochs, run.last_epoch) == (1, 5)
    assert Repository(tmp_path).manifest(5).abandoned == ()


def test_from_epoch_is_refused_once_epochs_have_followed(tmp_path: Path) -> None:
    """Whoever starts a program again after a failure must not throw away what it did since."""
    given = tallied(tmp_path, 5)
    job = tally_job(GROUPS)
    job.run({"records": given[:30]}, checkpoint=tmp_path, from_epoch=1)
    before = files(tmp_path)
    with pytest.raises(sk.RestoreError, match=r"continued to epoch 6.*statekit rollback"):
        job.run({"records": given}, checkpoint=tmp_path, from_epoch=1)
    with pytest.raises(sk.RestoreError, match="was rolled back itself"):
        job.run({"records": given}, checkpoint=tmp_path, from_epoch=3)
    assert files(tmp_path) == before
    run = job.run({"records": given}, checkpoint=tmp_path)
    assert sorted(run.outputs["outputs"]) == sorted(plain_outputs(given)[30:])


@sk.process(key="key")
def other(entry: Entry, total: sk.ValueState[str]) -> None: ...


def test_from_epoch_rolls_nothing_back_if_the_code_does_not_fit_that_epoch(tmp_path: Path) -> None:
    tallied(tmp_path, 5)
    before = files(tmp_path)
    stranger = sk.Job("stranger")
    stranger.source("records", Entry).process(tally)
    with pytest.raises(sk.RestoreError, match="checkpoint of job 'tally'"):
        stranger.run({"records": []}, checkpoint=tmp_path, from_epoch=1)
    changed = sk.Job("tally")
    changed.source("records", Entry).process(other, name="tally")
    with pytest.raises(sk.StateSchemaError):
        changed.run({"records": []}, checkpoint=tmp_path, from_epoch=1)
    with pytest.raises(sk.RescaleError):
        tally_job().run({"records": []}, checkpoint=tmp_path, from_epoch=1, parallelism=99)
    assert files(tmp_path) == before


@sk.process(key="key")
def with_more(entry: Entry, total: sk.ValueState[int], more: sk.ValueState[int]) -> None:
    total.update(entry.n)
    more.update(entry.n)


@sk.process(key="key")
def without_more(entry: Entry, total: sk.ValueState[int]) -> None:
    total.update(entry.n)


def test_the_declarations_are_those_of_the_epoch_gone_back_to(tmp_path: Path) -> None:
    """A state that was given up since is there again; one that was added since is not."""

    def run(declared: Any, n: int, **options: Any) -> None:
        job = sk.Job("job")
        job.source("records", Entry).process(declared, name="p")
        given = [Entry("a", number) for number in range(n)]
        job.run({"records": given}, checkpoint=tmp_path, epoch_size=1, **options)

    run(with_more, 1)
    run(without_more, 2, allow_dropped_state=True)
    run(with_more, 2, from_epoch=0)
    assert CheckpointReader(tmp_path).get("p", "more", "a") == 1
    with pytest.raises(sk.StateSchemaError):
        run(without_more, 3)
    run(without_more, 3, allow_dropped_state=True)
    run(without_more, 4)


# ------------------------------------------------------------------------------------------ time


Recent = Annotated[sk.ValueState[int], sk.TTL("10 seconds")]


class Ping(NamedTuple):
    key: str
    at: dt.datetime


@sk.process(key="key", event_time="at")
def clocked(ping: Ping, ctx: sk.Context, last: Recent, seen: sk.ValueState[int]) -> Iterator[str]:
    seen.update((seen.get() or 0) + 1)
    last.update(seen.get() or 0)
    ctx.timers.set(ping.at, clock="processing")
    yield f"{ping.key} at {ctx.processing_time.second}"


@clocked.on_timer
def rung(timer: sk.Timer, last: Recent) -> Iterator[str]:
    yield f"rung for {timer.at.second}, last {last.get()}"


def second(number: int) -> dt.datetime:
    return instant(number * 1_000_000)


def test_processing_time_does_not_go_back(tmp_path: Path) -> None:
    """A timer that fired in an abandoned epoch is due again; what expired stays expired."""
    harness = Harness(clocked, checkpoint=tmp_path)
    harness.send(Ping("a", second(5)))
    assert harness.advance_processing_time(second(8)) == ["rung for 5, last 1"]
    assert harness.advance_processing_time(second(20)) == []
    plan(Repository(tmp_path), 0).carry_out()
    harness.crash()
    assert Repository(tmp_path).manifest(3).processing_time_us == 20_000_000
    assert [timer.at for timer in harness.timers("a")] == [second(5)]
    assert harness.state("last", "a") is None
    assert harness.state("seen", "a") == 1
    assert harness.send() == ["rung for 5, last None"]
    assert harness.send() == []


def test_event_time_goes_back_with_the_state(tmp_path: Path) -> None:
    harness = Harness(clocked, checkpoint=tmp_path)
    harness.send(Ping("a", second(5)))
    harness.send(Ping("a", second(50)))
    harness.send(Ping("b", second(7)))
    assert harness.late == [Ping("b", second(7))]
    plan(Repository(tmp_path), 0).carry_out()
    harness.crash()
    assert harness.send(Ping("b", second(7))) == ["b at 0"]
    assert len(harness.late) == 1


def timed_job() -> sk.Job:
    job = sk.Job("timed")
    job.source("records", Ping).process(clocked).sink("outputs")
    return job


def test_a_drained_job_continues_from_before_the_drain(tmp_path: Path) -> None:
    given = [Ping("a", second(5)), Ping("a", second(6))]
    job = timed_job()
    job.run({"records": given[:1]}, checkpoint=tmp_path)
    with pytest.raises(sk.RestoreError, match="was drained"):
        job.run({"records": given}, checkpoint=tmp_path)
    run = job.run({"records": given}, checkpoint=tmp_path, from_epoch=0, drain=False)
    assert run.outputs["outputs"][0].startswith("a at")


def test_an_epoch_that_was_begun_is_not_replayed_after_a_rollback(tmp_path: Path) -> None:
    """Its number is taken by the rollback, so the next one has an instant of its own."""
    job, now = timed_job(), [0]
    given = [Ping("a", second(5 + n)) for n in range(3)]

    def run(count: int, **options: Any) -> Any:
        options = {"drain": False, "epoch_size": 1, "clock": lambda: now[0], **options}
        return job.run({"records": given[:count]}, checkpoint=tmp_path, **options)

    def fail(*_: object) -> None:
        raise OSError("the sink is full")

    run(2)
    now[0] = 30_000_000
    with pytest.raises(sk.ProcessError, match="full"):
        run(3, outputs={"outputs": fail})
    assert Repository(tmp_path).read_note(2) == EpochNote(
        epoch=2, what="records", processing_time_us=30_000_000, begins_run=True
    )
    now[0] = 40_000_000
    plan(Repository(tmp_path), 0).carry_out()
    assert not list((tmp_path / "begun").iterdir())
    assert "a at 40" in run(2)["outputs"]


def test_a_drain_that_was_begun_is_abandoned_by_a_rollback(tmp_path: Path) -> None:
    job, given = timed_job(), [Ping("a", second(5)), Ping("a", second(6))]

    def fail(records: list[Any], epoch: int) -> None:
        if epoch == 2:
            raise OSError("the sink is full")

    with pytest.raises(sk.ProcessError, match="full"):
        job.run({"records": given}, outputs={"outputs": fail}, checkpoint=tmp_path, epoch_size=1)
    begun = Repository(tmp_path).read_note(2)
    assert begun is not None
    assert begun.what == "drain"
    run = job.run({"records": given}, checkpoint=tmp_path, from_epoch=0, drain=False)
    assert run.epochs == 1
    assert not Repository(tmp_path).manifest(3).drained


# ---------------------------------------------------------------------------------- Spark's part


BATCHES = 7


def streamed(path: Path, first: int = 0) -> Repository:
    """A checkpoint as a stream over one file per micro-batch leaves it, checksums beside.

    Parameters:
        first: from which position on its log of files was kept.
    """
    repository = Repository(path)
    coordinator = LocalRunner(tally_job(GROUPS).plan, repository, MemoryCopies()).coordinator
    for batch in range(-1, BATCHES):
        coordinator.begin()
        reports = [unchanged(plan.operator, plan.base) for plan in coordinator.plans("tally")]
        coordinator.commit(reports, batch=None if batch < 0 else batch)
    for name, data in part(BATCHES, interval=3, seen=1).items():
        above, _, last = name.rpartition("/")
        if above == "sources/0" and int(last.partition(".")[0]) < first:
            continue
        (path / "spark" / above).mkdir(parents=True, exist_ok=True)
        (path / "spark" / above / last).write_bytes(data)
        (path / "spark" / above / f".{last}.crc").write_bytes(b"crc")
    return repository


def sparks_part(repository: Repository) -> dict[str, bytes]:
    """Spark's files without checksums, each of which must belong to one."""
    names = [path.removeprefix("spark/") for path in repository.tree("spark")]
    kept = [name for name in names if not name.endswith(".crc")]
    for name in set(names) - set(kept):
        above, _, last = name.rpartition("/")
        assert f"{above}/{last[1:-4]}".lstrip("/") in kept, f"{name} is a checksum of nothing"
    return {name: repository.read(f"spark/{name}") for name in kept}


def next_input(found: dict[str, bytes], done: int) -> set[int] | None:
    """Which files Spark would hand on behind a micro-batch, now and later; None if we refuse it.

    It runs the last micro-batch that it knows the offsets of, unless that has ended; then it plans
    one of all in its log behind the offsets, and of all files that are not in its log.
    """
    numbers = [int(name.removeprefix("offsets/")) for name in found if name.startswith("offsets/")]
    if max(numbers, default=-1) > done + 1:
        return None
    in_log = {msgspec.json.decode(line)["batchId"] for line in seen_files(found)}
    assert in_log == set(range(len(in_log))), "a log without gaps"
    if max(numbers, default=-1) == done + 1:
        assert done + 1 in in_log, "a micro-batch of files that the log lacks"
    return {file for file in range(BATCHES + 5) if file > done or file not in in_log}


def check_is_whole(repository: Repository, before: Path, to: int) -> None:
    """The state is the old or the new one, and Spark continues after it or is refused."""
    epochs = repository.epochs()
    found = sparks_part(repository)
    if epochs[-1] == BATCHES:
        assert found == sparks_part(Repository(before))
        return
    assert epochs[-1] == BATCHES + 1
    assert repository.manifest(BATCHES + 1).previous == to
    assert next_input(found, to - 1) in (None, all_behind(to))


def check_finishes(repository: Repository, to: int) -> None:
    """Another rollback to the same epoch leaves nothing to do."""
    plan(repository, to).carry_out()
    assert repository.epochs()[-1] == BATCHES + 1
    found = sparks_part(repository)
    assert next_input(found, to - 1) == all_behind(to)
    assert max(repository.spark_batches("offsets"), default=-1) <= to


def all_behind(to: int) -> set[int]:
    """The files that an epoch has not read: epoch n is micro-batch n - 1, of file n - 1."""
    return set(range(to, BATCHES + 5))


class Stopped(Exception):
    """The power is cut."""


class StoppingRepository(Repository):
    """Stops before so many files were created or removed."""

    left = 0

    def _count(self) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1

    def create(self, path: str, data: bytes) -> None:
        self._count()
        super().create(path, data)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._count()
            super().remove([path])


STOPPED = [(3, 0), (0, 0), (6, 5), (6, 0), (5, 0), (1, 0), (3, 5)]


@pytest.mark.parametrize(("to", "first"), STOPPED if SOAK else STOPPED[:3], ids=str)
def test_a_rollback_stopped_at_any_file_neither_loses_nor_repeats_input(
    tmp_path: Path, to: int, first: int
) -> None:
    before, place = tmp_path / "before", tmp_path / "stopped"
    streamed(before, first)
    for stops in itertools.count():
        shutil.copytree(before, place)
        repository = StoppingRepository(place)
        repository.left = stops
        try:
            plan(repository, to).carry_out()
        except Stopped:
            check_is_whole(repository, before, to)
            check_finishes(Repository(place), to)
            shutil.rmtree(place)
        else:
            break
    check_finishes(repository, to)
    assert stops > 3


def test_a_rollback_killed_at_random_points_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    """Half of the kills come anywhere, half of them once it has said what it will do."""
    before, to = tmp_path / "before", 3
    streamed(before)
    chosen = random.Random(1)
    ended_as = set()
    for number in range(10):
        place = tmp_path / f"place-{number}"
        shutil.copytree(before, place)
        command = [sys.executable, "-m", "statekit.cli", "rollback", str(place), "--to", str(to)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if number % 2:
                next(line for line in process.stdout if line.startswith("outputs"))
                time.sleep(chosen.uniform(0.0, 0.1))
            else:
                time.sleep(chosen.uniform(0.0, 1.0))
            process.kill()
        repository = Repository(place)
        check_is_whole(repository, before, to)
        ended_as.add(repository.epochs()[-1])
        check_finishes(repository, to)
    assert BATCHES + 1 in ended_as


def test_offsets_that_spark_has_deleted_are_refused_with_the_epochs_that_are_left(
    tmp_path: Path,
) -> None:
    repository = streamed(tmp_path)
    for batch in range(3):
        (tmp_path / "spark" / "offsets" / str(batch)).unlink()
    before = files(tmp_path)
    for to in (1, 3, 4):  # a micro-batch needs the offsets that it began at, too
        with pytest.raises(sk.RestoreError, match=r"no longer has.*Go back to one from 5 to 6"):
            plan(repository, to)
    assert files(tmp_path) == before
    plan(repository, 5).carry_out()
    with pytest.raises(sk.RestoreError, match="no longer has the offsets"):
        plan(repository, BATCHES)  # undone it could be until Spark's part was set back


def test_a_micro_batch_whose_number_was_given_to_other_input_is_refused(tmp_path: Path) -> None:
    """Spark's offsets of that number lead on behind another state."""
    repository = streamed(tmp_path)
    shutil.copytree(tmp_path / "spark", tmp_path / "noted")
    plan(repository, 5).carry_out()
    coordinator = LocalRunner(tally_job(GROUPS).plan, repository, MemoryCopies()).coordinator
    for batch in (5, 6):
        coordinator.begin()
        reports = [unchanged(plan.operator, plan.base) for plan in coordinator.plans("tally")]
        coordinator.commit(reports, batch=batch)
    shutil.copytree(tmp_path / "noted", tmp_path / "spark", dirs_exist_ok=True)
    before = files(tmp_path)
    for epoch in (6, 7):
        for refused in (plan, lambda of, epoch: write_savepoint(of, "s", epoch=epoch)):
            with pytest.raises(
                sk.RestoreError, match=rf"epoch {epoch} .* was rolled back, and wit"
            ):
                refused(repository, epoch)
    assert files(tmp_path) == before
    for epoch in (5, 8, 9, 10):  # the epoch gone back to, the rollback, and what followed
        assert write_savepoint(repository, f"of-{epoch}", epoch=epoch).epoch == epoch


def test_state_of_sparks_own_operators_is_refused(tmp_path: Path) -> None:
    repository = streamed(tmp_path)
    (tmp_path / "spark" / "state" / "0").mkdir(parents=True)
    (tmp_path / "spark" / "state" / "0" / "1.delta").write_bytes(b"")
    before = files(tmp_path)
    with pytest.raises(sk.RestoreError, match="state of its own"):
        plan(repository, 3)
    assert files(tmp_path) == before


def test_a_micro_batch_that_spark_has_planned_is_left_to_it(tmp_path: Path) -> None:
    """Behind a rollback over idle epochs, what Spark planned next is still what comes next."""
    repository = streamed(tmp_path)
    coordinator = LocalRunner(tally_job(GROUPS).plan, repository, MemoryCopies()).coordinator
    coordinator.begin(what="idle")
    coordinator.commit([unchanged(plan.operator, plan.base) for plan in coordinator.plans("tally")])
    planned = msgspec.json.encode({"logOffset": BATCHES})
    (tmp_path / "spark" / "offsets" / str(BATCHES)).write_bytes(b"v1\n{}\n" + planned)
    before = sparks_part(repository)
    plan(repository, BATCHES).carry_out()
    assert sparks_part(repository) == before


def test_only_files_that_are_not_state_can_be_removed(tmp_path: Path) -> None:
    tallied(tmp_path, 1)
    for path in (epoch_path(0), "job.json", "data/tally/x"):
        with pytest.raises(AssertionError, match="is state"):
            Repository(tmp_path).remove([path])
