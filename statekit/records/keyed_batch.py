"""A batch of records of one shard, with their keys and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, islice
from operator import add, ne, sub
from typing import Any, NamedTuple

from statekit.codec.key_codec import KeyCodec
from statekit.codec.vectorized import big_endian
from statekit.errors import StateTypeError
from statekit.records.combined_rows import CombinedRows


class KeyedBatch(NamedTuple):
    """Records of one shard, as parallel sequences sorted by key group, key and arrival.

    Parameters:
        tokens: equal for neighbouring records of one key, different for different keys; often the
            keys.
        groups: the key group of each record.
        keys: the key of each record, a scalar or a tuple.
        records: as the process function takes them. If the function takes many keys at a time,
            these are columns with one row per key.
        times: the event time of each record in microseconds, if the operator has event time.
        inputs: the number of the input that each record came from, if there are several.
        prefixes: key group and encoded key of each record, the start of its row keys, if they are
            known.
    """

    tokens: Sequence[Any]
    groups: Sequence[int]
    keys: Sequence[Any]
    records: Sequence[Any]
    times: Sequence[int] = ()
    inputs: Sequence[int] = ()
    prefixes: Sequence[bytes] = ()

    def without_first(self, count: int) -> KeyedBatch:
        """Return the batch without its first records."""
        return KeyedBatch._make(column[count:] for column in self)

    def part(self, start: int, end: int) -> KeyedBatch:
        """Return the records from `start` on and before `end`."""
        return KeyedBatch._make(column[start:end] for column in self)

    def in_columns(self) -> KeyedBatch:
        """Return the batch with its records, which are combined rows or tuples, as columns."""
        if isinstance(self.records, CombinedRows):
            return self._replace(records=self.records.columns)
        return self._replace(records=tuple(zip(*self.records, strict=True)))

    def chosen(self, chosen: Sequence[bool], *, of_columns: bool) -> KeyedBatch:
        """Return the batch with a selection of its records.

        Parameters:
            of_columns: whether the records are columns.
        """
        if of_columns:
            columns = tuple(tuple(compress(column, chosen)) for column in self.records)
            others = self._replace(records=()).chosen(chosen, of_columns=False)
            return others._replace(records=columns)
        return KeyedBatch._make(tuple(compress(column, chosen)) for column in self)


BroadcastRecords = tuple[int, Sequence[Any]]
"""The number of a broadcast input, with some of its records."""


_NO_TOKEN: Any = object()


class KeyRuns(NamedTuple):
    """The runs of records of one key in a batch, as parallel sequences.

    Parameters:
        continued: how many records at the start belong to the last key of the previous batch.
        sizes: how many records each run has.
        keys: the key of each run.
        prefixes: key group and encoded key of each run, the start of its row keys. They end before
            the first key that cannot be encoded.

    >>> from statekit.codec.key_codec import key_codec
    >>> batch = KeyedBatch("aabccc", [7, 7, 9, 9, 9, 9], "aabccc", [1, 2, 3, 4, 5, 6])
    >>> runs = KeyRuns.of(batch, key_codec(str), after="a")
    >>> runs.continued, runs.sizes, runs.keys
    (2, [1, 3], ('b', 'c'))
    >>> [prefix.hex() for prefix in runs.prefixes]
    ['0009620000', '0009630000']
    """

    continued: int
    sizes: list[int]
    keys: Sequence[Any]
    prefixes: list[bytes]

    @classmethod
    def of(cls, batch: KeyedBatch, codec: KeyCodec[Any], *, after: Any = _NO_TOKEN) -> KeyRuns:
        """Return the runs of a batch.

        Parameters:
            after: the token of the last key of the previous batch.
        """
        # No line of Python runs per record here.
        tokens, count = batch.tokens, len(batch.tokens)
        starts = [*compress(range(count), map(ne, tokens, chain((after,), tokens)))]
        sizes = list(map(sub, chain(islice(starts, 1, None), (count,)), starts))
        keys = tuple(map(batch.keys.__getitem__, starts))
        if batch.prefixes:
            prefixes = list(map(batch.prefixes.__getitem__, starts))
        else:
            prefixes = _prefixes(map(batch.groups.__getitem__, starts), keys, codec)
        return cls(starts[0] if starts else count, sizes, keys, prefixes)


class KeyColumns(NamedTuple):
    """Keys of a batch with one row per key, and the columns of these rows.

    Parameters:
        prefixes: key group and encoded key of each, the start of its row keys.
        keys: the keys.
        columns: of their rows.
    """

    prefixes: list[bytes]
    keys: Sequence[Any]
    columns: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, batch: KeyedBatch, codec: KeyCodec[Any]) -> KeyColumns:
        """Return the keys of a batch. `prefixes` ends before the first key that cannot be
        encoded.
        """
        prefixes = list(batch.prefixes) or _prefixes(batch.groups, batch.keys, codec)
        return cls(prefixes, batch.keys, batch.records)

    def part(self, start: int, end: int) -> KeyColumns:
        """Return the keys from `start` on and before `end`."""
        columns = [column[start:end] for column in self.columns]
        return KeyColumns(self.prefixes[start:end], self.keys[start:end], columns)


class KeyedRecords(NamedTuple):
    """Records of many keys, sorted by key and arrival, for functions that take many at a time.

    Parameters:
        prefixes: key group and encoded key of each key, the start of its row keys.
        keys: the keys.
        sizes: the number of records of each key.
        firsts: how many records of each key came before these in the epoch.
        records: of all keys.
        times: the event time of each record in microseconds, if the operator has event time.
        at_key: notes the key that an error is about: its prefix, and the key.
    """

    prefixes: Sequence[bytes]
    keys: Sequence[Any]
    sizes: Sequence[int]
    firsts: Sequence[int]
    records: Sequence[Any]
    times: Sequence[int]
    at_key: Callable[[bytes, Any], None]

    def note_key(self, number: int) -> None:
        """Note the key that an error is about, by its number."""
        self.at_key(self.prefixes[number], self.keys[number])


def _prefixes(groups: Iterable[int], keys: Sequence[Any], codec: KeyCodec[Any]) -> list[bytes]:
    """Return the row-key prefixes of keys, up to the first key that cannot be encoded."""
    return list(map(add, big_endian(groups, len(keys)), _encoded(keys, codec)))


def _encoded(keys: Sequence[Any], codec: KeyCodec[Any]) -> list[bytes]:
    """Return the bytes of keys, up to the first key that cannot be encoded."""
    try:
        return codec.encode_all(keys)
    except StateTypeError:
        encoded = []
        for key in keys:
            try:
                encoded.append(codec.encode(key))
            except StateTypeError:
                break
        return encoded
