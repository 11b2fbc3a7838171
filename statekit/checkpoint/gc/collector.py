"""Garbage collection: remove old epochs, then delete the files that no kept epoch references.

There are two ways to find garbage.

- **By references.** A collected epoch references files that the kept ones do not. By the rule in
  `retention`, the epochs that reference a file follow each other without a gap. So it is enough to
  read the collected epochs, and each kept one that follows a collected one or none: all other kept
  epochs reference only files of these, or newer files. Nothing is listed, and the reads follow the
  number of collected epochs.
- **By a sweep.** Attempts that lost leave orphans, which no manifest ever referenced. A sweep lists
  all files. Those that no kept epoch references and that are old enough are garbage.

The order of writes is: the note that epochs take no new leases; the mark that they are collected;
then, for each of them, oldest first, its files, its bases and histories, its pages, its manifest.
So the next collector finds everything that a killed one has not done.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field

from statekit.checkpoint import paths
from statekit.checkpoint.gc.kept_files import KeptFiles, Size, manifests_before_gaps
from statekit.checkpoint.gc.readers import LeaseHeadroom, ReaderBound
from statekit.checkpoint.leases.lease_files import SKEW, stored_leases
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.object_store import Stored
from statekit.checkpoint.references import named_by
from statekit.checkpoint.repository import EpochFiles, Repository
from statekit.checkpoint.retention import STAGED_FOR, Retention, going_back, held_epochs
from statekit.checkpoint.sealed_json import FileRef
from statekit.clock import stopwatch_s
from statekit.errors import CorruptCheckpointError, FencedError, StatekitError, StateTypeError

_log = logging.getLogger("statekit.collecting")
_PART = 4
_PAUSE_S = 1.0
_PAUSE_OF_STEP = 2
_LONGEST_PAUSE_S = 0.1
"""A step of a collection beside a job is followed by a pause twice as long, of at most 0.1 s."""

GRACE = dt.timedelta(days=1)
"""The age of an orphan, relative to the last commit, at which a sweep deletes it."""

_NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)

Progress = Callable[[int, int | None], None]
"""A callback with the number of processed epochs and their total."""


@dataclass
class Collected:
    """The result of a collection. In a dry run, the result that it would have.

    Attributes:
        first, last: the kept epochs.
        kept: their number.
        given_up: number of deleted manifests.
        held: epochs before the first whose manifests stay, and why.
        deleted: by kind.
        young: unreferenced files that are too young to be deleted; None without a sweep.
    """

    first: int
    last: int
    kept: int = 0
    given_up: int = 0
    held: dict[int, str] = field(default_factory=dict)
    deleted: dict[str, Size] = field(default_factory=lambda: defaultdict(Size))
    young: Size | None = None


@dataclass
class Collector:
    """Collects the garbage of a checkpoint. Several collectors may run concurrently, also with a
    job.

    Parameters:
        repository: the checkpoint.
        retention: which epochs to keep.
        grace: the minimum age of an orphan to delete, relative to the last commit. Zero declares
            that nothing else is running: then all orphans are deleted.
        dry_run: only report.
        progress: called with the progress.
        is_stopped: called at intervals; True ends the collection early without any loss.

    Raises:
        StateTypeError: the grace is shorter than running jobs need.
    """

    repository: Repository
    retention: Retention
    _: KW_ONLY
    grace: dt.timedelta = GRACE
    dry_run: bool = False
    progress: Progress = lambda done, total: None
    is_stopped: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.grace and self.grace < STAGED_FOR:
            raise StateTypeError(
                f"a grace of {_hours(self.grace)} is too short: jobs that run may name files that "
                f"were stored up to {_hours(STAGED_FOR)} ago. Give at least as much, or 0 if no "
                "job runs on this checkpoint and no other command changes it"
            )
        self._dying: set[str] = set()
        """In a dry run, the files that a real run would have deleted."""
        self.leases: list[LeaseHeadroom] = []
        """The leases that were read by the last call of `collect`."""

    def collect(self, *, sweep: bool | None) -> Collected | None:
        """Collect old epochs, and delete the files that only these epochs reference.

        Parameters:
            sweep: whether to look for orphans; None if the last sweep was long ago.

        Returns:
            What was done; None if nothing is committed.

        Raises:
            CorruptCheckpointError: a kept epoch cannot be read. Nothing that it may need is
                deleted.
            StorageError: the store failed; a second call continues.
        """
        while True:
            first = self.repository.first_kept()
            try:
                return self._collect(sweep)
            except CorruptCheckpointError:
                if self.repository.first_kept() <= first:
                    raise
                # Another collector has collected an epoch that this one was reading.

    def _collect(self, sweep: bool | None) -> Collected | None:
        given_up = self._given_up()
        if given_up is None:
            return None
        numbers, first, last = given_up
        kept = [number for number in sorted(numbers.committed) if number >= first]
        done = Collected(first=first, last=kept[-1], kept=len(kept))
        sweeps = self._is_due(numbers) if sweep is None else sweep
        gone = [number for number in sorted(numbers.committed) if number < first]
        history = manifests_before_gaps(self.repository, kept, last)
        held_manifests = self._held(gone, kept[-1], done)
        waiting = [number for number in gone if number not in done.held]
        total = len(waiting) + (len(kept) if sweeps else 0)
        if waiting:
            kept_files = KeptFiles(self.repository, [*history, *held_manifests])
            before: set[str] = set()
            for place, number in enumerate(waiting):
                if self.is_stopped():
                    return done
                self.progress(place, total)
                size = numbers.committed[number].size
                before |= self._give_up(number, size, kept_files, before, done)
        if sweeps and not self.is_stopped():
            self._sweep(kept, held_manifests, len(waiting), total, done)
        if not self.dry_run:
            self.repository.collect(self._superseded(first, numbers))
        self.progress(total, total)
        return done

    # ------------------------------------------------------------------------------ giving up

    def _given_up(self) -> tuple[EpochFiles, int, EpochManifest] | None:
        """Return the existing epochs, the first one to keep, and the last one. The epoch to keep is
        marked before the epochs are listed again.
        """
        numbers = self.repository.epoch_files()
        if not numbers.kept:
            self.repository.latest_epoch()  # distinguishes lost epochs from none at all
            return None
        last = self.repository.manifest(numbers.kept[-1])
        self._check_job_file(last)
        committed = {number: numbers.committed[number].modified for number in numbers.kept}
        oldest = self.retention.first_for_readers(committed, last)
        readers = ReaderBound(self.repository, committed, oldest)
        first = max(numbers.first, readers.first(self.retention.first(committed, last)))
        if first not in numbers.firsts and first > numbers.kept[0] and not self.dry_run:
            first = readers.agree(first)
        self.leases = readers.headroom(dt.timedelta(microseconds=self.retention.readers_us))
        # Notes are listed after the mark was written, and epochs after that.
        self._back = going_back(self.repository.names("begun"))
        self._read = set(held_epochs(self.repository.listed(paths.HELD), max(committed.values())))
        numbers = self.repository.epoch_files()
        first = max(first, numbers.first)
        if max(numbers.committed, default=-1) < first:
            raise self._without_epochs()
        return numbers, first, self.repository.manifest(max(numbers.committed))

    def _without_epochs(self) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.repository.at('epochs')} has no manifest any more, and had some a moment ago: "
            "something else deletes files of this checkpoint. Stop that and the job, restore them "
            "from a backup, then try again"
        )

    def _check_job_file(self, last: EpochManifest) -> None:
        """Check that the kept epochs are readable. Otherwise nothing is collected."""
        if self.repository.stored(last.job_file.path) is None:
            raise CorruptCheckpointError(
                f"{self.repository.at(last.job_file.path)} is missing, which epoch {last.epoch} "
                "needs: nothing was deleted. Restore it from a backup, then collect again"
            )

    def _held(self, gone: list[int], last: int, done: Collected) -> list[EpochManifest]:
        """Return the manifests before the first epoch that are still needed, and add the reasons to
        `done`.
        """
        why = dict.fromkeys(self._read, "a process reads it")
        back = self._back.items()
        why |= {to: f"a rollback to it was begun, as epoch {n}" for to, n in back if n > last}
        for number in sorted(why.keys() & set(gone)):
            if self.repository.is_committed(number):  # else the mark came before the note
                done.held[number] = why[number]
        return [self.repository.manifest(number) for number in done.held]

    def _give_up(
        self, number: int, size: int, kept: KeptFiles, before: set[str], done: Collected
    ) -> set[str]:
        """Delete an epoch and all files that no kept epoch references. Return these files.

        Parameters:
            before: the same files of the epochs before it, which are gone. A rollback references
                some again.
        """
        try:
            # A page that is gone was deleted with an earlier epoch, after all that it references.
            manifest = self.repository.manifest(number, gaps=True)
        except CorruptCheckpointError:
            dying = dict[str, FileRef]()  # it cannot be followed; a sweep finds its files
        else:
            dying = {ref.path: ref for ref in kept.not_among(manifest)}
        new = {path: ref.size for path, ref in dying.items() if path not in before}
        for level in range(paths.LEVELS):
            self._delete({p: size for p, size in new.items() if paths.level_of(p) == level}, done)
        self._delete({paths.epoch_path(number): size}, done)
        done.given_up += 1
        return set(dying)

    @staticmethod
    def _superseded(first: int, numbers: EpochFiles) -> list[str]:
        """Return marks and notes that a later mark replaces."""
        last_sweep = max(numbers.swept, default=0)
        return [
            *(paths.first_path(number) for number in numbers.firsts if number < first),
            *(paths.swept_path(number) for number in numbers.swept if number < last_sweep),
            *(path for path, number in numbers.closed.items() if number <= numbers.first),
        ]

    # ------------------------------------------------------------------------------- the sweep

    def _is_due(self, numbers: EpochFiles) -> bool:
        """Return whether a sweep is due: the last sweep, or the first commit, was long before the
        last commit.
        """
        last = numbers.committed[max(numbers.committed)].modified
        begin = min(file.modified for file in numbers.committed.values())
        since = max((file.modified for file in numbers.swept.values()), default=begin)
        return last - since > self.grace

    def _sweep(
        self,
        kept: list[int],
        held_manifests: list[EpochManifest],
        before: int,
        total: int,
        done: Collected,
    ) -> None:
        """Delete the files that no manifest has ever referenced, and other leftovers.

        Files are listed before manifests, so every file that is referenced by then is found to be.
        """
        now = self.repository.store_time()
        bound = self._bound(now)
        unnamed = {f.path: f for f in self.repository.listed("data") if f.path not in self._dying}
        jobs: set[int] = set()
        for place, refs in enumerate(self._named_by_each(kept, held_manifests)):
            if self.is_stopped():
                return
            self.progress(before + place, total)
            for ref in refs:
                if unnamed.pop(ref.path, None) is None and ref.path.startswith("job"):
                    jobs.add(paths.job_number(ref.path))
        old = {path: file.size for path, file in unnamed.items() if file.modified < bound}
        size = sum(file.size for file in unnamed.values())
        done.young = Size(len(unnamed) - len(old), size - sum(old.values()))
        self._delete(old, done)
        self._delete(self._notes(kept[-1], now), done)
        self._delete(self._expired_leases(now), done)
        self._delete(self._job_files(jobs), done)
        if not self.dry_run:
            with contextlib.suppress(FencedError):  # swept before, and nothing committed since
                self.repository.create(paths.swept_path(kept[-1]), b"")

    def _named_by_each(
        self, kept: list[int], held_manifests: list[EpochManifest]
    ) -> Iterator[Iterator[FileRef]]:
        """Yield the referenced files of each manifest that counts, including manifests that are
        committed meanwhile.

        Epochs are listed again after the last one that was read, until no new one appears. If
        another collector deletes an epoch before it is read, a later epoch references its files if
        a rollback went back to it.
        """
        opened: set[str] = set()
        for manifest in held_manifests:
            yield named_by(self.repository, manifest, opened)
        numbers = kept
        while numbers:
            for number in numbers:
                yield self._named_by(number, opened)
            numbers = [number for number in self.repository.epochs() if number > numbers[-1]]

    def _named_by(self, number: int, opened: set[str]) -> Iterator[FileRef]:
        try:
            yield from named_by(self.repository, self.repository.manifest(number), opened)
        except CorruptCheckpointError:
            if number >= self.repository.first_kept():
                raise  # not collected by another collector meanwhile

    def _bound(self, now: dt.datetime) -> dt.datetime:
        """Return the time before which orphans are garbage.

        It is relative to the last commit, because the next epoch began after that. A clock that was
        set back since is later than now.
        """
        if not self.grace:
            return _NEVER
        epochs = self.repository.epoch_files()
        if not epochs.kept:
            raise self._without_epochs()
        return min(epochs.committed[epochs.kept[-1]].modified, now) - self.grace

    def _is_old(self, file: Stored, now: dt.datetime) -> bool:
        return not self.grace or file.modified < now - self.grace

    def _notes(self, last: int, now: dt.datetime) -> dict[str, int]:
        """Return the notes of committed epochs, and the drafts of killed processes."""
        notes = {
            file.path: file.size
            for file in self.repository.listed(paths.BEGUN)
            if (match := paths.BEGUN_NAME.fullmatch(file.path)) is not None
            and int(match[1]) <= last
        }
        drafts = [*self.repository.listed(paths.TMP), *self.repository.listed(paths.HELD)]
        return notes | {file.path: file.size for file in drafts if self._is_old(file, now)}

    def _expired_leases(self, now: dt.datetime) -> dict[str, int]:
        """Return the leases that expired long ago. Other files in `readers/` are not touched."""
        leases, _ = stored_leases(self.repository)
        return {
            paths.lease_path(lease.lease.name): len(lease.lease.to_bytes())
            for lease in leases
            if not lease.is_valid(now, skew=max(self.grace, SKEW))
        }

    def _job_files(self, named: set[int]) -> dict[str, int]:
        """Return the job files that no kept epoch references and no start can use.

        A start uses the one that the last epoch references, or the newest. Those in between are of
        starts that never committed, and may be about to.
        """
        names = [n for n in self.repository.names("") if n == paths.job_path(paths.job_number(n))]
        files = filter(None, map(self.repository.stored, names))
        stored = {paths.job_number(file.path): file.size for file in files}
        end = min(named, default=0) if self.grace else max(stored, default=0)
        return {
            paths.job_path(number): size
            for number, size in stored.items()
            if number < end and number not in named
        }

    # -------------------------------------------------------------------------------- deleting

    def _delete(self, files: Mapping[str, int], done: Collected) -> None:
        """Delete files, given with their sizes, and add them to `done`."""
        if self.dry_run:
            self._dying.update(files)
        else:
            self.repository.collect(files)
        for path, size in files.items():
            done.deleted[paths.file_kind(path)].add(size)


def _hours(time: dt.timedelta) -> str:
    return f"{time.total_seconds() / 3600:g} hours"


class BackgroundCollection:
    """Collects the garbage of a checkpoint while a job adds to it.

    Epochs are collected in batches of a quarter of the kept ones, at most once a second, with a
    pause after each: writing and deleting files would hold up epochs that take milliseconds. The
    others are collected at the end.

    Parameters:
        repository: the checkpoint.
        retention: which epochs to keep.

    Attributes:
        leases: those that the last collection has read.
    """

    def __init__(self, repository: Repository, retention: Retention) -> None:
        self._repository = repository
        self._retention = retention
        self._every = max(1, retention.epochs // _PART)
        self._next = 0
        self._begun_s = -_PAUSE_S
        self._is_put_off = False
        self._thread: threading.Thread | None = None
        self._step_begun_s = 0.0
        self._hurries, self._stopped = threading.Event(), threading.Event()
        self.leases: list[LeaseHeadroom] = []

    def committed(self, epoch: int) -> None:
        """Record the commit of an epoch. Return immediately."""
        if epoch < self._next:
            return
        now_s, is_running = stopwatch_s(), self._thread is not None and self._thread.is_alive()
        self._is_put_off = is_running or now_s - self._begun_s < _PAUSE_S
        if self._is_put_off:
            return
        self._next, self._begun_s = epoch + self._every, now_s
        self._thread = threading.Thread(
            target=self._collect, name="statekit garbage collection", daemon=True
        )
        self._thread.start()

    def _collect(self) -> None:
        self._step_begun_s = stopwatch_s()
        collector = Collector(self._repository, self._retention, is_stopped=self._pauses)
        try:
            done = collector.collect(sweep=None)
        except StatekitError as error:
            # Nothing is lost, and the job continues; the next collection tries again.
            _log.warning("garbage of %s was not collected: %s", self._repository.url, error)
            return
        self.leases = collector.leases
        if done is not None and done.given_up:
            _log.info("%s: epochs before %d were collected", self._repository.url, done.first)

    def _pauses(self) -> bool:
        """Pause after a step of a collection, and return whether it is stopped."""
        took_s = stopwatch_s() - self._step_begun_s
        self._hurries.wait(min(_PAUSE_OF_STEP * took_s, _LONGEST_PAUSE_S))
        self._step_begun_s = stopwatch_s()
        return self._stopped.is_set()

    def close(self, *, at_once: bool = False) -> None:
        """Wait until a running collection has ended, and collect the epochs that were put off.

        Parameters:
            at_once: end it after the current epoch. The next collection continues.
        """
        self._hurries.set()
        if at_once:
            self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_put_off and not at_once:
            self._collect()
