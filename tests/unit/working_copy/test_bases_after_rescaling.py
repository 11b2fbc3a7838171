"""Bases of shards that were made by dividing others, whose sizes are known only relatively."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.references import files_of
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.shard_contents import BaseSnapshot, ReplayCost
from statekit.query.rows.reader import CheckpointReader
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.uploader import uploader

AT_ONCE = BaseOptions(replay_seconds=0, uploaded_per_changed=1_000)
"""Bases in every epoch, whatever they cost."""

LOADED = 600


def noise(seed: int, size: int) -> bytes:
    """Bytes that cannot be compressed: tables are as large as their rows."""
    return random.Random(seed).randbytes(size)


class Row(NamedTuple):
    key: int
    held: bytes  # nothing removes the row


@sk.process(key="key")
def keep(row: Row, held: sk.ValueState[bytes]) -> None:
    if row.held:
        held.update(row.held)
    else:
        held.clear()


def run(home: Path, rows: Sequence[Row], parallelism: int, size: int, **options: Any) -> None:
    """Run the job over all rows, and let each epoch's uploads end before the next one begins."""

    def with_pauses() -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number % size == 0:
                assert uploader().drain(60)
            yield row

    job = sk.Job("kept")
    job.source("rows", Row).process(keep)
    job.run(
        {"rows": with_pauses()},
        checkpoint=home / "checkpoint",
        backend="rocksdb",
        working_directory=home / "working",
        keep_copies=True,
        parallelism=parallelism,
        epoch_size=size,
        drain=False,
        **options,
    )
    assert uploader().drain(60)


def last_of(home: Path) -> EpochManifest:
    repository = Repository(home / "checkpoint")
    epoch = repository.latest_epoch()
    assert epoch is not None
    return repository.manifest(epoch)


def keys_in(home: Path) -> set[int]:
    with tempfile.TemporaryDirectory() as scratch:
        rows = CheckpointReader(home / "checkpoint").rows("keep", "held", scratch)
        return {key for key, _ in rows}


def shrinking() -> list[Row]:
    """Rows that are loaded with one shard, and removed with three."""
    load = [Row(key, noise(key, 200)) for key in range(LOADED)]
    return load + [Row(key, b"") for key in range(LOADED - 60)]


def test_a_part_of_a_shard_takes_bases_while_its_rows_shrink(tmp_path: Path) -> None:
    rows = shrinking()
    run(tmp_path, rows[:LOADED], 1, LOADED, bases=BaseOptions(bases=False))
    run(tmp_path, rows, 3, 60, bases=AT_ONCE)
    shards = last_of(tmp_path).operators["keep"].shards
    assert all(shard.base is not None for shard in shards)
    assert keys_in(tmp_path) == set(range(LOADED - 60, LOADED))
    run(tmp_path, [*rows, Row(1, b"back")], 4, 60, bases=AT_ONCE)
    assert keys_in(tmp_path) == {1, *range(LOADED - 60, LOADED)}


def test_a_base_that_changes_just_pay_for_is_adopted_while_rows_shrink(tmp_path: Path) -> None:
    load = [Row(key, noise(key, 400)) for key in range(LOADED)]
    run(tmp_path, load, 1, LOADED, bases=BaseOptions(bases=False))
    options = BaseOptions(replay_seconds=0, uploaded_per_changed=6.1)
    run(tmp_path, [*load, *(Row(key, b"") for key in range(560))], 2, 14, bases=options)
    assert keys_in(tmp_path) == set(range(560, LOADED))


def test_finished_work_that_cannot_be_adopted_is_dropped_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with the arithmetic of an earlier version, whose negative number failed every start."""
    rows = shrinking()
    run(tmp_path, rows[:LOADED], 1, LOADED, bases=BaseOptions(bases=False))

    def negative(chain: ReplayCost, *_: object) -> ReplayCost:
        return chain.model_copy(update={"since_base": -1})

    with caplog.at_level(logging.WARNING, "statekit.base_keeping"), monkeypatch.context() as patch:
        patch.setattr(ReplayCost, "based", negative)
        run(tmp_path, rows, 3, 60, bases=AT_ONCE)
    assert "of operator 'keep', key groups (0, 42), is dropped: ValidationError" in caplog.text
    assert all(shard.base is None for shard in last_of(tmp_path).operators["keep"].shards)
    assert keys_in(tmp_path) == set(range(LOADED - 60, LOADED))


def test_a_base_after_a_change_of_parallelism_is_taken_once_changes_have_paid_for_it(
    tmp_path: Path,
) -> None:
    """Small changes pay for no base, and large ones for one each, however the state was divided."""
    options = BaseOptions(replay_seconds=0)
    load = [Row(key, noise(key, 1_000)) for key in range(2_000)]
    run(tmp_path, load, 1, 2_000, bases=BaseOptions(bases=False))
    few = [*load, *(Row(key, noise(-key, 1_000)) for key in range(300))]
    run(tmp_path, few, 3, 50, bases=options)
    assert all(shard.base is None for shard in last_of(tmp_path).operators["keep"].shards)
    more = [*few, *(Row(key, noise(turn + key, 1_000)) for turn in (5, 6) for key in range(2_000))]
    run(tmp_path, more, 3, 500, bases=options)
    run(tmp_path, [*more, *more[-500:]], 3, 500, bases=options)
    last = last_of(tmp_path)
    repository = Repository(tmp_path / "checkpoint")
    for shard in last.operators["keep"].shards:
        assert shard.base is not None
        stored = sum(ref.size for ref in files_of(repository.sealed(BaseSnapshot, shard.base)))
        assert stored < 1.3 * 2_000 * 1_020 / 3, "rows of the shard alone"
        assert shard.chain.uploaded <= 2.2 * shard.chain.changed
