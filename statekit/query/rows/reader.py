"""Checkpoint reader: reads from outside, without the job, the user's code or any write.

Stored values are decoded by the schemas in the job file. Values are unpickled only if the caller
allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from statekit.backend.interface import Backend, MemoryBackend, Rows, prefix_end
from statekit.checkpoint.epoch_id import EpochId
from statekit.checkpoint.job_file import JobFile, OperatorRecord, StateRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import apply_plan, local_rows, restore_plan
from statekit.checkpoint.retention import still_kept
from statekit.errors import QueryError
from statekit.keygroup import group_of_row, pack_group
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.state_rows import (
    Row,
    StateRows,
    expiry_time_us,
    record_of_operator,
    record_of_state,
)
from statekit.stored_types import encoded_keys
from statekit.working_copy.restore import restored


class CheckpointReader:
    """Reads the state of a checkpoint after one epoch.

    Parameters:
        url: a directory, an object store URL or an open repository.
        epoch: number or identity of the epoch; None for the last one.
        allow_pickle: unpickle states that were declared with `PickleCodec`. Unpickling can run any
            code that the writer of the checkpoint chose.

    Raises:
        StateTypeError: `epoch` is not the number of an epoch.
        ReplacedError: the checkpoint has another epoch of that number.
        QueryError: no epoch is committed yet, or not this one, or it was collected, also while it
            is read.
        CorruptCheckpointError: a file that is needed is missing or altered.
    """

    def __init__(
        self,
        url: str | Path | Repository,
        *,
        epoch: int | EpochId | None = None,
        allow_pickle: bool = False,
    ) -> None:
        self._allow_pickle = allow_pickle
        opened = EpochReader(url)
        self.repository = opened.repository
        self.manifest: EpochManifest = opened.at(epoch)
        self.job: JobFile = opened.job_file(self.manifest)

    @cached_property
    def epochs(self) -> list[int]:
        """Numbers of the kept epochs, in order."""
        return self.repository.epochs()

    @property
    def abandoned(self) -> tuple[tuple[int, int], ...]:
        """Epochs that were rolled back, as ranges of numbers: first and last."""
        last = self.epochs[-1]
        manifest = self.manifest
        return (manifest if manifest.epoch == last else self.repository.manifest(last)).abandoned

    def operator(self, name: str) -> OperatorRecord:
        """Return the operator of that name.

        Raises:
            QueryError: there is none.
        """
        return record_of_operator(self.job, name)

    def state(self, operator: str, name: str) -> StateRecord:
        """Return the state of that name.

        Raises:
            QueryError: there is none.
        """
        return record_of_state(self.operator(operator), name)

    def get(self, operator: str, state: str, key: Any) -> Any:
        """Return the state of a key as JSON data: None, a value, a list or a dict.

        Parameters:
            key: as text or JSON; several key fields as a JSON array.

        Raises:
            QueryError: no such operator, state or epoch, or the state belongs to shards.
            StateTypeError: `key` is not a key of that operator.
        """
        record, declared = self.operator(operator), self.state(operator, state)
        if declared.is_local:
            raise QueryError(
                f"state {state!r} of operator {operator!r} belongs to shards, and not to keys: "
                "leave the key out"
            )
        rows = self._state_rows(operator, state)
        answers = [self._get(rows, encoded) for encoded in encoded_keys(record, key)]
        return next((answer for answer in answers if answer not in (None, [], {})), answers[0])

    def _get(self, rows: StateRows, encoded: bytes) -> Any:
        prefix = rows.keys.regrouped(pack_group(0) + encoded)
        group, backend = group_of_row(prefix), MemoryBackend([rows.state.name])
        with still_kept(self.repository, self.manifest.epoch, QueryError):
            name = rows.operator.name
            plan = restore_plan(self.repository, self.manifest, name, group, group)
            apply_plan(self.repository, backend, plan)
        stored = backend.scan(rows.state.name, prefix, prefix_end(prefix))
        return rows.whole(self._unexpired(rows, stored), len(prefix))

    def _state_rows(self, operator: str, state: str) -> StateRows:
        return StateRows(self.job, operator, state, allow_pickle=self._allow_pickle)

    def _unexpired(self, rows: StateRows, stored: Rows) -> Iterator[Row]:
        now_us = expiry_time_us(self.manifest, rows.operator.name, rows.state)
        return rows.unexpired(stored, now_us)

    def operator_state(self, operator: str, state: str) -> list[Any]:
        """Return operator state as JSON data, one item per shard.

        Raises:
            QueryError: no such operator, state or epoch, or the state belongs to keys.
        """
        record, declared = self.operator(operator), self.state(operator, state)
        if not declared.is_local:
            raise QueryError(
                f"state {state!r} of operator {operator!r} belongs to keys, and not to shards: "
                "say which key"
            )
        with still_kept(self.repository, self.manifest.epoch, QueryError):
            rows_of_shards = local_rows(self.repository, record, self.manifest)[state]
        rows = self._state_rows(operator, state)
        return [rows.whole(own, 0) for own in rows_of_shards]

    def rows(self, operator: str, state: str, directory: str | Path) -> Iterator[tuple[Any, Any]]:
        """Yield every key of a state and its value, in the order of key groups and keys.

        Parameters:
            directory: an empty one to unpack the state in; delete it afterwards.
        """
        rows, backend = self._state_rows(operator, state), self.unpack(operator, directory)
        try:
            stored = self._unexpired(rows, backend.scan(state, *self.bounds))
            for prefix, own in rows.by_key(stored):
                yield rows.keys.split(prefix)[0], rows.whole(own, len(prefix))
        finally:
            backend.close()

    def unpack(
        self, operator: str, directory: str | Path, groups: tuple[int, int] | None = None
    ) -> Backend:
        """Restore the rows of an operator to the local disk. The caller closes the backend.

        Parameters:
            directory: an empty one; to be deleted afterwards.
            groups: the first and the last key group; None for all.
        """
        record = self.operator(operator)
        groups = (0, self.job.key_groups - 1) if groups is None else groups
        with still_kept(self.repository, self.manifest.epoch, QueryError):
            plan = restore_plan(self.repository, self.manifest, operator, *groups)
            _, backend = restored(self.repository, Path(directory), groups, [plan], record.holds)
        return backend

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """First row key of all key groups, and the end of the last one."""
        return group_bounds(0, self.job.key_groups - 1)
