"""Read a checkpoint from outside: without the job, the user's code or any write.

Stored values are decoded by the schemas in the job file. Nothing is unpickled unless the reader
asks for it.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from statekit.backend.interface import (
    Backend,
    MemoryBackend,
    Rows,
    StateSize,
    prefix_end,
    size_of,
    total_size,
)
from statekit.checkpoint.job_file import JobFile, OperatorRecord, StateRecord
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.restore_plan import RestorePlan, local_rows, replay, restore_plan
from statekit.checkpoint.retention import check_epoch, collected_error, still_kept
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import generic_key_decoder, generic_key_encoder, is_shown_as_scalar
from statekit.errors import QueryError, StatekitError
from statekit.keygroup import group_of_row, key_group, pack_group
from statekit.state.row_versions import row_decoder, value_schema
from statekit.state.ttl import has_expired, ttl_text, unstamped
from statekit.timestamp import instant
from statekit.watermark import BEGINNING
from statekit.working_copy.restore import restored


class CheckpointReader:
    """Reads the state of a checkpoint after one epoch.

    Parameters:
        url: a directory, an object store URL or an open repository.
        epoch: which epoch; None for the last one.
        allow_pickle: unpickle states that were declared with `PickleCodec`, which can run any code
            that whoever wrote the checkpoint chose.

    Raises:
        StateTypeError: `epoch` is not the number of an epoch.
        QueryError: nothing is committed yet, not that epoch, or it was collected, also while it is
            read.
        CorruptCheckpointError: a file that is needed is missing or altered.
    """

    def __init__(
        self, url: str | Path | Repository, *, epoch: int | None = None, allow_pickle: bool = False
    ) -> None:
        if epoch is not None:
            check_epoch("epoch", epoch)
        self.repository = url if isinstance(url, Repository) else Repository(url, create=False)
        self._allow_pickle = allow_pickle
        self.epochs = self.repository.epochs()
        if not self.epochs:
            self.repository.check_nothing_lost()
            raise QueryError(
                f"{self.repository.url} has no committed epoch: check the path, or wait until the "
                "job has committed one"
            )
        wanted = self.epochs[-1] if epoch is None else epoch
        if wanted not in self.epochs:
            raise collected_error(self.repository, wanted, QueryError) or QueryError(
                f"{self.repository.url} has no epoch {wanted}: it has {self.epochs[0]} to "
                f"{self.epochs[-1]}"
            )
        with still_kept(self.repository, wanted, QueryError):
            self.manifest: EpochManifest = self.repository.manifest(wanted)
            stored = self.repository.job_file(self.manifest.job_file.path)
        assert stored is not None, "the manifest references it"
        self.job: JobFile = stored[0]

    @property
    def abandoned(self) -> tuple[tuple[int, int], ...]:
        """The epochs that were rolled back, as ranges of numbers, first and last."""
        last = self.epochs[-1]
        manifest = self.manifest
        return (manifest if manifest.epoch == last else self.repository.manifest(last)).abandoned

    def operator(self, name: str) -> OperatorRecord:
        """Return the operator of that name.

        Raises:
            QueryError: there is none.
        """
        record = self.job.operator(name)
        if record is None:
            names = ", ".join(operator.name for operator in self.job.operators)
            raise QueryError(f"job {self.job.name!r} has no operator {name!r}: it has {names}")
        return record

    def state(self, operator: str, name: str) -> StateRecord:
        """Return the state of that name.

        Raises:
            QueryError: there is none.
        """
        states = self.operator(operator).states
        for state in states:
            if state.name == name:
                return state
        names = ", ".join(state.name for state in states)
        raise QueryError(f"operator {operator!r} has no state {name!r}: it has {names}")

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
        answers = [self._get(record, declared, encoded) for encoded in encoded_keys(record, key)]
        return next((answer for answer in answers if answer not in (None, [], {})), answers[0])

    def _get(self, record: OperatorRecord, state: StateRecord, encoded: bytes) -> Any:
        schema = key_schema(record)
        group = key_group(schema_key_codec(schema).decode(encoded)[0], self.job.key_groups)
        backend = MemoryBackend([s.name for s in record.states])
        with still_kept(self.repository, self.manifest.epoch, QueryError):
            replay(self.repository, backend, self._restore_plan(record, group, group))
        prefix = pack_group(group) + encoded
        rows = backend.scan(state.name, prefix, prefix_end(prefix))
        return self._plain(state, prefix, self._unexpired(record, state, rows))

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
        return [self._plain(declared, b"", iter(rows)) for rows in rows_of_shards]

    def rows(self, operator: str, state: str, directory: str | Path) -> Iterator[tuple[Any, Any]]:
        """Yield every key of a state and its value, by key group and key.

        Parameters:
            directory: an empty one to unpack the state in; delete it afterwards.
        """
        record, declared = self.operator(operator), self.state(operator, state)
        decode_key = generic_key_decoder(key_schema(record))
        backend = self.unpack(operator, directory)
        try:
            stored = backend.scan(state, *self._all_groups())
            unexpired = self._unexpired(record, declared, stored)
            for prefix, rows in groupby(unexpired, lambda row: row[0][: decode_key(row[0], 2)[1]]):
                yield decode_key(prefix, 2)[0], self._plain(declared, prefix, rows)
        finally:
            backend.close()

    def _unexpired(self, operator: OperatorRecord, state: StateRecord, rows: Rows) -> Rows:
        """Yield the rows that had not expired in the epoch, without stamps."""
        if not state.era:
            return rows
        epoch = self.manifest.operators[operator.name]
        now = self.manifest.processing_time_us
        if state.ttl is not None and state.ttl.clock == "event":
            now = BEGINNING if epoch.watermark_us is None else epoch.watermark_us
        return (
            (row_key, value)
            for row_key, row in rows
            for value, written in (unstamped(row, state.era),)
            if not has_expired(written, state.ttl, now)
        )

    def unpack(
        self, operator: str, directory: str | Path, groups: tuple[int, int] | None = None
    ) -> Backend:
        """Return the rows of an operator on the local disk. The caller closes what holds them.

        Parameters:
            directory: an empty one; to be deleted afterwards.
            groups: the first and the last key group of which; None for all.
        """
        record = self.operator(operator)
        first, last = (0, self.job.key_groups - 1) if groups is None else groups
        with still_kept(self.repository, self.manifest.epoch, QueryError):
            plan = self._restore_plan(record, first, last)
            _, backend = restored(
                self.repository, Path(directory), (first, last), [plan], record.holds
            )
        return backend

    def sizes(
        self, operator: str, directory: str | Path
    ) -> tuple[dict[str, StateSize], Counter[int]]:
        """Count rows and bytes per state, and rows per key group."""
        counted = self.sizes_of_groups(operator, directory)
        groups: Counter[int] = Counter()
        for name in self.operator(operator).holds_by_key:
            groups.update({group: size.rows for group, size in counted[name].items()})
        return {name: total_size(sizes.values()) for name, sizes in counted.items()}, groups

    def sizes_of_groups(
        self, operator: str, directory: str | Path
    ) -> dict[str, dict[int, StateSize]]:
        """Count rows and bytes per state and key group.

        Parameters:
            directory: an empty one to unpack the state in; delete it afterwards.
        """
        backend = self.unpack(operator, directory)
        try:
            return {
                name: {
                    group: size_of(rows)
                    for group, rows in groupby(
                        backend.scan(name, *self._all_groups()), lambda row: group_of_row(row[0])
                    )
                }
                for name in self.operator(operator).holds
            }
        finally:
            backend.close()

    def _all_groups(self) -> tuple[bytes, bytes]:
        return group_bounds(0, self.job.key_groups - 1)

    def _restore_plan(self, record: OperatorRecord, first: int, last: int) -> RestorePlan:
        return restore_plan(self.repository, self.manifest, record.name, first, last)

    def _plain(self, state: StateRecord, prefix: bytes, rows: Rows) -> Any:
        decode = row_decoder(state, self._allow_pickle)
        if state.shape is RowShape.ELEMENTS:
            return [decode(row) for _, row in rows]
        if state.shape is RowShape.VALUE:
            first = next(rows, None)
            return None if first is None else decode(first[1])
        decode_key = generic_key_decoder(state.types["key"])
        entries = [(decode_key(row_key, len(prefix))[0], decode(row)) for row_key, row in rows]
        if is_shown_as_scalar(Schema.from_json(state.types["key"])):
            return dict(entries)
        return [list(entry) for entry in entries]


def state_text(state: StateRecord) -> str:
    """Return a state's type as people write it: `map[str → int]`."""
    types = {role: str(Schema.from_json(tree)) for role, tree in state.types.items()}
    key = f"{types['key']} → " if "key" in types else ""
    pickled = ", pickled" if state.codec == "pickle" else ""
    expires = "" if state.ttl is None else f", {ttl_text(state.ttl)}"
    former = dict.fromkeys(value_schema(past).brief for past in state.past)
    older = f", some rows may be of {', '.join(former)}" if former else ""
    return f"{state.kind}[{key}{types['value']}{pickled}]{expires}{older}"


def time_text(operator: OperatorRecord, epoch: OperatorEpoch) -> str:
    """Return an operator's event time as text; empty without event time."""
    if operator.event_time is None or epoch.watermark_us is None:
        return ""
    lateness = dt.timedelta(microseconds=operator.lateness_us)
    return (
        f"event time {operator.event_time}, lateness {lateness}, watermark "
        f"{instant(epoch.watermark_us).isoformat()}, {epoch.late_so_far:,} late so far"
    )


def key_text(operator: OperatorRecord) -> str:
    """Return an operator's key as people write it: `tailnum: str`."""
    return ", ".join(f"{field.name}: {Schema.from_json(field.type)}" for field in operator.key)


def encoded_keys(operator: OperatorRecord, key: Any) -> list[bytes]:
    """Return the encoded keys that a key may mean: one, or two for text of unknown type.

    Parameters:
        key: as text or JSON; several key fields as a JSON array.

    Raises:
        StateTypeError: it is not a key of that operator.
    """
    schema = key_schema(operator)
    readings = [generic_key_encoder(schema)(key)]
    if schema.kind == "dynamic" and isinstance(key, str):
        # Keys of plain dicts have no declared type: 42 may be meant as a number or as text.
        readings.append(schema_key_codec(schema).encode(key))
    return list(dict.fromkeys(readings))


def key_schema(operator: OperatorRecord) -> Schema:
    """Return the schema of the whole key: of the one field, or of a tuple of the fields."""
    fields = [Schema.from_json(field.type) for field in operator.key]
    if not fields:
        raise StatekitError(f"operator {operator.name!r} has no key and no keyed state")
    if len(fields) == 1 or fields[0].kind == "dynamic":
        return fields[0]
    return Schema(kind="tuple", items=tuple(fields))
