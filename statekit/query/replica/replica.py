"""Replica: a copy of a checkpoint's state that follows the job, in a process of its own.

A `Follower` keeps the copies. After each epoch, the replica takes a snapshot of each copy and
publishes the epoch. So a view of an epoch never changes, and reads never wait. While copies are
restored, earlier epochs can be read.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import check_epoch
from statekit.clock import stopwatch_s
from statekit.closing import Closing
from statekit.errors import QueryError, StateTypeError, StorageError
from statekit.functions.process import Process
from statekit.number_faults import int_fault
from statekit.query.replica.follower import Follower
from statekit.query.replica.replica_arguments import (
    check_functions,
    functions_by_operator,
    key_group_range,
    operator_names,
)
from statekit.query.replica.replica_directory import (
    end,
    mark_temporary,
    removed_on_failure,
    replica_directory,
)
from statekit.query.replica.view import View
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.state_rows import StateRows
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

_logger = logging.getLogger("statekit.replica")

V = TypeVar("V")

# Whether a checkpoint was replaced, or later epochs exist although the next one does not, takes a
# list of the epochs. It is checked once in so many polls.
_BETWEEN_CHECKS = 50

_CLOSED = "the replica was closed: open it again"


class Answer(NamedTuple, Generic[V]):
    """The result of a read, and its epoch.

    Attributes:
        value: what was read; None if there is none.
        epoch: the committed epoch after which it was read.
    """

    value: V
    epoch: int


@dataclass(frozen=True)
class ReplicaStatus:
    """The status of a replica.

    Attributes:
        epoch: the last epoch that can be read; None before the first.
        latest: the last committed epoch, as far as the replica knows.
        is_rebuilding: True while copies are restored from the checkpoint. Earlier epochs can be
            read meanwhile.
        error: message of the last attempt to follow, if it failed, or the damaged local files that
            are being restored; None if nothing is wrong. The replica tries again.
        views: the epochs that can be read.
        headroom: number of kept epochs before the next one that the replica needs. At 0, garbage
            collection may delete that epoch, and the replica restores its copies. None while it is
            not known.
    """

    epoch: int | None
    latest: int | None
    is_rebuilding: bool
    error: str | None
    views: tuple[int, ...]
    headroom: int | None = None


class Replica(Closing):
    """A copy of a checkpoint's state that follows the job, for reads of its last epochs.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operators: names of the operators to follow, in a list; None for all.
        key_groups: the first and the last key group to follow; None for all. Only this part takes
            disk space.
        directory: of the copies, for this process alone. None for a temporary one, which is removed
            at the end. With a directory, a replica that starts again continues from the epoch that
            it was at.
        functions: process functions, for typed keys and values; by the name of their operator, or
            in a list if operators have the names of the functions. The first epoch that is read
            must have these operators. States of other operators are read as plain data.
        views: the number of last epochs that can be read.
        view_timeout: time that an open view keeps an older epoch readable, after it was taken; a
            timedelta or text. It bounds the disk space of views that are never closed.
        follow: start a thread that follows new epochs. If False, call `refresh`.
        poll: the time between two requests of the thread for a new epoch; a timedelta or text. None
            for 20 milliseconds on a local disk, and a second on an object store.
        rocksdb: memory limits.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.
        check_space: called before copies are restored, and before each epoch. If it raises
            StorageError, the replica stays at its epoch, and tries again.

    Raises:
        RestoreError: it is a savepoint, or a local path that does not exist.
        StateTypeError: an argument is not valid.
        QueryError: the directory is used by another process, or is in the checkpoint; or there is
            no such operator or key group.
        CorruptCheckpointError: a file is missing or altered.
        StorageError: the store or the local disk failed.

    >>> import tempfile
    >>> import statekit as sk
    >>> @sk.process(key="user")
    ... def visits(record: dict, count: sk.ValueState[int]) -> None:
    ...     count.update((count.get() or 0) + 1)
    >>> job = sk.Job("site")
    >>> _ = job.source("pages", dict).process(visits)
    >>> home = tempfile.mkdtemp()
    >>> _ = job.run({"pages": [{"user": "ada"}, {"user": "ada"}]}, checkpoint=home)
    >>> with sk.Replica(home) as replica:
    ...     replica.get("visits", "count", "ada")
    Answer(value=2, epoch=0)
    """

    def __init__(
        self,
        checkpoint: str | Path | Repository,
        operators: Sequence[str] | None = None,
        key_groups: tuple[int, int] | None = None,
        directory: str | Path | None = None,
        *,
        functions: Mapping[str, Process[Any, Any, Any]] | Iterable[Process[Any, Any, Any]] = (),
        views: int = 4,
        view_timeout: Any = "5 minutes",
        follow: bool = True,
        poll: Any = None,
        rocksdb: RocksOptions | None = None,
        allow_pickle: bool = False,
        check_space: Callable[[], None] = lambda: None,
    ) -> None:
        if fault := int_fault(views, "give the number of epochs to keep, at least 1", least=1):
            raise StateTypeError(f"views={shown(views)}{fault}")
        self._reader = EpochReader(checkpoint)
        self._functions = functions_by_operator(functions)
        self._are_functions_checked = False
        # Decoders follow from the job file, which most epochs share: they are built once for each.
        self._decoded_job_file = ""
        self._decoders: dict[tuple[str, str], StateRows] = {}
        self._views_max = views
        self._view_timeout_s = duration_to_micros(view_timeout, "view_timeout") / 1e6
        self._poll_s = self._reader.poll_s(poll)
        self._allow_pickle = allow_pickle
        self._check_space = check_space
        self._published: deque[View] = deque()
        self._held: list[View] = []
        self._times_begun_again = 0
        self._headroom: int | None = None
        self._headroom_due_s = stopwatch_s()
        self._error: str | None = None
        self._advancing = threading.Lock()
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._ends = threading.Event()
        self._is_temporary = directory is None
        names, groups = operator_names(operators), key_group_range(key_groups)
        self.directory = replica_directory(directory, self._reader.repository)
        with removed_on_failure(self.directory if self._is_temporary else None):
            self._follower = Follower(
                self._reader, self.directory, names, groups, rocksdb or RocksOptions()
            )
        self._thread = threading.Thread(target=self._follow, daemon=True) if follow else None
        if self._is_temporary:
            mark_temporary(self.directory)
            lock = self._follower.lock
            weakref.finalize(self, end, self._ends, self._thread, lock, self.directory)
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise
        if self._thread is not None:
            self._thread.start()

    # ------------------------------------------------------------------------------- following

    def refresh(self) -> int:
        """Apply the epochs that were committed since the last call, and return their number.

        Raises:
            QueryError: the replica was closed.
            CorruptCheckpointError: a file is missing or altered.
            StorageError: the store or the local disk failed. Earlier epochs can still be read.
        """
        self._check_open()
        return self._refresh(thorough=True)

    def _refresh(self, *, thorough: bool) -> int:
        with self._advancing:
            try:
                return self._advance(thorough=thorough)
            finally:
                self._close_old_views()

    def _advance(self, *, thorough: bool) -> int:
        follower, applied = self._follower, 0
        if follower.damaged:
            applied += self._repair()
        if follower.manifest is None:
            self._check_space()
            follower.start()
        if not self._published or self._published[-1].manifest is not follower.manifest:
            applied += self._publish()
        while not self._ends.is_set() and follower.manifest is not None:
            self._check_space()
            if not follower.advance(thorough=thorough):
                break
            applied += self._publish()
            self._measure_headroom()
        self._measure_headroom()
        return applied

    def _measure_headroom(self) -> None:
        """Count the kept epochs before the next one, once in `_BETWEEN_CHECKS` polls."""
        manifest, now_s = self._follower.manifest, stopwatch_s()
        if manifest is None or now_s < self._headroom_due_s:
            return
        self._headroom_due_s = now_s + _BETWEEN_CHECKS * self._poll_s
        self._headroom = None
        with contextlib.suppress(StorageError):  # the next poll reports it, if it lasts
            self._headroom = self._reader.kept_before(manifest.epoch + 1)

    def _repair(self) -> int:
        """Restore damaged copies, and return the number of published epochs."""
        self._error = (
            f"local files of operator {', '.join(self._follower.damaged)} in {self.directory} are "
            "damaged: they are being restored from the checkpoint"
        )
        _logger.warning("the replica of %s: %s", self._url, self._error)
        self._follower.repair()
        applied = self._publish()
        with self._reading:
            damaged = [own for own in (*self._published, *self._held) if own.is_damaged]
            self._published = deque(own for own in self._published if own not in damaged)
            self._held = [own for own in self._held if own not in damaged]
            for own in damaged:
                own.release(
                    f"the view of epoch {own.epoch} was closed: its local files were "
                    "damaged, and the replica restored them. Take another view"
                )
        self._error = None
        return applied

    def _follow(self) -> None:
        last_check_s = stopwatch_s()
        while not self._ends.wait(self._poll_s):
            try:
                is_time = stopwatch_s() - last_check_s > _BETWEEN_CHECKS * self._poll_s
                self._refresh(thorough=is_time)
                self._error = None
                last_check_s = stopwatch_s() if is_time else last_check_s
            except Exception as error:  # noqa: BLE001 - reported; the next turn tries again
                if self._ends.is_set():
                    return
                self._headroom = None
                if str(error) != self._error:
                    _logger.warning("the replica of %s does not follow: %s", self._url, error)
                self._error = str(error)
                self._ends.wait(min(50 * self._poll_s, 5.0))

    @property
    def _url(self) -> str:
        return self._reader.repository.url

    def _publish(self) -> int:
        """Publish the epoch of the follower. Return the number of published epochs: 0 or 1."""
        follower = self._follower
        manifest = follower.manifest
        if manifest is None or not follower.is_at_an_epoch:
            return 0
        job = self._reader.job_file(manifest)
        if not self._are_functions_checked:
            check_functions(self._functions, job)
            self._are_functions_checked = True
        if manifest.job_file.checksum != self._decoded_job_file:
            self._decoded_job_file, self._decoders = manifest.job_file.checksum, {}
        epoch_id = follower.epoch_id
        assert epoch_id is not None, "it has a manifest"
        published = View(
            epoch_id,
            manifest,
            job,
            follower.rows(),
            follower.groups(job),
            self._functions,
            self._decoders,
            allow_pickle=self._allow_pickle,
        )
        with self._reading:
            if follower.times_begun_again != self._times_begun_again:
                # The epochs before may be of another version of the checkpoint.
                self._times_begun_again = follower.times_begun_again
                self._held += self._published
                self._published = deque([published])
            else:
                if self._published:
                    self._published[-1].forget_hot_rows()
                self._published.append(published)
            while len(self._published) > self._views_max:
                self._held.append(self._published.popleft())
        with self._changed:
            self._changed.notify_all()
        return 1

    def _close_old_views(self) -> None:
        """Release old epochs whose views are closed or have timed out, and unread copies."""
        with self._reading:
            held, self._held = self._held, []
            for published in held:
                if published.is_viewed(self._view_timeout_s):
                    self._held.append(published)
                    continue
                published.release(
                    f"the view of epoch {published.epoch} was closed: the replica keeps "
                    f"{self._views_max} epochs, and open views for {self._view_timeout_s:g} s. "
                    "Take another view; to read longer, pass view_timeout="
                )
        self._follower.remove_unread()

    # ---------------------------------------------------------------------------------- reading

    def at(self, epoch: int | EpochId | None = None) -> View:
        """Return a view of an epoch, for several reads of the same epoch.

        Parameters:
            epoch: one of `status().views`, or the `id` of a view; None for the last one.

        Raises:
            QueryError: nothing is committed yet, or the replica does not have the epoch.
        """
        with self._reading:
            return self._epoch(epoch).taken(self)

    def all_views(self) -> list[View]:
        """Return views of all epochs that can be read, in order. Each continues the one before.

        Raises:
            QueryError: the replica was closed.
        """
        with self._reading:
            self._check_open()
            return [published.taken(self) for published in self._published]

    def _epoch(self, epoch: int | EpochId | None) -> View:
        self._check_open()
        if not self._published:
            raise QueryError(
                f"{self._url} has no committed epoch: wait until the job has committed one"
            )
        if epoch is None:
            return self._published[-1]
        if not isinstance(epoch, EpochId):
            check_epoch("epoch", epoch)
        for published in self._published:
            if epoch in (published.epoch, published.id):
                return published
        numbers = ", ".join(str(published.epoch) for published in self._published)
        raise QueryError(
            f"the replica of {self._url} cannot read epoch {shown(epoch)}: it has the epochs "
            f"{numbers}. "
            "Pass one of them; to keep more, pass views=; for older ones use statekit.read"
        )

    def get(self, operator: str, state: str, key: Any) -> Answer[Any]:
        """Return the value of a state for a key in the last epoch. See `StateView.get`.

        Raises:
            QueryError: there is no such operator or state, or nothing is committed yet.
            StateTypeError: it is not a key of the operator.
        """
        published = self._newest()
        return Answer(published.shared_state(operator, state).get(key), published.epoch)

    def get_many(self, operator: str, state: str, keys: Iterable[Any]) -> Answer[list[Any]]:
        """Return the values of a state for several keys in the last epoch.

        See `StateView.get_many`.

        Raises:
            QueryError, StateTypeError: as for `get`.
        """
        published = self._newest()
        return Answer(published.shared_state(operator, state).get_many(keys), published.epoch)

    def _newest(self) -> View:
        try:
            return self._published[-1]
        except IndexError:
            with self._reading:
                return self._epoch(None)

    def _check_open(self) -> None:
        if self._ends.is_set():
            raise QueryError(_CLOSED)

    @property
    def epoch(self) -> int | None:
        """The last epoch that can be read; None before the first, and after the end."""
        try:
            return self._published[-1].epoch
        except IndexError:
            return None

    @property
    def epoch_id(self) -> EpochId | None:
        """Identity of the last epoch that can be read; None before the first, and after the end."""
        try:
            return self._published[-1].id
        except IndexError:
            return None

    @property
    def oldest_epoch(self) -> int | None:
        """The first epoch that can be read; None before the first, and after the end."""
        try:
            return self._published[0].epoch
        except IndexError:
            return None

    @property
    def checkpoint_id(self) -> str:
        """Unique id of the checkpoint.

        Raises:
            QueryError: nothing is committed yet, or the replica was closed.
        """
        return self._newest().job_file.id

    def status(self) -> ReplicaStatus:
        """Return the status of the replica."""
        with self._reading:
            views = tuple(published.epoch for published in self._published)
        return ReplicaStatus(
            epoch=views[-1] if views else None,
            latest=self._follower.latest,
            is_rebuilding=self._follower.is_rebuilding,
            error=self._error,
            views=views,
            headroom=self._headroom,
        )

    def wait_for(self, epoch: int, timeout: Any = "1 minute") -> None:
        """Wait until an epoch, or a later one, can be read.

        Parameters:
            timeout: the longest wait; a timedelta or text.

        Raises:
            QueryError: it cannot be read in time, or the replica was closed.
        """
        check_epoch("epoch", epoch)
        limit_s = duration_to_micros(timeout, "timeout") / 1e6
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self._ends.is_set() or (self.epoch is not None and self.epoch >= epoch),
                limit_s,
            )
        self._check_open()
        if not is_there:
            raise QueryError(
                f"the replica of {self._url} is at epoch {self.epoch}, and not at {epoch} after "
                f"{limit_s:g} s: {self._error or 'check that the job commits epochs'}"
            )

    def wait_for_other(self, epoch_id: EpochId | None, timeout_s: float) -> EpochId | None:
        """Wait until the last epoch that can be read differs from `epoch_id`, or the replica is
        closed, and return its identity.

        Parameters:
            epoch_id: the last value of `replica.epoch_id`.
            timeout_s: the longest wait, in seconds. After it, the epoch may be the same.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._ends.is_set() or self.epoch_id != epoch_id, max(0.0, timeout_s)
            )
        return self.epoch_id

    def close(self) -> None:
        """Stop following, close all views, and remove a temporary directory."""
        if self._ends.is_set():
            return
        self._ends.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        with self._advancing, self._reading:
            for published in (*self._published, *self._held):
                published.release(_CLOSED)
            self._published.clear()
            self._held.clear()
            self._follower.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<Replica of {self._url} at epoch {self.epoch}>"
