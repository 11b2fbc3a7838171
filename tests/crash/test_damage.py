"""Whatever byte of a checkpoint changes, and wherever a file ends: it is found, and named."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.leases.lease_files import stored_leases
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import (
    PAGE,
    SAVEPOINT,
    SPARK,
    epoch_path,
    first_path,
    lease_path,
    note_path,
)
from statekit.checkpoint.references import NamedFile
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseSnapshot, History
from statekit.cli.gc import gc
from statekit.errors import CorruptCheckpointError, RestoreError
from statekit.maintenance.savepoint.format import Savepoint
from statekit.maintenance.verify.file_checks import NamedFiles, check_file
from statekit.maintenance.verify.other_checks import spark_faults
from statekit.maintenance.verify.repair import repair
from statekit.maintenance.verify.verify import verify
from statekit.query.rows.reader import CheckpointReader
from tests.support.effort import SOAK
from tests.support.full_checkpoint import LOST, Files, make, make_with_bases
from tests.support.loaded_rows import load
from tests.support.places import DOCS

Check = Callable[[], object]

DOC = DOCS / "operate" / "verify.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("damage") / "checkpoint"
    make(Repository(made))
    return made


@pytest.fixture(scope="module")
def files(directory: Path) -> Files:
    return Files.copied(directory)


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Another one, with bases and slices, after a collection."""
    made = tmp_path_factory.mktemp("damage") / "based"
    make_with_bases(Repository(made), made.with_name("working"))
    files = Files.copied(made)
    last = files.manifest(files.epochs()[-1])
    shards = [shard for operator in last.operators.values() for shard in operator.shards]
    for pieces in (shards, [piece for shard in shards for piece in shard.slices]):
        assert any(piece.base is not None for piece in pieces)
        assert any(piece.history is not None for piece in pieces)
    longer = [files.sealed(History, shard.history) for shard in shards if shard.history is not None]
    assert any(piece.base is not None for listed in longer for piece in listed.slices)
    return files


def flipped(data: bytes, at: int) -> bytes:
    """One byte of it changed: its lowest bit, or all of them."""
    mask = 0xFF if at % 2 else 0x01
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


# ------------------------------------------------------------------------------ what reads what


def readers(files: Files) -> dict[str, list[Check]]:
    """Per file, all that reads it when a checkpoint is verified, and when it is restored."""
    found: dict[str, list[Check]] = {}
    named = NamedFiles(files)
    for epoch in files.epochs():
        manifest = files.manifest(epoch)
        found[f"epochs/{epoch:020d}.json"] = [partial(files.manifest, epoch)]
        for page in files.pages(epoch):
            found[page.path] = [partial(_read_anew, files, epoch)]
            found[page.path].append(partial(check_file, files, NamedFile(page, "names")))
        for file in named.of_manifest(manifest):
            reading: list[Check] = [partial(check_file, files, file)]
            if file.kind == "changes":
                reading.append(partial(_restored, files, file.ref))
            found[file.ref.path] = reading
    found["job.json"].append(partial(files.job_file, "job.json"))
    folder = "savepoints/saved"
    if f"{folder}/{SAVEPOINT}" not in files.files:
        return found
    found[f"{folder}/{SAVEPOINT}"] = [partial(Savepoint, files, folder)]
    saved = Savepoint(files, folder).file
    tables = [ref for op in saved.operators.values() for s in op.states.values() for ref in s.files]
    for ref in (*tables, *saved.spark):
        there = ref.model_copy(update={"path": f"{folder}/{ref.path}"})
        found[there.path] = [partial(check_file, files, NamedFile(there, "bytes"))]
    found[note_path(7)] = [partial(files.read_note, 7)]
    found[lease_path("index")] = [partial(_raise_leases, files)]
    last = files.manifest(files.epochs()[-1])
    for path in files.tree(SPARK):
        found[path] = [partial(_raise_faults, files, last)]
    return found


def _read_anew(files: Files, epoch: int) -> None:
    """Read a manifest as a new process does, which has no pages in memory."""
    vars(files).pop("_pages", None)
    files.manifest(epoch)


def _restored(files: Files, ref: FileRef) -> None:
    for _ in files.batches(ref):
        pass


def _raise_faults(files: Files, last: EpochManifest) -> None:
    for path, what in spark_faults(files, last):
        raise CorruptCheckpointError(f"{path}: {what}")


def _raise_leases(files: Files) -> None:
    for file in stored_leases(files)[1]:
        assert file.error is not None
        raise file.error


def finds(path: str, check: Check) -> bool:
    """Whether a check ends in an error that names the file."""
    try:
        check()
    except CorruptCheckpointError as error:
        return path in str(error)
    return False


def is_as_good(path: str, at: int) -> bool:
    """Whether a byte says over how many bytes Hadoop's sums are: of short files, any number."""
    return path.endswith(".crc") and 4 <= at < 8


def is_mark(path: str) -> bool:
    """Whether only the name says something: which epochs were given up, and when that was."""
    return path.endswith((".first", ".swept"))


# --------------------------------------------------------------------------------- every byte

EVERY = 1 if SOAK else 11
"""Of so many bytes one changes, and so many lengths one is tried."""


def test_every_byte_that_changes_and_every_length_is_found(files: Files, based: Files) -> None:
    assert set(files.files) - set(readers(files)) == {LOST}
    assert {path for path in based.files if not is_mark(path)} == set(readers(based))
    cases = damaged_in_all_ways(files) + damaged_in_all_ways(based)
    said = re.search(r"more\s+than\s+([\d,]+)\s+cases", DOC.read_text())
    assert said is not None
    assert cases > int(said[1].replace(",", "")), f"{DOC.name}: it is {cases:,}"
    assert int(said[1].replace(",", "")) > cases * 0.6, f"{DOC.name}: it is {cases:,}"


def damaged_in_all_ways(files: Files) -> int:
    """Damage each file in all ways, or in some of them, and make sure that each is found.

    Returns:
        how many ways there are.
    """
    cases = missed = 0
    checks = readers(files)
    for path, reading in checks.items():
        whole = files.files[path]
        for check in reading:
            check()  # nothing is wrong with it
            cases += 2 * len(whole)
            for at in range(len(path) % EVERY, len(whole), EVERY):
                files.files[path] = flipped(whole, at)
                missed += not finds(path, check) and not is_as_good(path, at)
                files.files[path] = whole[:at]
                missed += not finds(path, check)
            files.files[path] = whole + b"\x00"
            missed += not finds(path, check)
            del files.files[path]
            gone = path.startswith(("begun/", "readers/", SPARK)) or path.endswith(SAVEPOINT)
            missed += not gone and not finds(path, check)
            cases += 2
            files.files[path] = whole
    assert not missed
    return cases


# ------------------------------------------------------------------------- the whole command


def named_by(files: Files, *paths: str, rows: bool = False) -> bool:
    """Whether a verification names all of these files."""
    findings = verify(files, rows=rows).findings
    return all(any(path in f"{f.path} {f.what}" for f in findings) for path in paths)


@pytest.fixture
def damaged(files: Files) -> Files:
    """The same files, to be replaced."""
    return Files(files.files)


def test_an_intact_checkpoint_has_no_findings_and_all_orphans_are_reported(files: Files) -> None:
    found = verify(files, all_rows=True)
    assert found.findings == []
    assert [(orphan.kind, orphan.path) for orphan in found.orphans] == [("lost attempt", LOST)]
    assert found.savepoints == ["savepoints/saved"]
    assert found.rows > 800
    assert set(files.files) - files.kept.read_paths == {LOST}


def test_a_savepoint_is_verified_by_itself(files: Files) -> None:
    at = "savepoints/saved/"
    saved = Files({p.removeprefix(at): d for p, d in files.files.items() if p.startswith(at)})
    found = verify(saved)
    assert (found.is_intact, found.epochs, found.files) == (True, (), len(saved.files) - 1)
    assert found.rows > 80
    for path, data in saved.files.items():
        saved.files[path] = data[:-1]
        (finding,) = verify(saved, rows=False).findings
        assert (finding.kind, finding.path) == ("savepoint", path)
        saved.files[path] = data


def test_a_file_that_is_damaged_is_one_finding_and_all_else_is_checked_still(
    damaged: Files, files: Files
) -> None:
    checked = verify(files, rows=False)
    for path, data in files.files.items():
        if path == LOST:
            continue
        damaged.files[path] = flipped(data, len(data) - 1)
        found = verify(damaged, rows=False)
        findings = [f for f in found.findings if path in f"{f.path} {f.what}"]
        assert findings, path
        if path.startswith("data/"):
            assert len(found.findings) == 1
            hidden = checked.files - found.files
            assert not hidden or path.endswith(PAGE), "a page leads to further files"
        damaged.files[path] = data


def test_the_epochs_that_a_damaged_file_affects_are_those_that_need_it(
    damaged: Files, files: Files
) -> None:
    state = [path for path in files.files if path.startswith(("data/", "epochs/")) and path != LOST]
    for path in state if SOAK else random.Random(4).sample(state, 16):
        data = files.files[path]
        damaged.files[path] = flipped(data, 0)
        finding = next(f for f in verify(damaged, rows=False).findings if f.path == path)
        assert finding.epochs == tuple(e for e in files.epochs() if not reads(damaged, e))
        damaged.files[path] = data


def test_damage_to_any_file_of_a_base_or_a_history_is_found_and_named(based: Files) -> None:
    assert verify(based, all_rows=True).is_intact
    last = based.epochs()[-1]
    right = rows_after(based, last)
    inside = [path for path in based.files if path.endswith((".base.json", ".history.json"))]
    tables = [path for path in based.files if path.endswith((".sst", ".rocksdb"))]
    drawn = random.Random(5)
    some = [*drawn.sample(inside, 4), *drawn.sample(tables, 2)]
    for path in [*inside, *tables] if SOAK else some:
        data, based.files[path] = based.files[path], b""
        found = verify(based, rows=False)
        (finding,) = found.findings
        assert finding.path == path
        assert found.has_all_names == (path in tables)
        assert (last in finding.epochs) == (path in unreadable(based, last))
        based.files[path] = data
    assert rows_after(based, last) == right


def test_a_base_or_a_history_of_another_shard_is_never_read_and_is_found(based: Files) -> None:
    earlier, last = based.epochs()
    for kind, epoch in (("base", last), ("history", earlier)):
        path, whole = epoch_path(epoch), based.files[epoch_path(epoch)]
        manifest = based.manifest(epoch)
        holders = [
            (name, place, getattr(shard, kind))
            for name, operator in manifest.operators.items()
            for place, shard in enumerate(operator.shards)
            if getattr(shard, kind) is not None
        ]
        (name, place, _), *_, (_, _, strange) = holders
        operator = manifest.operators[name]
        shards = list(operator.shards)
        shards[place] = shards[place].model_copy(update={kind: strange})
        operators = {**manifest.operators, name: operator.model_copy(update={"shards": (*shards,)})}
        based.files[path] = manifest.model_copy(update={"operators": operators}).to_bytes()
        assert f"{strange.path} is of operator 'share'" in unreadable(based, epoch)
        findings = verify(based, rows=False).findings
        assert strange.path in {finding.path for finding in findings}
        assert all("is of operator 'share'" in finding.what for finding in findings)
        assert {finding.epochs for finding in findings} == {(epoch,)}
        based.files[path] = whole


def test_a_change_that_is_in_a_base_is_not_made_once_more_on_top_of_it(based: Files) -> None:
    last = based.epochs()[-1]
    path, whole = epoch_path(last), based.files[epoch_path(last)]
    manifest = based.manifest(last)
    operator = manifest.operators["share"]
    (place,) = (n for n, shard in enumerate(operator.shards) if shard.base is not None)
    shards = list(operator.shards)
    base, files = shards[place].base, shards[place].files
    assert base is not None
    twice = files[-1].model_copy(update={"path": based.sealed(BaseSnapshot, base).follows})
    shards[place] = shards[place].model_copy(update={"files": (twice, *files)})
    operators = {**manifest.operators, "share": operator.model_copy(update={"shards": (*shards,)})}
    based.files[path] = manifest.model_copy(update={"operators": operators}).to_bytes()
    assert "referenced as a later change" in unreadable(based, last)
    found = verify(based, rows=False).findings
    assert [f.epochs for f in found if f.path == base.path] == [(last,)]
    based.files[path] = whole


def unreadable(files: Files, epoch: int) -> str:
    """What a restore of an epoch ends in; nothing if it can be read."""
    try:
        rows_after(files, epoch)
    except CorruptCheckpointError as error:
        return str(error)
    return ""


def reads(files: Files, epoch: int) -> bool:
    return not unreadable(files, epoch)


Rows = dict[str, dict[str, list[tuple[bytes, bytes]]]]


def rows_after(files: Files, epoch: int) -> Rows:
    """Everything that an epoch holds, as a restore reads it."""
    manifest = files.manifest(epoch)
    found = files.job_file(manifest.job_file.path)
    held: Rows = {}
    for operator in found.operators:
        backend = MemoryBackend(operator.holds)
        for shard in manifest.operators[operator.name].shards:
            load(files, backend, operator.name, *shard.groups, epoch)
        held[operator.name] = {
            name: list(backend.scan(name, b"", b"\xff\xff\xff")) for name in operator.holds
        }
    return held


def test_a_restore_reads_the_right_rows_or_says_which_file_is_damaged(
    damaged: Files, files: Files
) -> None:
    drawn, right, told = random.Random(1), rows_after(files, 6), 0
    for path, data in files.files.items():
        damages = flipped(data, drawn.randrange(len(data))), data[: len(data) // 2], None
        for damage in damages if SOAK else [drawn.choice(damages)]:
            damaged.files[path] = damage or b""
            if damage is None:
                del damaged.files[path]
            said = unreadable(damaged, 6)
            assert path in said if said else rows_after(damaged, 6) == right
            told += bool(said)
            damaged.files[path] = data
    assert told > 20


def test_two_files_that_were_swapped_are_both_named(damaged: Files, files: Files) -> None:
    drawn = random.Random(2)
    kinds = [
        [path for path in files.files if path.startswith(folder)]
        for folder in ("data/", "epochs/", "savepoints/saved/state")
    ]
    kinds[0].remove(LOST)
    for _ in range(300 if SOAK else 25):
        one, other = drawn.sample(drawn.choice(kinds), 2)
        damaged.files |= {one: files.files[other], other: files.files[one]}
        assert named_by(damaged, *([one, other] if "epochs" not in one else [one]))
        damaged.files |= {one: files.files[one], other: files.files[other]}


def test_each_file_that_is_lost_is_named_unless_no_epoch_that_is_left_needs_it(
    damaged: Files, files: Files
) -> None:
    for path, data in files.files.items():
        if path.startswith(("data/", "job")):
            del damaged.files[path]
            needed = not all(reads(damaged, epoch) for epoch in damaged.epochs())
            assert named_by(damaged, path) == needed, path
            damaged.files[path] = data


def test_each_manifest_that_is_lost_is_named_wherever_it_lay(files: Files, based: Files) -> None:
    for whole in (files, based):
        damaged = Files(whole.files)
        *earlier, last = whole.epochs()
        abandoned = whole.manifest(last).abandoned
        for epoch in earlier:
            data = damaged.files.pop(epoch_path(epoch))
            found = verify(damaged, rows=False)
            assert [(f.kind, f.path) for f in found.findings] == [("manifest", epoch_path(epoch))]
            assert epoch in found.findings[0].epochs
            assert found.is_damaged != any(first <= epoch <= end for first, end in abandoned)
            damaged.files[epoch_path(epoch)] = data
        assert verify(damaged, rows=False).is_intact


@pytest.mark.parametrize("left", ["a mark", "nothing"])
def test_epochs_that_are_all_lost_are_not_taken_for_none(files: Files, left: str) -> None:
    lost = Files({p: d for p, d in files.files.items() if not p.startswith(("epochs/", "begun/"))})
    if left == "a mark":
        lost.files[first_path(3)] = b""
    else:
        lost.files[note_path(7)] = files.files[note_path(7)]
    found = verify(lost)
    assert [(f.kind, f.path) for f in found.findings] == [("manifest", "epochs")]
    assert found.is_damaged
    with pytest.raises(CorruptCheckpointError, match="epochs"):
        CheckpointReader(lost)
    with pytest.raises(RestoreError, match="backup"):
        repair(lost, found)


def test_gc_does_not_pass_over_epochs_that_are_all_lost(files: Files, tmp_path: Path) -> None:
    for path, data in files.files.items():
        if path.startswith(("data/", "job")):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="epochs"):
        gc(str(tmp_path))


def test_an_unreadable_file_is_a_finding_and_the_check_continues(
    based: Files, tmp_path: Path
) -> None:
    for path, data in based.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    repository = Repository(tmp_path)
    checked = verify(repository, rows=False)
    paths = [p for p in based.files if p.endswith((".base.json", ".history.json"))]
    of_both_kinds = {path.split(".", 1)[1]: path for path in sorted(paths)}
    assert len(of_both_kinds) == 2
    for path in (*of_both_kinds.values(), epoch_path(based.epochs()[0])):
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
        found = verify(repository, rows=False)
        told = {(f.kind, f.path) for f in found.findings}
        is_manifest = path.startswith("epochs/")
        assert told == {("manifest" if is_manifest else "unreadable", path)}
        assert found.is_damaged == is_manifest
        assert found.findings[0].epochs
        assert 0 < found.files <= checked.files
        (tmp_path / path).rmdir()
        (tmp_path / path).write_bytes(based.files[path])


@settings(max_examples=300 if SOAK else 25, deadline=None)
@given(data=st.data())
def test_whatever_happens_to_the_bytes_of_a_file_is_found(
    files: Files, data: st.DataObject
) -> None:
    paths = sorted(path for path in files.files if path != LOST and not path.endswith(".crc"))
    path = data.draw(st.sampled_from(paths))
    whole, changed = files.files[path], bytearray(files.files[path])
    how = data.draw(st.sampled_from(["bytes", "cut out", "insert", "other file"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if how == "bytes":
        changed[at : at + data.draw(st.integers(1, 50))] = data.draw(st.binary(min_size=1))
    elif how == "cut out":
        del changed[at : at + data.draw(st.integers(1, 500))]
    elif how == "insert":
        changed[at:at] = data.draw(st.binary(min_size=1))
    else:
        changed = bytearray(files.files[data.draw(st.sampled_from(paths))])
    damaged = Files({**files.files, path: bytes(changed)})
    findings = verify(damaged, rows=False).findings
    assert (changed == whole) == (not findings)
    assert named_by(damaged, path) or changed == whole


@pytest.mark.slow
def test_the_command_finds_damage_to_files_on_a_disk(
    directory: Path, files: Files, tmp_path: Path
) -> None:
    drawn, paths = (
        random.Random(3),
        sorted(path for path in files.files if path != LOST and ".crc" not in path),
    )
    for path in drawn.sample(paths, len(paths) if SOAK else 2):
        place, data = directory / path, files.files[path]
        damages = flipped(data, len(data) // 3), data[: len(data) // 2]
        for damage in damages if SOAK else [drawn.choice(damages)]:
            place.write_bytes(damage)
            done = subprocess.run(
                [sys.executable, "-m", "statekit.cli", "verify", str(directory), "--json"],
                capture_output=True,
                text=True,
                check=False,
            )
            place.write_bytes(data)
            found = verify(Files({**files.files, path: damage}), rows=False).findings
            affected = {epoch for finding in found for epoch in finding.epochs}
            is_told_only = affected == {2}  # it was rolled back
            assert done.returncode == (0 if is_told_only else 1), done.stderr
            assert path in done.stdout
