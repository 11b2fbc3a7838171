"""Routing in one process: brings the records of an operator to its shards, sorted by key."""

from __future__ import annotations

import datetime as dt
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, count, islice, repeat
from operator import add
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from statekit.codec.vectorized import big_endian, key_groups
from statekit.errors import StateTypeError
from statekit.job.plan import Operator
from statekit.keygroup import group_range, pack_group
from statekit.records.combined_rows import CombinedRows
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.key_iteration import not_a_key
from statekit.runtime.shard_input import KeyedBatchBuilder

_KEPT_KEYS = 100_000
"""How many keys are remembered from epoch to epoch."""

_UNLIKE = frozenset((str, bytes, int, dt.date, dt.timedelta, uuid.UUID, type(None)))
"""Types of keys that are equal only if their stored form is, unlike 1 and True, or 1 and 1.0."""


class _Place(NamedTuple):
    """The place of a key: the first bytes of its row keys, and its key group."""

    prefix: bytes
    group: int


class _Keys(NamedTuple):
    """Keys in the order of their rows, as parallel sequences, and the records of each.

    Parameters:
        places: of the keys.
        keys: the keys.
        sizes: how many records each has.
        order: the numbers of all records, key after key, in order of arrival.
    """

    places: Sequence[_Place]
    keys: Sequence[Any]
    sizes: Sequence[int]
    order: Sequence[int]

    @classmethod
    def of(cls, places: dict[Any, _Place], told: Sequence[Any], keys: Sequence[Any]) -> _Keys:
        """Return the keys of records.

        Parameters:
            places: of all keys, by what tells them apart.
            told: what tells the key of each record apart.
            keys: the key of each record.
        """
        # No line of Python runs per record here.
        prefixes = {key: place.prefix for key, place in places.items()}
        in_order = sorted(prefixes, key=prefixes.__getitem__)
        rank_of = dict(zip(in_order, count()))
        ranks = pa.array(list(map(rank_of.__getitem__, told)), pa.int64())
        order = pc.array_sort_indices(ranks).to_pylist()
        found = pc.value_counts(ranks)
        sizes = found.field("counts").take(pc.array_sort_indices(found.field("values")))
        starts = chain((0,), accumulate(sizes.to_pylist()))
        firsts = map(order.__getitem__, islice(starts, len(in_order)))
        return cls(
            list(map(places.__getitem__, in_order)),
            list(map(keys.__getitem__, firsts)),
            sizes.to_pylist(),
            order,
        )


class Routing:
    """Brings the records of an operator to its shards.

    The places of keys are kept between epochs while they are not too many.

    Parameters:
        operator: the operator.
        key_groups: the number of key groups.
    """

    def __init__(self, operator: Operator, key_groups: int) -> None:
        self._operator, self._key_groups = operator, key_groups
        self._builder = KeyedBatchBuilder(operator.declared, key_groups, operator.name)
        self._known: dict[Any, _Place] = {}

    def routed(self, incoming: Sequence[Sequence[Any]], shards: int) -> dict[int, KeyedBatch]:
        """Return the records of each shard with records, sorted by row prefix and arrival.

        Without a key each has the first key group of its shard.

        Parameters:
            incoming: the records of each input.
            shards: the number of shards.

        Raises:
            ProcessError: the key of a record cannot be one.
        """
        records, inputs = incoming[0], list[int]()
        if len(incoming) > 1:
            first, *others = incoming
            if isinstance(first, CombinedRows):
                records = first.followed_by(cast("Sequence[CombinedRows]", others))
            else:
                records = list(chain.from_iterable(incoming))
            inputs = _repeated(range(len(incoming)), list(map(len, incoming)))
        has_key = bool(self._operator.declared.key)
        keyed = self._by_key(records) if has_key else self._dealt(records, shards)
        times = self._builder.times(records)
        return {
            shard: self._batch(own, records, times, inputs)
            for shard, own in self._by_shard(keyed, shards)
        }

    def _by_key(self, records: Sequence[Any]) -> _Keys:
        """Return the keys of records, each with its records."""
        keys = self._builder.keys(records)
        if _are_unlike(keys):
            return _Keys.of(self._places(keys, records), keys, keys)
        places = list(map(self._place, keys, records))
        return _Keys.of(dict(zip(places, places, strict=True)), places, keys)

    def _dealt(self, records: Sequence[Any], shards: int) -> _Keys:
        """Return records without a key by shard, round robin. Records for which a service is called
        are in one shard, in order, as shards run one after the other here.
        """
        encoded = self._operator.declared.key_codec.encode(())
        taking = shards if self._operator.declared.traits.calls is None else 1
        taking = min(taking, len(records))
        groups = [group_range(shard, shards, self._key_groups)[0] for shard in range(taking)]
        places = [_Place(pack_group(group) + encoded, group) for group in groups]
        dealt = [range(shard, len(records), taking) for shard in range(taking)]
        return _Keys(places, [()] * taking, list(map(len, dealt)), list(chain(*dealt)))

    def _places(self, keys: Sequence[Any], records: Sequence[Any]) -> dict[Any, _Place]:
        """Return the place of each key.

        Parameters:
            keys: of the records.
        """
        known = self._known
        if len(known) > _KEPT_KEYS:
            known.clear()
        found = dict.fromkeys(keys)
        new = [key for key in found if key not in known]
        try:
            placed = self._placed(new)
        except (OverflowError, StateTypeError):  # of one key after the other, the error names it
            first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
            placed = [self._place(key, records[first[key]]) for key in new]
        known.update(zip(new, placed, strict=True))
        return dict(zip(found, map(known.__getitem__, found), strict=True))

    def _placed(self, keys: Sequence[Any]) -> list[_Place]:
        """Return the place of each key, computed in columns.

        Raises:
            StateTypeError, OverflowError: one of them cannot be a key.
        """
        groups = key_groups(keys, self._key_groups)
        encoded = self._operator.declared.key_codec.encode_all(keys)
        return list(map(_Place, map(add, big_endian(groups, len(keys)), encoded), groups))

    def _place(self, key: Any, record: Any) -> _Place:
        group, process = self._builder.key_group(key, record), self._operator.declared
        try:
            return _Place(pack_group(group) + process.key_codec.encode(key), group)
        except StateTypeError as error:
            raise not_a_key(self._operator.name, process.key, key, record, error) from error

    def _by_shard(self, keyed: _Keys, shards: int) -> Iterator[tuple[int, _Keys]]:
        """Yield each shard that has keys, with its keys."""
        groups = [place.group for place in keyed.places]
        begins = [0, *accumulate(keyed.sizes)]
        start = 0
        for shard in range(shards):
            end = bisect_right(groups, group_range(shard, shards, self._key_groups)[1], start)
            if start < end:
                yield (
                    shard,
                    _Keys(
                        keyed.places[start:end],
                        keyed.keys[start:end],
                        keyed.sizes[start:end],
                        keyed.order[begins[start] : begins[end]],
                    ),
                )
            start = end

    def _batch(
        self, keyed: _Keys, records: Sequence[Any], times: Sequence[int], inputs: Sequence[int]
    ) -> KeyedBatch:
        """Return the records of some keys. Records are columns if the process takes columns.

        Parameters:
            records: those of all keys.
            times: of all records, with event time.
            inputs: of all records, if there are several.
        """
        # No line of Python runs per record here.
        of_keys = (*zip(*keyed.places, strict=True), keyed.keys)
        prefixes, groups, keys = (_repeated(of, keyed.sizes) for of in of_keys)
        taken = (_taken(of, keyed.order) if len(of) else () for of in (records, times, inputs))
        # Prefixes are tokens, too, since keys 1 and True are equal.
        batch = KeyedBatch(prefixes, groups, keys, *taken)._replace(prefixes=prefixes)
        return self._builder.taken(batch)


def _taken(values: Sequence[Any], order: Sequence[int]) -> Sequence[Any]:
    """Return the values with these numbers."""
    if isinstance(values, CombinedRows):
        return values.taken(order)
    return list(map(values.__getitem__, order))


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Return each value as many times as its count says."""
    return list(chain.from_iterable(map(repeat, values, counts)))


def _are_unlike(keys: Sequence[Any]) -> bool:
    """Return whether keys certainly are equal only if their stored form is."""
    types = set(map(type, keys))
    if types == {tuple}:
        return len(set(map(len, keys))) == 1 and all(map(_are_unlike, zip(*keys, strict=True)))
    if dt.datetime in types:
        # In one zone, two instants of an hour that comes twice are equal.
        return types == {dt.datetime} and {key.tzinfo for key in keys} == {dt.UTC}
    return types <= _UNLIKE
