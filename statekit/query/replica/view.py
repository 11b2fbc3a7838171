"""View: all states of a replica after one epoch."""

from __future__ import annotations

import datetime as dt
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from statekit.backend.interface import prefix_end
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.job_file import TIMERS, JobFile, OperatorRecord
from statekit.checkpoint.manifest import Cause, EpochManifest, HeldBack, OperatorEpoch
from statekit.checkpoint.repository import group_bounds
from statekit.clock import stopwatch_s
from statekit.closing import Closing
from statekit.errors import QueryError
from statekit.functions.process import Process
from statekit.keygroup import GROUP_BYTES, pack_group
from statekit.query.replica.operator_copy import EpochRows
from statekit.query.replica.state_view import StateView
from statekit.query.rows.state_rows import OperatorKeys, StateRows, record_of_operator
from statekit.state.timers import Timer, timer_of_row
from statekit.timestamp import instant
from statekit.watermark import BEGINNING


class View(Closing):
    """All states after one epoch, for several reads of the same epoch, also across operators.

    Created by `Replica.at`. Use it in a `with` block, or close it: an open view keeps disk space.
    Its state views and iterators keep it open. After it was closed, they cannot be read any more.

    Attributes:
        id: the identity of the epoch. After a checkpoint was replaced, such as by a backup, another
            epoch may have the same number.
        manifest: the manifest of the epoch.
        job_file: the job file in force: all operators and states with their types.
        is_open: False after it was closed.
        opened_s: the time at which it was taken, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        epoch_id: EpochId,
        manifest: EpochManifest,
        job: JobFile,
        rows: Mapping[str, EpochRows],
        groups: tuple[int, int],
        functions: Mapping[str, Process[Any, Any, Any]],
        decoders: dict[tuple[str, str], StateRows],
        *,
        allow_pickle: bool,
    ) -> None:
        self.id, self.manifest, self.job_file = epoch_id, manifest, job
        self.is_open = True
        self.opened_s = stopwatch_s()
        self._rows, self._groups = rows, groups
        self._functions, self._allow_pickle = functions, allow_pickle
        self._decoders = decoders
        self._replica: object = None
        self._taken = weakref.WeakSet[View]()
        self._states: dict[tuple[str, str], StateView[Any, Any]] = {}

    # ------------------------------------------------------------------------------- the replica

    def taken(self, replica: object) -> View:
        """Return a view of the same rows for a user.

        Parameters:
            replica: has the directory with the rows. The view keeps it open.
        """
        view = object.__new__(View)  # `copy` takes six times as long
        vars(view).update(vars(self))
        view.opened_s, view._replica = stopwatch_s(), replica
        self._taken.add(view)
        return view

    def is_viewed(self, timeout_s: float) -> bool:
        """Return whether a view that was taken less than `timeout_s` seconds ago is open."""
        now_s = stopwatch_s()
        return any(view.is_open and now_s - view.opened_s < timeout_s for view in self._taken)

    @property
    def is_damaged(self) -> bool:
        """True if local files of its rows are damaged."""
        return any(rows.is_damaged for rows in self._rows.values())

    def forget_hot_rows(self) -> None:
        """Free the memory of hot rows: only the last epoch keeps them."""
        for state in tuple(self._states.values()):
            state.forget_hot_rows()

    def release(self, why: str) -> None:
        """Release the rows of all views of the epoch. Later reads raise QueryError with the message
        `why`.
        """
        for rows in self._rows.values():
            rows.close(why)

    def shared_state(self, operator: str, state: str) -> StateView[Any, Any]:
        """Return the view of a keyed state that all views of the epoch share. It is created at the
        first call. Raises as `state`.
        """
        view = self._states.get((operator, state))
        if view is None:
            rows = self._state_rows(operator, state)
            if rows.is_local:
                raise QueryError(
                    f"state {state!r} of operator {operator!r} belongs to shards, and not to keys: "
                    "read it with operator_state"
                )
            source = self._rows_of(operator)
            view = StateView(rows, source, self.id, self.manifest, self._groups)
            self._states[operator, state] = view
        return view

    def _state_rows(self, operator: str, state: str) -> StateRows:
        rows = self._decoders.get((operator, state))
        if rows is None:
            function, job = self._functions.get(operator), self.job_file
            rows = StateRows(job, operator, state, function, allow_pickle=self._allow_pickle)
            self._decoders[operator, state] = rows
        return rows

    def _rows_of(self, operator: str) -> EpochRows:
        rows = self._rows.get(operator)
        if rows is None:
            self.record(operator)  # raises if the job has none
            names = ", ".join(self._rows) or "no operator"
            raise QueryError(
                f"this replica follows {names}, and not operator {operator!r}: add it to operators="
            )
        return rows

    # ---------------------------------------------------------------------------------- the epoch

    @property
    def epoch(self) -> int:
        """The epoch of all reads."""
        return self.manifest.epoch

    @property
    def cause(self) -> Cause:
        """The cause of the epoch."""
        return self.manifest.cause

    @property
    def processing_time(self) -> dt.datetime:
        """The processing time of the epoch."""
        return instant(self.processing_time_us)

    @property
    def processing_time_us(self) -> int:
        """The processing time of the epoch, in microseconds since 1970 UTC."""
        return self.manifest.processing_time_us

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators that the replica follows."""
        return tuple(self._rows)

    def record(self, operator: str) -> OperatorRecord:
        """Return the record of an operator in the job file.

        Raises:
            QueryError: there is no such operator.
        """
        return record_of_operator(self.job_file, operator)

    @property
    def job_file_checksum(self) -> str:
        """The checksum of the job file: while it is the same, types are the same."""
        return self.manifest.job_file.checksum

    def sizes(self, operator: str) -> dict[str, tuple[int, int]]:
        """Return the numbers of rows and bytes of each state of an operator.

        Raises:
            QueryError: the replica does not follow it.
        """
        epoch = self._operator_epoch(operator)
        rows, sizes = epoch.rows, epoch.bytes
        return {
            name: (rows.get(name, 0), sizes.get(name, 0)) for name in self.record(operator).holds
        }

    def watermark(self, operator: str) -> dt.datetime | None:
        """Return the watermark of an operator; None before any record or without event time.

        Raises:
            QueryError: the replica does not follow it.
        """
        watermark = self._operator_epoch(operator).watermark_us
        return None if watermark is None or watermark == BEGINNING else instant(watermark)

    def held_back(self, operator: str) -> HeldBack | None:
        """Return the input that holds back the event time of an operator; None if there is none.

        Raises:
            QueryError: the replica does not follow it.
        """
        return self._operator_epoch(operator).held_back

    def _operator_epoch(self, operator: str) -> OperatorEpoch:
        self._rows_of(operator)  # raises if the replica does not follow it
        return self.manifest.operators[operator]

    def state(self, operator: str, state: str) -> StateView[Any, Any]:
        """Return the view of a keyed state.

        Raises:
            QueryError: there is no such operator or state, the state belongs to shards, or its
                values are pickled.
            StateSchemaError: the process function declares a type that would misread stored rows.
        """
        self._check_open()
        return self.shared_state(operator, state).of_view(self._check_open)

    def operator_state(self, operator: str, state: str) -> dict[int, Any]:
        """Return operator state or broadcast state, by the number of the shard.

        A replica of a part of the key groups has the operator state of each shard with key groups
        in the part. Broadcast state is the same in all shards.

        Raises:
            QueryError: there is no such operator or state, or the state belongs to keys.
        """
        self._check_open()
        rows = self._state_rows(operator, state)
        if not rows.is_local:
            raise QueryError(
                f"state {state!r} of operator {operator!r} belongs to keys, and not to shards: "
                "read it with state"
            )
        source, found = self._rows_of(operator), dict[int, Any]()
        for number, shard in enumerate(self.manifest.operators[operator].shards):
            if shard.overlaps(*self._groups):
                prefix = pack_group(shard.first_group)
                stored = source.scan(state, prefix, prefix_end(prefix), self._check_open)
                found[number] = rows.whole(stored, GROUP_BYTES)
        return found

    def timers(self, operator: str, key: Any = None) -> Iterator[tuple[Any, Timer]]:
        """Yield pending timers: those of a key in the order of clock and time, or all in the order
        of key group, key, clock and time.

        Parameters:
            key: None for all keys.

        Raises:
            QueryError: there is no such operator, or it has no timers.
            StateTypeError: it is not a key of the operator.
        """
        self._check_open()
        record = self.record(operator)
        if not record.timers:
            raise QueryError(f"operator {operator!r} has no timers: it declares no callback")
        source = self._rows_of(operator)
        keys = OperatorKeys(record, self.job_file.key_groups, self._functions.get(operator))
        bounds = group_bounds(*self._groups)
        if key is not None:
            prefix = keys.prefix(key)
            bounds = prefix, prefix_end(prefix)
        for row_key, _ in source.scan(TIMERS, *bounds, self._check_open):
            own, end = keys.split(row_key)
            yield own, timer_of_row(row_key[end:])

    def close(self) -> None:
        """Release the view. A second call does nothing."""
        self.is_open = False

    def _check_open(self) -> None:
        if not self.is_open:
            raise QueryError(f"this view of epoch {self.epoch} was closed: take another one")

    def __repr__(self) -> str:
        return f"<View of epoch {self.epoch}>"
