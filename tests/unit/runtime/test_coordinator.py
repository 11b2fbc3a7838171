from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.job_file import JobFile, OperatorRecord
from statekit.checkpoint.manifest import IdleShards, Report, ShardReport, ShardState
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef, checksum_of
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    IncompleteEpochError,
    RescaleError,
    RestoreError,
    StateSchemaError,
)
from statekit.functions.process import Process
from statekit.job.compatibility import next_job_file
from statekit.job.options import RunOptions
from statekit.job.plan import Output
from statekit.job.progress import OutputCallback
from statekit.maintenance.verify.verify import verify
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.runtime.shard_reports import unchanged
from statekit.testing import Harness
from statekit.working_copy.copies import MemoryCopies
from tests.support.counting_job import (
    Entry,
    committed_rows,
    copied_rows,
    entries,
    plain_outputs,
    plain_state,
    state_of,
    tally,
    tally_job,
)

# The operator "p" in different versions of the code.


@sk.process(key="key")
def one_state(entry: Entry, total: sk.ValueState[int]) -> None:
    total.update((total.get() or 0) + entry.n)


@sk.process(key="key")
def two_states(entry: Entry, total: sk.ValueState[int], more: sk.ValueState[int]) -> None:
    total.update((total.get() or 0) + entry.n)
    more.update((more.get() or 0) + 1)


@sk.process(key="key")
def other_value_type(entry: Entry, total: sk.ValueState[str]) -> None:
    total.update(entry.key)


@sk.process(key="key")
def other_kind(entry: Entry, total: sk.ListState[int]) -> None:
    total.append(entry.n)


@sk.process(key="n")
def other_key_type(entry: Entry, total: sk.ValueState[int]) -> None:
    total.update(entry.n)


@sk.process(key="key")
def more_as_text(entry: Entry, total: sk.ValueState[int], more: sk.ValueState[str]) -> None:
    more.update(entry.key)


AnyProcess = Process[Any, Any, Any]


def job_of(*declared: AnyProcess, name: str = "job", key_groups: int | None = None) -> sk.Job:
    job = sk.Job(name, key_groups=key_groups)
    stream = job.source("records", Entry)
    for each in declared:
        stream.process(each, name="tally" if each is tally else "p")
    return job


def runner(job: sk.Job, path: Path, **options: Any) -> LocalRunner:
    return LocalRunner(job.plan, Repository(path), MemoryCopies(), RunOptions(**options))


def ran(job: sk.Job, path: Path, *records: Entry, **options: Any) -> LocalRunner:
    """One epoch over these records."""
    made = runner(job, path, **options)
    made.epoch({"records": records})
    return made


def rows(made: LocalRunner, state: str) -> list[bytes]:
    """The rows of a state of "p" after the last epoch."""
    coordinator = made.coordinator
    found: list[bytes] = []
    states = tuple(spec.name for spec in made.job.operators[0].declared.states)
    for plan in coordinator.plans("p"):
        copy = MemoryCopies().obtain(plan, states, coordinator.repository)
        found += [row for _, row in copy.backend.scan(state, b"", b"\xff")]
    return found


def names(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


A, B = Entry("a", 1), Entry("b", 2)


# ------------------------------------------------------------------------------------- refusing


def test_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    ran(job_of(one_state, name="mine"), tmp_path, A)
    before = names(tmp_path)
    with pytest.raises(RestoreError, match="is a checkpoint of job 'mine', not of 'yours'"):
        runner(job_of(one_state, name="yours"), tmp_path)
    assert names(tmp_path) == before


def test_job_without_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="has no operator"):
        Coordinator.open(job_of().plan, Repository(tmp_path))


def test_other_number_of_key_groups_is_refused_and_the_stored_one_wins(tmp_path: Path) -> None:
    ran(job_of(one_state, key_groups=16), tmp_path, A)
    with pytest.raises(RescaleError, match="has 16 key groups, the job asks for 32"):
        runner(job_of(one_state, key_groups=32), tmp_path)
    assert runner(job_of(one_state), tmp_path).coordinator.key_groups == 16
    assert runner(job_of(one_state, key_groups=16), tmp_path).coordinator.key_groups == 16


@pytest.mark.parametrize("parallelism", [0, -1, 17])
def test_parallelism_that_cannot_be_is_refused(tmp_path: Path, parallelism: int) -> None:
    job = job_of(one_state, key_groups=16)
    with pytest.raises(RescaleError, match=f"parallelism={parallelism}: use an int from 1 to 16"):
        runner(job, tmp_path, parallelism=parallelism)
    runner(job, tmp_path, parallelism=16).epoch({"records": [A]})
    assert runner(job, tmp_path).coordinator.parallelism == 16


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (other_key_type, r"keyed by key: str in the checkpoint and by n: int in the code"),
        (other_value_type, r"(?s)'total' of operator 'p' changed its type.*was int and is str.*≠"),
        (other_kind, r"(?s)'total' of operator 'p' changed what it is.*≠ value state +list state"),
    ],
    ids=["key type", "value type", "kind of state"],
)
def test_changed_type_is_refused_and_changes_nothing(
    tmp_path: Path, changed: AnyProcess, message: str
) -> None:
    ran(job_of(one_state), tmp_path, A)
    before = names(tmp_path)
    with pytest.raises(StateSchemaError, match=message):
        runner(job_of(changed), tmp_path)
    with pytest.raises(StateSchemaError, match=message):
        runner(job_of(changed), tmp_path, allow_dropped_state=True)
    assert names(tmp_path) == before


def test_damaged_manifest_or_job_file_is_an_error_and_never_a_blank_start(tmp_path: Path) -> None:
    ran(job_of(one_state), tmp_path, A)
    for name in (epoch_path(0), "job.json"):
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        with pytest.raises(CorruptCheckpointError, match=name):
            runner(job_of(one_state), tmp_path)
        path.write_bytes(data)
    (tmp_path / "job.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"job\.json is missing"):
        runner(job_of(one_state), tmp_path)


# ------------------------------------------------------------------------------ changing states


def test_new_state_starts_empty_and_the_others_stay(tmp_path: Path) -> None:
    ran(job_of(one_state), tmp_path, A, B)
    made = runner(job_of(two_states), tmp_path)
    assert rows(made, "more") == []
    assert len(rows(made, "total")) == 2
    made.epoch({"records": [A]})
    again = runner(job_of(two_states), tmp_path)
    assert (len(rows(again, "total")), len(rows(again, "more"))) == (2, 1)
    assert {"job.json", "job-2.json"} <= names(tmp_path)


def test_dropped_state_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    ran(job_of(two_states), tmp_path, A, B)
    with pytest.raises(StateSchemaError, match=r"state 'more' .*allow_dropped_state=True"):
        runner(job_of(one_state), tmp_path)
    made = runner(job_of(one_state), tmp_path, allow_dropped_state=True)
    assert len(rows(made, "total")) == 2
    made.epoch({"records": [A]})
    assert len(rows(runner(job_of(one_state), tmp_path), "total")) == 2  # now it is settled


def test_name_of_a_dropped_state_is_not_given_to_another(tmp_path: Path) -> None:
    # Its rows are still in change files, and would be read as rows of the new state.
    ran(job_of(two_states), tmp_path, A)
    ran(job_of(one_state), tmp_path, A, allow_dropped_state=True)
    for again in (two_states, more_as_text):
        with pytest.raises(StateSchemaError, match=r"declares \['more'\], names of dropped states"):
            runner(job_of(again), tmp_path)
    ran(job_of(one_state), tmp_path, A)
    with pytest.raises(StateSchemaError, match=r"declares \['more'\]"):
        runner(job_of(two_states), tmp_path)


def test_drop_that_was_never_committed_can_be_taken_back(tmp_path: Path) -> None:
    ran(job_of(two_states), tmp_path, A)
    runner(job_of(one_state), tmp_path, allow_dropped_state=True)
    assert len(rows(runner(job_of(two_states), tmp_path), "more")) == 1


def test_dropped_operator_is_refused_unless_it_is_allowed_and_comes_back_empty(
    tmp_path: Path,
) -> None:
    ran(job_of(one_state, tally), tmp_path, A)
    with pytest.raises(StateSchemaError, match=r"has an operator 'p' with states \['total'\]"):
        runner(job_of(tally), tmp_path)
    ran(job_of(tally), tmp_path, A, allow_dropped_state=True)
    assert rows(runner(job_of(one_state, tally), tmp_path), "total") == []


# ---------------------------------------------------------------------------------- timers


def alarms(*names: str | None) -> AnyProcess:
    """Sets a timer named like its record's key, a second on, and has callbacks of these names."""

    @sk.process(key="n")
    def ringing(entry: Entry, ctx: sk.Context, total: sk.ValueState[int]) -> Iterator[str]:
        ctx.timers.set(ctx.processing_time + dt.timedelta(seconds=1), entry.key, "processing")
        yield f"{entry.key} is set"

    def rings(timer: sk.Timer) -> Iterator[str]:
        yield f"{timer.name} rings"

    for name in names:
        (ringing.on_timer if name is None else ringing.on_timer(name))(rings)
    if not names:

        @sk.process(key="n")
        def silent(entry: Entry, total: sk.ValueState[int]) -> Iterator[str]:
            yield f"{entry.key} is here"

        return silent
    return ringing


def sets(path: Path, *names: str | None, second: int = 0, **options: Any) -> list[Any]:
    """An epoch at that second over a record "a" and a record "b"; what it puts out."""
    job = job_of(alarms(*names))
    job.plan.sinks.append(Output("out", "p"))
    made = runner(job, path, clock=lambda: second * 1_000_000, **options)
    records = [] if second else [Entry("a", 1), Entry("b", 2)]
    return sorted(made.epoch({"records": records})["out"])


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (("a", "b"), ("a",), r"callback for timers named 'b' .*@ringing.on_timer\('b'\)"),
        ((None, "a"), ("a", "b"), r"callback for all timers without .*@ringing.on_timer, if only"),
        (("a", "b"), (), "handled timers and no longer does"),
    ],
)
def test_a_callback_that_timers_may_still_need_is_missed_at_the_start(
    tmp_path: Path, before: tuple[str | None, ...], now: tuple[str | None, ...], said: str
) -> None:
    assert sets(tmp_path, *before) == ["a is set", "b is set"]
    files = names(tmp_path)
    with pytest.raises(StateSchemaError, match=f"{said}.*allow_dropped_state=True"):
        sets(tmp_path, *now, second=5)
    assert names(tmp_path) == files
    assert sets(tmp_path, *before, second=5) == ["a rings", "b rings"]


@pytest.mark.parametrize("before", [("a", "b"), (None,)])
def test_dropped_timers_are_deleted_when_they_are_due(
    tmp_path: Path, before: tuple[str | None, ...]
) -> None:
    sets(tmp_path, *before)
    made = runner(job_of(alarms("a")), tmp_path, allow_dropped_state=True, clock=lambda: 0)
    made.epoch({"records": []})
    assert sets(tmp_path, "a", second=5) == ["a rings"], "settled: it need not be allowed again"
    assert sets(tmp_path, "a", "b", second=9) == [], "it went when it came due"


def test_a_callback_for_all_others_takes_the_timers_of_one_that_went(tmp_path: Path) -> None:
    sets(tmp_path, "a", "b")
    assert sets(tmp_path, None, second=5) == ["a rings", "b rings"]


def test_a_job_file_that_does_not_know_the_names_of_timers_is_continued() -> None:
    written = job_of(alarms("a", "b")).plan.operators[0].record()
    assert written.timer_names == ("a", "b")
    before = OperatorRecord.model_validate_json(written.model_dump_json(exclude={"timer_names"}))
    stored = JobFile(id="0" * 32, name="j", key_groups=128, operators=(before,))
    next_job_file(stored, job_of(alarms("a")).plan.operators, allow_dropped_state=False)
    with pytest.raises(StateSchemaError, match="handled timers and no longer does"):
        next_job_file(stored, job_of(alarms()).plan.operators, allow_dropped_state=False)


def test_timers_that_were_all_dropped_cannot_be_declared_again(tmp_path: Path) -> None:
    sets(tmp_path, "a", "b")
    sets(tmp_path, second=5, allow_dropped_state=True)
    with pytest.raises(StateSchemaError, match=r"its earlier timers were dropped.* another name="):
        sets(tmp_path, "a", second=9)
    with pytest.raises(StateSchemaError, match=r"operator 'p' with states \['total'\], the job"):
        runner(job_of(tally), tmp_path)


def test_an_operator_that_went_is_said_to_have_had_timers(tmp_path: Path) -> None:
    sets(tmp_path, "a", "b")
    with pytest.raises(StateSchemaError, match=r"'p' with states \['total'\] and timers, the job"):
        runner(job_of(tally), tmp_path)


# ------------------------------------------------------- between the job file and the first epoch


def test_start_that_never_committed_leaves_the_choice_of_everything(tmp_path: Path) -> None:
    runner(job_of(one_state, key_groups=16), tmp_path)
    made = ran(job_of(other_kind, key_groups=32), tmp_path, A, parallelism=32)
    assert made.coordinator.key_groups == 32
    assert len(rows(runner(job_of(other_kind), tmp_path), "total")) == 1


def test_start_that_never_committed_still_belongs_to_its_job(tmp_path: Path) -> None:
    runner(job_of(one_state, name="mine"), tmp_path)
    with pytest.raises(RestoreError, match="is a checkpoint of job 'mine'"):
        runner(job_of(one_state, name="yours"), tmp_path)


def test_crash_between_a_new_job_file_and_its_first_epoch_is_continued(tmp_path: Path) -> None:
    first = ran(job_of(one_state), tmp_path, A)
    crashed = runner(job_of(two_states), tmp_path).coordinator
    again = runner(job_of(two_states), tmp_path).coordinator
    assert names(tmp_path) & {"job-2.json", "job-3.json"} == {"job-2.json"}
    assert again.job_file == crashed.job_file
    assert again.job_file.id == first.coordinator.job_file.id


def test_old_code_continues_if_new_code_never_committed(tmp_path: Path) -> None:
    ran(job_of(one_state), tmp_path, A)
    runner(job_of(two_states), tmp_path)
    made = ran(job_of(one_state), tmp_path, B)
    assert made.coordinator.last is not None
    assert made.coordinator.last.job_file.path == "job.json"
    assert len(rows(runner(job_of(one_state), tmp_path), "total")) == 2
    third = ran(job_of(more_as_text), tmp_path, A)  # job-2.json is of yet another version
    assert third.coordinator.last is not None
    assert third.coordinator.last.job_file.path == "job-3.json"
    assert len(rows(third, "more")) == 1


# --------------------------------------------------------------------------------------- reports


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator.open(
        tally_job(key_groups=8).plan, Repository(tmp_path), RunOptions(parallelism=3)
    )


def reports_of(coordinator: Coordinator) -> list[ShardReport]:
    return [unchanged(plan.operator, plan.base) for plan in coordinator.plans("tally")]


def attempt(report: ShardReport, name: str, content: bytes = b"") -> ShardReport:
    """A report of a shard that changed."""
    file = FileRef(path=f"data/tally/{name}", size=1, checksum=checksum_of(content), rows=1)
    changed = {"attempt": name, "changed": 0, "files": (file,)}
    shard = report.shard.model_copy(update=changed)
    return report.model_copy(update={"shard": shard, "files_written": 1})


def idle(*shards: int) -> IdleShards:
    return IdleShards.of("tally", shards)


Change = Callable[[list[ShardReport]], list[Report]]
STRANGER = ShardReport(operator="tally", shard=ShardState(first_group=0, last_group=7))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda reports: [], r"shards \[0, 1, 2\] did not report"),
        (lambda reports: reports[1:], r"shards \[0\] did not report"),
        (
            lambda reports: [*reports, attempt(reports[2], "a")],
            r"shards \[2\] ran more than once, and differ",
        ),
        (
            lambda reports: [
                *reports[:2],
                attempt(reports[2], "a"),
                attempt(reports[2], "b", b"x"),
            ],
            r"shards \[2\] ran more than once, and differ",
        ),
        (
            lambda reports: [*reports[:2], attempt(reports[2], "a"), attempt(reports[2], "a")],
            r"shards \[2\] ran more than once",
        ),
        (
            lambda reports: [reports[0], attempt(reports[0], "a"), reports[2]],
            r"shards \[1\] did not report and shards \[0\] ran more than once",
        ),
        (lambda reports: [*reports, STRANGER], r"key groups \[\(0, 7\)\] are of no shard"),
        (lambda reports: [STRANGER, *reports[1:]], r"shards \[0\] did not report and key groups"),
        (lambda reports: [idle(0, 2)], r"shards \[1\] did not report"),
        (
            lambda reports: [idle(0, 1, 2), attempt(reports[1], "a")],
            r"shards \[1\] ran more than once, and differ",
        ),
        (lambda reports: [idle(0, 1, 2, 3)], r"shards \[3\] are none of this run"),
    ],
    ids=[
        "none",
        "one missing",
        "one changed and unchanged",
        "one changed in two ways",
        "one attempt told of twice",
        "one missing, another twice",
        "of other shards",
        "instead of a shard",
        "one missing among idle ones",
        "one idle and changed",
        "an idle one of another parallelism",
    ],
)
def test_reports_that_are_not_one_per_shard_commit_nothing(
    coordinator: Coordinator, change: Change, message: str
) -> None:
    with pytest.raises(IncompleteEpochError, match=f"epoch 0, operator 'tally': {message}"):
        coordinator.commit(change(reports_of(coordinator)))
    assert coordinator.last is None
    assert coordinator.repository.epochs() == []
    coordinator.commit(reversed(reports_of(coordinator)))  # any order will do
    assert coordinator.repository.epochs() == [0]


def test_idle_shards_stay_the_same_objects(coordinator: Coordinator) -> None:
    first = coordinator.commit([attempt(reports_of(coordinator)[1], "a"), idle(0, 2)])
    second = coordinator.commit([idle(0, 1, 2)])
    pairs = zip(first.operators["tally"].shards, second.operators["tally"].shards, strict=True)
    assert all(before is after for before, after in pairs)
    assert second.operators["tally"].shards[1].attempt == "a"


def test_a_shard_that_was_idle_in_two_attempts_or_changed_nothing_is_one(
    coordinator: Coordinator,
) -> None:
    """As Spark tells of shards without records when a lost executor's task has run again."""
    coordinator.commit([idle(0, 1, 2), idle(1), reports_of(coordinator)[2]])
    assert coordinator.repository.epochs() == [0]


def test_the_time_of_idle_shards_counts(coordinator: Coordinator) -> None:
    shard = attempt(reports_of(coordinator)[1], "a").model_copy(update={"cpu_us": 5})
    manifest = coordinator.commit([shard, IdleShards.of("tally", [0, 2], cpu_us=3)])
    assert manifest.operators["tally"].cpu_us == 8


def test_attempts_at_a_shard_that_did_the_same_are_one(coordinator: Coordinator) -> None:
    """As Spark tells of them when a lost executor's shards have run again."""
    first, second, third = reports_of(coordinator)
    once, again = attempt(first, "a"), attempt(first, "b")
    manifest = coordinator.commit([once, second, third, second, again])
    assert manifest.operators["tally"].shards[0].attempt in ("a", "b")
    assert [shard.attempt for shard in manifest.operators["tally"].shards[1:]] == [None, None]


def test_reports_of_each_operator_are_checked_on_their_own(tmp_path: Path) -> None:
    coordinator = Coordinator.open(job_of(one_state, tally).plan, Repository(tmp_path))
    with pytest.raises(IncompleteEpochError, match="operator 'p'"):
        coordinator.commit(reports_of(coordinator))
    assert coordinator.repository.epochs() == []


# --------------------------------------------------------------------------------------- fencing


def test_of_two_runs_on_one_checkpoint_the_slower_is_fenced(tmp_path: Path) -> None:
    slow = runner(tally_job(8), tmp_path, parallelism=2)
    fast = runner(tally_job(8), tmp_path, parallelism=2)
    fast.epoch({"records": [A, A]})
    called: list[object] = []
    with pytest.raises(FencedError, match="was committed by another run"):
        slow.epoch({"records": [B]}, outputs={"outputs": lambda *args: called.append(args)})
    assert called == []  # found out before the sink was written
    fast.epoch({"records": [B]})
    assert committed_rows(Repository(tmp_path), 8) == reference([A, A], [B])


def test_run_that_is_overtaken_while_its_sink_is_written_is_fenced(tmp_path: Path) -> None:
    slow = runner(tally_job(8), tmp_path)
    fast = runner(tally_job(8), tmp_path)
    with pytest.raises(FencedError, match="exists: another run of this job"):
        slow.epoch({"records": [B]}, outputs={"outputs": lambda _records, _epoch: overtake(fast)})
    assert committed_rows(Repository(tmp_path), 8) == reference([A, A])
    with pytest.raises(FencedError):  # it does not recover by trying again
        slow.epoch({"records": [B]})
    again = runner(tally_job(8), tmp_path)
    again.epoch({"records": [B]})
    assert committed_rows(Repository(tmp_path), 8) == reference([A, A], [B])


@pytest.mark.parametrize("when", ["before it begins", "while its sink is written"])
def test_a_run_that_slept_until_its_epoch_was_collected_is_fenced(
    tmp_path: Path, when: str
) -> None:
    slow = runner(tally_job(8), tmp_path)
    slow.epoch({"records": [A, B]})

    def sleep(*_: object) -> None:
        fast = runner(tally_job(8), tmp_path)
        for _epoch in range(5):
            fast.epoch({"records": [A, B]})
        Collector(Repository(tmp_path), sk.Retention(epochs=1)).collect(sweep=False)

    outputs: dict[str, OutputCallback] = {}
    if when == "before it begins":
        sleep()
    else:
        outputs["outputs"] = sleep
    slow.copies = MemoryCopies()
    with pytest.raises(FencedError, match=r"epoch 1 .* by another run, and collected since"):
        slow.epoch({"records": [A, B]}, outputs=outputs)
    assert Repository(tmp_path).epochs() == [5]
    assert committed_rows(Repository(tmp_path), 8) == reference(*[[A, B]] * 6)
    assert Collector(Repository(tmp_path), sk.Retention(epochs=1)).collect(sweep=False) is not None
    assert verify(Repository(tmp_path)).is_intact
    assert committed_rows(Repository(tmp_path), 8) == reference(*[[A, B]] * 6)


def overtake(fast: LocalRunner) -> None:
    fast.epoch({"records": [A, A]})


def reference(*epochs: list[Entry]) -> Any:
    """Rows after these epochs in a run that nothing disturbs."""
    made = LocalRunner(tally_job(8).plan, Repository.in_memory(), MemoryCopies())
    for records in epochs:
        made.epoch({"records": records})
    return committed_rows(made.coordinator.repository, 8)


# ------------------------------------------------------------------------------------- rescaling


def test_restart_with_another_parallelism_keeps_all_state_and_outputs(tmp_path: Path) -> None:
    records, outputs = list[Entry](), list[tuple[str, int]]()
    for epoch, parallelism in enumerate([1, 4, 3, None, 8, 2, 5, 1]):
        piece = entries(epoch, 30)
        # After a change of parallelism some shards have nothing to do and stand still.
        piece = piece if epoch % 3 else piece[:2]
        harness = Harness(tally, parallelism=parallelism, key_groups=8, checkpoint=tmp_path)
        assert harness.parallelism == (parallelism or 3)
        records += piece
        outputs += harness.send(*piece)
        expected = plain_state(records)
        assert state_of(harness, expected) == expected
        rows_here = copied_rows(harness._runner.coordinator, MemoryCopies())
        assert rows_here == committed_rows(Repository(tmp_path), 8)
    assert sorted(outputs) == sorted(plain_outputs(records))


def test_offsets_and_batch_are_carried_from_epoch_to_epoch(coordinator: Coordinator) -> None:
    coordinator.commit(reports_of(coordinator), batch=3, offsets={"records": 5})
    manifest = coordinator.commit(reports_of(coordinator))
    assert (manifest.batch, manifest.offsets, manifest.previous) == (3, {"records": 5}, 0)
