"""Typed reads of an old checkpoint: rows one by one, and all states of a key together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

from statekit.backend.interface import Backend
from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.manifest import ShardState
from statekit.checkpoint.repository import group_bounds
from statekit.checkpoint.state_kinds import RowShape
from statekit.errors import QueryError
from statekit.functions.process import Process
from statekit.maintenance.transform.state_row import StateRow
from statekit.query.rows.reader import CheckpointReader
from statekit.query.rows.state_rows import OperatorKeys, Row, StateRows, expiry_time_us
from statekit.query.tables.read import StateTable
from statekit.state.timers import timer_of_row
from statekit.state.ttl import unstamped
from statekit.timestamp import MAX_MICROS, MIN_MICROS, instant
from statekit.working_copy.unpacked_shard import ShardRows

AnyProcess = Process[Any, Any, Any]


@dataclass(frozen=True)
class KeyStates:
    """The states of one key.

    Attributes:
        key: the key; a tuple if it has several fields.
        states: by name, the value (None if it is absent), the elements of a list, the entries of a
            map, or the timers as a list.
    """

    key: Any
    states: Mapping[str, Any]
    _rows: Mapping[str, Callable[[], list[StateRow]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __getitem__(self, state: str) -> Any:
        return self.states[state]

    def rows(self, state: str) -> list[StateRow]:
        """Return the rows of a state at this key, with the times at which they were written.

        Raises:
            KeyError: the state was not read.
        """
        self.states[state]  # raises
        return self._rows[state]() if state in self._rows else []


class TypedReads:
    """Reads one operator of a checkpoint.

    Parameters:
        source: the checkpoint.
        operator: its name.
        function: the process function, for keys and values of its types; None for plain data.
        allow_pickle: unpickle values.

    Raises:
        QueryError: there is no such operator, or the function is not that of the operator.
    """

    def __init__(
        self,
        source: CheckpointReader,
        operator: str,
        function: AnyProcess | None,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self._source, self._record = source, source.operator(operator)
        self._function, self._allow_pickle = function, allow_pickle

    def rows(self, state: str) -> Iterator[StateRow]:
        """Yield the rows of a state that have not expired, or the timers.

        Raises:
            QueryError: there is no such state, or it has buffered records.
            CorruptCheckpointError: a file is missing or altered, or a row is not of its type.
        """
        table = StateTable(self._source, self._record.name, state)
        if state == TIMERS:
            return self._timers(table)
        return self._rows(table, self._decoder(state))

    def _decoder(self, state: str) -> StateRows:
        return StateRows(
            self._source.job,
            self._record.name,
            state,
            self._function,
            allow_pickle=self._allow_pickle,
        )

    def _keys(self) -> OperatorKeys:
        return OperatorKeys(self._record, self._source.job.key_groups, self._function)

    def _timers(self, table: StateTable) -> Iterator[StateRow]:
        keys = self._keys()
        with closing(table.batches()) as batches:
            for batch in batches:
                for row_key in batch.keys:
                    key, end = keys.split(row_key)
                    yield StateRow(key, timer_of_row(row_key[end:]))

    def _rows(self, table: StateTable, decoder: StateRows) -> Iterator[StateRow]:
        until = table.expired_until
        now_us = expiry_time_us(self._source.manifest, self._record.name, decoder.state)
        position, before = 0, None
        with closing(table.batches()) as batches:
            for batch in batches:
                shards = batch.shards or [0] * len(batch.keys)
                for row_key, row, shard in zip(batch.keys, batch.rows, shards, strict=True):
                    if until is not None and decoder.is_expired(row, now_us):
                        continue
                    key, end = (shard, 0) if decoder.is_local else decoder.keys.split(row_key)
                    position = position + 1 if key == before else 0
                    before = key
                    yield _state_row(decoder, key, (row_key, row), end, position)

    # ---------------------------------------------------------------------------- key by key

    def keys(self, states: Sequence[str]) -> Iterator[KeyStates]:
        """Yield the states of each key that has any.

        Raises:
            QueryError: there is no such state, or it is not one of keys.
            CorruptCheckpointError: a file is missing or altered, or a row is not of its type.
        """
        for name in states:
            if name not in self._record.holds_by_key:
                raise QueryError(
                    f"operator {self._record.name!r} has no keyed state {name!r}: it has "
                    f"{', '.join(self._record.holds_by_key) or 'none'}"
                )
        readers = {name: self._reader(name) for name in states}
        epoch = self._source.manifest.operators.get(self._record.name)
        return (
            key for shard in (epoch.shards if epoch else ()) for key in self._of(shard, readers)
        )

    def _reader(self, state: str) -> _StateOfKeys:
        if state == TIMERS:
            keys = self._keys()
            return _StateOfKeys(
                iter,
                lambda row_key: row_key[: keys.split(row_key)[1]],
                lambda rows, end: [timer_of_row(row_key[end:]) for row_key, _ in rows],
                lambda key, rows, end: [
                    StateRow(key, timer_of_row(row_key[end:])) for row_key, _ in rows
                ],
            )
        decoder = self._decoder(state)
        now_us = expiry_time_us(self._source.manifest, self._record.name, decoder.state)
        return _StateOfKeys(
            lambda rows: decoder.unexpired(rows, now_us),
            lambda row_key: row_key[: decoder.key_end(row_key)],
            decoder.whole,
            lambda key, rows, end: [
                _state_row(decoder, key, row, end, position) for position, row in enumerate(rows)
            ],
        )

    def _of(self, shard: ShardState, readers: Mapping[str, _StateOfKeys]) -> Iterator[KeyStates]:
        if shard.attempt is None and not shard.slices:
            return
        keys = self._keys()
        unpacked = ShardRows(self._source.repository, self._record.name, self._source.manifest)
        with unpacked.opened(shard, [*readers]) as backend:
            found = [
                _by_key(name, reader, backend, shard.groups) for name, reader in readers.items()
            ]
            for prefix, own in groupby(merge(*found, key=itemgetter(0)), itemgetter(0)):
                key, end = keys.split(prefix)
                values = {name: reader.whole([], 0) for name, reader in readers.items()}
                typed = {}
                for _, name, rows in own:
                    values[name] = readers[name].whole(rows, end)
                    typed[name] = partial(readers[name].rows, key, rows, end)
                yield KeyStates(key, values, typed)


@dataclass(frozen=True)
class _StateOfKeys:
    """How the rows of one state become a value per key.

    Parameters:
        unexpired: returns the rows that have not expired.
        prefix: returns the key group and the key of a row key.
        whole: returns the value for all rows of a key, or for none, and the end of the key in them.
        rows: returns the typed rows for a key, its rows, and the end of the key in them.
    """

    unexpired: Callable[[Iterator[Row]], Iterator[Row]]
    prefix: Callable[[bytes], bytes]
    whole: Callable[[Any, int], Any]
    rows: Callable[[Any, list[Row], int], list[StateRow]]


def _state_row(decoder: StateRows, key: Any, stored: Row, end: int, position: int) -> StateRow:
    """Return a typed row, with the stored value, also if it is an accumulator.

    Parameters:
        key: its key.
        stored: its row key and row.
        end: of the key in the row key.
        position: the number of the rows of the key before.
    """
    state, (row_key, row) = decoder.state, stored
    place = position if decoder.shape is RowShape.ELEMENTS else None
    if decoder.shape is RowShape.ENTRIES:
        place = decoder.place(row_key, end)
    if not state.era:
        return StateRow(key, decoder.decode(row), place)
    value, written = unstamped(row, state.expiry_era)
    if state.ttl is None:
        return StateRow(key, decoder.decode(value), place)
    written += state.paused_us
    at = instant(written) if MIN_MICROS <= written <= MAX_MICROS else None
    return StateRow(key, decoder.decode(value), place, at)


def _by_key(
    name: str, reader: _StateOfKeys, backend: Backend, groups: tuple[int, int]
) -> Iterator[tuple[bytes, str, list[Row]]]:
    rows = reader.unexpired(iter(backend.scan(name, *group_bounds(*groups))))
    for prefix, own in groupby(rows, lambda row: reader.prefix(row[0])):
        yield prefix, name, list(own)
