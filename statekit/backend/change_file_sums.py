"""Count and checksum mutations per state and key group.

The checksum of a set of mutations is the sum of their hashes, modulo 2^64. It does not depend on
their order, and the checksum of two sets together is the sum of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.backend.mutation import read_keys
from statekit.errors import CorruptCheckpointError

_Words = npt.NDArray[np.uint64]

# Odd numbers, as xxHash has them. What a word is multiplied by depends on its place.
_PRIME = np.uint64(0x9E3779B185EBCA87)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)

CHECKSUMS = 1 << 64
"""Checksums are added modulo this number."""


class MutationSum(NamedTuple):
    """A number of mutations, and their checksum."""

    mutations: int
    checksum: int


class MutationSums:
    """Counts and checksums per state and key group.

    Parameters:
        groups: the number of key groups.

    >>> import io
    >>> from statekit.backend.mutation import Batch, ChangeFileWriter, Put
    >>> file = io.BytesIO()
    >>> writer = ChangeFileWriter(file, ["visits"])
    >>> writer.append(Batch([Put("visits", bytes([0, group]), b"") for group in (3, 3, 7)]))
    >>> writer.close()
    >>> sums = MutationSums.of_file(file, "example", 8)
    >>> sums.of("visits", 0, 3).mutations, sums.of("visits", 4, 7).mutations
    (2, 1)
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self._counts: dict[str, npt.NDArray[np.int64]] = {}
        self._checksums: dict[str, _Words] = {}

    @classmethod
    def of_file(cls, file: IO[bytes], where: str, groups: int) -> MutationSums:
        """Return the sums of a change file.

        Parameters:
            file: open at its start.
            where: its path, for errors.
            groups: the number of key groups.

        Raises:
            CorruptCheckpointError: it is not a change file, or one of another checkpoint.
        """
        sums = cls(groups)
        for batch in read_keys(file, where):
            try:
                sums.add(batch)
            except ValueError as error:
                raise CorruptCheckpointError(
                    f"{where} is not of this checkpoint: {error}. Restore it from a backup"
                ) from error
        return sums

    @property
    def states(self) -> list[str]:
        """The names of all states that have mutations."""
        return sorted(self._counts)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the mutations of a batch of `mutation.read_keys`.

        Raises:
            ValueError: a row key belongs to no key group.
        """
        if not batch.num_rows:
            return
        states, ops, keys = batch.columns
        rows = _Rows.of(keys)
        groups = rows.groups()
        if (strange := int(groups.max())) >= self.groups:
            raise ValueError(f"key group {strange} is not one of {self.groups}")
        hashes = rows.hashes()
        hashes += ops.to_numpy() * _SECOND
        codes, names = states.indices.to_numpy(), states.dictionary.to_pylist()
        for code, name in enumerate(names):
            own = codes == code
            if own.all():
                self._add(name, groups, hashes)
            elif own.any():
                self._add(name, groups[own], hashes[own])

    def _add(self, state: str, groups: npt.NDArray[np.int64], hashes: _Words) -> None:
        # Rows mostly come in the order of key groups, so there are few runs of the same.
        starts = np.concatenate(([0], np.flatnonzero(np.diff(groups)) + 1))
        counts = np.zeros(self.groups, np.int64)
        checksums = np.zeros(self.groups, np.uint64)
        np.add.at(counts, groups[starts], np.diff(starts, append=len(groups)))
        np.add.at(checksums, groups[starts], np.add.reduceat(hashes, starts))
        self._grow(state, counts, checksums)

    def _grow(self, state: str, counts: npt.NDArray[np.int64], checksums: _Words) -> None:
        if state not in self._counts:
            self._counts[state] = np.zeros(self.groups, np.int64)
            self._checksums[state] = np.zeros(self.groups, np.uint64)
        self._counts[state] += counts
        self._checksums[state] += checksums

    def update(self, other: MutationSums) -> None:
        """Add the sums of other files."""
        for state, counts in other._counts.items():
            self._grow(state, counts, other._checksums[state])

    def of(self, state: str, first: int, last: int) -> MutationSum:
        """Return the sum of the key groups `first..last` of a state."""
        if state not in self._counts:
            return MutationSum(0, 0)
        span = slice(first, last + 1)
        checksum = int(self._checksums[state][span].sum(dtype=np.uint64))
        return MutationSum(int(self._counts[state][span].sum()), checksum)


@dataclass(frozen=True)
class _Rows:
    """Row keys in Arrow's layout.

    Parameters:
        starts: the start of each key, and the end of the last one.
        data: the bytes of all keys.
        length: the length of each key if all are equally long; else None.
    """

    starts: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    length: int | None

    @classmethod
    def of(cls, keys: Any) -> _Rows:
        """Return the keys of a batch.

        Raises:
            ValueError: one is too short to be a row key.
        """
        _, offsets, content = keys.buffers()
        starts = np.frombuffer(offsets, np.int32, len(keys) + 1, 4 * keys.offset)
        lengths = np.diff(starts)
        if (shortest := int(lengths.min())) < 2:
            raise ValueError("a row key is shorter than its key group")
        alike = shortest == lengths.max()
        return cls(starts, np.frombuffer(content, np.uint8), shortest if alike else None)

    def groups(self) -> npt.NDArray[np.int64]:
        """Return the key group of each key."""
        first = self.starts[:-1]
        if self.length is not None:
            rows = self._matrix(self.length)
            high, low = rows[:, 0], rows[:, 1]
        else:
            high, low = self.data[first], self.data[first + 1]
        return (high.astype(np.int64) << 8) | low

    def hashes(self) -> _Words:
        """Return a hash of each key: of its length, and of its words with their positions."""
        if self.length is not None:
            return _hashed(self._matrix(self.length))
        lengths, first = np.diff(self.starts), self.starts[:-1]
        found = np.empty(len(lengths), np.uint64)
        for length in np.unique(lengths):
            own = np.flatnonzero(lengths == length)
            found[own] = _hashed(self.data[first[own][:, None] + np.arange(length)])
        return found

    def _matrix(self, length: int) -> npt.NDArray[np.uint8]:
        """Return the keys of one length as a matrix of bytes."""
        return self.data[self.starts[0] : self.starts[-1]].reshape(-1, length)


def _hashed(rows: npt.NDArray[np.uint8]) -> _Words:
    """Return a hash of each row of bytes."""
    count, length = rows.shape
    if length < 8:
        padded = np.zeros((count, 8), np.uint8)
        padded[:, :length] = rows
        rows = padded
    last = rows.shape[1] - 8
    found = np.full(count, length, np.uint64)
    for place in (*range(0, last, 8), last):  # the last word may overlap the one before it
        found ^= np.ndarray((count,), np.uint64, rows, place, (rows.shape[1],))
        found *= _PRIME
        found ^= found >> _HALF
    found *= _SECOND
    return found
