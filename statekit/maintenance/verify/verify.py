"""`statekit verify`: check all files and rows of a checkpoint, and report affected epochs.

The check changes nothing and does not stop at damage: what cannot be read is a finding, and the
check continues. Each file is read once for its checksum, several in parallel. Files with checked
rows are read once more, shard by shard, and unpacked on the local disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.leases.lease_files import stored_leases
from statekit.checkpoint.manifest import EpochManifest, ShardState
from statekit.checkpoint.paths import SPARK, epoch_path, note_path
from statekit.checkpoint.references import NamedFile
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import collected_error, held
from statekit.checkpoint.store import TRANSFERS, in_parallel
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.maintenance.verify.file_checks import (
    NamedFiles,
    brief_fault,
    check_file,
    inconsistencies,
)
from statekit.maintenance.verify.findings import Finding, Verification, finding_kind, orphans
from statekit.maintenance.verify.other_checks import (
    check_savepoint,
    savepoint_folders,
    spark_faults,
)
from statekit.maintenance.verify.row_checks import check_rows

Progress = Callable[[int], None]
"""A callback with the number of checked bytes of files."""

_MISSING_MAX = 100_000  # each manifest that is missing is looked for, and is a finding
_AHEAD = 8  # so many files per transfer are looked up before the first is done
_ROUNDS = 50  # each takes as long as the job keeps an epoch, at most
_UNHELD = 3  # passes without a note that keeps the epoch
_LOOKS = 10  # at Spark's part, which a query may change meanwhile

_UNREADABLE = (CorruptCheckpointError, RestoreError, StorageError)


def verify(
    repository: Repository,
    *,
    epoch: int | None = None,
    all_rows: bool = False,
    rows: bool = True,
    progress: Progress = lambda done: None,
) -> Verification:
    """Check a complete checkpoint or savepoint. Nothing is changed.

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
        check_savepoint(repository, "", verification, rows=rows)
        return verification
    intact: set[tuple[str, str]] = set()
    given_up = 0
    for number in range(_ROUNDS):
        one_pass = _Pass(repository, epoch, intact, progress)
        is_done = one_pass.run(rows=rows, all_rows=all_rows, holding=number >= _UNHELD)
        given_up += one_pass.verification.given_up
        if is_done:
            one_pass.verification.given_up = given_up
            return one_pass.verification
    raise RestoreError(
        f"{repository.url}: the job gives epochs up before their rows are read, {_ROUNDS} times by "
        "now. Nothing was found to be damaged: verify with --no-rows, let the job keep more epochs "
        "with retention=Retention(epochs=…, age=…), or verify a copy"
    )


@dataclass
class _Pass:
    """One pass over a checkpoint, which a job may change meanwhile.

    The job may collect epochs during the pass. So a finding counts only if one of its epochs is
    still kept afterwards: the files of a kept epoch are never deleted. If a job collects its epochs
    faster than their rows are read, a note keeps one.

    Parameters:
        repository: the checkpoint.
        epoch: the epoch to check; None for all.
        intact: path and checksum of files that are known to be intact; more are added.
        progress: called with the progress.

    Attributes:
        verification: the result so far.
        referenced: paths of all files that the epochs reference.
        broken: a finding about each damaged file, manifests included, by path.
        hiding: those of them that reference other files.
        first: the first epoch that should exist.
        noted: the epoch that a note of ours keeps, whatever the job gives up.
    """

    repository: Repository
    epoch: int | None
    intact: set[tuple[str, str]]
    progress: Progress
    referenced: set[str] = field(default_factory=set)
    broken: dict[str, Finding] = field(default_factory=dict)
    hiding: set[str] = field(default_factory=set)
    first: int = 0
    noted: int | None = None

    def __post_init__(self) -> None:
        self.verification = Verification(self.repository.url)
        self._named = NamedFiles(self.repository)
        self._jobs: dict[str, JobFile | None] = {}
        self._last_read: EpochManifest | None = None

    def run(self, *, rows: bool, all_rows: bool, holding: bool) -> bool:
        """Check everything that exists now. Return False if the last epoch was collected meanwhile.

        Parameters:
            holding: whether to write a note that keeps the last epoch.

        Raises:
            RestoreError: there is nothing to check, or it was collected.
        """
        if self._is_emptied():
            return True
        self._list()
        wanted = self.verification.epochs if self.epoch is None else [self.epoch]
        last = wanted[-1]
        with contextlib.ExitStack() as reading:
            if holding:
                self._leave_note(last, reading)
            self.verification.looked_at = wanted
            self._at_files()
            if rows:
                self._at_rows(self.verification.epochs if all_rows else [last])
        if not self._is_kept(last):
            if self.epoch is not None:
                raise self._unknown()
            return False
        if self.epoch is None:
            self._at_the_rest(rows=rows)
        return True

    def _leave_note(self, epoch: int, reading: contextlib.ExitStack) -> None:
        """Keep an epoch from collection while it is read. Without write permission, it is read
        without a note.
        """
        try:
            reading.enter_context(held(self.repository, epoch))
        except StorageError:
            return
        except RestoreError:  # it is gone already
            self.first = max(self.first, epoch + 1)
            return
        self.noted = epoch

    def _is_kept(self, epoch: int) -> bool:
        """Return whether an epoch should exist, according to the present knowledge."""
        return epoch >= self.first or epoch == self.noted

    def _is_emptied(self) -> bool:
        """Return whether all epochs are missing. This is then the only finding."""
        if self.repository.epochs():
            return False
        try:
            self.repository.check_nothing_lost()
        except (CorruptCheckpointError, StorageError) as error:
            self._note(Finding(finding_kind(error, "manifest"), str(error), "epochs"))
        return not self.verification.is_intact

    def _list(self) -> None:
        """List the epochs that should exist: all epochs from the first kept one to the last."""
        epochs = self.repository.epochs()
        if not epochs or (self.epoch is not None and self.epoch > epochs[-1]):
            raise self._unknown()
        self.first = min(self.repository.first_kept(), epochs[-1])
        first = self.first or epochs[0]
        missing = epochs[-1] + 1 - first - sum(number >= first for number in epochs)
        if missing > _MISSING_MAX:
            raise CorruptCheckpointError(
                f"{self.repository.at('epochs')} lacks {missing:,} of the epochs {first} to "
                f"{epochs[-1]}: restore it from a backup, or remove those that no job wrote"
            )
        self.verification.epochs = [*range(first, epochs[-1] + 1)]
        if self.epoch is not None and self.epoch not in self.verification.epochs:
            raise self._unknown()

    def _unknown(self) -> StatekitError:
        """Return the error that there is no such epoch, or no epoch at all."""
        epochs = self.repository.epochs()
        listing = f"{epochs[0]} to {epochs[-1]}" if epochs else "none"
        wanted = "committed epoch" if self.epoch is None else f"epoch {self.epoch}"
        unknown = RestoreError(
            f"{self.repository.url} has no {wanted} to verify: its epochs are {listing}"
        )
        if self.epoch is None:
            return unknown
        return collected_error(self.repository, self.epoch, RestoreError) or unknown

    def _cut(self) -> bool:
        """Leave out the epochs that were collected meanwhile. Return whether there were any."""
        first = self.repository.first_kept()
        if first <= self.first:
            return False
        verification, self.first = self.verification, first
        kept_epochs = [number for number in verification.epochs if self._is_kept(number)]
        verification.given_up += len(verification.epochs) - len(kept_epochs)
        verification.epochs = kept_epochs
        wanted = kept_epochs if self.epoch is None else [self.epoch]
        verification.looked_at = list(filter(self._is_kept, wanted))
        verification.findings = [
            f for f in verification.findings if not f.epochs or self._is_kept(f.epochs[-1])
        ]
        return True

    # ----------------------------------------------------------------------------------- files

    def _at_files(self) -> None:
        """Check manifests and all files that they reference, and determine the affected epochs."""
        readable = self._at_manifests()
        named = self._named_by(readable)
        for batch in iter(lambda: list(islice(named, TRANSFERS * _AHEAD)), []):
            self._check_files(batch)
        affected = self._affected(readable) if self.broken else {}
        was_cut = self._cut()
        for path, finding in self.broken.items():
            epochs = tuple(filter(self._is_kept, finding.epochs or affected.get(path, ())))
            if epochs or not was_cut:  # else only collected epochs needed it
                self._note(replace(finding, epochs=epochs))
                self.verification.has_all_names &= path not in self.hiding

    def _affected(self, epochs: Iterable[int]) -> dict[str, list[int]]:
        """Return the epochs that need each damaged file, in order."""
        affected: dict[str, list[int]] = {}
        for number in epochs:
            if (manifest := self._manifest(number)) is not None:
                paths = {file.ref.path for file in self._named.of_manifest(manifest)}
                for path in paths & self.broken.keys():
                    affected.setdefault(path, []).append(number)
        return affected

    def _at_manifests(self) -> list[int]:
        """Check each manifest alone and against the previous one. Return the readable manifests."""
        readable: list[int] = []
        previous: EpochManifest | None = None
        expected = {*self.verification.epochs}
        self._check_beginning()
        for number in self.verification.looked_at:
            path = epoch_path(number)
            damaged_pages: set[str] = set()
            try:
                damaged_pages = self._damaged_pages(number)
                manifest = self.repository.manifest(number)
            except _UNREADABLE as error:
                if not damaged_pages:
                    finding = Finding(finding_kind(error, "manifest"), str(error), path, (number,))
                    self.broken[path] = finding
                    self.hiding.add(path)
                continue
            readable.append(number)
            if previous is None or previous.epoch != manifest.previous:
                has_previous = manifest.previous in expected
                previous = self._manifest(manifest.previous) if has_previous else None
            for fault in inconsistencies(manifest, self._job(manifest), previous):
                self._note(Finding("manifest", fault, path, (number,)))
            self.verification.abandoned = manifest.abandoned
            previous = manifest
        return readable

    def _damaged_pages(self, number: int) -> set[str]:
        """Check the pages of a manifest, each once, and return the damaged ones. A manifest with
        damaged pages is unreadable.

        Raises:
            CorruptCheckpointError: the manifest itself is missing or altered.
        """
        pages = {ref.path: ref for ref in self.repository.pages(number)}
        new = pages.keys() - self.referenced
        self.referenced |= new
        self._check_files([NamedFile(pages[path], "names") for path in sorted(new)])
        damaged = pages.keys() & self.broken.keys()
        for path in damaged:
            finding = self.broken[path]
            self.broken[path] = replace(finding, epochs=(*finding.epochs, number))
        return damaged

    def _check_beginning(self) -> None:
        """Check that the first epoch is the first one of the job, or that a mark shows that earlier
        ones were collected.
        """
        first = self._manifest(self.verification.epochs[0])
        if self.first or first is None or first.previous is None:
            return
        path = epoch_path(first.previous)
        fault = (
            f"{self.repository.at(path)} is missing: epoch {first.epoch} follows it, and no mark "
            "says that it was collected. Restore it, or the mark, from a backup"
        )
        self._note(Finding("manifest", fault, path, (first.previous,)))

    def _named_by(self, epochs: Iterable[int]) -> Iterator[NamedFile]:
        """Yield each file that epochs reference once; twice if references differ in size or
        checksum. A base or history of another shard is damage.
        """
        seen: set[tuple[str, str]] = set()
        for number in epochs:
            if (manifest := self._manifest(number)) is None:
                continue
            for file in self._named.of_manifest(manifest):
                identity = file.ref.path, file.ref.checksum
                if identity not in seen:
                    seen.add(identity)
                    self.referenced.add(file.ref.path)
                    yield file
            for ref, reason in self._named.strangers(manifest):
                fault = f"{self.repository.at(ref.path)} {reason}: it is not to be read"
                self.broken.setdefault(ref.path, Finding("file", fault, ref.path))

    def _check_files(self, files: Sequence[NamedFile]) -> None:
        """Check files, several in parallel."""

        def check(file: NamedFile) -> StatekitError | None:
            if (file.ref.path, file.ref.checksum) in self.intact:
                return None
            try:
                check_file(self.repository, file)
            except (CorruptCheckpointError, StorageError) as error:
                return error
            return None

        for file, error in zip(files, in_parallel(check, files), strict=True):
            path = file.ref.path
            self.verification.files += 1
            self.verification.bytes += file.ref.size
            if error is None:
                self.intact.add((path, file.ref.checksum))
                continue
            brief = brief_fault(self.repository, file)
            self.broken[path] = Finding(finding_kind(error, "file"), str(error), path, brief=brief)
            if file.kind == "names":
                self.hiding.add(path)
        self.progress(self.verification.bytes)

    # ------------------------------------------------------------------------------------ rows

    def _at_rows(self, wanted: Sequence[int]) -> None:
        """Check the rows of these epochs, if their files are intact and the epochs are still
        kept.
        """
        for number in wanted:
            manifest = self._manifest(number)
            job = None if manifest is None else self._job(manifest)
            if manifest is not None and job is not None and self._is_kept(number):
                for operator in (op for op in job.operators if op.name in manifest.operators):
                    readable = self._readable(manifest, operator.name)
                    check_rows(self.repository, manifest, operator, readable, self.verification)
            self._cut()
            if self._is_kept(number):
                self.verification.rows_of = [*self.verification.rows_of, number]

    def _readable(self, manifest: EpochManifest, operator: str) -> list[ShardState]:
        """Return the shards of an operator that do not need any damaged file."""
        readable = []
        for shard in manifest.operators[operator].shards:
            if all(file.ref.path not in self.broken for file in self._named.of_shard(shard)):
                readable.append(shard)
        return readable

    # -------------------------------------------------------------------------------- the rest

    def _at_the_rest(self, *, rows: bool) -> None:
        """Check the files that belong to no epoch: job files, notes, Spark's part, savepoints,
        orphans.
        """
        self._at_job_files()
        self._at_notes()
        self._at_leases()
        self._at_spark()
        for folder in savepoint_folders(self.repository):
            check_savepoint(self.repository, folder, self.verification, rows=rows)
        last = max(self.repository.epochs(), default=self.verification.epochs[-1])
        self.verification.orphans = sorted(
            orphans(self.repository, self.referenced, last),
            key=lambda orphan: (orphan.kind, orphan.path),
        )

    def _at_job_files(self) -> None:
        """Check unreferenced job files. A start reads the newest one, regardless of its writer."""
        for path in self.repository.job_paths():
            if path not in self.referenced:
                try:
                    self.repository.job_file(path)
                except _UNREADABLE as error:
                    if path in self.repository.job_paths():  # else it was garbage, and is gone
                        self._note(Finding(finding_kind(error, "job file"), str(error), path))

    def _at_notes(self) -> None:
        """Check the note of the next epoch, which a start would use."""
        number = self.verification.epochs[-1] + 1
        try:
            self.repository.read_note(number)
        except _UNREADABLE as error:
            self._note(Finding(finding_kind(error, "note"), str(error), note_path(number)))

    def _at_leases(self) -> None:
        """Check the leases of readers. Other files in their folder are orphans."""
        for file in stored_leases(self.repository)[1]:
            if file.error is not None:
                self._note(Finding(finding_kind(file.error, "lease"), str(file.error), file.path))

    def _at_spark(self) -> None:
        """Check Spark's part. A query may run meanwhile, so only findings that appear twice
        count.
        """
        before: list[Finding] = []
        for _ in range(_LOOKS):
            last = max(self.repository.epochs(), default=self.verification.epochs[-1])
            findings = self._spark_findings(last)
            is_still = not self.repository.is_committed(last + 1)
            if not findings or (is_still and findings == before):
                break
            before = findings if is_still else []
        self.verification.findings += findings

    def _spark_findings(self, last: int) -> list[Finding]:
        """Return the findings about Spark's part after the last epoch."""
        manifest = self._manifest(last)
        if manifest is None:
            return []
        try:
            faults = [*spark_faults(self.repository, manifest)]
        except StorageError as error:
            return [Finding("unreadable", str(error), SPARK)]
        return [Finding("spark", fault, path, (last,)) for path, fault in faults]

    # ---------------------------------------------------------------------------------- helpers

    def _note(self, finding: Finding) -> None:
        self.verification.findings.append(finding)

    def _manifest(self, number: int | None) -> EpochManifest | None:
        """Return a manifest; None if it is unreadable, which was reported earlier."""
        if number is None:
            return None
        if self._last_read is None or self._last_read.epoch != number:
            try:
                self._last_read = self.repository.manifest(number)
            except _UNREADABLE:
                return None
        return self._last_read

    def _job(self, manifest: EpochManifest) -> JobFile | None:
        """Return a job file; None if it is unreadable, which the check of its bytes reports."""
        path = manifest.job_file.path
        if path not in self._jobs:
            try:
                self._jobs[path] = self.repository.job_file(path)
            except _UNREADABLE:
                self._jobs[path] = None
        return self._jobs[path]
