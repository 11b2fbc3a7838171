"""A batch of records of one shard, with their keys and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice
from operator import add, ne, sub
from typing import Any, NamedTuple

from statekit.codec.key_codec import KeyCodec
from statekit.codec.vectorized import big_endian
from statekit.errors import StateTypeError


class KeyedBatch(NamedTuple):
    """Some records of one shard, as parallel sequences sorted by key group, key and arrival.

    Parameters:
        tokens: equal for neighbours of one key, different for different keys; often the keys.
        groups: the key group of each record.
        keys: the key of each record, a scalar or a tuple.
        records: as the process function takes them. Where it takes many keys at a time they are
            columns, and each key has one row.
        times: the event time of each record in microseconds, if the operator has event time.
        inputs: the number of the input that each record came from, if there are several.
    """

    tokens: Sequence[Any]
    groups: Sequence[int]
    keys: Sequence[Any]
    records: Sequence[Any]
    times: Sequence[int] = ()
    inputs: Sequence[int] = ()

    def behind(self, count: int) -> KeyedBatch:
        """The chunk without its first records."""
        return KeyedBatch(*(column[count:] for column in self))


BroadcastRecords = tuple[int, Sequence[Any]]
"""Some broadcast records, behind the number of the input that they came from."""


_NO_TOKEN: Any = object()


class KeyRuns(NamedTuple):
    """The runs of records of one key that a chunk is made of, as parallel sequences.

    Parameters:
        going_on: how many records at the start are of the key before the chunk; they are no run.
        sizes: how many records each run has.
        keys: the key of each.
        prefixes: what all row keys of each start with, key group and encoded key. There are fewer
            where a key cannot be encoded: those of the keys before it.

    >>> from statekit.codec.key_codec import key_codec
    >>> chunk = KeyedBatch("aabccc", [7, 7, 9, 9, 9, 9], "aabccc", [1, 2, 3, 4, 5, 6])
    >>> runs = KeyRuns.of(chunk, key_codec(str), after="a")
    >>> runs.going_on, runs.sizes, runs.keys
    (2, [1, 3], ('b', 'c'))
    >>> [prefix.hex() for prefix in runs.prefixes]
    ['0009620000', '0009630000']
    """

    going_on: int
    sizes: list[int]
    keys: Sequence[Any]
    prefixes: list[bytes]

    @classmethod
    def of(cls, chunk: KeyedBatch, codec: KeyCodec[Any], *, after: Any = _NO_TOKEN) -> KeyRuns:
        """The runs of a chunk.

        Parameters:
            after: the token of the key that was visited last.
        """
        # No line of Python runs for a record here: there are more records than anything else.
        tokens, count = chunk.tokens, len(chunk.tokens)
        starts = [*compress(range(count), map(ne, tokens, chain((after,), tokens)))]
        sizes = list(map(sub, chain(islice(starts, 1, None), (count,)), starts))
        keys = tuple(map(chunk.keys.__getitem__, starts))
        prefixes = _prefixes(map(chunk.groups.__getitem__, starts), keys, codec)
        return cls(starts[0] if starts else count, sizes, keys, prefixes)


class ManyKeys(NamedTuple):
    """Some of the keys of a chunk that has one row for each, with the columns of their rows.

    Parameters:
        prefixes: what all row keys of each start with.
        keys: each of them.
        columns: of their rows.
    """

    prefixes: list[bytes]
    keys: Sequence[Any]
    columns: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, chunk: KeyedBatch, codec: KeyCodec[Any]) -> ManyKeys:
        """All keys of a chunk. There are fewer prefixes where one cannot be encoded."""
        return cls(_prefixes(chunk.groups, chunk.keys, codec), chunk.keys, chunk.records)

    def part(self, start: int, end: int) -> ManyKeys:
        """Those of them from one place up to another."""
        columns = [column[start:end] for column in self.columns]
        return ManyKeys(self.prefixes[start:end], self.keys[start:end], columns)


def _prefixes(groups: Iterable[int], keys: Sequence[Any], codec: KeyCodec[Any]) -> list[bytes]:
    """What all row keys of each key start with, up to one that is no key."""
    return list(map(add, big_endian(groups, len(keys)), _encoded(keys, codec)))


def _encoded(keys: Sequence[Any], codec: KeyCodec[Any]) -> list[bytes]:
    """The bytes of keys, up to one that is no key."""
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
