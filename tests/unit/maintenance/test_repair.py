"""What is wrong with rows is found row by row, and repairs make whole epochs of whole data."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from statekit.backend.change_file import Changes, read_changes
from statekit.checkpoint.job_file import EXPIRY, TIMERS, OperatorRecord
from statekit.checkpoint.manifest import EpochNote
from statekit.checkpoint.manifest_pages import ManifestPages, PageLimits
from statekit.checkpoint.offline import check_at_rest
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.references import changed_contents
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import standing_at
from statekit.codec.key_codec import key_codec
from statekit.errors import RestoreError
from statekit.keygroup import key_group, pack_group
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.maintenance.verify.findings import Verification
from statekit.maintenance.verify.repair import repair
from statekit.maintenance.verify.verify import verify
from statekit.runtime.local import LocalRunner
from statekit.state.timers import DUE
from statekit.timestamp import datetime_to_micros
from statekit.working_copy.copies import MemoryCopies
from statekit.working_copy.unpacked_shard import ShardRows
from tests.support.all_row_kinds import START
from tests.support.command_line import statekit
from tests.support.full_checkpoint import GROUPS, Files, job, make, steps
from tests.support.full_checkpoint import run as run_epochs
from tests.support.mutations import Delete, Mutation, Put, batch_of, mutations_of
from tests.unit.checkpoint.test_rollback import sparks_part, streamed


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Three epochs of two shards."""
    made = Repository(tmp_path / "checkpoint")
    run_epochs(made, 0, 2, 2)
    return made


def kinds(found: Verification) -> list[str]:
    return [finding.kind for finding in found.findings]


def record_of(repository: Repository, name: str) -> OperatorRecord:
    found = repository.newest_job_file()
    assert found is not None
    operator = found[0].operator(name)
    assert operator is not None
    return operator


def rows_of(repository: Repository, name: str, family: str, epoch: int = 2) -> list[Any]:
    """Rows of the first shard of an operator."""
    manifest = repository.manifest(epoch)
    shard = manifest.operators[name].shards[0]
    rows = ShardRows(repository, name, manifest)
    with rows.opened(shard, [*record_of(repository, name).holds, DUE, EXPIRY]) as backend:
        return list(backend.scan(family, b"", b"\xff\xff\xff"))


def forge(repository: Repository, name: str, mutations: Iterable[Mutation], **told: Any) -> None:
    """An epoch whose files are whole, and whose first shard of an operator has these changes.

    Parameters:
        told: what the manifest says of the shard, in place of what is so.
    """
    latest = repository.latest_epoch()
    assert latest is not None
    last = repository.manifest(latest)
    batch = batch_of(mutations)
    files: tuple[Any, ...] = ()
    if len(batch):
        changes = Changes(tuple(dict.fromkeys(batch.states)))
        changes.append(batch)
        finished = changes.finish()
        assert finished is not None
        files = (repository.put_changes(name, *finished),)
        changes.drop()
    operator = last.operators[name]
    first, *others = operator.shards
    if files:
        told |= {"attempt": "forged", "changed": latest + 1}
        told |= changed_contents(repository, name, first, dict.fromkeys(files, 0))
    operators = {
        name: standing.at_rest(standing.shards) for name, standing in last.operators.items()
    }
    operators[name] = operator.at_rest([first.model_copy(update=told), *others])
    repository.commit(last.followed_by(operators=operators, cause="records"))


def outputs(repository: Repository, first: int, last: int) -> list[Counter[str]]:
    """What more epochs put out, per epoch."""
    runner = LocalRunner(job().plan, repository, MemoryCopies())
    found = []
    for number in range(first, last + 1):
        at = datetime_to_micros(START + dt.timedelta(seconds=20 * number + 20))
        emitted = runner.epoch({"steps": steps(number)}, at_us=at)
        told = chain.from_iterable(emitted.values())
        found.append(Counter(json.dumps(record, default=str) for record in told))
    return found


# ----------------------------------------------------------------------------- rows of indexes


def due_row_lost(repository: Repository) -> list[Mutation]:
    return [Delete(DUE, rows_of(repository, "keep", DUE)[0][0])]


def test_indexes_that_do_not_match_their_rows_are_found_and_rebuilt(
    repository: Repository, tmp_path: Path
) -> None:
    untouched = Repository(tmp_path / "untouched")
    repository.copy_to(untouched)
    due, expiry = (rows_of(repository, "keep", family) for family in (DUE, EXPIRY))
    damage: list[Mutation] = due_row_lost(repository)
    damage += [Put(DUE, due[1][0] + b"x", b""), Put(DUE, due[1][0][:9], b"")]
    damage += [Delete(EXPIRY, row_key) for row_key, _ in expiry[:-1]]
    damage += [Put(EXPIRY, expiry[0][0][:6], b"")]
    forge(repository, "keep", damage)
    found = verify(repository)
    rows = Counter[str]()
    for finding in found.findings:
        rows[finding.kind] += finding.rows
    assert rows["timer index"] == 3
    assert 1 < rows["expiry index"] <= len(expiry)
    assert set(rows) == {"timer index", "expiry index"}
    assert {finding.epochs for finding in found.findings} == {(3,)}
    made = repair(repository, found)
    assert made is not None
    assert made.is_mended
    assert made.mended == rows.total()
    assert (made.left_out, made.put_aside, made.manifest.previous) == (0, (), 3)
    assert made.manifest.cause == "repair"
    assert verify(repository, epoch=4).is_intact
    assert outputs(repository, 4, 8) == outputs(untouched, 4, 8)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"rows": {"last": 1}, "bytes": {"last": 1}}, "count"),
        ({"wake_us": {}}, "wake"),
        ({"wake_us": {"processing": 1 << 60, "event": 1 << 60}}, "wake"),
    ],
)
def test_counts_and_times_to_wake_that_are_wrong_are_found_and_put_right(
    repository: Repository, told: dict[str, Any], kind: str
) -> None:
    right = repository.manifest(2).operators["keep"].shards[0]
    forge(repository, "keep", [], **told)
    found = verify(repository)
    assert set(kinds(found)) == {kind}
    made = repair(repository, found)
    assert made is not None
    shard = made.manifest.operators["keep"].shards[0]
    assert (shard.rows, shard.bytes, shard.attempt) == (right.rows, right.bytes, right.attempt)
    assert all(shard.wake_us[clock] <= at for clock, at in right.wake_us.items())
    assert {finding.epochs for finding in verify(repository, all_rows=True).findings} == {(3,)}
    assert verify(repository, epoch=4).is_intact


# -------------------------------------------------------------------------- rows of states


# Row keys of the first shard, and one in a key group that is not its key's.
_KEYS = [f"k{number}" for number in range(40)]
ROW_KEY, *OTHERS = (
    pack_group(group) + key_codec(str).encode(key)
    for key in _KEYS
    if (group := key_group(key, GROUPS)) < 4
)
FOREIGN = pack_group(1 - key_group("foreign", GROUPS) % 2) + key_codec(str).encode("foreign")

BAD_ROWS = [
    ("row", Put("total", OTHERS[0], b"\xc1\x05")),
    ("row", Put("total", OTHERS[1], b"")),
    ("row", Put("total", OTHERS[2], b"\x01\x01")),
    ("row", Put("total", ROW_KEY + b"x", b"\x01")),
    ("row", Put("total", ROW_KEY[:-2], b"\x01")),
    ("row", Put("last", ROW_KEY, b"\x01")),
    ("row", Put("seen", ROW_KEY + b"short", b"\x01")),
    ("row", Put("by_n", ROW_KEY + b"\x01", b"\xa1a")),
    ("row", Put("brief", ROW_KEY, b"\xc1\x01\x00")),
    ("row", Put(TIMERS, ROW_KEY + b"\x07" + bytes(8), b"")),
    ("row", Put(TIMERS, ROW_KEY + b"\x00" + bytes(8) + b"\xff", b"")),
    ("key group", Put("total", FOREIGN, b"\x01")),
]


def test_rows_that_cannot_be_read_are_found_and_left_out_only_if_that_is_asked_for(
    repository: Repository,
) -> None:
    # Those of timers have no row in the index, which is wrong, too, as far as they are timers.
    forge(repository, "keep", [row for _, row in BAD_ROWS])
    found = verify(repository)
    bad = [finding for finding in found.findings if finding.kind in ("row", "key group")]
    assert {(f.operator, f.shard, f.epochs) for f in bad} == {("keep", (0, 3), (3,))}
    rows = Counter({(f.kind, f.state): f.rows for f in bad})
    assert rows == Counter((kind, row.state) for kind, row in BAD_ROWS)
    shown = {row_key for finding in bad for row_key in finding.row_keys}
    assert shown <= {row.key.hex() for _, row in BAD_ROWS}
    made = repair(repository, found, drop_rows=True)
    assert made is not None
    assert made.is_mended
    assert made.left_out == len(BAD_ROWS)
    (kept,) = made.put_aside
    put_aside = [
        row for batch in read_changes(repository.read(kept), kept) for row in mutations_of(batch)
    ]
    assert sorted(put_aside) == sorted(row for _, row in BAD_ROWS)
    after = verify(repository, epoch=4)
    assert after.is_intact
    assert everything(repository) == counts(repository, 2)


def test_without_drop_rows_a_repair_goes_back_instead_of_dropping_rows(
    repository: Repository,
) -> None:
    forge(repository, "keep", [BAD_ROWS[0][1]])
    made = repair(repository, verify(repository))
    assert made is not None
    assert (made.is_mended, made.target.epoch, made.manifest.previous) == (False, 2, 2)
    assert made.manifest.abandoned == ((3, 3),)
    found = verify(repository, all_rows=True)
    assert {finding.epochs for finding in found.findings} == {(3,)}
    assert not found.is_damaged, "the epoch was given up"
    assert repair(repository, found) is None


def test_rows_of_a_file_that_are_not_its_shards_are_found(repository: Repository) -> None:
    foreign = pack_group(7) + ROW_KEY[2:]
    forge(repository, "keep", [Put("total", foreign, b"\x01")])
    (finding,) = verify(repository).findings
    assert finding.kind == "file"
    assert "1 mutations of other key groups than those of its shard, 0 to 3" in finding.what


# ---------------------------------------------------------------------------------- going back


def last_file(repository: Repository, epoch: int) -> Path:
    shard = repository.manifest(epoch).operators["keep"].shards[0]
    assert shard.changed == epoch
    assert repository.root is not None
    return repository.root / shard.files[-1].path


@pytest.mark.parametrize("how", ["cut", "gone", "manifest"])
def test_the_contents_of_a_lost_file_are_processed_again(tmp_path: Path, how: str) -> None:
    inputs = {"steps": [step for number in range(6) for step in steps(number)]}
    plain, checkpoint = tmp_path / "plain", tmp_path / "checkpoint"
    for place in (plain, checkpoint):
        job().run(
            inputs, checkpoint=place, parallelism=2, epoch_size=6, drain=False, clock=lambda: 0
        )
    repository = Repository(checkpoint)
    place = last_file(repository, 4)
    if how == "manifest":
        place = checkpoint / epoch_path(4)
        spoil(checkpoint, 5)
    place.write_bytes(place.read_bytes()[:-1])
    if how == "gone":
        place.unlink()
    found = verify(repository)
    assert {epoch for finding in found.findings for epoch in finding.epochs} == {4, 5}
    made = repair(repository, found)
    assert made is not None
    assert (made.target.epoch, made.manifest.epoch, made.manifest.abandoned) == (3, 6, ((4, 5),))
    assert made.manifest.offsets == {"steps": 24}
    assert not verify(repository).is_damaged
    job().run(inputs, checkpoint=checkpoint, epoch_size=6, drain=False, clock=lambda: 0)
    assert everything(repository) == everything(Repository(plain))


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "altered"])
def test_a_damaged_page_of_the_last_manifest_makes_a_repair_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr(ManifestPages, "limits", PageLimits(own=0, entries=2, spread=2))
    inputs = {"steps": [step for number in range(6) for step in steps(number)]}
    plain, checkpoint = tmp_path / "plain", tmp_path / "checkpoint"
    for place in (plain, checkpoint):
        job().run(
            inputs, checkpoint=place, parallelism=4, epoch_size=6, drain=False, clock=lambda: 0
        )
    pages = [{ref.path for ref in Repository(checkpoint).pages(epoch)} for epoch in (4, 5)]
    page = checkpoint / min(pages[1] - pages[0])
    page.unlink() if is_gone else page.write_bytes(page.read_bytes()[::-1])
    repository = Repository(checkpoint)
    made = repair(repository, verify(repository))
    assert made is not None
    assert (made.target.epoch, made.manifest.epoch, made.manifest.abandoned) == (4, 6, ((5, 5),))
    assert page.exists() is not is_gone, "nothing is removed or overwritten"
    assert not verify(Repository(checkpoint)).is_damaged
    job().run(inputs, checkpoint=checkpoint, epoch_size=6, drain=False, clock=lambda: 0)
    assert everything(Repository(checkpoint)) == everything(Repository(plain))


def everything(repository: Repository) -> dict[str, Any]:
    """How much there is of everything."""
    latest = repository.latest_epoch()
    assert latest is not None
    return counts(repository, latest)


def counts(repository: Repository, epoch: int) -> dict[str, Any]:
    """How many rows and bytes there are after an epoch."""
    operators = repository.manifest(epoch).operators
    return {name: (operator.rows, operator.bytes) for name, operator in operators.items()}


def test_the_last_manifest_may_be_the_one_that_cannot_be_read(repository: Repository) -> None:
    assert repository.root is not None
    place = repository.root / epoch_path(2)
    place.write_bytes(b"")
    made = repair(repository, verify(repository))
    assert made is not None
    assert (made.target.epoch, made.manifest.epoch, made.manifest.abandoned) == (1, 3, ((2, 2),))
    assert place.read_bytes() == b"", "nothing is removed or overwritten"
    assert not verify(repository).is_damaged


def test_where_nothing_is_damaged_nothing_is_changed(repository: Repository) -> None:
    assert repository.root is not None
    before = Files.copied(repository.root).files
    assert repair(repository, verify(repository), drop_rows=True) is None
    assert Files.copied(repository.root).files == before


def test_without_an_intact_epoch_nothing_is_repaired(repository: Repository) -> None:
    last_file(repository, 0).write_bytes(b"")
    before = repository.epochs()
    with pytest.raises(RestoreError, match=r"no intact epoch.*from a backup"):
        repair(repository, verify(repository))
    assert repository.epochs() == before


def test_an_epoch_that_was_rolled_back_is_not_gone_back_to(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    make(repository)
    (tmp_path / "spark").rename(tmp_path / "elsewhere")
    last_file(repository, 5).write_bytes(b"")
    for epoch in (4, 3):
        (tmp_path / epoch_path(epoch)).write_bytes(b"")
    made = repair(repository, verify(repository))
    assert made is not None
    assert made.target.epoch == 1, "2 was rolled back by 3, as 6 still says"


def test_an_epoch_that_was_begun_is_finished_before_an_index_is_restored(
    repository: Repository,
) -> None:
    forge(repository, "keep", due_row_lost(repository))
    repository.write_note(EpochNote(epoch=4, what="records", processing_time_us=0))
    with pytest.raises(RestoreError, match="was begun"):
        repair(repository, verify(repository))
    assert repository.epochs()[-1] == 3


# -------------------------------------------------------------------------------- Spark's part


def spoil(path: Path, epoch: int) -> None:
    (path / epoch_path(epoch)).write_bytes(b"")


def stream(path: Path) -> Repository:
    """A stream's checkpoint, without the checksums that Hadoop keeps."""
    repository = streamed(path)
    for checksum in (path / "spark").rglob(".*.crc"):
        checksum.unlink()
    return repository


def test_sparks_part_goes_back_with_the_state(tmp_path: Path) -> None:
    repository = stream(tmp_path)
    last = repository.epochs()[-1]
    assert verify(repository).is_intact
    spoil(tmp_path, last)
    spoil(tmp_path, last - 1)
    made = repair(repository, verify(repository))
    assert made is not None
    assert made.target.epoch == last - 2
    part = sparks_part(repository)
    assert f"offsets/{made.target.batch}" in part
    assert f"offsets/{(made.target.batch or 0) + 1}" not in part
    assert not verify(repository).is_damaged


def test_a_repair_that_was_killed_before_sparks_part_was_set_back_is_finished(
    tmp_path: Path,
) -> None:
    repository = streamed(tmp_path)
    last = repository.epochs()[-1]
    target = repository.manifest(last - 2)
    made = standing_at(target, "repair", last + 1, target.processing_time_us)
    repository.commit(made)
    check_at_rest(repository, made)
    assert max(repository.spark_batches("offsets")) == target.batch


def test_a_wrong_position_of_sparks_part_is_found(tmp_path: Path) -> None:
    repository = stream(tmp_path)
    for batch in (5, 6):
        (tmp_path / "spark/offsets" / str(batch)).unlink()
    found = verify(repository)
    assert set(kinds(found)) == {"spark"}
    with pytest.raises(RestoreError, match="Spark's part is damaged"):
        repair(repository, found)


# --------------------------------------------------------------------------------- the command


def test_the_command_reports_damage_and_the_result_of_a_repair(repository: Repository) -> None:
    assert repository.root is not None
    told = statekit("verify", repository.root, "--all")
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "intact")
    last_file(repository, 2).write_bytes(b"")
    told = statekit("verify", repository.root, "--no-rows")
    assert told.returncode == 1
    assert "damaged: 1 finding" in told.stdout
    assert "truncated: 0 of" in told.stdout
    assert "checksum" not in told.stdout
    assert len(told.stdout.splitlines()) < 14
    told = statekit("verify", repository.root, "--repair", "--json")
    assert told.returncode == 0, told.stderr
    said = json.loads(told.stdout)
    assert said["is_damaged"]
    assert said["findings"][0]["epochs"] == [2]
    assert said["repair"]["epoch"] == 3
    assert "lost: what epoch 2 did" in said["repair"]["told"][1]
    assert statekit("verify", repository.root, "--epoch", 3).returncode == 0


def test_the_command_reports_what_it_cannot_check(tmp_path: Path, repository: Repository) -> None:
    assert statekit("verify", tmp_path / "nowhere").returncode == 2
    (tmp_path / "empty").mkdir()
    assert statekit("verify", tmp_path / "empty").returncode == 2
    told = statekit("verify", tmp_path / "empty", "--repair", "--json")
    assert told.returncode == 2
    assert json.loads(told.stdout)["error"]["kind"] == "restore"
    write_savepoint(repository, "saved")
    assert repository.root is not None
    saved = repository.root / "savepoints" / "saved"
    assert statekit("verify", saved, "--epoch", 3).returncode == 2
    assert statekit("verify", repository.root, "--epoch", 99).returncode == 2
    assert statekit("verify", repository.root, "--drop-rows").returncode == 2
