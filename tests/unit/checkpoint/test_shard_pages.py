"""Manifests of many shards: entries are in pages, and nothing but `Repository` sees that."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.manifest_pages import (
    PAGE_BYTES_MAX,
    ManifestPages,
    PageLimits,
    PageRef,
    ShardPage,
    StoredManifest,
)
from statekit.checkpoint.paths import EPOCHS, PAGE, epoch_path, page_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import STAGED_FOR
from statekit.checkpoint.sealed_json import checksum_of
from statekit.errors import CorruptCheckpointError, RestoreError, StorageError
from statekit.maintenance.verify.verify import verify
from tests.support.checkpoint_ledger import OPERATOR, Ledger, TimedRepository
from tests.unit.checkpoint.test_garbage_collection import NOTHING, collect

LIMITS = PageLimits(own=1, entries=3, spread=2)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManifestPages, "limits", LIMITS)


def pages_in(repository: Repository) -> set[str]:
    return {path for path in repository.tree("data") if path.endswith(PAGE)}


def paged_ledger(place: Path, epochs: int = 4) -> Ledger:
    """A ledger of eight shards, of which each epoch after the first changes two: one more than a
    manifest has room for.
    """
    ledger, words = Ledger(Repository(place), parallelism=8), map(str, itertools.count())
    ledger.epoch(set(range(8)), words)
    for number in range(1, epochs):
        ledger.epoch({number % 8, (number + 1) % 8}, words)
    return ledger


class Epochs(RuleBasedStateMachine):
    """Epochs of some shards, other layouts, rollbacks, writers that die, and collections."""

    def __init__(self) -> None:
        super().__init__()
        self.repository = Repository.in_memory()
        self.ledger = Ledger(self.repository)
        self.words = (f"w{number}" for number in itertools.count())
        self.committed: dict[int, EpochManifest] = {}
        self.epoch({0, 1})

    @rule(changing=st.sets(st.integers(0, 7)))
    def epoch(self, changing: set[int]) -> None:
        number = self.ledger.epoch(changing, self.words)
        self.committed[number] = self.repository.manifest(number)

    @rule(parallelism=st.integers(1, 8))
    def layout(self, parallelism: int) -> None:
        self.ledger.parallelism = parallelism

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        *earlier, last = self.repository.epochs()
        abandoned = self.repository.manifest(last).has_abandoned
        if targets := [epoch for epoch in earlier if not abandoned(epoch)]:
            number = self.ledger.roll_back(data.draw(st.sampled_from(targets)))
            self.committed[number] = self.repository.manifest(number)
            self.ledger.parallelism = self.committed[number].parallelism

    @rule()
    def a_writer_dies_between_pages_and_manifest(self) -> None:
        last = self.ledger.last
        assert last is not None
        layout = self.ledger.layout()
        shards = tuple(s.model_copy(update={"wake_us": {"event": 7}}) for s in layout)
        operators = {OPERATOR: last.operators[OPERATOR].model_copy(update={"shards": shards})}
        manifest = last.followed_by(operators=operators, parallelism=len(shards))
        failing = self.repository.through(lambda objects: objects)
        failing.create = _cut  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            failing.commit(manifest)
        assert self.ledger.last == last

    @rule(epochs=st.integers(1, 4))
    def collection(self, epochs: int) -> None:
        collect(self.repository, epochs, grace=NOTHING)
        assert not self.ledger.unnamed()

    @rule()
    def restart(self) -> None:
        """Another process has no pages in memory."""
        vars(self.repository).pop("_pages", None)

    @invariant()
    def every_epoch_reads_as_it_was_committed(self) -> None:
        for number in self.repository.epochs():
            assert self.repository.manifest(number) == self.committed[number]
            self.ledger.check(number)

    @invariant()
    def pages_are_few(self) -> None:
        last = self.ledger.last
        assert last is not None
        full = LIMITS.pages_for(last.parallelism)
        assert len(self.repository.pages(last.epoch)) <= LIMITS.spread * full


def _cut(path: str, data: bytes) -> None:
    raise StorageError(f"the power was cut before {path} was written")


def test_epochs_in_pages_are_as_they_were_committed() -> None:
    run_state_machine_as_test(
        Epochs, settings=settings(max_examples=25, stateful_step_count=15, deadline=None)
    )


def own_entries(repository: Repository, epoch: int) -> list[int]:
    """The first key groups of the shards whose entries are in the manifest itself."""
    stored = json.loads(repository.read(epoch_path(epoch)))["operators"][OPERATOR]
    return [shard["first_group"] for shard in stored["shards"]]


def test_entries_for_which_a_manifest_has_no_room_become_one_page(tmp_path: Path) -> None:
    ledger = paged_ledger(tmp_path, 2)
    first, second = (set(ledger.repository.pages(epoch)) for epoch in (0, 1))
    assert len(first) == LIMITS.pages_for(8)
    assert len(second - first) == 1
    assert not own_entries(ledger.repository, 0)
    assert not own_entries(ledger.repository, 1)


def test_a_manifest_has_the_entries_that_changed_last_until_there_are_too_many(
    tmp_path: Path,
) -> None:
    ledger, words = paged_ledger(tmp_path, 1), map(str, itertools.count())
    third, fourth = (ledger.layout()[shard].first_group for shard in (3, 4))
    for changing, own, new_pages in (
        ({3}, [third], 0),
        ({3}, [third], 0),
        (set(), [third], 0),
        ({4}, [], 1),
        ({4}, [fourth], 0),
    ):
        before = pages_in(ledger.repository)
        number = ledger.epoch(changing, words)
        assert own_entries(ledger.repository, number) == own
        assert len(pages_in(ledger.repository) - before) == new_pages
    ledger.check_all()


def test_an_epoch_without_changes_writes_no_page(tmp_path: Path) -> None:
    ledger = paged_ledger(tmp_path)
    before = pages_in(ledger.repository)
    ledger.epoch(set(), iter(()))
    assert pages_in(ledger.repository) == before


def test_a_manifest_of_format_4_with_pages_alone_is_read(tmp_path: Path) -> None:
    repository = paged_ledger(tmp_path, 1).repository
    manifest = repository.manifest(0)
    stored = json.loads(repository.read(epoch_path(0)))
    del stored["checksum"], stored["operators"][OPERATOR]["shards"]
    body = json.dumps({**stored, "format": 4}, separators=(",", ":")).encode()[:-1]
    (tmp_path / epoch_path(0)).write_bytes(body + b',"checksum":"%s"}' % checksum_of(body).encode())
    assert Repository(tmp_path).manifest(0) == manifest


def test_a_manifest_of_few_shards_has_its_entries_and_format_3(tmp_path: Path) -> None:
    ledger = Ledger(Repository(tmp_path), parallelism=1)
    ledger.epoch({0}, iter("a"))
    manifest = ledger.repository.manifest(0)
    assert ledger.repository.read(epoch_path(0)) == manifest.to_bytes()
    assert json.loads(manifest.to_bytes())["format"] == 3
    assert not pages_in(ledger.repository)


def test_a_version_without_pages_refuses_a_manifest_with_pages(tmp_path: Path) -> None:
    data = paged_ledger(tmp_path).repository.read(epoch_path(0))
    with pytest.raises(RestoreError, match="format version 5, and this statekit reads 3: upgrade"):
        EpochManifest.from_bytes(data, "the manifest")


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    (page, *_) = paged_ledger(tmp_path).repository.pages(0)
    if damage == "missing":
        (tmp_path / page.path).unlink()
    else:
        (tmp_path / page.path).write_bytes(b"x" * page.size)
    with pytest.raises(CorruptCheckpointError, match=f"{page.path} is .*{damage}.*backup"):
        Repository(tmp_path).manifest(0)


def forged(ledger: Ledger, content: Callable[[ShardPage], bytes]) -> str:
    """Put another page in the place of the first one of the last epoch, with a checksum that fits.
    Return its path.
    """
    repository, number = ledger.repository, ledger.repository.epochs()[-1]
    assert repository.root is not None
    place = repository.root / epoch_path(number)
    stored = StoredManifest.from_bytes(place.read_bytes(), "the manifest")
    operator = stored.operators[OPERATOR]
    first = operator.pages[0].file(OPERATOR).path
    page = ShardPage.from_zstd((repository.root / first).read_bytes(), first)
    data, id = content(page), "f" * 32
    (repository.root / page_path(OPERATOR, id)).write_bytes(data)
    ref = PageRef(id=id, size=len(data), checksum=checksum_of(data))
    pages = (ref, *operator.pages[1:])
    changed = {OPERATOR: operator.model_copy(update={"pages": pages})}
    place.write_bytes(stored.model_copy(update={"operators": changed}).to_bytes())
    return page_path(OPERATOR, id)


def _with_format_9(page: ShardPage) -> bytes:
    return page.model_copy(update={"format": 9}).to_zstd()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (lambda page: page.to_zstd()[:-9], CorruptCheckpointError, r"{path} is .*backup"),
        (lambda page: page.to_bytes(), CorruptCheckpointError, r"{path} is not a page .*backup"),
        (lambda page: b"", CorruptCheckpointError, r"{path} is .*backup"),
        (
            lambda page: pa.compress(b" " * (PAGE_BYTES_MAX + 1), codec="zstd", asbytes=True),
            CorruptCheckpointError,
            r"{path} is not a page of shards: it has more than 268,435,456 bytes.*backup",
        ),
        (
            lambda page: page.model_copy(update={"operator": "other"}).to_zstd(),
            CorruptCheckpointError,
            r"{path} is a page of operator 'other', .*backup",
        ),
        (
            lambda page: page.model_copy(
                update={"shards": (page.shards[0].model_copy(update={"last_group": 2}),)}
            ).to_zstd(),
            CorruptCheckpointError,
            r"{manifest} does not fit its pages: .*backup",
        ),
        (_with_format_9, RestoreError, r"{path} has format version 9.*upgrade"),
    ],
    ids=["truncated", "not compressed", "empty", "huge", "other operator", "overlap", "newer"],
)
def test_a_forged_page_is_a_typed_error_that_names_the_file(
    tmp_path: Path, content: Callable[[ShardPage], bytes], error: type[Exception], message: str
) -> None:
    ledger = paged_ledger(tmp_path)
    path = forged(ledger, content)
    last = ledger.repository.epochs()[-1]
    with pytest.raises(error, match=message.format(path=path, manifest=epoch_path(last))):
        Repository(tmp_path).manifest(last)
    assert Repository(tmp_path).manifest(0).epoch == 0, "other epochs are not affected"
    assert not verify(Repository(tmp_path), rows=False).is_intact


@pytest.mark.parametrize("at", [0.0, 0.5, 0.99])
def test_every_length_of_a_page_is_refused(tmp_path: Path, at: float) -> None:
    (page, *_) = paged_ledger(tmp_path).repository.pages(0)
    content = (tmp_path / page.path).read_bytes()
    (tmp_path / page.path).write_bytes(content[: int(len(content) * at)])
    with pytest.raises(CorruptCheckpointError, match=page.path):
        Repository(tmp_path).manifest(0)


class SlowCommit(TimedRepository):
    """A checkpoint whose next manifest is written long after its pages, and after a sweep."""

    is_slow = False

    def create(self, path: str, data: bytes) -> None:
        if self.is_slow and path.startswith(EPOCHS):
            self.is_slow = False
            self.now += dt.timedelta(hours=100)
            collect(self, 1, grace=STAGED_FOR)
        super().create(path, data)


def test_a_sweep_never_deletes_the_pages_of_a_commit_in_flight() -> None:
    repository = SlowCommit.empty()
    assert isinstance(repository, SlowCommit)
    ledger, words = Ledger(repository, parallelism=8), map(str, itertools.count())
    ledger.epoch(set(range(8)), words)
    for _ in range(3):
        repository.now += dt.timedelta(hours=20)
        ledger.epoch({1, 5}, words)
    before = pages_in(repository)
    repository.is_slow = True
    number = ledger.epoch({2, 3}, words)
    assert pages_in(repository) - before
    vars(repository).pop("_pages")  # as another process reads it
    ledger.check(number)


def test_the_page_of_a_writer_that_died_is_deleted_by_a_sweep_after_the_grace() -> None:
    repository = TimedRepository.empty()
    ledger, words = Ledger(repository, parallelism=8), map(str, itertools.count())
    ledger.epoch(set(range(8)), words)
    orphan = page_path(OPERATOR, "e" * 32)
    repository.put_file(orphan, io.BytesIO(b"of an epoch that was never committed"))
    for hours, is_there in ((1, True), (100, False)):
        repository.now += dt.timedelta(hours=hours)
        ledger.epoch({3}, words)
        collect(repository, 5, grace=STAGED_FOR)
        assert (orphan in pages_in(repository)) is is_there
    ledger.check_all()


def test_an_epoch_of_another_layout_shares_no_page(tmp_path: Path) -> None:
    ledger = paged_ledger(tmp_path)
    ledger.parallelism = 4
    number = ledger.epoch({0}, iter("z"))
    pages = [set(ledger.repository.pages(epoch)) for epoch in (number - 1, number)]
    assert not pages[0] & pages[1]
    ledger.check(number)
    ledger.check(number - 1)


def test_a_rollback_shares_all_pages_with_its_target_and_writes_none(tmp_path: Path) -> None:
    ledger = paged_ledger(tmp_path)
    before = pages_in(ledger.repository)
    number = ledger.roll_back(1)
    assert pages_in(ledger.repository) == before
    assert ledger.repository.pages(number) == ledger.repository.pages(1)


@contextmanager
def requests(repository: Repository) -> Iterator[list[str]]:
    """The requests to the store, as what they do."""
    inner, seen = repository._asked, list[str]()

    def asked(doing: str, path: str, ask: Callable[[], object]) -> object:
        if doing != "read what is to be written to":  # which is local
            seen.append(doing)
        return inner(doing, path, ask)

    vars(repository)["_asked"] = asked
    yield seen
    del vars(repository)["_asked"]


@pytest.mark.parametrize(("changing", "pages"), [(1, 0), (2, 1)])
def test_a_commit_writes_its_new_page_and_makes_no_other_request_more_than_without_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changing: int, pages: int
) -> None:
    made: list[list[str]] = []
    for limits in (LIMITS, PageLimits()):
        monkeypatch.setattr(ManifestPages, "limits", limits)
        ledger = paged_ledger(tmp_path / str(limits.own))
        last = ledger.last
        assert last is not None
        shards = last.operators[OPERATOR].shards
        changed = (s.model_copy(update={"wake_us": {"event": 7}}) for s in shards[:changing])
        operator = last.operators[OPERATOR].model_copy(
            update={"shards": (*changed, *shards[changing:])}
        )
        with requests(ledger.repository) as seen:
            ledger.repository.commit(last.followed_by(operators={OPERATOR: operator}))
        made.append(sorted(seen))
    assert made[0] == sorted([*made[1], *["write"] * pages])


def test_verify_reports_a_damaged_page_once_with_all_epochs_that_need_it(tmp_path: Path) -> None:
    ledger = paged_ledger(tmp_path)
    pages = pages_in(ledger.repository)
    assert not [f for f in verify(Repository(tmp_path), rows=False).findings if f.path in pages]
    page = next(iter({*ledger.repository.pages(0)} & {*ledger.repository.pages(3)}))
    (tmp_path / page.path).write_bytes(b"x" * page.size)
    found = verify(Repository(tmp_path), rows=False)
    (finding,) = (each for each in found.findings if each.path == page.path)
    needing = [n for n in range(4) if page in ledger.repository.pages(n)]
    assert list(finding.epochs) == needing
