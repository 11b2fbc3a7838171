"""Counts and checksums of mutations, per state and key group.

The checksum of a set of mutations is the sum of their hashes, modulo 2^64. It does not depend on
their order, and the checksum of two sets together is the sum of both.
"""

from __future__ import annotations

from collections import defaultdict
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.backend.change_file import read_keys
from statekit.errors import CorruptCheckpointError

_Counts = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

# Odd numbers, as xxHash has them. What a word is multiplied by depends on its place.
_PRIME = np.uint64(0x9E3779B185EBCA87)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)

CHECKSUMS = 1 << 64
"""The modulus of checksum additions."""


class MutationSum(NamedTuple):
    """A number of mutations, and their checksum."""

    mutations: int
    checksum: int


class MutationSums:
    """Counts and checksums per state and key group.

    Parameters:
        groups: the number of key groups.

    >>> from statekit.backend.change_file import Changes
    >>> from statekit.backend.mutation import PUT, Batch
    >>> changes = Changes(["visits"])
    >>> changes.append(Batch(("visits", PUT, bytes([0, group]), b"") for group in (3, 3, 7)))
    >>> file, _ = changes.finish()
    >>> start = file.seek(0)
    >>> sums = MutationSums.of_file(file, "example", 8)
    >>> sums.of("visits", 0, 3).mutations, sums.of("visits", 4, 7).mutations
    (2, 1)
    >>> changes.drop()
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self._counts = defaultdict[str, _Counts](lambda: np.zeros(groups, np.int64))
        self._checksums = defaultdict[str, _Words](lambda: np.zeros(groups, np.uint64))

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
        """The names of all states with mutations."""
        return sorted(self._counts)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the mutations of a batch of `mutation.read_keys`.

        Raises:
            ValueError: a row key belongs to no key group.
        """
        if not batch.num_rows:
            return
        states, ops, keys = batch.columns
        starts, data = _row_keys(keys)
        high, low = data[starts[:-1]], data[starts[:-1] + 1]
        groups = (high.astype(np.int64) << 8) | low
        if (strange := int(groups.max())) >= self.groups:
            raise ValueError(f"key group {strange} is not one of {self.groups}")
        hashes = _hashes(starts, data)
        hashes += ops.to_numpy() * _SECOND
        codes, names = states.indices.to_numpy(), states.dictionary.to_pylist()
        for code, name in enumerate(names):
            own = codes == code
            if own.all():
                self._add(name, groups, hashes)
            elif own.any():
                self._add(name, groups[own], hashes[own])

    def _add(self, state: str, groups: _Counts, hashes: _Words) -> None:
        # Rows are mostly in the order of key groups, so there are few runs.
        starts = np.concatenate(([0], np.flatnonzero(np.diff(groups)) + 1))
        np.add.at(self._counts[state], groups[starts], np.diff(starts, append=len(groups)))
        np.add.at(self._checksums[state], groups[starts], np.add.reduceat(hashes, starts))

    def update(self, other: MutationSums) -> None:
        """Add the sums of other files."""
        for state, counts in other._counts.items():
            self._counts[state] += counts
            self._checksums[state] += other._checksums[state]

    def of(self, state: str, first: int, last: int) -> MutationSum:
        """Return the sum of the key groups `first..last` of a state."""
        if state not in self._counts:
            return MutationSum(0, 0)
        span = slice(first, last + 1)
        checksum = int(self._checksums[state][span].sum(dtype=np.uint64))
        return MutationSum(int(self._counts[state][span].sum()), checksum)


def _row_keys(keys: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the start of each row key and the end of the last one, and the bytes of all row keys.

    Raises:
        ValueError: one is too short to be a row key.
    """
    _, offsets, content = keys.buffers()
    starts = np.frombuffer(offsets, np.int32, len(keys) + 1, 4 * keys.offset)
    if np.diff(starts).min() < 2:
        raise ValueError("a row key is shorter than its key group")
    return starts, np.frombuffer(content, np.uint8)


def _hashes(starts: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> _Words:
    """Return a hash of each key, computed from its length, and from its words with their
    positions.
    """
    lengths, first = np.diff(starts), starts[:-1]
    if lengths.min() == lengths.max():
        return _hashed(data[starts[0] : starts[-1]].reshape(-1, lengths[0]))
    hashes = np.empty(len(lengths), np.uint64)
    for length in np.unique(lengths):
        own = np.flatnonzero(lengths == length)
        hashes[own] = _hashed(data[first[own][:, None] + np.arange(length)])
    return hashes


def _hashed(rows: npt.NDArray[np.uint8]) -> _Words:
    """Return a hash of each row of a byte matrix."""
    count, length = rows.shape
    if length < 8:
        padded = np.zeros((count, 8), np.uint8)
        padded[:, :length] = rows
        rows = padded
    last = rows.shape[1] - 8
    hashes = np.full(count, length, np.uint64)
    for place in (*range(0, last, 8), last):  # the last word may overlap the one before it
        hashes ^= np.ndarray((count,), np.uint64, rows, place, (rows.shape[1],))
        hashes *= _PRIME
        hashes ^= hashes >> _HALF
    hashes *= _SECOND
    return hashes
