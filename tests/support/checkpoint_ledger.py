"""Checkpoints whose shards say all of themselves, made by hand, with what each epoch must hold.

A file holds words. A shard holds the words of all files that its manifest leads to, and `Ledger`
knows by itself which those are. Files, manifests, bases, histories, rollbacks and what is adopted
are real; rows are not, because nothing here depends on them.
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import IO

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardPlan, ShardState
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.references import Following
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import may_adopt, still_kept
from statekit.checkpoint.rollback import plan as plan_rollback
from statekit.checkpoint.sealed_json import FileRef
from statekit.checkpoint.shard_contents import BaseDatabase, BaseSnapshot, History, Slice
from statekit.clock import unique_id
from statekit.keygroup import group_range

__all__ = ["OPERATOR", "Ledger", "Power", "TimedRepository", "words_of"]

OPERATOR = "count"
GROUPS = 8
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

Held = dict[tuple[int, int], frozenset[str]]
"""The words of each shard, by key groups."""


class Power(Exception):
    """The power is cut."""


class TimedRepository(Repository):
    """A checkpoint in memory whose store has a clock that the test sets, and that may fail.

    Attributes:
        now: what its clock shows.
        deletions_left: how many files can be deleted before the power is cut; None for any number.
        before: is called before each request, by whoever makes it.
    """

    now: dt.datetime
    deletions_left: int | None
    before: Callable[[], None]
    _times: dict[str, dt.datetime]

    @classmethod
    def empty(cls) -> TimedRepository:
        made = cls.in_memory()
        made.now, made.deletions_left, made._times = BEGIN, None, {}
        made.before = lambda: None
        return made

    def create(self, path: str, data: bytes) -> None:
        self.before()
        super().create(path, data)
        self._times[path] = self.now

    def replace(self, path: str, data: bytes) -> None:
        self.before()
        super().replace(path, data)
        self._times[path] = self.now

    def put_file(self, path: str, file: IO[bytes], rows: int = 0) -> FileRef:
        self.before()
        self._times[path] = self.now
        return super().put_file(path, file, rows)

    def read_if_there(self, path: str) -> bytes | None:
        self.before()
        return super().read_if_there(path)

    def names(self, under: str) -> Iterator[str]:
        self.before()
        return iter(list(super().names(under)))

    def listed(self, under: str) -> Iterator[Stored]:
        self.before()
        found = list(super().listed(under))
        return (file._replace(modified=self._times[file.path]) for file in found)

    def stored(self, path: str) -> Stored | None:
        self.before()
        found = super().stored(path)
        return None if found is None else found._replace(modified=self._times[path])

    def collect(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.before()
            if self.deletions_left is not None:
                if not self.deletions_left:
                    raise Power
                self.deletions_left -= 1
            super().collect([path])


def words_of(repository: Repository, shard: ShardState) -> frozenset[str]:
    """What a shard holds, by reading every file that it leads to."""
    found: set[str] = set()
    for ref, *_ in Following(repository).of_shard(shard):
        with repository.open_verified(ref) as file:
            if not ref.path.endswith(".json"):
                found.update(file.read().decode().split())
    return frozenset(found)


@dataclass
class Ledger:
    """The one writer of such a checkpoint.

    Attributes:
        repository: the checkpoint.
        held: what each epoch ever committed must hold.
        staged: bases that wait to be adopted: the path of its file and what is in it.
    """

    repository: Repository
    held: dict[int, Held] = field(default_factory=dict)
    staged: list[tuple[FileRef, BaseSnapshot]] = field(default_factory=list)
    job: JobFile = field(
        default_factory=lambda: JobFile(
            id=unique_id(), name="ledger", key_groups=GROUPS, operators=()
        )
    )
    parallelism: int = 2

    @property
    def last(self) -> EpochManifest | None:
        latest = self.repository.latest_epoch()
        if latest is None:
            return None
        with still_kept(self.repository, latest):
            return self.repository.manifest(latest)

    # ------------------------------------------------------------------------------- files

    def put(self, suffix: str, words: Iterable[str]) -> FileRef:
        """Store a file with words."""
        content = io.BytesIO(" ".join(sorted(words)).encode())
        return self.repository.put_file(f"data/{OPERATOR}/{unique_id()}.{suffix}", content)

    def put_sealed(self, suffix: str, sealed: BaseSnapshot | History) -> FileRef:
        path = f"data/{OPERATOR}/{unique_id()}.{suffix}"
        return self.repository.put_file(path, io.BytesIO(sealed.to_bytes()))

    def stage(self, number: int, *, compacted: bool) -> None:
        """Store a base of a shard beside the epochs; it shares files with the one it has now."""
        last = self.last
        assert last is not None
        shard = last.operators[OPERATOR].shards[number % last.parallelism]
        if not shard.files or shard.changed is None or shard.attempt is None:
            return
        words, files = words_of(self.repository, shard), dict[str, FileRef]()
        if shard.base is not None and not compacted:
            with self.repository.open_verified(shard.base) as file:
                files = dict(BaseSnapshot.from_bytes(file.read(), "").databases[0].files)
        files[f"{int(unique_id()[:12], 16):06d}.sst"] = self.put("sst", words)
        base = BaseSnapshot(
            operator=OPERATOR,
            shard=shard.groups,
            attempt=shard.attempt,
            epoch=shard.changed,
            states=(),
            databases=(BaseDatabase(first_group=0, last_group=GROUPS - 1, files=files),),
            follows=shard.files[-1].path,
        )
        self.staged.append((self.put_sealed("base.json", base), base))

    # ------------------------------------------------------------------------------ epochs

    def layout(self) -> list[ShardState]:
        """The shards that the next epoch starts from."""
        last = self.last
        ranges = [group_range(n, self.parallelism, GROUPS) for n in range(self.parallelism)]
        if last is None:
            return [
                ShardState(first_group=first, last_group=end, is_complete=True)
                for first, end in ranges
            ]
        shards = last.operators[OPERATOR].shards
        if [shard.groups for shard in shards] == ranges:
            return list(shards)
        return [
            ShardState(
                first_group=first,
                last_group=end,
                attempt=f"sliced-{first}-{end}",
                changed=last.epoch,
                is_complete=True,
                slices=tuple(
                    piece
                    for shard in last.shards_over(OPERATOR, first, end)
                    for piece in _pieces(shard, first, end)
                ),
            )
            for first, end in ranges
        ]

    def epoch(self, changing: set[int], words: Iterator[str], *, folded: bool = False) -> int:
        """Commit an epoch in which some shards change, and adopt what was staged for them."""
        last, held = self.last, Held()
        number = 0 if last is None else last.epoch + 1
        shards = []
        # It may be rolled back and collected while it is read.
        reading = nullcontext() if last is None else still_kept(self.repository, last.epoch)
        with reading:
            for place, before in enumerate(self.layout()):
                shard, known = before, words_of(self.repository, before)
                if place in changing:
                    word = next(words)
                    shard = self.changed(before, number, word, folded=folded)
                    known |= {word}
                held[shard.groups] = known
                shards.append(shard)
        job, reference = self.repository.ensure_job_file(self.job)
        manifest = EpochManifest(
            job=job.name,
            job_file=reference,
            epoch=number,
            previous=None if last is None else last.epoch,
            abandoned=() if last is None else last.abandoned,
            parallelism=self.parallelism,
            key_groups=GROUPS,
            writer="ledger",
            committed_at_us=0,
            operators={OPERATOR: OperatorEpoch(shards=tuple(shards))},
        )
        self.repository.commit(manifest)
        self.held[number] = held
        return number

    def changed(self, before: ShardState, number: int, word: str, *, folded: bool) -> ShardState:
        """A shard with one more word, on a base that was staged for it if it may have that."""
        adopted = self._adopted(before, number)
        added = self.put("changes.arrow", [word])
        now: dict[str, object] = {"attempt": unique_id(), "changed": number, "slices": ()}
        if adopted is not None:
            chain = [*self._listed(before), *before.files]
            behind = [ref.path for ref in chain].index(adopted[1].follows) + 1
            return before.model_copy(
                update={
                    **now,
                    "base": adopted[0],
                    "history": None,
                    "files": (*chain[behind:], added),
                }
            )
        if before.slices or folded:
            listed = History(
                operator=OPERATOR, shard=before.groups, slices=before.slices, files=before.files
            )
            if before.history is None:
                history = self.put_sealed("history.json", listed)
                return before.model_copy(update={**now, "history": history, "files": (added,)})
        return before.model_copy(update={**now, "files": (*before.files, added)})

    def _listed(self, shard: ShardState) -> tuple[FileRef, ...]:
        return () if shard.history is None else self.repository.sealed(History, shard.history).files

    def _adopted(self, before: ShardState, number: int) -> tuple[FileRef, BaseSnapshot] | None:
        last = self.last
        plan = ShardPlan(
            checkpoint_id=self.job.id,
            operator=OPERATOR,
            shard=0,
            epoch=number,
            base=before,
            base_epoch=None if last is None else last.epoch,
            since=0 if last is None else last.since,
        )
        for ref, base in reversed(self.staged):
            if may_adopt(self.repository, ref.path, base, plan):
                return ref, base
        return None

    def roll_back(self, to: int) -> int:
        """Go back to an epoch; the number of the one that stands there."""
        found = plan_rollback(self.repository, to)
        found.carry_out()
        self.held[found.manifest.epoch] = self.held[to]
        return found.manifest.epoch

    # ----------------------------------------------------------------------------- what must be

    def check(self, epoch: int) -> None:
        """An epoch holds what it must."""
        manifest = self.repository.manifest(epoch)
        shards = manifest.operators[OPERATOR].shards
        found = {shard.groups: words_of(self.repository, shard) for shard in shards}
        assert found == self.held[epoch], f"epoch {epoch}"
        self.repository.job_file(manifest.job_file.path)  # it can be read

    def check_all(self) -> None:
        """All epochs that are kept do."""
        for epoch in self.repository.epochs():
            self.check(epoch)

    def unnamed(self, *more: int) -> set[str]:
        """Data files that no kept epoch leads to."""
        stored = set(self.repository.tree("data"))
        for epoch in {*self.repository.epochs(), *more}:
            stored -= {ref.path for ref in self.repository.pages(epoch)}
            for shard in self.repository.manifest(epoch).operators[OPERATOR].shards:
                stored -= {file.ref.path for file in Following(self.repository).of_shard(shard)}
        return stored


def _pieces(shard: ShardState, first: int, last: int) -> Iterator[Slice]:
    """What a new shard has of an old one."""
    own = Slice(
        first_group=max(first, shard.first_group),
        last_group=min(last, shard.last_group),
        shard=shard.groups,
        attempt=shard.attempt or "",
        base=shard.base,
        history=shard.history,
        files=shard.files,
        is_complete=True,
    )
    yield own
    yield from shard.slices
