"""The whole state written anew: the same rows in other key groups and shards, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend import divided_rows
from statekit.backend.change_file import Changes
from statekit.backend.mutation import Batch, Row
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochNote
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.references import named_by
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.errors import CorruptCheckpointError, FencedError, RescaleError, RestoreError
from statekit.maintenance import new_shards, rewrite
from statekit.maintenance.rewrite import RowChecksum, rewrite_checkpoint
from statekit.maintenance.sizes import counted_sizes
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Harness
from tests.support.all_row_kinds import PROCESSES, epochs, held, reopened, run, stored
from tests.support.counting_job import STATES, entries, plain_state, state_of, tally


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int]:
    """Parallelism and key groups."""
    groups = draw(st.sampled_from([1, 2, 7, 128, 129, 1000, 32768]))
    return draw(st.integers(1, min(groups, 9))), groups


@settings(max_examples=15, deadline=None)
@given(
    process=st.sampled_from(PROCESSES),
    before=epochs(),
    after=epochs(4),
    layout=layouts(),
    other=layouts(),
    scratch_bytes=st.sampled_from([1, rewrite.SCRATCH_BYTES]),
    gathered_bytes=st.sampled_from([1, 1 << 20]),
    file_bytes=st.sampled_from([1, new_shards.FILE_BYTES_MAX]),
)
def test_a_job_continues_in_other_key_groups_as_if_nothing_had_happened(
    process: Any,
    before: list[Any],
    after: list[Any],
    layout: tuple[int, int],
    other: tuple[int, int],
    scratch_bytes: int,
    gathered_bytes: int,
    file_bytes: int,
) -> None:
    changed, unchanged = Harness(process, *layout), Harness(process, *layout)
    for number, records in enumerate(before):
        assert run(changed, number, records) == run(unchanged, number, records)
    contents = stored(changed._repository)
    shards, groups = other
    with (
        mock.patch.object(rewrite, "SCRATCH_BYTES", scratch_bytes),
        mock.patch.object(divided_rows, "_GATHERED_BYTES", gathered_bytes),
        mock.patch.object(new_shards, "FILE_BYTES_MAX", file_bytes),
    ):
        rewrite_checkpoint(changed._repository, parallelism=shards, key_groups=groups)
    assert stored(changed._repository) == contents
    changed = reopened(changed, None)
    assert (changed.parallelism, changed.key_groups) == other
    assert held(changed) == held(unchanged)
    for number, records in enumerate(after, len(before)):
        assert run(changed, number, records) == run(unchanged, number, records)
    assert held(changed) == held(unchanged)


def tallied(path: Path | None = None, parallelism: int = 3, key_groups: int = 16) -> Harness:
    harness = Harness(tally, parallelism, key_groups, checkpoint=path)
    for epoch in range(4):
        harness.send(*entries(epoch, 30))
    return harness


KEYS = [f"k{number}" for number in range(12)]
EXPECTED = plain_state(record for epoch in range(4) for record in entries(epoch, 30))


def test_old_epochs_stay_readable_in_their_own_key_groups(tmp_path: Path) -> None:
    harness = tallied(tmp_path)
    manifest = rewrite_checkpoint(harness._repository, parallelism=2, key_groups=5)
    assert (manifest.epoch, manifest.previous) == (4, 3)
    assert (manifest.cause, manifest.whole) == ("rescale", True)
    for epoch, groups in [(3, 16), (4, 5)]:
        reader = CheckpointReader(tmp_path, epoch=epoch)
        assert reader.job.key_groups == groups
        for key in KEYS:
            for name in STATES:
                expected = EXPECTED.get(key, {}).get(name)
                assert (reader.get("tally", name, key) or None) == (expected or None)


def test_counts_of_the_new_shards_are_exact(tmp_path: Path) -> None:
    harness = tallied(tmp_path)
    manifest = rewrite_checkpoint(harness._repository, parallelism=4, key_groups=7)
    counted = counted_sizes(CheckpointReader(tmp_path), "tally").states
    shards = manifest.operators["tally"].shards
    for name in STATES:
        assert sum(shard.rows.get(name, 0) for shard in shards) == counted[name].rows
        assert sum(shard.bytes.get(name, 0) for shard in shards) == counted[name].bytes


def test_epochs_after_a_rewrite_never_read_files_from_before() -> None:
    harness = tallied()
    rewrite_checkpoint(harness._repository, key_groups=128)
    harness = reopened(harness, 5)
    for epoch in range(4, 6):
        harness.send(*entries(epoch, 30))
    harness.crash()
    expected = plain_state(record for epoch in range(6) for record in entries(epoch, 30))
    assert state_of(harness, expected) == expected
    repository = harness._repository
    new, old = (set(named_by(repository, repository.manifest(n), set())) for n in (5, 3))
    assert {ref.path.split("/")[0] for ref in new & old} <= {"job.json"}


def test_progress_is_reported_to_the_end() -> None:
    told: list[tuple[int, int | None]] = []
    harness = tallied()
    manifest = rewrite_checkpoint(
        harness._repository, key_groups=3, progress=lambda *at: told.append(at)
    )
    rows = sum(sum(shard.rows.values()) for shard in manifest.operators["tally"].shards)
    assert told[-1] == (2 * rows, 2 * rows)


def test_shards_without_rows_are_as_if_new() -> None:
    harness = Harness(tally, key_groups=64)
    harness.send(*entries(0, 3, keys=1))
    manifest = rewrite_checkpoint(harness._repository, parallelism=64)
    blank = [shard for shard in manifest.operators["tally"].shards if shard.attempt is None]
    assert len(blank) == 63
    assert state_of(reopened(harness, None), ["k0"]) == plain_state(entries(0, 3, keys=1))


# ---------------------------------------------------------------------------------- refused


def test_nothing_is_rewritten_where_nothing_is_committed() -> None:
    with pytest.raises(RestoreError, match="there is nothing to change"):
        rewrite_checkpoint(Repository.in_memory())


@pytest.mark.parametrize(("shards", "groups"), [(5, 4), (0, 4), (1, 0), (1, 32769)])
def test_layouts_that_cannot_be_are_refused(shards: int, groups: int) -> None:
    with pytest.raises(RescaleError):
        rewrite_checkpoint(tallied()._repository, parallelism=shards, key_groups=groups)


def test_an_epoch_that_was_begun_has_to_be_finished_first(tmp_path: Path) -> None:
    repository = tallied(tmp_path)._repository
    repository.write_note(EpochNote(epoch=4, what="idle", processing_time_us=5))
    with pytest.raises(RestoreError, match=r"epoch 4 .* was begun as 'idle' and not committed"):
        rewrite_checkpoint(repository)
    repository.remove_note(4)
    (tmp_path / "spark/offsets").mkdir(parents=True)
    (tmp_path / "spark/offsets/0").write_text("v1")
    with pytest.raises(RestoreError, match=r"epoch 4 .* was begun as 'batch 0'"):
        rewrite_checkpoint(repository)


def test_a_job_that_commits_meanwhile_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = tallied()
    repository = harness._repository
    ensure_job_file = repository.ensure_job_file

    def meanwhile(job: JobFile) -> tuple[JobFile, FileRef]:
        harness.send(*entries(4, 5))
        return ensure_job_file(job)

    monkeypatch.setattr(repository, "ensure_job_file", meanwhile)
    with pytest.raises(FencedError):
        rewrite_checkpoint(repository, key_groups=3)
    harness.crash()
    expected = plain_state([*(r for e in range(4) for r in entries(e, 30)), *entries(4, 5)])
    assert state_of(harness, expected) == expected


# ---------------------------------------------------------------------------------- verified


def without_last_row(rows: list[Row]) -> list[Row]:
    return rows[:-1]


def with_another_value(rows: list[Row]) -> list[Row]:
    (state, op, row_key, value), *others = rows
    return [(state, op, row_key, (value or b"") + b"\x00"), *others]


def in_another_key_group(rows: list[Row]) -> list[Row]:
    (state, op, row_key, value), *others = rows
    return [(state, op, row_key[:1] + bytes([row_key[1] ^ 1]) + row_key[2:], value), *others]


def damaged(monkeypatch: pytest.MonkeyPatch, damage: Callable[[list[Row]], list[Row]]) -> None:
    """Let files be stored with other rows, as if memory or a disk had failed."""
    append = Changes.append

    def appended(self: Changes, batch: Batch | pa.RecordBatch) -> None:
        if not isinstance(batch, Batch):
            batch = Batch.of_columns(*(column.to_pylist() for column in batch.columns))
        append(self, Batch(damage(list(batch.rows())) if len(batch) else ()))

    monkeypatch.setattr(Changes, "append", appended)


@pytest.mark.parametrize("damage", [without_last_row, with_another_value, in_another_key_group])
def test_nothing_is_committed_unless_the_written_rows_equal_the_read_ones(
    damage: Callable[[list[Row]], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = tallied()
    repository = harness._repository
    damaged(monkeypatch, damage)
    with pytest.raises(
        CorruptCheckpointError, match=r"written rows of tally\.\w+ differ from the read ones"
    ):
        rewrite_checkpoint(repository, key_groups=7)
    monkeypatch.undo()
    assert repository.epochs() == [0, 1, 2, 3]
    harness.crash()
    assert state_of(harness, EXPECTED) == EXPECTED


def test_counts_of_a_manifest_that_do_not_match_its_files_are_an_error(tmp_path: Path) -> None:
    repository = tallied(tmp_path)._repository
    last = repository.manifest(3)
    operator = last.operators["tally"]
    shards = [
        shard.model_copy(update={"rows": {**shard.rows, "total": shard.rows["total"] + 1}})
        for shard in operator.shards
    ]
    operators = {"tally": operator.model_copy(update={"shards": tuple(shards)})}
    wrong = last.model_copy(update={"operators": operators})
    (tmp_path / epoch_path(3)).write_bytes(wrong.to_bytes())
    with pytest.raises(CorruptCheckpointError, match=r"have \d+ rows of tally\.total"):
        rewrite_checkpoint(Repository(tmp_path), key_groups=7)


def test_contents_are_the_same_in_any_order_and_differ_where_rows_do() -> None:
    rows = [(b"a", b"1"), (b"b", b"2"), (b"a1", b"")]

    def contents(given: list[tuple[bytes, bytes]]) -> str:
        made = RowChecksum()
        for key, row in given:
            made.add(key, row)
        return str(made)

    assert contents(rows) == contents(rows[::-1])
    assert contents([(b"a", b"1")]) != contents([(b"a1", b"")])
    assert contents(rows) != contents(rows[:2])
