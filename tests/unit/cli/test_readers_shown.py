"""Commands show which reader keeps which epochs, until when, who it is, and what that costs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import statekit as sk
from statekit.checkpoint.gc.readers import readers_of
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.repository import Repository
from statekit.cli.gc import gc
from statekit.cli.inspect import inspect
from statekit.maintenance.verify.verify import verify
from tests.support.counting_job import entries, tally_job
from tests.support.printed import printed


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Sixteen epochs, and a reader that is at the third."""
    job = tally_job()
    job.run({"records": entries(0, 48)}, checkpoint=tmp_path, epoch_size=3, retention=None)
    repository = Repository(tmp_path)
    ReaderLease.take(repository, "index", 2)
    return repository


def options(repository: Repository) -> dict[str, str | int | None]:
    return {"checkpoint": str(repository.root), "epochs": 5, "age": None, "grace": "24h"}


def test_a_collection_shows_what_a_reader_keeps_and_a_dry_run_changes_nothing(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(repository)
    files = set(repository.tree(""))
    text = printed(lambda: gc(**given, readers="1 day", dry_run=True, as_json=False))  # type: ignore[arg-type]
    assert "kept: epochs 2 to 15 (14)" in text
    assert "index" in text
    assert "epochs 2–15 until" in text
    assert f"process {os.getpid()} on" in text
    assert set(repository.tree("")) - files == set()
    gc(**given, readers="1 day", dry_run=True, as_json=True)  # type: ignore[arg-type]
    (reader,) = json.loads(capsys.readouterr().out)["readers"]
    assert (reader["name"], reader["epoch"], reader["status"]) == ("index", 2, "valid")
    gc(**given, readers="0", dry_run=False, as_json=True)  # type: ignore[arg-type]
    data = json.loads(capsys.readouterr().out)
    assert data["kept"]["first"] == 11
    assert data["readers"][0]["status"] == "collected"
    # Epochs 0 and 1 are collected too, which the reader does not keep.
    assert data["deleted"]["manifests"]["files"] == reader["extra"]["files"] + 2


def test_inspect_shows_readers_with_their_cost_and_without_it_if_it_is_to_be_fast(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(repository.root)
    text = printed(lambda: inspect(place, fast=False))
    assert "readers; files and bytes beyond the last 10 epochs" in text
    assert "epochs 2–15 until" in text
    for fast in (True, False):
        inspect(place, fast=fast, as_json=True)
        (reader,) = json.loads(capsys.readouterr().out)["readers"]
        assert reader["host"]
        assert reader["process"] == os.getpid()
        assert (reader["extra"] is None) == fast


def test_files_that_are_no_leases_are_shown(repository: Repository) -> None:
    root = repository.root
    assert root is not None
    (root / "readers" / "a b").write_bytes(b"x")
    (root / "readers" / "torn.json").write_bytes(b"{")
    text = printed(lambda: inspect(str(root), fast=True))
    assert "'readers/a b' is no lease of a reader" in text
    assert "torn.json is no intact lease of reader 'torn'" in text
    found = readers_of(repository, sk.Retention())
    assert [reader.lease.lease.name for reader in found.readers] == ["index"]


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb.json", "index.json\n", b"\xff.json"])
def test_a_file_whose_name_no_store_takes_is_shown_and_keeps_nothing(
    repository: Repository, name: str | bytes
) -> None:
    root = repository.root
    assert root is not None
    with open(os.path.join(os.fsencode(root / "readers"), os.fsencode(name)), "wb") as file:
        file.write(b"x")
    given = options(repository)
    text = printed(lambda: gc(**given, readers="1 day", dry_run=True, as_json=False))  # type: ignore[arg-type]
    assert "kept: epochs 2 to 15 (14)" in text
    assert "is no lease of a reader" in text
    assert "epochs 2–15 until" in text
    assert "\x1b" not in text
    text = printed(lambda: inspect(str(root), fast=True))
    assert "epochs 2–15 until" in text
    assert "is no lease of a reader" in text
    verification = verify(repository)
    assert [finding.kind for finding in verification.findings] == []


def test_a_lease_that_was_released_is_shown_as_free(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    ReaderLease.take(repository, "index", 2).release()
    text = printed(lambda: inspect(str(repository.root), fast=True))
    assert "free, was process" in text
    inspect(str(repository.root), fast=True, as_json=True)
    (reader,) = json.loads(capsys.readouterr().out)["readers"]
    assert (reader["status"], reader["released"]) == ("valid", True)
