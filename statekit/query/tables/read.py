"""`statekit.read`: the rows of one state after an epoch as Arrow record batches.

Shards are unpacked one after the other, and their rows become batches of bounded size. So a read
needs memory for one batch, and local disk for the largest shard, whatever the size of the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from statekit.checkpoint.job_file import WAITING, OperatorRecord
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.retention import still_kept
from statekit.codec.key_codec import schema_key_codec
from statekit.errors import CorruptCheckpointError, QueryError, StateTypeError
from statekit.keygroup import key_group, pack_group
from statekit.query.rows.reader import CheckpointReader
from statekit.query.rows.state_rows import ALL_ROWS, KeyRange, StateRows, TextRange, expiry_time_us
from statekit.query.tables.as_of import STATES_OF_HISTORY, StoreAsOf
from statekit.query.tables.columns import with_text
from statekit.query.tables.given_rows import given_table
from statekit.query.tables.packed_bytes import RowBatch, row_batches
from statekit.query.tables.row_parts import Family
from statekit.query.tables.stored_batches import keyed_batches, local_batches, shard_batches
from statekit.query.tables.table import TooWide, table_for_reading
from statekit.shown import shown
from statekit.state.ttl import expired_until
from statekit.stored_types import encoded_keys, key_schema
from statekit.watermark import BEGINNING
from statekit.working_copy.unpacked_shard import ShardRows

WideInts = bool | Literal["text"]
"""Column type of ints: int64; for True decimal(20, 0), which holds all of them; or text."""


class WideIntError(QueryError):
    """An int is too large for the requested column type."""


def read(
    checkpoint: str | Path | Repository,
    operator: str,
    state: str,
    epoch: int | None = None,
    *,
    key: Any = None,
    columns: Sequence[str] | None = None,
    wide_ints: WideInts = False,
    allow_pickle: bool = False,
    as_of: Any = None,
) -> pa.RecordBatchReader:
    """Return the rows of a state after an epoch as record batches.

    Expired rows are left out. A state is unpacked in the temporary directory (`TMPDIR`), one shard
    at a time. The unpacked rows are removed when the reader is exhausted or deleted.

    Parameters:
        checkpoint: a directory, an object store URL or an open repository.
        operator: its name.
        state: its name; "_timers" for timers, "_waiting" for buffered records.
        epoch: number of the epoch; None for the last one.
        key: read only the rows of this key, from its key group: as text or JSON; several key
            fields as a list; the key None as "null".
        columns: the columns to read, in order; None for all. Others are not decoded.
        wide_ints: for states with ints of 2^63 or more: True gives all ints the type
            decimal(20, 0), and "text" makes them text, for tools without such decimals.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.
        as_of: a table with the columns of the key, and `at`, a time: whatever `Job.bootstrap`
            takes, such as an Arrow table or a frame. The state is `value` of a store with
            `history=`. The result is this table with the value that each key had then, and
            `status`, as answers of `get(as_of=)` have it. Only `epoch` may be given, too.

    Returns:
        A reader whose schema depends only on the stored types.

    Raises:
        QueryError: there is no such epoch, operator, state or column; the values are pickled; or,
            while it is read, the epoch was collected, or an int needs `wide_ints`.
        StateTypeError: `key` is not a key of that operator, or `as_of` is no table or is given
            with another option.
        CorruptCheckpointError: a file that is needed is missing or altered.
        StorageError: the store or the local disk failed.

    >>> import tempfile
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.MapState[str, int]) -> None:
    ...     seen[record["at"]] = record["n"]
    >>> checkpoint = tempfile.TemporaryDirectory()
    >>> Harness(count, checkpoint=checkpoint.name).send({"word": "a", "at": "x", "n": 7})
    []
    >>> sk.read(checkpoint.name, "count", "seen").read_all().to_pylist()
    [{'word': '"a"', 'map_key': 'x', 'value': 7}]
    >>> checkpoint.cleanup()
    """
    source = StateTable(CheckpointReader(checkpoint, epoch=epoch), operator, state)
    if as_of is not None:
        if key is not None or columns is not None or wide_ints or allow_pickle:
            raise StateTypeError(
                "as_of= reads whole values of the keys of its table: leave out key=, columns=, "
                "wide_ints= and allow_pickle=, and select columns of the result. Nothing was read"
            )
        return source.as_of(given_table(as_of, "as_of=")).to_reader()
    return source.reader(key=key, columns=columns, wide_ints=wide_ints, allow_pickle=allow_pickle)


class StateTable:
    """The rows of one state after an epoch.

    Parameters:
        checkpoint: the checkpoint at the epoch.
        operator: its name.
        state: its name, or `TIMERS`, or `WAITING`.

    Raises:
        QueryError: there is no such operator or state.
    """

    def __init__(self, checkpoint: CheckpointReader, operator: str, state: str) -> None:
        self._checkpoint = checkpoint
        self._repository, self._manifest = checkpoint.repository, checkpoint.manifest
        self._operator: OperatorRecord = checkpoint.operator(operator)
        if state not in self._operator.holds:
            names = ", ".join(self._operator.holds) or "none"
            raise QueryError(
                f"operator {operator!r} has no state {state!r} in epoch {self._manifest.epoch}: it "
                f"has {names}"
            )
        self._unpacked = ShardRows(self._repository, operator, self._manifest)
        self.family = Family(self._operator, state)
        self.place = f"{operator}.{state} in epoch {self._manifest.epoch}"
        """Name of the state and the epoch, for messages."""

    def reader(
        self,
        *,
        key: Any = None,
        encoded_key: bytes | None = None,
        shard: int | None = None,
        within: TextRange = ALL_ROWS,
        columns: Sequence[str] | None = None,
        wide_ints: WideInts = False,
        allow_pickle: bool = False,
    ) -> pa.RecordBatchReader:
        """Return the rows as record batches. Other parameters and errors are those of `read`.

        Parameters:
            encoded_key: read only the rows of this key.
            within: read only these keys; with `key`, only these map keys.
            shard: read only the rows of this shard: keyed state, timers or buffered records.
        """
        if columns is not None and (
            isinstance(columns, str) or not all(isinstance(name, str) for name in columns)
        ):
            raise StateTypeError(
                f"columns={shown(columns, 200)}: give a list of names, such as ['value']. Nothing "
                "was read"
            )
        with self._located():
            table = table_for_reading(
                self.family, wanted=columns, wide=bool(wide_ints), allow_pickle=allow_pickle
            )
        schema = with_text(table.schema) if wide_ints == "text" else table.schema
        if encoded_key is not None:
            batches = self._batches_of_key([encoded_key])
        elif key is not None:
            batches = self._batches_of_key(self.encoded(key), within)
        elif within != ALL_ROWS:
            batches = self._batches_within(within)
        else:
            batches = self.batches() if shard is None else self._batches_of_shard(shard)

        def filled() -> Iterator[pa.RecordBatch]:
            until = self.expired_until
            with self._located(), contextlib.closing(batches):
                for rows in batches:
                    batch = table.batch(rows, expired_until=until)
                    if batch.num_rows:
                        yield batch.cast(schema) if wide_ints == "text" else batch

        return pa.RecordBatchReader.from_batches(schema, filled())

    def as_of(self, wanted: pa.Table) -> pa.Table:
        """Return a table with the values that its keys had at its times. See `read`.

        Raises:
            QueryError: the state is not `value` of a store with a history, or a column is missing.
        """
        own = (self.family.name, *(state.name for state in self._operator.states))
        epoch = self._manifest.operators.get(self._operator.name)
        if own != ("value", *STATES_OF_HISTORY) or epoch is None:
            raise QueryError(
                f"{self.place} has no past values: as_of= reads `value` of a KVStore with history="
            )
        families = [Family(self._operator, name) for name in STATES_OF_HISTORY]
        former = StateTable(self._checkpoint, self._operator.name, "former")
        store = StoreAsOf(
            families,
            [shard.groups for shard in epoch.shards],
            self._manifest.key_groups,
            lambda groups: self._unpacked.opened_groups(groups, STATES_OF_HISTORY),
            former.expired_until,
            BEGINNING if epoch.watermark_us is None else epoch.watermark_us,
        )
        with self._located():
            return store.joined(wanted)

    def schema(self, *, wide_ints: bool = False, allow_pickle: bool = False) -> pa.Schema:
        """Return the schema of the record batches.

        Raises:
            QueryError: the values are pickled and `allow_pickle` is False.
        """
        with self._located():
            return table_for_reading(self.family, wide=wide_ints, allow_pickle=allow_pickle).schema

    @property
    def key_names(self) -> Sequence[str]:
        """Names of the key columns, which are the first columns."""
        names: list[str] = self.schema(allow_pickle=True).names
        return names[: len(self._operator.key)]

    @property
    def expired_until(self) -> int | None:
        """Last write time of rows that had expired when the epoch took place; None if no rows
        expire.
        """
        state = self.family.state
        if state is None or (state.ttl is None and not state.past_eras):
            return None
        now = expiry_time_us(self._manifest, self._operator.name, state)
        return max(expired_until(state.ttl, state.expiry_era, now), -(1 << 63))

    def batches(self) -> Generator[RowBatch]:
        """Yield all rows, in the order of shards, key groups and row keys.

        Raises:
            CorruptCheckpointError: a file is missing or altered, or does not match its manifest.
        """
        source, name = (self._repository, self._operator, self._manifest), self.family.name
        if self.family.is_local:
            yield from (rows for family, rows in local_batches(*source) if family == name)
            return
        with contextlib.closing(keyed_batches(*source, (name,))) as batches:
            yield from (rows for _, rows in batches)

    @property
    def shards(self) -> Sequence[int]:
        """Numbers of the shards that may have rows; none for operator state."""
        epoch = self._manifest.operators.get(self._operator.name)
        if self.family.is_local or epoch is None:
            return []
        return [number for number, shard in enumerate(epoch.shards) if shard.attempt is not None]

    def _batches_of_shard(self, number: int) -> Generator[RowBatch]:
        shard = self._manifest.operators[self._operator.name].shards[number]
        batches = shard_batches(self._unpacked, shard, (self.family.name,))
        with contextlib.closing(batches):
            yield from (rows for _, rows in batches)

    def encoded(self, key: Any) -> list[bytes]:
        """Return the encodings that a key, as for `read`, may have.

        Raises:
            QueryError: the rows belong to shards.
            StateTypeError: it is not a key of the operator.
        """
        if self.family.is_local:
            raise QueryError(f"{self.place} belongs to shards, and not to keys: leave the key out")
        return encoded_keys(self._operator, key)

    def _batches_within(self, within: TextRange) -> Generator[RowBatch]:
        """Yield the rows of the keys in a range, in the order of key groups and keys."""
        name, bounds = self.family.name, self._rows_of_keys().keys.text_range(within)
        for number in self.shards:
            shard = self._manifest.operators[self._operator.name].shards[number]
            with self._unpacked.opened(shard, (name,)) as backend:
                for group in range(shard.groups[0], shard.groups[1] + 1):
                    yield from row_batches(backend.scan(name, *bounds.within(pack_group(group))))

    def _rows_of_keys(self) -> StateRows:
        """Return the conversion of keys and map keys.

        Raises:
            QueryError: the rows have no keys in an order.
        """
        name = self.family.name
        if self.family.is_local or self.family.state is None:
            raise QueryError(
                f"{self.place} has no order by key: leave the prefix, the start and the end out"
            )
        return StateRows(self._checkpoint.job, self._operator.name, name, allow_pickle=True)

    def _batches_of_key(
        self, readings: Sequence[bytes], within: TextRange = ALL_ROWS
    ) -> Generator[RowBatch]:
        """Yield the rows of the first reading of a key that has rows.

        Parameters:
            within: only these map keys.
        """
        decode, name = schema_key_codec(key_schema(self._operator)).decode, self.family.name
        part = KeyRange()
        if within != ALL_ROWS:
            part = self._rows_of_keys().places.text_range(within)
        for encoded in readings:
            group, is_empty = key_group(decode(encoded)[0], self._manifest.key_groups), True
            with self._unpacked.opened_groups((group, group), (name,)) as backend:
                rows = backend.scan(name, *part.within(pack_group(group) + encoded))
                if name == WAITING:
                    rows = backend.scan(name, *group_bounds(group, group))
                    rows = (row for row in rows if row[0].startswith(encoded, _WAITING_KEY_AT))
                for batch in row_batches(rows):
                    is_empty = False
                    yield batch
            if not is_empty:
                return

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        """Add the names of the state and the epoch to errors."""
        epoch = self._manifest.epoch
        try:
            with still_kept(self._repository, epoch, QueryError):
                yield
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(
                f"{self.place} of {self._repository.url}: {error}"
            ) from error
        except TooWide as error:
            raise WideIntError(
                f"{self.place} has an int of 2^63 or more, for which int64 is too small: pass "
                "wide_ints=True (--wide-ints, or over HTTP wide_ints=decimal), which makes all of "
                'its ints decimal(20, 0), or wide_ints="text" (--wide-ints-as-text, or over HTTP '
                "wide_ints=text), which makes them text"
            ) from error
        except QueryError as error:
            raise QueryError(f"{self.place}: {error}") from error


_WAITING_KEY_AT = 10
"""Offset of the key in the row key of a buffered record: after the key group and the time."""
