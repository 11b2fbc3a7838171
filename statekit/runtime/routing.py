"""Routing in one process: brings the records of an operator to its shards, sorted by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, repeat
from operator import add
from typing import Any, NamedTuple

from statekit.codec.vectorized import big_endian, key_groups_of_ints
from statekit.errors import StateTypeError
from statekit.job.plan import Operator
from statekit.keygroup import group_range, pack_group, shard_of_group
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.key_iteration import not_a_key
from statekit.runtime.shard_input import KeyedBatchBuilder

_KEPT_KEYS = 100_000
"""How many keys are remembered from epoch to epoch."""

_UNLIKE = frozenset((str, bytes, int))
"""Types of keys that are equal only if their stored form is, unlike 1 and True, or 1 and 1.0."""


class _Place(NamedTuple):
    """The place of a key: the first bytes of its row keys, and its key group."""

    prefix: bytes
    group: int


class _KeyRecords(NamedTuple):
    """A key with its records.

    Parameters:
        place: of the key.
        key: the key.
        numbers: of its records among all, in order of arrival.
    """

    place: _Place
    key: Any
    numbers: Sequence[int]


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
            records = list(chain.from_iterable(incoming))
            inputs = _repeated(range(len(incoming)), list(map(len, incoming)))
        has_key = bool(self._operator.declared.key)
        keyed = self._by_key(records) if has_key else self._dealt(records, shards)
        keyed.sort(key=lambda one: one.place.prefix)
        times = self._builder.times(records)
        return {
            shard: self._batch(own, records, times, inputs)
            for shard, own in self._by_shard(keyed, shards).items()
        }

    def _by_key(self, records: Sequence[Any]) -> list[_KeyRecords]:
        """Return the keys of records, each with its records."""
        keys = self._builder.keys(records)
        numbers: defaultdict[Any, list[int]] = defaultdict(list)
        if _UNLIKE.issuperset(_types_of(keys)):
            for number, key in enumerate(keys):
                numbers[key].append(number)
            places = self._places(numbers, records)
            return list(map(_KeyRecords, places, numbers, numbers.values()))
        for number, place in enumerate(map(self._place, keys, records)):
            numbers[place].append(number)
        return [_KeyRecords(place, keys[own[0]], own) for place, own in numbers.items()]

    def _dealt(self, records: Sequence[Any], shards: int) -> list[_KeyRecords]:
        """Return records without a key by shard, round robin. Records for which a service is called
        are in one shard, in order, as shards run one after the other here.
        """
        encoded = self._operator.declared.key_codec.encode(())
        taking = shards if self._operator.declared.traits.calls is None else 1
        dealt = []
        for shard in range(min(taking, len(records))):
            group = group_range(shard, shards, self._key_groups)[0]
            place = _Place(pack_group(group) + encoded, group)
            dealt.append(_KeyRecords(place, (), range(shard, len(records), taking)))
        return dealt

    def _places(self, numbers: dict[Any, list[int]], records: Sequence[Any]) -> list[_Place]:
        """Return the place of each key.

        Parameters:
            numbers: of the records of each key.
        """
        known = self._known
        if len(known) > _KEPT_KEYS:
            known.clear()
        new = [key for key in numbers if key not in known]
        placed = self._places_of_ints(new)
        if placed is None:
            placed = [self._place(key, records[numbers[key][0]]) for key in new]
        known.update(zip(new, placed, strict=True))
        return list(map(known.__getitem__, numbers))

    def _places_of_ints(self, keys: Sequence[Any]) -> list[_Place] | None:
        """Return the place of each key, computed in columns; None if they are no ints, or tuples of
        ints.
        """
        is_tuple = bool(keys) and type(keys[0]) is tuple
        columns: list[Sequence[Any]] = list(zip(*keys, strict=True)) if is_tuple else [keys]
        if not columns or any(set(map(type, column)) != {int} for column in columns):
            return None
        try:
            groups = key_groups_of_ints(columns, self._key_groups)
            encoded = self._operator.declared.key_codec.encode_all(keys)
        except (OverflowError, StateTypeError):  # of one key after the other, the error names it
            return None
        prefixes = map(add, big_endian(groups, len(keys)), encoded)
        return list(map(_Place, prefixes, groups))

    def _place(self, key: Any, record: Any) -> _Place:
        group, process = self._builder.key_group(key, record), self._operator.declared
        try:
            return _Place(pack_group(group) + process.key_codec.encode(key), group)
        except StateTypeError as error:
            raise not_a_key(self._operator.name, process.key, key, record, error) from error

    def _by_shard(self, keyed: list[_KeyRecords], shards: int) -> dict[int, list[_KeyRecords]]:
        """Return the keys of each shard, in their order."""
        if shards == 1:
            return {0: keyed} if keyed else {}
        found: defaultdict[int, list[_KeyRecords]] = defaultdict(list)
        for one in keyed:
            found[shard_of_group(one.place.group, shards, self._key_groups)].append(one)
        return found

    def _batch(
        self,
        keyed: Sequence[_KeyRecords],
        records: Sequence[Any],
        times: Sequence[int],
        inputs: Sequence[int],
    ) -> KeyedBatch:
        """Return the records of some keys. Records are columns if the process takes columns.

        Parameters:
            records: those of all keys.
            times: of all records, with event time.
            inputs: of all records, if there are several.
        """
        # No line of Python runs per record here.
        places, keys, numbers = zip(*keyed, strict=True)
        sizes, order = list(map(len, numbers)), list(chain.from_iterable(numbers))
        prefixes, groups = zip(*places, strict=True)
        batch = KeyedBatch(
            _repeated(prefixes, sizes),  # as tokens, since keys 1 and True are equal
            _repeated(groups, sizes),
            _repeated(keys, sizes),
            *(list(map(of.__getitem__, order)) if of else () for of in (records, times, inputs)),
        )
        return batch.in_columns() if self._operator.declared.traits.takes_columns else batch


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Return each value as many times as its count says."""
    return list(chain.from_iterable(map(repeat, values, counts)))


def _types_of(keys: Sequence[Any]) -> set[type]:
    """Return the types of keys, and of the fields of keys with several."""
    types = set(map(type, keys))
    if tuple in types:
        types |= set(map(type, chain.from_iterable(key for key in keys if type(key) is tuple)))
        types.discard(tuple)
    return types
