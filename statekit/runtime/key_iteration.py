"""Key iteration: moves the key scope of a shard from key to key, and flushes the states.

States keep the rows and changes of up to some hundred keys in memory. Then each state writes all of
its changes to the batch at once. If a key occurs again later, its states read those rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice, pairwise, repeat
from operator import ge, gt, length_hint
from typing import Any, Literal

from statekit.codec.key_codec import KeyCodec
from statekit.errors import ProcessError, StateTypeError
from statekit.keygroup import pack_group
from statekit.records.keyed_batch import KeyColumns, KeyedBatch, KeyedRecords, KeyRuns
from statekit.shown import shown, shown_text
from statekit.state.key_scope import KeyScope

# States are flushed after at most this many keys; at the start of a shard, after a sixteenth.
KEYS_MAX = 256

# The same for functions that take many keys at a time.
COLUMN_KEYS_MAX = 4_096

# So many records are given at a time to functions that take records of many keys.
RECORDS_AT_ONCE = 16_384

# States are flushed after fewer keys if they flushed more bytes than this the last time.
_BYTES_MAX = 512 * 1024

# How many keys the prediction of the next keys returns.
_NEXT_KEYS_MAX = 64

_NOTHING: Any = object()

Handled = tuple[Literal["record", "record taken last", "first record", "key"], Any]
"""The last argument of a function call, with its description for messages."""


class KeyIteration:
    """Moves the key scope from key to key of a shard.

    Parameters:
        scope: the key scope of the shard.
        codec: of the keys.
        fields: the names of the key fields.

    Attributes:
        is_between: whether an error is about the key that is being left, and not about a record.
        inputs: the names of the inputs, if the function may ask for that of a record and there are
            several.
        unread: the error with which reading the records failed, whatever the function that took
            them raised.
    """

    def __init__(self, scope: KeyScope, codec: KeyCodec[Any], fields: tuple[str, ...]) -> None:
        self._scope = scope
        self._codec = codec
        self._fields = fields
        self._token: Any = _NOTHING
        self._at_once = self._left = max(1, KEYS_MAX // 16)
        # Of the keys of this batch, and of earlier keys that have not been flushed.
        self._prefixes: list[bytes] = []
        # The keys that were entered in any order since changes were applied.
        self._unapplied: set[bytes] = set()
        # If the function takes all records of a key: some records of it, and those not taken yet.
        self._some: Sequence[Any] = ()
        self._following: Iterator[Any] = iter(())
        self.is_between = False
        self.inputs: Sequence[str] = ()
        self.unread: BaseException | None = None
        scope.next_keys = self._next_keys

    def records(self, batch: KeyedBatch, records: Iterator[Any]) -> Iterator[Any]:
        """Yield the records of a batch. The key scope enters the key of each record first.

        Parameters:
            records: of the batch, from its first record on.

        Raises:
            ProcessError: a value cannot be a key.
        """
        runs = self._begun(batch)
        yield from islice(records, runs.continued)
        enter, following = self.enter, records.__next__
        for prefix, key, size in zip(runs.prefixes, runs.keys, runs.sizes, strict=False):
            enter(prefix, key)
            if size == 1:  # as most are, where keys are many
                yield following()
            else:
                yield from islice(records, size)
        self._ended(batch, runs)

    def at_times(
        self, records: Iterator[Any], times: Sequence[int], then_us: int | None = None
    ) -> Iterator[Any]:
        """Yield records. The event clock is set to the time of each record first.

        Parameters:
            then_us: the event time after the last record.
        """
        clocks = self._scope.clocks
        for record, clocks.event_us in zip(records, times, strict=True):
            yield record
        clocks.event_us = then_us

    def of_inputs(self, records: Iterator[Any], inputs: Iterable[int]) -> Iterator[Any]:
        """Yield records. The input of each record is set in the key scope first."""
        scope = self._scope
        for record, scope.input in zip(records, map(self.inputs.__getitem__, inputs), strict=True):
            yield record

    def runs(self, batches: Iterator[KeyedBatch]) -> Iterator[Iterator[Any]]:
        """Yield the records of each key. The key scope enters the key first.

        The records of a key may continue in the following batches.

        Raises:
            ProcessError: a value cannot be a key.
        """
        batches = self._noting_errors(batches)
        remaining: list[KeyedBatch] = []

        def continued(token: Any) -> Iterator[Any]:
            for batch in batches:
                count = len(batch.tokens)
                size = next((n for n, t in enumerate(batch.tokens) if t != token), count)
                if size:
                    yield from self._records_of_key(batch, 0, size, self._scope.clocks.event_us)
                if size < count:
                    remaining.append(batch.without_first(size))
                    return

        while (batch := remaining.pop() if remaining else next(batches, None)) is not None:
            self._token = _NOTHING  # each key is entered with all of its records
            runs, start, count = self._begun(batch), 0, len(batch.records)
            for prefix, key, size in zip(runs.prefixes, runs.keys, runs.sizes, strict=False):
                self.enter(prefix, key)
                end = start + size
                records = self._records_of_key(batch, start, end)
                if end == count:
                    records = chain(records, continued(batch.tokens[-1]))
                yield records
                deque(records, maxlen=0)  # records that the function did not read
                if self.unread is not None:  # and the function caught the error
                    raise self.unread
                start = end
            self._ended(batch, runs)

    def parts(self, batches: Iterator[KeyedBatch]) -> Iterator[tuple[bytes, Any, KeyedBatch, bool]]:
        """Yield the records of each key of each batch, without entering the key: its prefix, the
        key, its records, and whether they follow records of the previous batch.

        Raises:
            ProcessError: a value cannot be a key.
        """
        prefix, key = b"", None
        for batch in batches:
            runs = self._begun(batch)
            start = runs.continued
            if start:
                yield prefix, key, batch.part(0, start), True
            for prefix, key, size in zip(runs.prefixes, runs.keys, runs.sizes, strict=False):
                yield prefix, key, batch.part(start, start + size), False
                start += size
            self._ended(batch, runs)

    def _noting_errors(self, batches: Iterator[KeyedBatch]) -> Iterator[KeyedBatch]:
        """Yield batches. If a batch cannot be read, keep the error."""
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            self.unread = error
            raise

    def _records_of_key(
        self, batch: KeyedBatch, start: int, end: int, before_us: int | None = None
    ) -> Iterator[Any]:
        """Return records of the current key. Each record sets the event clock when it is taken.

        Parameters:
            before_us: the latest event time of earlier records of the key; None if there are none.
        """
        self._some = some = batch.records[start:end]
        self._following = following = iter(some)
        if self.inputs and batch.inputs:
            following = self.of_inputs(following, batch.inputs[start:end])
        if not batch.times:
            return following
        times = batch.times[start:end]
        if before_us is None:
            self._scope.clocks.event_us = before_us = times[0]  # until a record is taken
        return self.at_times(following, times, max(before_us, *times))

    def handled(self) -> Handled:
        """Return the last record of the key that was taken; the first record if none was taken."""
        position = len(self._some) - length_hint(self._following)
        if position:
            return "record taken last", self._some[position - 1]
        return ("first record", self._some[0]) if self._some else ("key", self._scope.key)

    def columns(
        self, batches: Iterator[KeyedBatch], *, together: bool = False
    ) -> Iterator[KeyColumns]:
        """Yield many keys at a time, from batches with one row per key.

        The changes of the keys are in the batch, or in the backend, before the next keys are taken.

        Parameters:
            together: a key may have several rows in a batch, which are yielded together.

        Raises:
            ProcessError: a value cannot be a key.
        """
        scope = self._scope
        for batch in batches:
            keys = KeyColumns.of(batch, self._codec)
            self._prefixes = prefixes = keys.prefixes
            if len(prefixes) < len(keys.keys):
                at = len(prefixes)
                self.prefix(batch.groups[at], batch.keys[at], [c[at] for c in keys.columns])
            if not prefixes:
                continue
            # If keys are not in order, some were processed before: see `enter`.
            above = map(gt if together else ge, prefixes, islice(prefixes, 1, None))
            falls = compress(range(1, len(prefixes)), above)
            for start, end in pairwise((0, *falls, len(prefixes))):
                if prefixes[start] <= scope.prefix:
                    scope.spill()
                while start < end:
                    until = min(start + self._at_once, end)
                    while together and until < end and prefixes[until] == prefixes[until - 1]:
                        until += 1
                    some = keys.part(start, until)
                    start = until
                    before = scope.batch.size_bytes
                    yield some
                    scope.enter(some.prefixes[-1], some.keys[-1])
                    self._resize(scope.batch.size_bytes - before, COLUMN_KEYS_MAX)
                    if scope.batch.full:
                        scope.spill()

    def records_of_keys(self, batches: Iterator[KeyedBatch]) -> Iterator[KeyedRecords]:
        """Yield records of many keys at a time. The records of a key may continue in the next ones.

        The changes for the previous records are in the batch, or in the backend if the same key
        follows.

        Raises:
            ProcessError: a value cannot be a key.
        """
        scope, given, count, last = self._scope, 0, 0, b""
        for whole in batches:
            for start in range(0, len(whole.records), RECORDS_AT_ONCE):
                batch = whole.part(start, start + RECORDS_AT_ONCE)
                runs = KeyRuns.of(batch, self._codec)
                entered = len(runs.prefixes)
                if entered < len(runs.keys):
                    at = sum(runs.sizes[:entered])
                    self.prefix(batch.groups[at], batch.keys[at], batch.records[at])
                first, *others = runs.prefixes
                if first <= scope.prefix:
                    scope.spill()
                # A key that is not in order may have been given before: no number is used twice.
                before = given if first == last else count if first < last else 0
                firsts = [before, *repeat(0 if first >= last else count, len(others))]
                yield KeyedRecords(
                    runs.prefixes,
                    runs.keys,
                    runs.sizes,
                    firsts,
                    batch.records,
                    batch.times,
                    scope.at_key,
                )
                given = firsts[-1] + runs.sizes[-1]
                count, last = count + len(batch.records), runs.prefixes[-1]
                scope.enter(last, runs.keys[-1])
                if scope.batch.full:
                    scope.spill()

    def one_by_one(self, keys: KeyColumns) -> Iterator[KeyColumns]:
        """Yield the keys one by one. The key scope enters each key first."""
        for at, (prefix, key) in enumerate(zip(keys.prefixes, keys.keys, strict=True)):
            self._scope.enter(prefix, key)
            yield keys.part(at, at + 1)

    def _begun(self, batch: KeyedBatch) -> KeyRuns:
        """Return the runs of a batch whose keys were not entered yet."""
        runs = KeyRuns.of(batch, self._codec, after=self._token)
        self._prefixes = [*self._prefixes[-KEYS_MAX:], *runs.prefixes]
        return runs

    def _ended(self, batch: KeyedBatch, runs: KeyRuns) -> None:
        """Remember the last key of a batch.

        Raises:
            ProcessError: a value of the batch cannot be a key.
        """
        entered = len(runs.prefixes)
        if entered < len(runs.keys):
            at = runs.continued + sum(runs.sizes[:entered])
            self.is_between = True
            self.prefix(batch.groups[at], batch.keys[at], batch.records[at])
        if batch.tokens:
            self._token = batch.tokens[-1]

    def enter(self, prefix: bytes, key: Any) -> None:
        """Leave the current key and enter another."""
        scope = self._scope
        self._left -= 1
        if self._left < 0 or scope.touched:
            self._leave_key()
        # Keys are in order. A key out of order was processed before: its changes may be in a state
        # or in the batch, and reads only see the backend.
        if prefix <= scope.prefix:
            self._flush()
            scope.spill()
        scope.enter(prefix, key)

    def enter_again(self, prefix: bytes, key: Any) -> None:
        """Leave the current key and enter another, in any order and any number of times.

        Changes are applied before a key is entered that was entered since they were applied last:
        they may be in a state or in the batch, and reads only see the backend.
        """
        scope = self._scope
        self._left -= 1
        if self._left < 0 or scope.touched:
            self._leave_key()
        if prefix in self._unapplied:
            self._flush()
            scope.spill()
            self._unapplied.clear()
        self._unapplied.add(prefix)
        scope.enter(prefix, key)

    def apply_changes(self) -> None:
        """Leave the key and apply all changes to the backend. Keys can then be entered in any
        order.
        """
        self._flush()
        self._scope.spill()
        self._scope.prefix = b""
        self._token = _NOTHING

    def finish(self) -> None:
        """Leave the last key and flush all states."""
        self._scope.flush()
        self._token = _NOTHING

    def prefix(self, group: int, key: Any, record: Any) -> bytes:
        """Return the first bytes of every row key of a key.

        Parameters:
            record: of the key, for the message.

        Raises:
            ProcessError: the value cannot be a key.
        """
        try:
            return pack_group(group) + self._codec.encode(key)
        except StateTypeError as error:
            raise not_a_key(self._scope.operator, self._fields, key, record, error) from error

    def _leave_key(self) -> None:
        """Flush the states of the current key. After a number of keys, flush all states."""
        if self._left < 0:
            self._flush()
            return
        scope = self._scope
        self.is_between = True
        scope.flush_key()
        self.is_between = False
        if scope.batch.full:
            scope.spill()

    def _flush(self) -> None:
        scope, batch = self._scope, self._scope.batch
        before = batch.size_bytes
        self.is_between = True
        scope.flush()
        self.is_between = False
        self._resize(batch.size_bytes - before, KEYS_MAX)
        self._left = self._at_once
        if batch.full:
            scope.spill()

    def _resize(self, flushed_bytes: int, keys_max: int) -> None:
        """Adapt the number of keys per flush: more next time, or fewer if their rows are large."""
        keys = self._at_once
        too_large = flushed_bytes > _BYTES_MAX
        self._at_once = max(1, keys // 4) if too_large else min(2 * keys, keys_max)

    def _next_keys(self, prefix: bytes) -> Sequence[bytes]:
        """Return the prefixes of the keys that follow in the batch."""
        prefixes = self._prefixes
        at = bisect_right(prefixes, prefix)
        return prefixes[at : at + _NEXT_KEYS_MAX]


def not_a_key(
    operator: str, fields: Sequence[str], key: Any, record: Any, cause: StateTypeError
) -> ProcessError:
    """Return the error for a record with an invalid key."""
    return ProcessError(
        f"operator {operator!r}: key ({', '.join(fields)}) = {shown(key)} of record "
        f"{shown(record)} "
        f"cannot be a key: {shown_text(cause)}"
    )
