"""Savepoints: written, moved, damaged, restored with any layout, and gone on from."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.backend import divided_rows
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan as rollback_plan
from statekit.checkpoint.sealed_json import FORMAT
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    RescaleError,
    RestoreError,
    StatekitError,
    StateSchemaError,
    StorageError,
)
from statekit.maintenance.migrate import Migration
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.rewrite import rewrite_checkpoint
from statekit.maintenance.savepoint import write as writing
from statekit.maintenance.savepoint.format import Savepoint, SavepointFile
from statekit.maintenance.savepoint.restore import import_savepoint
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from statekit.timestamp import instant
from tests.support.all_row_kinds import PROCESSES, START, Step, epochs, held, reopened, run, stored
from tests.support.counting_job import Entry, entries, plain_state, state_of, tally, tally_job
from tests.support.small_disk import small_disk
from tests.unit.maintenance.test_rewrite import layouts


def saved(harness: Harness, name: str = "s") -> Savepoint:
    write_savepoint(harness._repository, name)
    return Savepoint(harness._repository, f"savepoints/{name}")


def restored(process: Any, savepoint: Savepoint, parallelism: int, key_groups: int) -> Harness:
    harness = Harness(process, parallelism, key_groups)
    import_savepoint(savepoint, harness._repository, parallelism=parallelism, key_groups=key_groups)
    return reopened(harness, None)


@settings(max_examples=15, deadline=None)
@given(
    process=st.sampled_from(PROCESSES),
    before=epochs(),
    after=epochs(4),
    layout=layouts(),
    other=layouts(),
    rows_per_group=st.sampled_from([1, 3, 65_536]),
    bytes_per_file=st.sampled_from([1, 200, 1 << 20]),
)
def test_a_job_continues_from_a_savepoint_as_if_nothing_had_happened(
    process: Any,
    before: list[Any],
    after: list[Any],
    layout: tuple[int, int],
    other: tuple[int, int],
    rows_per_group: int,
    bytes_per_file: int,
) -> None:
    original = Harness(process, *layout)
    for number, records in enumerate(before):
        run(original, number, records)
    with (
        mock.patch.object(writing, "_GROUP_ROWS_MAX", rows_per_group),
        mock.patch.object(writing, "_PART_BYTES_MAX", bytes_per_file),
    ):
        savepoint = saved(original)
    harness = restored(process, savepoint, *other)
    assert (harness.parallelism, harness.key_groups, harness.epoch) == (*other, original.epoch)
    assert stored(harness._repository) == stored(original._repository)
    assert held(harness) == held(original)
    for number, records in enumerate(after, len(before)):
        assert run(harness, number, records) == run(original, number, records)
    assert held(harness) == held(original)


def restored_from_savepoint(sums: Any, original: Harness) -> Harness:
    return restored(sums, saved(original), 3, 5)


def rewritten(_: Any, original: Harness) -> Harness:
    rewrite_checkpoint(original._repository, parallelism=3, key_groups=5)
    return reopened(original, None)


@pytest.mark.parametrize("moved_by", [restored_from_savepoint, rewritten])
@pytest.mark.parametrize("window", [sk.session("1 minute"), sk.tumbling("1 minute")])
def test_open_windows_close_as_they_would_have(
    window: Any, moved_by: Callable[[Any, Harness], Harness]
) -> None:
    steps = sk.Job("windows").source("steps", Step)
    sums = steps.window(window, key="key", event_time="at").sum("n")
    original, other = Harness(sums), Harness(sums)
    for each in (original, other):
        each.send(*(Step(key, n, START + dt.timedelta(seconds=n)) for n, key in enumerate("abab")))
    harness = moved_by(sums, other)
    later = Step("c", 0, START + dt.timedelta(hours=1))
    for number in (1, 2):
        moved = later._replace(at=later.at + dt.timedelta(hours=number))
        told, expected_ = harness.send(moved), original.send(moved)
        assert sorted(map(repr, told)) == sorted(map(repr, expected_))
        assert number == 1 or told


@pytest.mark.parametrize("moved_by", [restored_from_savepoint, rewritten])
@pytest.mark.parametrize(
    "options",
    [
        {"clock": "processing"},
        {"clock": "processing", "early": "10 s"},
        {"event_time": "at", "early": "10 s", "early_clock": "processing"},
    ],
    ids=str,
)
def test_windows_fire_by_the_clock_as_they_would_have(
    options: Any, moved_by: Callable[[Any, Harness], Harness]
) -> None:
    steps = sk.Job("windows").source("steps", Step)
    sums = steps.window(sk.tumbling("1 minute"), key="key", **options).sum("n")
    original, other = Harness(sums), Harness(sums)
    for each in (original, other):
        each.send(*(Step(key, n, START) for n, key in enumerate("abab")))
    harness = moved_by(sums, other)
    for seconds in (10, 60):
        now = instant(0) + dt.timedelta(seconds=seconds)
        found = harness.advance_processing_time(now)
        assert sorted(found) == sorted(original.advance_processing_time(now))
        assert found or seconds == (60 if "event_time" in options else 10)


# ---------------------------------------------------------------------------- files of its own


def tallied(path: Path, count: int = 4) -> Harness:
    harness = Harness(tally, 3, 16, checkpoint=path)
    for epoch in range(count):
        harness.send(*entries(epoch, 30))
    return harness


def expected(*numbers: int) -> dict[str, Any]:
    return plain_state(record for epoch in numbers for record in entries(epoch, 30))


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """A savepoint elsewhere, whose checkpoint is gone."""
    write_savepoint(tallied(tmp_path / "checkpoint")._repository, "s")
    target = tmp_path / "elsewhere with a space"
    shutil.move(tmp_path / "checkpoint/savepoints/s", target)
    shutil.rmtree(tmp_path / "checkpoint")
    return target


def test_a_savepoint_may_be_moved_and_its_checkpoint_deleted(moved: Path) -> None:
    harness = Harness.restore(tally, moved, parallelism=5, key_groups=9)
    assert state_of(harness, expected(0, 1, 2, 3)) == expected(0, 1, 2, 3)
    harness.send(*entries(4, 30))
    assert state_of(harness, expected(0, 1, 2, 3, 4)) == expected(0, 1, 2, 3, 4)


def test_an_epoch_before_the_last_can_be_saved(tmp_path: Path) -> None:
    harness = tallied(tmp_path)
    write_savepoint(harness._repository, "s", epoch=1)
    again = Harness.restore(tally, tmp_path / "savepoints/s")
    assert again.epoch == 1
    assert state_of(again, expected(0, 1)) == expected(0, 1)


def test_a_continuing_job_does_not_change_a_savepoint(tmp_path: Path) -> None:
    harness = tallied(tmp_path)
    write_savepoint(harness._repository, "s")
    harness.send(*entries(4, 30))
    again = Harness.restore(tally, tmp_path / "savepoints/s")
    assert state_of(again, expected(0, 1, 2, 3)) == expected(0, 1, 2, 3)


def files_of(path: Path) -> list[Path]:
    return sorted(found for found in path.rglob("*") if found.is_file())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_every_file_that_is_missing_or_altered_is_named(
    moved: Path, damage: Callable[[Path], None]
) -> None:
    for path in files_of(moved):
        content = path.read_bytes()
        damage(path)
        target = Repository.in_memory()
        gone = path.name == "savepoint.json" and damage is Path.unlink
        kind: type[StatekitError] = RestoreError if gone else CorruptCheckpointError
        with pytest.raises(kind, match=path.name.replace(".", r"\.")):
            import_savepoint(Savepoint.at(moved), target)
        assert target.epochs() == []
        path.write_bytes(content)
    import_savepoint(Savepoint.at(moved), Repository.in_memory())


def test_a_table_whose_rows_were_exchanged_is_found_out(moved: Path) -> None:
    """Its files are whole and named, and still it is not what was saved."""
    path = moved / "savepoint.json"
    made = SavepointFile.from_bytes(path.read_bytes(), "it")
    operator = made.operators["tally"]
    total = operator.states["total"].model_copy(update={"checksum": "0" * 16})
    states = {**operator.states, "total": total}
    operators = {"tally": operator.model_copy(update={"states": states})}
    path.write_bytes(made.model_copy(update={"operators": operators}).to_bytes())
    with pytest.raises(CorruptCheckpointError, match=r"of tally\.total.*0000000000000000"):
        import_savepoint(Savepoint.at(moved), Repository.in_memory())


def test_a_savepoint_of_a_newer_version_is_refused(moved: Path) -> None:
    path = moved / "savepoint.json"
    made = SavepointFile.from_bytes(path.read_bytes(), "it")
    path.write_bytes(made.model_copy(update={"format": FORMAT + 1}).to_bytes())
    with pytest.raises(RestoreError, match=rf"format version {FORMAT + 1}.*upgrade statekit"):
        Savepoint.at(moved)


# -------------------------------------------------------------------------------- its name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "ü", "a\n"])
def test_names_that_are_no_directories_everywhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RestoreError, match="cannot be the name"):
        write_savepoint(tallied(tmp_path)._repository, name)


def test_a_savepoint_is_never_overwritten(tmp_path: Path) -> None:
    repository = tallied(tmp_path)._repository
    write_savepoint(repository, "s")
    before = {path: path.read_bytes() for path in files_of(tmp_path / "savepoints")}
    with pytest.raises(RestoreError, match="is a savepoint already"):
        write_savepoint(repository, "s", epoch=1)
    assert {path: path.read_bytes() for path in files_of(tmp_path / "savepoints")} == before


def test_of_two_savepoints_with_one_name_one_is_complete_and_the_other_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tallied(tmp_path)._repository
    create = repository.create

    def meanwhile(path: str, data: bytes) -> None:
        monkeypatch.undo()
        write_savepoint(Repository(tmp_path), "s", epoch=1)
        create(path, data)

    monkeypatch.setattr(repository, "create", meanwhile)
    with pytest.raises(RestoreError, match="is a savepoint already"):
        write_savepoint(repository, "s")
    made = Savepoint.at(tmp_path / "savepoints/s").file
    assert made.epoch == 1
    named = {file.path for held in made.operators["tally"].states.values() for file in held.files}
    found = {
        str(path.relative_to(tmp_path / "savepoints/s"))
        for path in files_of(tmp_path / "savepoints")
    }
    assert found == {*named, "savepoint.json"}


def test_a_path_without_a_savepoint_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(RestoreError, match="there is no savepoint at"):
            Savepoint.at(path)


def test_nothing_is_saved_where_nothing_is_committed(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="no committed epoch"):
        write_savepoint(Repository(tmp_path), "s")
    with pytest.raises(RestoreError, match="no epoch 7: it has 0 to 3"):
        write_savepoint(tallied(tmp_path)._repository, "s", epoch=7)


# ------------------------------------------------------------------------- from_savepoint=


def halves() -> tuple[list[Entry], list[Entry]]:
    return entries(0, 50), entries(1, 50)


@pytest.fixture
def half_way(tmp_path: Path) -> str:
    """A savepoint of a job that has read the first half of its input."""
    first, _ = halves()
    tally_job(16).run({"records": first}, checkpoint=tmp_path / "old", epoch_size=20)
    write_savepoint(Repository(tmp_path / "old"), "s")
    return str(tmp_path / "old/savepoints/s")


@pytest.mark.parametrize(("parallelism", "key_groups"), [(None, None), (1, 1), (7, 300)])
def test_a_run_from_a_savepoint_reads_each_record_once_and_continues_its_epoch_numbers(
    tmp_path: Path, half_way: str, parallelism: int | None, key_groups: int | None
) -> None:
    first, second = halves()
    seen: list[int] = []
    done = tally_job(key_groups).run(
        {"records": first + second},
        checkpoint=tmp_path / "new",
        from_savepoint=half_way,
        parallelism=parallelism,
        outputs={"outputs": lambda _, epoch: seen.append(epoch)},
    )
    assert seen == [3]
    assert done.last_epoch == 3
    harness = Harness(tally, checkpoint=tmp_path / "new")
    assert harness.key_groups == (key_groups or 16)
    assert state_of(harness, plain_state(first + second)) == plain_state(first + second)


@pytest.mark.parametrize("way", ["savepoint", "transform"])
def test_a_job_in_a_new_checkpoint_keeps_the_outputs_of_all_epochs_before(
    tmp_path: Path, way: str
) -> None:
    first, second = halves()
    job, sink = tally_job(16), sk.sinks.json_lines(tmp_path / "outputs")
    given: dict[str, Any] = {"outputs": {"outputs": sink}, "epoch_size": 20}
    job.run({"records": first}, checkpoint=tmp_path / "old", **given)
    files = {path.name: path.read_text() for path in (tmp_path / "outputs").glob("*.jsonl")}
    if way == "transform":
        sk.transform(job)(lambda old: old.copy("tally")).run(
            tmp_path / "old", into=tmp_path / "new"
        )
    else:
        write_savepoint(Repository(tmp_path / "old"), "s")
        given["from_savepoint"] = tmp_path / "old/savepoints/s"
    job.run({"records": first + second}, checkpoint=tmp_path / "new", **given)
    continued = {path.name: path.read_text() for path in (tmp_path / "outputs").glob("*.jsonl")}
    assert len(files) == 3
    assert len(continued) == 6
    assert {name: continued[name] for name in files} == files


def test_starting_again_with_the_same_arguments_continues(tmp_path: Path, half_way: str) -> None:
    first, second = halves()
    for records in (first, first + second[:10], first + second):
        tally_job().run({"records": records}, checkpoint=tmp_path / "new", from_savepoint=half_way)
    harness = Harness(tally, checkpoint=tmp_path / "new")
    assert state_of(harness, plain_state(first + second)) == plain_state(first + second)


def test_a_checkpoint_with_epochs_from_elsewhere_is_refused(tmp_path: Path, half_way: str) -> None:
    first, _ = halves()
    tally_job().run({"records": first}, checkpoint=tmp_path / "new")
    with pytest.raises(RestoreError, match=r"has epochs up to 0, which do not come from .*/s"):
        tally_job().run({"records": first}, checkpoint=tmp_path / "new", from_savepoint=half_way)
    with pytest.raises(RestoreError, match="has epochs up to 0"):
        import_savepoint(Savepoint.at(half_way), Repository(tmp_path / "new"))


def other_job() -> sk.Job:
    job = sk.Job("another")
    job.source("records", Entry).process(tally).sink("outputs")
    return job


@sk.process(key="key")
def changed(entry: Entry, total: sk.ValueState[str]) -> None:
    total.update(entry.key)


def changed_job() -> sk.Job:
    job = sk.Job("tally")
    job.source("records", Entry).process(changed, name="tally")
    return job


@pytest.mark.parametrize(
    ("job", "kind", "parallelism"),
    [
        (other_job, RestoreError, None),
        (changed_job, StateSchemaError, None),
        (tally_job, RescaleError, 1000),
    ],
)
def test_a_start_that_cannot_be_leaves_the_new_checkpoint_untouched(
    tmp_path: Path,
    half_way: str,
    job: Callable[[], sk.Job],
    kind: type[StatekitError],
    parallelism: int | None,
) -> None:
    with pytest.raises(kind):
        job().run(
            {"records": []},
            checkpoint=tmp_path / "new",
            from_savepoint=half_way,
            parallelism=parallelism,
        )
    assert files_of(tmp_path / "new") == []


def test_an_import_that_loses_to_a_job_is_fenced(tmp_path: Path, half_way: str) -> None:
    repository = Repository(tmp_path / "new")
    ensure_job_file = repository.ensure_job_file
    first, _ = halves()

    def meanwhile(job: Any) -> Any:
        made = import_savepoint(Savepoint.at(half_way), Repository(tmp_path / "new"))
        assert made.epoch == 2
        return ensure_job_file(job)

    with mock.patch.object(repository, "ensure_job_file", meanwhile), pytest.raises(FencedError):
        import_savepoint(Savepoint.at(half_way), repository)
    harness = Harness(tally, checkpoint=tmp_path / "new")
    assert state_of(harness, plain_state(first)) == plain_state(first)


def test_dropped_states_are_not_in_a_savepoint_and_their_names_are_free_again(
    tmp_path: Path,
) -> None:
    tally_job().run({"records": entries(0, 9)}, checkpoint=tmp_path / "old")

    @sk.process(key="key")
    def less(entry: Entry, total: sk.ValueState[int]) -> None: ...

    @sk.process(key="key")
    def again(entry: Entry, total: sk.ValueState[int], seen: sk.ValueState[str]) -> None:
        assert seen.get() is None
        seen.update(entry.key)

    def job(process: Any) -> sk.Job:
        made = sk.Job("tally")
        made.source("records", Entry).process(process, name="tally")
        return made

    job(less).run(
        {"records": entries(0, 10)}, checkpoint=tmp_path / "old", allow_dropped_state=True
    )
    made = write_savepoint(Repository(tmp_path / "old"), "s")
    assert list(made.operators["tally"].states) == ["total"]
    with pytest.raises(StateSchemaError, match="dropped states"):
        job(again).run({"records": entries(0, 11)}, checkpoint=tmp_path / "old")
    job(again).run(
        {"records": entries(0, 11)},
        checkpoint=tmp_path / "new",
        from_savepoint=tmp_path / "old/savepoints/s",
    )


# ------------------------------------------------------------------------------------ full disks


def test_a_full_local_disk_is_an_error_and_the_next_attempt_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tallied(tmp_path / "checkpoint")._repository
    monkeypatch.setattr(writing, "_SPOOL_BYTES_MAX", 1)
    monkeypatch.setattr(divided_rows, "_GATHERED_BYTES", 1)
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
        disk.fill()
        with pytest.raises(StorageError):
            write_savepoint(repository, "s")
        with pytest.raises(StorageError):
            rewrite_checkpoint(repository, key_groups=3)
        disk.make_space()
        write_savepoint(repository, "s")
        again = Harness.restore(tally, tmp_path / "checkpoint/savepoints/s", key_groups=5)
        assert state_of(again, expected(0, 1, 2, 3)) == expected(0, 1, 2, 3)
        monkeypatch.undo()


def test_a_full_store_is_an_error_and_the_next_attempt_succeeds(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        repository = tallied(disk.path / "checkpoint")._repository
        disk.fill()
        with pytest.raises(StorageError, match=r"savepoints/s|held/"):
            write_savepoint(repository, "s")
        disk.make_space()
        write_savepoint(repository, "s")
        home = disk.path / "checkpoint/savepoints/s"
        again = Harness.restore(tally, home)
        assert state_of(again, expected(0, 1, 2, 3)) == expected(0, 1, 2, 3)


# ------------------------------------------------------------------- one taken for the other


def test_a_start_from_a_savepoint_and_from_an_epoch_is_refused(
    tmp_path: Path, half_way: str
) -> None:
    for checkpoint in (tmp_path / "new", tmp_path / "old"):
        with pytest.raises(RestoreError, match=r"from_epoch=0: a start begins at one of them"):
            tally_job().run(
                {"records": []}, checkpoint=checkpoint, from_savepoint=half_way, from_epoch=0
            )
    assert Repository(tmp_path / "new").epochs() == []


def test_a_savepoint_is_never_taken_for_a_checkpoint(tmp_path: Path, half_way: str) -> None:
    files = {path: path.read_bytes() for path in files_of(Path(half_way))}
    repository = Repository(half_way)
    for mistaken in (
        lambda: tally_job().run({"records": halves()[0]}, checkpoint=half_way),
        lambda: Harness(tally, checkpoint=half_way),
        lambda: write_savepoint(repository, "of-a-savepoint"),
        lambda: rewrite_checkpoint(repository, key_groups=7),
        lambda: rescale_offline(repository, 2),
        lambda: Migration(tally_job(), half_way),
        lambda: rollback_plan(repository, 0),
        lambda: CheckpointReader(half_way),
        lambda: CheckpointReader(half_way, epoch=1),
    ):
        with pytest.raises(RestoreError, match=r"is a savepoint, and not a checkpoint.*from_savep"):
            mistaken()
    assert {path: path.read_bytes() for path in files_of(Path(half_way))} == files


def test_a_checkpoint_is_never_taken_for_a_savepoint(tmp_path: Path, half_way: str) -> None:
    with pytest.raises(RestoreError, match=r"is a checkpoint, and not a savepoint.*`state"):
        tally_job().run(
            {"records": []}, checkpoint=tmp_path / "new", from_savepoint=tmp_path / "old"
        )
    assert half_way
