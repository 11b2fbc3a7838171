"""Key iteration: which key is processed next, and when changes are flushed.

States keep what they know of the keys behind them, with all that changed, until some hundred have
been visited; then each hands its changes to the batch, all at once. A key that comes back finds
them in the rows that it reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, compress, islice, pairwise
from operator import ge, length_hint
from typing import Any, Literal

from statekit.codec.key_codec import KeyCodec
from statekit.errors import ProcessError, StateTypeError
from statekit.keygroup import pack_group
from statekit.records.keyed_batch import KeyColumns, KeyedBatch, KeyRuns
from statekit.state.key_scope import KeyScope

# At most so many keys are processed before changes are flushed; at first, a sixteenth of it.
KEYS_MAX = 256

# The same where a function takes many keys at a time.
TOGETHER_MAX = 4_096

# Fewer if what they hand on is larger than this.
_BYTES_MAX = 512 * 1024

# How many keys are looked ahead at a time.
_COMING_MAX = 64

_NOTHING: Any = object()

Handled = tuple[Literal["record", "record taken last", "first record", "key"], Any]
"""What a function was given last, behind what it is."""


class KeyIteration:
    """Moves the key scope from key to key of a shard.

    Parameters:
        scope: what all states share.
        codec: of the keys.
        fields: that the key is made of.
    """

    def __init__(self, scope: KeyScope, codec: KeyCodec[Any], fields: tuple[str, ...]) -> None:
        self._scope = scope
        self._codec = codec
        self._fields = fields
        self._token: Any = _NOTHING
        self._at_once = self._left = max(1, KEYS_MAX // 16)
        # Of the keys of the chunk, and of those before it whose changes have not been handed on.
        self._prefixes: list[bytes] = []
        # Of a key whose records are taken together: some of them, and those not taken yet.
        self._some: Sequence[Any] = ()
        self._following: Iterator[Any] = iter(())
        self.is_between = False
        """Whether an error came up on the way to a key: it is about no record that is handled."""
        self.unread: BaseException | None = None
        """Why no more records can be read, whatever the function makes of it that takes them."""
        scope.coming = self._coming

    def records(self, chunk: KeyedBatch, records: Iterator[Any]) -> Iterator[Any]:
        """The records of a batch, each once the key scope is at its key.

        Parameters:
            records: those of the chunk, from its first one on.

        Raises:
            ProcessError: something cannot be a key.
        """
        runs = self._begun(chunk)
        yield from islice(records, runs.continued)
        enter, following = self.enter, records.__next__
        for prefix, key, size in zip(runs.prefixes, runs.keys, runs.sizes, strict=False):
            enter(prefix, key)
            if size == 1:  # as most are, where keys are many
                yield following()
            else:
                yield from islice(records, size)
        self._ended(chunk, runs)

    def at_times(
        self, records: Iterator[Any], times: Sequence[int], then_us: int | None = None
    ) -> Iterator[Any]:
        """Records, each at its event time.

        Parameters:
            then_us: what it is behind the last of them.
        """
        scope = self._scope
        for record, scope.event_us in zip(records, times, strict=True):
            yield record
        scope.event_us = then_us

    def runs(self, chunks: Iterator[KeyedBatch]) -> Iterator[Iterator[Any]]:
        """The records of each key, once the key scope is at it; also from several batches.

        Raises:
            ProcessError: something cannot be a key.
        """
        chunks = self._read(chunks)
        behind: list[KeyedBatch] = []

        def going_on(token: Any) -> Iterator[Any]:
            for chunk in chunks:
                count = len(chunk.tokens)
                size = next((n for n, t in enumerate(chunk.tokens) if t != token), count)
                if size:
                    yield from self._records_of_key(chunk, 0, size, self._scope.event_us)
                if size < count:
                    behind.append(chunk.without_first(size))
                    return

        while (chunk := behind.pop() if behind else next(chunks, None)) is not None:
            self._token = _NOTHING  # a key comes with all of its records
            runs, start, count = self._begun(chunk), 0, len(chunk.records)
            for prefix, key, size in zip(runs.prefixes, runs.keys, runs.sizes, strict=False):
                self.enter(prefix, key)
                end = start + size
                records = self._records_of_key(chunk, start, end)
                if end == count:
                    records = chain(records, going_on(chunk.tokens[-1]))
                yield records
                deque(records, maxlen=0)  # those that were not asked for
                if self.unread is not None:  # and the function went on as if there were no more
                    raise self.unread
                start = end
            self._ended(chunk, runs)

    def _read(self, chunks: Iterator[KeyedBatch]) -> Iterator[KeyedBatch]:
        """Chunks; if one cannot be read, why is kept."""
        try:
            yield from chunks
        except GeneratorExit:
            raise
        except BaseException as error:
            self.unread = error
            raise

    def _records_of_key(
        self, chunk: KeyedBatch, start: int, end: int, before_us: int | None = None
    ) -> Iterator[Any]:
        """Some records, all of the current key, each at its event time where it has one.

        Parameters:
            before_us: the latest of those before them.
        """
        self._some = some = chunk.records[start:end]
        self._following = following = iter(some)
        if not chunk.times:
            return following
        times = chunk.times[start:end]
        if before_us is None:
            self._scope.event_us = before_us = times[0]  # for what is done before one is taken
        return self.at_times(following, times, max(before_us, *times))

    def handled(self) -> Handled:
        """The record that was taken last of those of a key; before any was, the first."""
        taken = len(self._some) - length_hint(self._following)
        return ("record taken last", self._some[taken - 1]) if taken else self._begins_with()

    def _begins_with(self) -> Handled:
        return ("first record", self._some[0]) if self._some else ("key", self._scope.key)

    def together(self, chunks: Iterator[KeyedBatch]) -> Iterator[KeyColumns]:
        """The keys of chunks that have one row for each, many at a time.

        What is done with some of them is in the batch, or in the backend, before others come.

        Raises:
            ProcessError: something cannot be a key.
        """
        scope = self._scope
        for chunk in chunks:
            keys = KeyColumns.of(chunk, self._codec)
            self._prefixes = prefixes = keys.prefixes
            if len(prefixes) < len(keys.keys):
                at = len(prefixes)
                self.prefix(chunk.groups[at], chunk.keys[at], [c[at] for c in keys.columns])
            # Where keys are not in order, some were processed before: see `enter`.
            falls = compress(range(1, len(prefixes)), map(ge, prefixes, islice(prefixes, 1, None)))
            for start, end in pairwise((0, *falls, len(prefixes))):
                if prefixes[start] <= scope.prefix:
                    scope.spill()
                while start < end:
                    some = keys.part(start, min(start + self._at_once, end))
                    start += len(some.prefixes)
                    before = scope.batch.size_bytes
                    yield some
                    scope.prefix, scope.key = some.prefixes[-1], some.keys[-1]
                    self._resize(scope.batch.size_bytes - before, TOGETHER_MAX)
                    if scope.batch.full:
                        scope.spill()

    def apart(self, keys: KeyColumns) -> Iterator[KeyColumns]:
        """Each of the keys by itself, once the key scope is at it."""
        scope = self._scope
        for at, (scope.prefix, scope.key) in enumerate(zip(keys.prefixes, keys.keys, strict=True)):
            yield keys.part(at, at + 1)

    def _begun(self, chunk: KeyedBatch) -> KeyRuns:
        """The runs of a chunk whose keys are to be entered."""
        runs = KeyRuns.of(chunk, self._codec, after=self._token)
        self._prefixes = [*self._prefixes[-KEYS_MAX:], *runs.prefixes]
        return runs

    def _ended(self, chunk: KeyedBatch, runs: KeyRuns) -> None:
        """Take note of the last key of a chunk, unless there is one that cannot be a key."""
        entered = len(runs.prefixes)
        if entered < len(runs.keys):
            at = runs.continued + sum(runs.sizes[:entered])
            self.is_between = True
            self.prefix(chunk.groups[at], chunk.keys[at], chunk.records[at])
        if chunk.tokens:
            self._token = chunk.tokens[-1]

    def enter(self, prefix: bytes, key: Any) -> None:
        """Leave the current key and go to another."""
        scope = self._scope
        self._left -= 1
        if self._left < 0 or scope.touched:
            self._leave()
        # Keys come in order. A key out of order was processed before: its rows may be in the batch,
        # or on their way there, where reads do not look.
        if prefix <= scope.prefix:
            self._hand_on()
            scope.spill()
        scope.prefix = prefix
        scope.key = key

    def settle(self) -> None:
        """Leave the key and apply everything, so that reads may start over from any key."""
        self._hand_on()
        self._scope.spill()
        self._scope.prefix = b""
        self._token = _NOTHING

    def finish(self) -> None:
        """Leave the last key."""
        self._scope.leave()
        self._token = _NOTHING

    def prefix(self, group: int, key: Any, record: Any) -> bytes:
        """The start of every row of a key.

        Raises:
            ProcessError: it cannot be a key.
        """
        try:
            return pack_group(group) + self._codec.encode(key)
        except StateTypeError as error:
            fields = ", ".join(self._fields)
            raise ProcessError(
                f"operator {self._scope.operator!r}: key ({fields}) = {key!r} of record "
                f"{shown(record)} cannot be a key: {error}"
            ) from error

    def _leave(self) -> None:
        """Leave the current key, and let changes be handed on if it is time."""
        if self._left < 0:
            self._hand_on()
            return
        scope = self._scope
        self.is_between = True  # an error is about the key that is left
        scope.leave_key()
        self.is_between = False
        if scope.batch.full:
            scope.spill()

    def _hand_on(self) -> None:
        """Leave the current key and let all changes be handed on."""
        scope, batch = self._scope, self._scope.batch
        before = batch.size_bytes
        self.is_between = True
        scope.leave()
        self.is_between = False
        self._resize(batch.size_bytes - before, KEYS_MAX)
        self._left = self._at_once
        if batch.full:
            scope.spill()

    def _resize(self, size: int, most: int) -> None:
        """Take more keys at once, or fewer: large rows are not to wait in numbers.

        Parameters:
            size: of what those keys handed on.
            most: as many keys at once.
        """
        at_once = self._at_once
        self._at_once = max(1, at_once // 4) if size > _BYTES_MAX else min(2 * at_once, most)

    def _coming(self, key: bytes) -> Sequence[bytes]:
        """The prefixes of the keys that are processed next, where the chunk says so."""
        prefixes = self._prefixes
        at = bisect_right(prefixes, key)
        return prefixes[at : at + _COMING_MAX]


def shown(record: object) -> str:
    """A record for a message, cut short."""
    text = repr(record)
    return text if len(text) <= 500 else f"{text[:500]}…"
