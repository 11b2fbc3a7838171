"""Base snapshots of shards that were cut out of others, and bases that cannot be adopted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.manifest import OperatorEpoch, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.job.options import RunOptions
from statekit.maintenance.verify.verify import verify
from statekit.runtime.local import LocalRunner
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.base_snapshot import StagedSnapshot
from statekit.working_copy.copies import DiskCopies
from tests.support.counting_job import committed_rows, comparable
from tests.support.counting_job_runs import (
    EAGER,
    GROUPS,
    advance,
    last_of,
    rows_after,
    runner,
    uploaded,
)

OFTEN = BaseOptions(replay_seconds=0)
"""A base whenever what was changed has paid for it."""


class Text(NamedTuple):
    key: int
    value: bytes


@sk.process(key="key")
def texts(text: Text, held: sk.ValueState[bytes]) -> None:
    if text.value:
        held.update(text.value)
    else:
        held.clear()


class TextRuns:
    """Runs of a job that holds one value per key."""

    def __init__(self, home: Path) -> None:
        self.root = home / "c"
        self._copies = DiskCopies(home / "local", bases=OFTEN)
        self._job = sk.Job("texts")
        self._job.source("in", Text).process(texts)

    def run(self, epochs: Iterable[list[Text]], parallelism: int) -> None:
        """Start the job, and let every upload come to its end before the next epoch."""
        made = LocalRunner(
            self._job.plan, Repository(self.root), self._copies, RunOptions(parallelism=parallelism)
        )
        for records in epochs:
            made.epoch({"in": records})
            uploaded()

    @property
    def operator(self) -> OperatorEpoch:
        return last_of(self.root).operators["texts"]

    @property
    def base_bytes(self) -> int:
        """Bytes of all files of bases that are in the checkpoint."""
        kinds = (".sst", ".rocksdb", ".base.json")
        files = (self.root / "data").rglob("*")
        return sum(file.stat().st_size for file in files if file.name.endswith(kinds))


@pytest.fixture
def runs(tmp_path: Path) -> TextRuns:
    return TextRuns(tmp_path)


def removals(keys: range, at_a_time: int) -> list[list[Text]]:
    parts = [keys[start : start + at_a_time] for start in range(0, len(keys), at_a_time)]
    return [[Text(key, b"") for key in part] for part in parts]


def test_shards_that_shrink_after_scaling_up_take_bases_and_start_again(runs: TextRuns) -> None:
    runs.run([[Text(key, b"a" * 500) for key in range(600)]], 1)
    runs.run(removals(range(400), 20), 3)
    runs.run(removals(range(400, 500), 20), 3)
    operator = runs.operator
    assert all(shard.base is not None for shard in operator.shards)
    assert (operator.rows, operator.bytes) == ({"held": 100}, {"held": 100 * 513})
    assert sum(shard.row_bytes or 0 for shard in operator.shards) == operator.bytes["held"]
    assert operator.undivided_rows == operator.undivided_bytes == {}
    assert verify(Repository(runs.root), rows=True).is_intact


def test_parts_are_counted_once_and_the_others_do_not_change(runs: TextRuns) -> None:
    runs.run([[Text(key, b"a" * 500) for key in range(60)]], 1)
    runs.run([[Text(0, b"")]] * 2, 4)
    operator = runs.operator
    assert operator.rows == {"held": 59}
    assert [shard.is_part for shard in operator.shards].count(False) == 1
    [counted] = [shard for shard in operator.shards if not shard.is_part]
    assert counted.row_bytes is not None
    assert operator.undivided_rows == {"held": 59 - counted.rows["held"]}
    assert verify(Repository(runs.root), rows=True).is_intact


@pytest.mark.parametrize("compressible", [False, True])
@pytest.mark.parametrize("layouts", [(3,), (3, 2, 5, 2, 3, 1)])
def test_bases_upload_no_more_than_was_changed_since_a_change_of_parallelism(
    runs: TextRuns, layouts: tuple[int, ...], compressible: bool
) -> None:
    chosen = random.Random(1)

    def texts_of(count: int) -> list[Text]:
        return [
            Text(chosen.randrange(1500), b"a" * 1000 if compressible else chosen.randbytes(1000))
            for _ in range(count)
        ]

    runs.run([[Text(key, texts_of(1)[0].value) for key in range(1500)]], 1)
    for parallelism in layouts:
        before, changed = runs.base_bytes, 0
        for count in (5, 5, 5, 700, 700, 700, 700):
            runs.run([texts_of(count)], parallelism)
            changed += count * 1010
            files = sum(shard.chain.changed for shard in runs.operator.shards)
            assert runs.base_bytes - before <= 1.2 * max(changed, files)
    assert verify(Repository(runs.root), rows=True).is_intact


# --------------------------------------------------------------------------- cannot be adopted


def _note_of_a_part(shard: ShardState, snapshot: StagedSnapshot) -> None:
    """As an older version might have left it: of other key groups."""
    finished = snapshot.finished
    assert finished is not None
    staged = finished.staged.model_copy(update={"shard": (0, shard.last_group + 1)})
    snapshot.write("finished.json", finished.model_copy(update={"staged": staged}))


def _base_that_is_gone(shard: ShardState, snapshot: StagedSnapshot) -> None:
    finished = snapshot.finished
    assert finished is not None
    gone = finished.base.model_copy(update={"path": f"{finished.base.path}.gone"})
    snapshot.write("finished.json", finished.model_copy(update={"base": gone}))


def _base_that_is_damaged(shard: ShardState, snapshot: StagedSnapshot) -> None:
    finished = snapshot.finished
    assert finished is not None
    other = finished.base.model_copy(update={"checksum": "0" * 32})
    snapshot.write("finished.json", finished.model_copy(update={"base": other}))


def _base_of_an_epoch_that_was_given_up(shard: ShardState, snapshot: StagedSnapshot) -> None:
    finished = snapshot.finished
    assert finished is not None
    staged = finished.staged.model_copy(update={"follows": "data/tally/none.changes.arrow"})
    snapshot.write("finished.json", finished.model_copy(update={"staged": staged}))


Change = Callable[[ShardState, StagedSnapshot], None]


@pytest.mark.parametrize(
    "change",
    [
        _note_of_a_part,
        _base_that_is_gone,
        _base_that_is_damaged,
        _base_of_an_epoch_that_was_given_up,
    ],
)
def test_a_base_that_cannot_be_adopted_is_dropped_with_a_warning_and_the_job_continues(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    copies = DiskCopies(tmp_path / "local", bases=EAGER)
    advance(runner(root, copies), 1)
    uploaded()
    (note,) = copies.root.rglob("finished.json")
    change(last_of(root).operators["tally"].shards[0], StagedSnapshot(note.parent))
    with caplog.at_level("WARNING", "statekit.base_keeping"):
        advance(runner(root, copies), 1)
    assert [record.message for record in caplog.records if str(note.parent) in record.message]
    assert not note.parent.exists()
    assert last_of(root).operators["tally"].shards[0].base is None
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(2)
    uploaded()
    advance(runner(root, copies), 1)
    assert last_of(root).operators["tally"].shards[0].base is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"staged": 1}', "\x00"])
@pytest.mark.parametrize("name", ["finished.json", "staged.json"])
def test_notes_of_a_base_that_cannot_be_read_prevent_no_epoch(
    root: Path, tmp_path: Path, name: str, text: str
) -> None:
    copies = DiskCopies(tmp_path / "local", bases=EAGER)
    advance(runner(root, copies), 1)
    uploaded()
    (note,) = copies.root.rglob(name)
    note.write_text(text)
    advance(runner(root, copies), 3)
    uploaded()
    advance(runner(root, copies), 1)
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(5)
    assert last_of(root).operators["tally"].shards[0].base is not None


def test_an_error_of_adopting_a_base_fails_no_epoch_and_drops_the_base(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = DiskCopies(tmp_path / "local", bases=EAGER)
    advance(runner(root, copies), 1)
    uploaded()
    (note,) = copies.root.rglob("finished.json")
    with pytest.MonkeyPatch.context() as patched:
        # As if the arithmetic of sizes came to less than nothing.
        patched.setattr(ReplayCost, "based", lambda *_: ReplayCost.model_construct(since_base=-1))
        advance(runner(root, copies), 1)
    assert "is dropped: ValidationError" in caplog.text
    assert not note.parent.exists()
    assert comparable(committed_rows(Repository(root), GROUPS)) == rows_after(2)


def test_a_base_that_is_adopted_and_whose_tables_are_gone_here_prevents_no_epoch(
    root: Path, tmp_path: Path
) -> None:
    copies = DiskCopies(tmp_path / "local", bases=EAGER)
    advance(runner(root, copies, parallelism=1), 2, keys=5_000, count=5_000)
    uploaded()
    made = runner(root, copies, parallelism=2)
    advance(made, 1)
    uploaded()
    advance(made, 1)
    uploaded()  # the bases of this epoch, too: how far they are otherwise depends on the machine
    notes = list(copies.root.rglob("finished.json"))
    assert len(notes) >= 2
    for note in notes:
        for database in note.parent.glob("[0-9]"):
            shutil.rmtree(database)
    advance(runner(root, copies), 3)
    uploaded()
    advance(runner(root, copies), 1)
    assert verify(Repository(root), rows=True).is_intact
