"""Copies that look right and are not: found out, and made anew rather than failing for ever."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import statekit as sk
from statekit.backend.rocksdb import RocksBackend
from statekit.runtime.local import LocalRunner
from statekit.working_copy import clipping as pieces
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.directory import read_mark
from tests.support.counting_job import STATES, Entry, comparable, copied_rows
from tests.support.counting_job_runs import advance, check_rows, homes, rows_after, runner

# ------------------------------------------------------------------------------------------- marks


def alter(home: Path, **fields: object) -> None:
    mark = json.loads((home / "clean").read_text())
    (home / "clean").write_text(json.dumps({**mark, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"encrypted_with": "a key of a later version"},
        {"sequences": [1]},
        {"sequences": [1, 2]},
        {"sequences": "many"},
        {"sequences": None},
        {"fragments": [[0, 3]]},
        {"states": ["total", "seen", "parity", "of a later version"]},
        {"attempt": "one that the checkpoint does not know", "last": "neither this file"},
    ],
)
def test_a_mark_that_says_anything_unknown_is_not_trusted(
    root: Path, copies: DiskCopies, fields: dict[str, object]
) -> None:
    made = runner(root, copies)
    advance(made, 2)
    (home,) = homes(copies)
    database = (home / "db" / "IDENTITY").read_text()
    alter(home, **fields)
    if "fragments" in fields:  # and databases that fit, which hold nothing
        (home / "db" / "0-3").mkdir()
    check_rows(made)
    is_anew = (home / "db" / "IDENTITY").read_text() != database
    assert is_anew or "fragments" in fields


def test_a_mark_without_a_sequence_as_older_versions_wrote_it_is_trusted(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies)
    advance(made, 2)
    (home,) = homes(copies)
    mark = json.loads((home / "clean").read_text())
    del mark["sequences"]
    (home / "clean").write_text(json.dumps(mark))
    database = (home / "db" / "IDENTITY").read_text()
    check_rows(made)
    assert (home / "db" / "IDENTITY").read_text() == database


# ------------------------------------------------------------------------ databases from elsewhere


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_older_database_under_a_newer_mark_is_found_out(
    root: Path, copies: DiskCopies, parallelism: int
) -> None:
    """By the shard whose it is, and by those that would be made of it."""
    made = runner(root, copies)
    advance(made)
    (home,) = homes(copies)
    shutil.copytree(home / "db", root.with_name("backup"))
    made.epoch({"records": [Entry("k1", 5)]})
    shutil.rmtree(home / "db")
    shutil.copytree(root.with_name("backup"), home / "db")
    made = runner(root, copies, parallelism)
    check_rows(made)
    advance(made)
    check_rows(made)


def test_a_fragment_that_is_older_than_the_mark_is_found_out(
    root: Path, copies: DiskCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "COPIED_BYTES", 0)
    advance(runner(root, copies, 3))
    made = runner(root, copies, 1)
    advance(made)
    home = next(home for home in homes(copies) if home.name == "0-7")
    mark = read_mark(home, STATES)
    assert mark is not None
    assert len(mark.fragments) == len(mark.sequences) == 3
    shutil.copytree(home / "db", root.with_name("backup"))
    advance(made)
    for fragment in (home / "db").iterdir():
        shutil.rmtree(fragment)
        shutil.copytree(root.with_name("backup") / fragment.name, fragment)
        break
    check_rows(made)


def test_a_copy_that_was_opened_read_and_compacted_is_still_trusted(
    root: Path, copies: DiskCopies
) -> None:
    made = runner(root, copies)
    advance(made, 2)
    (home,) = homes(copies)
    backend = RocksBackend(home / "db", STATES)
    for family in backend._families.values():
        family.compact_range(None, None)
    backend.close()
    (root / "data").rename(root / "hidden")  # so nothing can be replayed
    copied_rows(made.coordinator, copies)


# ----------------------------------------------------------------------------------------- damage


MANY = (2000, 600)
"""So many records of so many keys that tables have several blocks."""


def spoil(home: Path) -> None:
    """Overwrite the first third of each table, where rows are."""
    tables = list((home / "db").rglob("*.sst"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        data[: len(data) // 3] = os.urandom(len(data) // 3)
        # Copies that share the file are not to be damaged with it.
        table.unlink()
        table.write_bytes(data)


def until_it_works(epoch: Callable[[], object]) -> int:
    """Start an epoch again as the error says; how often it failed."""
    for failures in range(3):
        try:
            epoch()
        except sk.StorageError as error:
            assert "Nothing committed is lost" in str(error) or "nothing of the" in str(error)  # noqa: PT017
            assert "start the job again" in str(error)  # noqa: PT017
        else:
            return failures
    pytest.fail("the copy was not made anew")


def check_against_undisturbed(made: LocalRunner) -> None:
    found = comparable(copied_rows(made.coordinator, made.copies))
    assert found == rows_after(made.coordinator.epoch, *MANY)


def test_a_damaged_copy_fails_one_epoch_at_most(root: Path, copies: DiskCopies) -> None:
    made = runner(root, copies)
    advance(made, 1, *MANY)
    (home,) = homes(copies)
    spoil(home)
    assert until_it_works(lambda: advance(made, 1, *MANY)) == 1
    check_against_undisturbed(made)


def test_shards_made_of_a_damaged_copy_fail_once_and_are_then_made_of_the_checkpoint(
    root: Path, copies: DiskCopies
) -> None:
    advance(runner(root, copies), 1, *MANY)
    (home,) = homes(copies)
    spoil(home)
    made = runner(root, copies, 2)
    assert until_it_works(lambda: advance(made, 1, *MANY)) == 1
    check_against_undisturbed(made)


def test_a_damaged_fragment_fails_one_epoch_at_most(
    root: Path, copies: DiskCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "COPIED_BYTES", 0)
    advance(runner(root, copies, 3), 1, *MANY)
    made = runner(root, copies, 1)
    advance(made, 1, *MANY)
    home = next(home for home in homes(copies) if home.name == "0-7")
    spoil(home)
    assert until_it_works(lambda: advance(made, 1, *MANY)) == 1
    check_against_undisturbed(made)


def test_damage_that_is_met_in_merging_files_is_overcome(
    root: Path, copies: DiskCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "statekit.backend.rocksdb.SORTED_RUNS_MAX", 0
    )  # all files are merged in each epoch
    made = runner(root, copies)
    advance(made, 1, *MANY)
    (home,) = homes(copies)
    spoil(home)
    record = Entry("of a key that no damaged block has", 1)
    until_it_works(lambda: made.epoch({"records": [record]}))
    until_it_works(lambda: advance(made, 1, *MANY))
    check_rows(made)
