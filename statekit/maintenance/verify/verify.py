"""`statekit verify`: check all files and rows of a checkpoint, and report what is affected.

The check changes nothing and does not stop at damage: what cannot be read is a finding, and the
check continues. Each file is read once for its checksum, several in parallel. Files with checked
rows are read once more, shard by shard, and unpacked on the local disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.lease_files import stored_leases
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.paths import SPARK, epoch_path, instant_path
from statekit.checkpoint.repository import TRANSFERS, Repository
from statekit.checkpoint.retention import collected_error, held
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.maintenance.verify.epoch_rows import GivenUpError, RowVerification
from statekit.maintenance.verify.file_checks import NamedFile, NamedFiles, brief_fault, check_file
from statekit.maintenance.verify.findings import Finding, FindingKind, Verification, kind_of
from statekit.maintenance.verify.manifest_checks import Damage, inconsistencies
from statekit.maintenance.verify.orphans import orphans
from statekit.maintenance.verify.savepoint_checks import check_savepoint, savepoint_folders
from statekit.maintenance.verify.spark_checks import spark_faults

Progress = Callable[[int], None]
"""Called with the number of bytes of files checked so far."""

_MISSING_MAX = 100_000  # each manifest that is missing is looked for, and is a finding
_AHEAD = 8  # so many files per transfer are looked up before the first is done
_ROUNDS = 50  # each takes as long as the job keeps an epoch, at most
_UNHELD = 3  # passes without a note that keeps the epoch
_LOOKS = 10  # at Spark's part, which a query may change meanwhile


def verify(
    repository: Repository,
    *,
    epoch: int | None = None,
    all_rows: bool = False,
    rows: bool = True,
    progress: Progress = lambda done: None,
) -> Verification:
    """Check a whole checkpoint, or a savepoint. Changes nothing.

    Parameters:
        epoch: check this epoch only: its files, and its rows.
        all_rows: check the rows of every epoch, and not of the last one only.
        rows: whether to check rows at all.
        progress: called with the progress.

    Raises:
        RestoreError: there is nothing to verify: no such epoch, or nothing was ever committed.
        StorageError: the store cannot be listed.
    """
    if repository.is_savepoint:
        verification = Verification(repository.url)
        _verify_savepoint(repository, "", verification, rows=rows)
        return verification
    intact: set[tuple[str, str]] = set()
    given_up = 0
    for number in range(_ROUNDS):
        looking = _Pass(repository, epoch, intact, progress)
        is_done = looking.look(rows=rows, all_rows=all_rows, holding=number >= _UNHELD)
        given_up += looking.found.given_up
        if is_done:
            looking.found.given_up = given_up
            return looking.found
    raise RestoreError(
        f"{repository.url}: the job gives epochs up before their rows are read, {_ROUNDS} times by "
        "now. Nothing was found to be damaged: verify with --no-rows, let the job keep more epochs "
        "with retention=Retention(epochs=…, age=…), or verify a copy"
    )


class _Pass:
    """One pass over a checkpoint, which a job may change meanwhile.

    The job may collect epochs during the pass. So a finding counts only if one of its epochs is
    still kept afterwards: the files of a kept epoch are never deleted. If a job collects its epochs
    faster than their rows are read, a note keeps one.

    Parameters:
        repository: the checkpoint.
        epoch: the epoch to check; None for all.
        whole: path and checksum of files that are known to be intact; more are added.
        progress: called with the progress.
    """

    def __init__(
        self,
        repository: Repository,
        epoch: int | None,
        intact: set[tuple[str, str]],
        progress: Progress,
    ) -> None:
        self.found = self._verification = Verification(repository.url)
        self._repository = repository
        self._epoch = epoch
        self._intact = intact
        self._progress = progress
        self._named = NamedFiles(repository)
        self._jobs: dict[str, JobFile | None] = {}
        self._known: dict[str, int] = {}
        self._damage = Damage(self._named, (), ())
        self._last_read: EpochManifest | None = None
        self._first = 0
        self._noted: int | None = None
        """The epoch that a note of ours keeps, whatever the job gives up."""

        self._hiding: set[str] = set()
        """Paths of what cannot be read and names others."""

    def look(self, *, rows: bool, all_rows: bool, holding: bool) -> bool:
        """Check everything that exists now. Return False if the last epoch was collected meanwhile.

        Parameters:
            holding: whether to write a note that keeps the last epoch.

        Raises:
            RestoreError: there is nothing to check, or it was collected.
        """
        if self._is_emptied():
            return True
        self._list()
        wanted = self._verification.epochs if self._epoch is None else [self._epoch]
        last = wanted[-1]
        with contextlib.ExitStack() as reading:
            if holding:
                self._leave_note(last, reading)
            self._verification.looked_at = wanted
            self.at_files()
            if rows:
                self.at_rows(self._verification.epochs if all_rows else [last])
        if not self._is_kept(last):
            if self._epoch is not None:
                raise self._unknown(self._epoch)
            return False
        if self._epoch is None:
            self.at_the_rest(rows=rows)
        return True

    def _leave_note(self, epoch: int, reading: contextlib.ExitStack) -> None:
        """Keep an epoch while it is read. Without permission to write, it is read without a
        note.
        """
        try:
            reading.enter_context(held(self._repository, epoch))
        except StorageError:
            return
        except RestoreError:  # it is gone already
            self._first = max(self._first, epoch + 1)
            return
        self._noted = epoch

    def _is_kept(self, epoch: int) -> bool:
        """Return whether an epoch should exist, as far as is known."""
        return epoch >= self._first or epoch == self._noted

    def _is_emptied(self) -> bool:
        """Return whether all epochs are missing, which is the only finding then."""
        if self._repository.epochs():
            return False
        try:
            self._repository.check_nothing_lost()
        except (CorruptCheckpointError, StorageError) as error:
            self._note(Finding(kind_of(error, "manifest"), str(error), "epochs"))
        return not self._verification.is_intact

    def _list(self) -> None:
        """List the epochs that should exist: all from the first kept one to the last."""
        epochs = self._repository.epochs()
        if not epochs or (self._epoch is not None and self._epoch > epochs[-1]):
            raise self._unknown(self._epoch)
        self._first = min(self._repository.first_kept(), epochs[-1])
        first = self._first or epochs[0]
        missing = epochs[-1] + 1 - first - sum(number >= first for number in epochs)
        if missing > _MISSING_MAX:
            raise CorruptCheckpointError(
                f"{self._repository.at('epochs')} lacks {missing:,} of the epochs {first} to "
                f"{epochs[-1]}: restore it from a backup, or remove those that no job wrote"
            )
        self._verification.epochs = [*range(first, epochs[-1] + 1)]
        if self._epoch is not None and self._epoch not in self._verification.epochs:
            raise self._unknown(self._epoch)

    def _unknown(self, epoch: int | None) -> RestoreError:
        """Return the error that there is no such epoch, or none at all."""
        if epoch is not None:
            collected = collected_error(self._repository, epoch, RestoreError)
            if isinstance(collected, RestoreError):
                return collected
        epochs = self._repository.epochs()
        listing = f"{epochs[0]} to {epochs[-1]}" if epochs else "none"
        wanted = "committed epoch" if epoch is None else f"epoch {epoch}"
        return RestoreError(
            f"{self._repository.url} has no {wanted} to verify: its epochs are {listing}"
        )

    def _cut(self) -> bool:
        """Leave out the epochs that were collected meanwhile. Return whether there were any."""
        first = self._repository.first_kept()
        if first <= self._first:
            return False
        verification, self._first = self._verification, first
        kept_epochs = [number for number in verification.epochs if self._is_kept(number)]
        verification.given_up += len(verification.epochs) - len(kept_epochs)
        verification.epochs = kept_epochs
        wanted = kept_epochs if self._epoch is None else [self._epoch]
        verification.looked_at = list(filter(self._is_kept, wanted))
        verification.findings = [
            f for f in verification.findings if not f.epochs or self._is_kept(f.epochs[-1])
        ]
        return True

    # ----------------------------------------------------------------------------------- files

    def at_files(self) -> None:
        """Check manifests and all files that they reference, and find the affected epochs."""
        broken: dict[str, Finding] = {}
        lost = self._at_manifests(broken)
        readable = (number for number in self._verification.looked_at if number not in lost)
        named = self._distinct(self._named_by(readable, broken))
        for batch in iter(lambda: list(islice(named, TRANSFERS * _AHEAD)), []):
            self._check_files(batch, broken)
        self._follow(broken, lost)
        while self._cut():
            lost &= {*self._verification.looked_at}
            self._follow(broken, lost)
            for path in broken.keys() - self._damage.epochs.keys():
                del broken[path]  # only collected epochs needed it
        for path, finding in broken.items():
            affected = tuple(sorted({*finding.epochs, *self._damage.epochs.get(path, ())}))
            self._note(replace(finding, epochs=affected))
            self._verification.has_all_names &= path not in self._hiding

    def _follow(self, broken: Mapping[str, Finding], lost: Collection[int]) -> None:
        """Find the epochs that need damaged files."""
        self._damage = Damage(self._named, broken, lost)
        if broken or lost:
            for number in self._verification.looked_at:
                if number not in lost and (manifest := self._manifest(number)) is not None:
                    self._damage.add(manifest)

    def _at_manifests(self, broken: dict[str, Finding]) -> set[int]:
        """Check each manifest by itself and against the one before. Return the unreadable ones."""
        lost: set[int] = set()
        previous: EpochManifest | None = None
        expected = {*self._verification.epochs}
        self._check_beginning()
        for number in self._verification.looked_at:
            try:
                manifest = self._repository.manifest(number)
            except (CorruptCheckpointError, RestoreError, StorageError) as error:
                path = epoch_path(number)
                broken[path] = Finding(kind_of(error, "manifest"), str(error), path)
                self._hiding.add(path)
                lost.add(number)
                continue
            if previous is None or previous.epoch != manifest.previous:
                has_previous = manifest.previous in expected
                previous = self._manifest(manifest.previous) if has_previous else None
            self._check_manifest(manifest, previous)
            self._verification.abandoned = manifest.abandoned
            previous = manifest
        return lost

    def _check_beginning(self) -> None:
        """Check that the first epoch is the first of the job, or that a mark says that others were
        collected.
        """
        first = self._manifest(self._verification.epochs[0])
        if self._first or first is None or first.previous is None:
            return
        path = epoch_path(first.previous)
        fault = (
            f"{self._repository.at(path)} is missing: epoch {first.epoch} follows it, and no mark "
            "says that it was collected. Restore it, or the mark, from a backup"
        )
        self._note(Finding("manifest", fault, path, (first.previous,)))

    def _check_manifest(self, manifest: EpochManifest, previous: EpochManifest | None) -> None:
        for fault in inconsistencies(manifest, self._job(manifest), previous):
            path = epoch_path(manifest.epoch)
            self._note(Finding("manifest", fault, path, (manifest.epoch,)))

    def _named_by(self, epochs: Iterable[int], broken: dict[str, Finding]) -> Iterator[NamedFile]:
        """Yield the files that epochs reference. A base or history of another shard is damage."""
        for number in epochs:
            if (manifest := self._manifest(number)) is not None:
                yield from self._named.of_manifest(manifest)
                for ref, reason in self._named.strangers(manifest):
                    fault = f"{self._repository.at(ref.path)} {reason}: it is not to be read"
                    broken.setdefault(ref.path, Finding("file", fault, ref.path))

    def _distinct(self, files: Iterable[NamedFile]) -> Iterator[NamedFile]:
        """Yield each file once; twice if it is referenced with another size or checksum."""
        seen: set[tuple[str, str]] = set()
        for file in files:
            ref = file.ref
            if (ref.path, ref.checksum) not in seen:
                seen.add((ref.path, ref.checksum))
                self._known[ref.path] = ref.size
                yield file

    def _check_files(self, files: Sequence[NamedFile], broken: dict[str, Finding]) -> None:
        """Check files, several in parallel."""

        def check(file: NamedFile) -> StatekitError | None:
            if (file.ref.path, file.ref.checksum) in self._intact:
                return None
            try:
                check_file(self._repository, file)
            except (CorruptCheckpointError, StorageError) as error:
                return error
            return None

        with ThreadPoolExecutor(TRANSFERS) as threads:
            errors = list(threads.map(check, files))
        for file, error in zip(files, errors, strict=True):
            self._verification.files += 1
            self._verification.bytes += file.ref.size
            if error is not None:
                path = file.ref.path
                brief = brief_fault(self._repository, file)
                finding = Finding(kind_of(error, "file"), str(error), path, brief=brief)
                broken[path] = finding
                if file.kind == "names":
                    self._hiding.add(path)
            else:
                self._intact.add((file.ref.path, file.ref.checksum))
        self._progress(self._verification.bytes)

    # ------------------------------------------------------------------------------------ rows

    def at_rows(self, wanted: Sequence[int]) -> None:
        """Check the rows of these epochs, as far as their files are intact and the epochs are
        kept.
        """
        for number in wanted:
            apart = Verification(self._verification.url)
            looking = RowVerification(self._repository, apart, self._damage)
            manifest = self._manifest(number)
            job = None if manifest is None else self._job(manifest)
            if manifest is not None and job is not None and self._is_kept(number):
                with contextlib.suppress(GivenUpError):
                    looking.at_epoch(manifest, job)
            self._cut()
            if self._is_kept(number):
                self._verification.rows_of = [*self._verification.rows_of, number]
                self._verification.findings += apart.findings
                self._verification.rows += apart.rows
                self._verification.pickled |= apart.pickled

    # -------------------------------------------------------------------------------- the rest

    def at_the_rest(self, *, rows: bool) -> None:
        """Check the files that belong to no epoch: job files, notes, Spark's part, savepoints,
        orphans.
        """
        self._at_job_files()
        self._at_notes()
        self._at_leases()
        self._at_spark()
        for folder in savepoint_folders(self._repository):
            _verify_savepoint(self._repository, folder, self._verification, rows=rows)
        last = max(self._repository.epochs(), default=self._verification.epochs[-1])
        self._verification.orphans = sorted(
            orphans(self._repository, self._known, last),
            key=lambda orphan: (orphan.kind, orphan.path),
        )

    def _at_job_files(self) -> None:
        """Check unreferenced job files: a start reads the newest one, whoever wrote it."""
        for path in self._repository.job_paths():
            if path not in self._known:
                try:
                    self._repository.job_file(path)
                except (CorruptCheckpointError, RestoreError, StorageError) as error:
                    if path in self._repository.job_paths():  # else it was garbage, and is gone
                        self._note(Finding(kind_of(error, "job file"), str(error), path))

    def _at_notes(self) -> None:
        """Check the note of the next epoch, which a start uses."""
        number = self._verification.epochs[-1] + 1
        try:
            self._repository.begun(number)
        except (CorruptCheckpointError, RestoreError, StorageError) as error:
            self._note(Finding(kind_of(error, "note"), str(error), instant_path(number)))

    def _at_leases(self) -> None:
        """Check the leases of readers. Files of others beside them are orphans."""
        for file in stored_leases(self._repository)[1]:
            if file.error is not None:
                self._note(Finding(kind_of(file.error, "lease"), str(file.error), file.path))

    def _at_spark(self) -> None:
        """Check Spark's part. A query may run meanwhile, so a finding counts if it appears
        twice.
        """
        before: list[Finding] = []
        for _ in range(_LOOKS):
            last = max(self._repository.epochs(), default=self._verification.epochs[-1])
            findings = self._spark_findings(last)
            is_still = not self._repository.is_committed(last + 1)
            if not findings or (is_still and findings == before):
                break
            before = findings if is_still else []
        self._verification.findings += findings

    def _spark_findings(self, last: int) -> list[Finding]:
        """Return the findings about Spark's part after the last epoch."""
        manifest = self._manifest(last)
        if manifest is None:
            return []
        try:
            faults = [*spark_faults(self._repository, manifest)]
        except StorageError as error:
            return [Finding("unreadable", str(error), SPARK)]
        return [Finding("spark", fault, path, (last,)) for path, fault in faults]

    # ---------------------------------------------------------------------------------- helpers

    def _note(self, finding: Finding) -> None:
        self._verification.findings.append(finding)

    def _manifest(self, number: int | None) -> EpochManifest | None:
        """Return a manifest; None if it is unreadable, which was reported before."""
        if number is None:
            return None
        if self._last_read is None or self._last_read.epoch != number:
            try:
                self._last_read = self._repository.manifest(number)
            except (CorruptCheckpointError, RestoreError, StorageError):
                return None
        return self._last_read

    def _job(self, manifest: EpochManifest) -> JobFile | None:
        """Return a job file; None if it is unreadable, which the check of its bytes reports."""
        path = manifest.job_file.path
        if path not in self._jobs:
            try:
                stored = self._repository.job_file(path)
            except (CorruptCheckpointError, RestoreError, StorageError):
                stored = None
            self._jobs[path] = None if stored is None else stored[0]
        return self._jobs[path]


def _verify_savepoint(
    repository: Repository, folder: str, verification: Verification, *, rows: bool
) -> None:
    """Check a savepoint, and record findings."""
    verification.savepoints.append(folder or repository.url)
    for fault in check_savepoint(repository, folder, rows=rows):
        verification.files += fault.files
        verification.bytes += fault.bytes
        verification.rows += fault.rows
        if fault.what is not None:
            kind: FindingKind = "unreadable" if fault.is_unread else "savepoint"
            finding = Finding(kind, fault.what, fault.path, operator=fault.operator)
            verification.findings.append(replace(finding, state=fault.state))
