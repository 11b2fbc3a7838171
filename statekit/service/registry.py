"""The registry: submitted jobs, in a local directory or an object store.

The record of a job has a version. A change reads the last version and creates the next one, which
fails if another process has created it. So several servers can change a job without a lock, and no
change is lost.

    submitted/<job>/<version>.json
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from statekit.checkpoint.store import Store
from statekit.clock import unique_id
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    QueryError,
    RestoreError,
    StateTypeError,
)
from statekit.service.job_record import SubmittedJob, check_submitted_name

_logger = logging.getLogger("statekit.service")

_FOLDER = "submitted"
_PATH = re.compile(rf"{_FOLDER}/([^/]+)/([0-9]{{20}})\.json")
_KEPT = 20
"""How many versions of a record are kept: a change that is slower than so many others is tried
again.
"""

Change = Callable[[SubmittedJob], SubmittedJob]
"""A function that returns the next record of a job, or the same one to change nothing."""


class JobRegistry:
    """The submitted jobs.

    Parameters:
        store: its files.

    >>> from statekit.service.job_record import RunChoice
    >>> registry = JobRegistry(Store.in_memory())
    >>> job = registry.submit("shop", "{}", RunChoice(checkpoint="/data/shop"))
    >>> registry.change("shop", SubmittedJob.stopped).desired
    'stopped'
    >>> list(registry.jobs())
    ['shop']
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read: dict[str, SubmittedJob] = {}

    @classmethod
    def at(cls, place: str | Path) -> JobRegistry:
        """Return the registry in a directory or at a URL. It is created if it is absent."""
        return cls(Store(place))

    def jobs(self) -> Mapping[str, SubmittedJob]:
        """Return the last record of each job, by its name. A damaged record is left out, with a
        warning: the other jobs are not affected.

        Raises:
            StorageError: the store cannot be reached.
        """
        versions: dict[str, list[int]] = {}
        for path in self.store.tree(_FOLDER):
            if match := _PATH.fullmatch(path):
                versions.setdefault(match[1], []).append(int(match[2]))
        found = {}
        for name, own in sorted(versions.items()):
            try:
                record = self._record(name, max(own))
                if not record.is_removed:
                    found[name] = record
            except (CorruptCheckpointError, RestoreError) as error:
                _logger.warning("job %s is left as it is: %s", name, error)
        return found

    def job(self, name: str) -> SubmittedJob:
        """Return the last record of a job.

        Raises:
            QueryError: there is no such job.
            StorageError: the store cannot be reached.
        """
        check_submitted_name(name)
        last = self._last(name)
        if last is None or last.is_removed:
            raise QueryError(f"no job {name} was submitted: look at the list of jobs")
        return last

    def submit(self, name: str, document: str, run: object) -> SubmittedJob:
        """Add a job. A job that was submitted in the same way already is returned.

        Parameters:
            run: a `RunChoice`.

        Raises:
            StateTypeError: the name is not valid, or another job has it, or its checkpoint.
            StorageError: the store cannot be reached.
        """
        check_submitted_name(name)
        record = SubmittedJob.model_validate(
            {"name": name, "version": 0, "change": unique_id(), "document": document, "run": run}
        )
        for other in self.jobs().values():
            if other.name != name and _overlap(other.run.checkpoint, record.run.checkpoint):
                raise StateTypeError(
                    f"job {other.name} has the checkpoint {other.run.checkpoint}, and each job "
                    "needs one of its own: give another one. Nothing was submitted"
                )
        last = self._last(name)
        if last is None or last.is_removed:
            record = record if last is None else record.after_removed(last)
            if self._created(record) and (last is None or self._is_next(last)):
                return record
        found = self.job(name).kept()
        if (found.document, found.run) != (record.document, record.run):
            raise StateTypeError(
                f"job {name} exists with another document or other options, and was not "
                "changed: give another name, or replace it"
            )
        return found

    def change(self, name: str, change: Change) -> SubmittedJob:
        """Change a job, and return its record after that.

        Parameters:
            change: is called again if another process changes the job at the same time.

        Raises:
            QueryError: there is no such job.
            StateTypeError: the change is not valid.
            StorageError: the store cannot be reached.
        """
        while True:
            last = self.job(name)
            wanted = change(last)
            if wanted is last:
                return last
            wanted = wanted.model_copy(update={"version": last.version + 1, "change": unique_id()})
            if self._created(wanted) and self._is_next(last):
                return wanted

    def collect(self, name: str, kept: int = _KEPT) -> None:
        """Delete old versions of a record, the oldest one first."""
        for version in self._versions(name)[:-kept]:
            self.store.remove([_path(name, version)])

    def remove(self, name: str) -> None:
        """Free the name of a deleted job, and delete its document.

        Raises:
            QueryError: it is removed already.
            StorageError: the store cannot be reached.
        """
        self.change(name, SubmittedJob.removed)
        self.collect(name, 1)

    def _last(self, name: str) -> SubmittedJob | None:
        versions = self._versions(name)
        return self._record(name, versions[-1]) if versions else None

    def _versions(self, name: str) -> list[int]:
        found = map(_PATH.fullmatch, self.store.names(f"{_FOLDER}/{name}"))
        return sorted(int(match[2]) for match in found if match)

    def _record(self, name: str, version: int) -> SubmittedJob:
        kept = self._read.get(name)
        if kept is None or kept.version != version:
            path = _path(name, version)
            kept = SubmittedJob.from_bytes(self.store.read(path), self.store.at(path))
            self._read[name] = kept
        return kept

    def _created(self, record: SubmittedJob) -> bool:
        try:
            self.store.create(_path(record.name, record.version), record.to_bytes())
        except FencedError:
            return False
        return True

    def _is_next(self, last: SubmittedJob) -> bool:
        """Return whether a version that was created after another one is a new one. If the other
        one was collected, an earlier version of the same number may have been collected, too.
        """
        if self.store.exists(_path(last.name, last.version)):
            return True
        self.store.remove([_path(last.name, last.version + 1)])
        return False


def _path(name: str, version: int) -> str:
    return f"{_FOLDER}/{name}/{version:020d}.json"


def _overlap(one: str, other: str) -> bool:
    """Return whether two checkpoints are the same, or one is within the other.

    >>> _overlap("/data/shop", "/data/shop/a"), _overlap("/data/shop", "/data/shop2")
    (True, False)
    """
    first, second = (f"{each.rstrip('/')}/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)
