"""Seen keys: which of many row keys occurred before, with 16 bytes of memory for each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statekit.query.encoded.binary_columns import Hashes, hashes


class SeenKeys:
    """Hashes of 128 bits of all row keys so far, in sorted runs.

    A new run is merged with those that are not longer, so a key is merged a few times only, and
    looked up in a few runs.

    >>> seen = SeenKeys()
    >>> seen.repeated(pa.array([b"a", b"b", b"a"])).tolist()
    [False, False, True]
    >>> seen.repeated(pa.array([b"c", b"b"])).tolist()
    [False, True]
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, Hashes]] = []

    def repeated(self, row_keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Return for each row key whether it occurred before, also among these, and note it."""
        first, second = hashes(row_keys), hashes(row_keys, second=True)
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

    def _add(self, first: Hashes, second: Hashes) -> None:
        while self._runs and len(self._runs[-1][0]) <= len(first):
            run_first, run_second = self._runs.pop()
            first, second = np.concatenate((run_first, first)), np.concatenate((run_second, second))
            order = np.argsort(first, kind="stable")
            first, second = first[order], second[order]
        if len(first):
            self._runs.append((first, second))
