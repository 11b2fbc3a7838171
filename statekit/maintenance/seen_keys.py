"""Seen keys: which of many row keys occurred before, in memory that hardly grows with their number.

A hash of 128 bits stands for each row key. A Bloom filter has all of them, with 16 to 32 bits for
each: only the row keys that it has are looked up. The last hashes are in memory, in sorted runs. As
soon as they are many, they become one run in a file on the local disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.backend.scratch import scratch_directory, written_there
from statekit.query.encoded.binary_columns import Hashes, hashes

_KEYS_IN_MEMORY = 1 << 20
_KEYS_OF_SHORT_RUN = 1 << 15
_BITS_PER_KEY = 16
_BIT_SHIFTS = (40, 46, 52, 58)
"""Where the numbers of the bits are in the second hash."""

Flags = npt.NDArray[np.bool_]


class SeenKeys:
    """Hashes of all row keys so far.

    A new run in memory is merged with short ones that are not longer, so a key is merged a few
    times only, and looked up in a few runs.

    >>> seen = SeenKeys()
    >>> seen.repeated(pa.array([b"a", b"b", b"a"])).tolist()
    [False, False, True]
    >>> seen.repeated(pa.array([b"c", b"b"])).tolist()
    [False, True]
    >>> seen.close()
    """

    def __init__(self) -> None:
        self._in_memory: list[_Run] = []
        self._files: list[Path] = []
        self._filter = _Filter(2 * _KEYS_IN_MEMORY)
        self._place: Path | None = None
        self._closing = contextlib.ExitStack()

    def close(self) -> None:
        """Remove the files."""
        self._closing.close()

    def repeated(self, row_keys: pa.Array) -> Flags:
        """Return for each row key whether it occurred before, also among these, and note it.

        Raises:
            StorageError: the local disk is full or failed.
        """
        new = _Run(hashes(row_keys), hashes(row_keys, second=True))
        order = np.argsort(new.first, kind="stable")
        new = new.where(order)
        repeats = np.zeros(len(order), np.bool_)
        repeats[1:] = (new.first[1:] == new.first[:-1]) & (new.second[1:] == new.second[:-1])
        found = np.flatnonzero(self._filter.has(new) & ~repeats)
        looked_up = new.where(found)
        for run in self._runs() if len(found) else ():
            repeats[found] |= run.has(looked_up)
        self._add(new.where(~repeats))
        result = np.empty(len(order), np.bool_)
        result[order] = repeats
        return result

    def _add(self, new: _Run) -> None:
        if not len(new.first):
            return
        self._filter.add(new)
        runs = self._in_memory
        while runs and len(runs[-1].first) <= min(len(new.first), _KEYS_OF_SHORT_RUN):
            new = _Run.merged([runs.pop(), new])
        runs.append(new)
        if sum(len(run.first) for run in runs) >= _KEYS_IN_MEMORY:
            self._store()

    def _store(self) -> None:
        """Write all runs in memory to one file."""
        if self._place is None:
            self._place = self._closing.enter_context(scratch_directory("keys"))
        path = self._place / str(len(self._files))
        run = _Run.merged(self._in_memory)
        self._in_memory.clear()
        with written_there():
            np.concatenate(run).tofile(path)
        self._files.append(path)
        if self._filter.is_full:
            self._filter = _Filter(2 * self._filter.capacity)
            for stored in self._runs():
                self._filter.add(stored)

    def _runs(self) -> Iterator[_Run]:
        """Yield all runs. Those of files are mapped one after the other: each page that was read
        counts as memory of this process until then.
        """
        yield from self._in_memory
        for path in self._files:
            with written_there():
                yield _Run(*np.memmap(path, np.uint64, "r").reshape(2, -1))


class _Run(NamedTuple):
    """Hashes of row keys, sorted by the first ones.

    Parameters:
        first, second: of each row key.
    """

    first: Hashes
    second: Hashes

    def where(self, chosen: npt.NDArray[np.intp] | Flags) -> _Run:
        """Return some hashes, by their places or by flags."""
        return _Run(self.first[chosen], self.second[chosen])

    @classmethod
    def merged(cls, runs: Sequence[_Run]) -> _Run:
        """Return the hashes of several runs."""
        first, second = (np.concatenate(part) for part in zip(*runs, strict=True))
        return cls(first, second).where(np.argsort(first, kind="stable"))

    def has(self, wanted: _Run) -> Flags:
        """Return which hashes are in this run, which is not empty."""
        at = np.minimum(np.searchsorted(self.first, wanted.first), len(self.first) - 1)
        found: Flags = (self.first[at] == wanted.first) & (self.second[at] == wanted.second)
        return found


class _Filter:
    """A Bloom filter with four bits in one word for each row key.

    Parameters:
        capacity: of how many row keys.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._count = 0
        bits = (capacity * _BITS_PER_KEY // 64 - 1).bit_length()
        # The first bits of a hash depend on all bytes of its key, the last ones do not.
        self._shift = np.uint64(64 - bits)
        self._words = np.zeros(1 << bits, np.uint64)  # takes no memory until it is written to

    @property
    def is_full(self) -> bool:
        return self._count > self.capacity

    def add(self, run: _Run) -> None:
        self._count += len(run.first)
        np.bitwise_or.at(self._words, *self._places(run))

    def has(self, run: _Run) -> Flags:
        """Return which row keys may have been added."""
        words, bits = self._places(run)
        found: Flags = (self._words[words] & bits) == bits
        return found

    def _places(self, run: _Run) -> tuple[npt.NDArray[np.intp], Hashes]:
        """Return the number of the word of each row key, and its bits."""
        words = (run.first >> self._shift).astype(np.intp)
        bits = np.zeros(len(words), np.uint64)
        for shift in _BIT_SHIFTS:
            bits |= np.uint64(1) << ((run.second >> np.uint64(shift)) & np.uint64(63))
        return words, bits
