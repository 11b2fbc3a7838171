"""Seen keys: which of many row keys occurred before, with 16 bytes of memory for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

_Hashes = npt.NDArray[np.uint64]


class SeenKeys:
    """Hashes of 128 bits of all row keys so far, in sorted runs.

    A new run is merged with those that are not longer, so a key is merged a few times only, and
    looked up in a few runs.

    >>> seen = SeenKeys()
    >>> seen.repeated([b"a", b"b", b"a"]).tolist(), seen.repeated([b"c", b"b"]).tolist()
    ([False, False, True], [False, True])
    """

    def __init__(self) -> None:
        self._runs: list[tuple[_Hashes, _Hashes]] = []

    def repeated(self, row_keys: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return for each row key whether it occurred before, also among these, and note it."""
        digests = b"".join(map(xxhash.xxh3_128_digest, row_keys))
        first, second = np.frombuffer(digests, np.uint64).reshape(-1, 2).T
        order = np.argsort(first, kind="stable")
        first, second = first[order], second[order]
        repeats = np.zeros(len(order), np.bool_)
        repeats[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        for run_first, run_second in self._runs:
            at = np.minimum(np.searchsorted(run_first, first), len(run_first) - 1)
            repeats |= (run_first[at] == first) & (run_second[at] == second)
        self._add(first[~repeats], second[~repeats])
        found = np.empty(len(order), np.bool_)
        found[order] = repeats
        return found

    def _add(self, first: _Hashes, second: _Hashes) -> None:
        while self._runs and len(self._runs[-1][0]) <= len(first):
            run_first, run_second = self._runs.pop()
            first, second = np.concatenate((run_first, first)), np.concatenate((run_second, second))
            order = np.argsort(first, kind="stable")
            first, second = first[order], second[order]
        if len(first):
            self._runs.append((first, second))
