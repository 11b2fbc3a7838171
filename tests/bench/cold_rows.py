"""The rows of an epoch over many keys, read without the rest of the epoch.

They are read twice. RocksDB reads them alone: from one table with all rows, through a cache of the
usual size, as many together as a shard reads. And the blocks that contain them are only read from
a file and decompressed, without RocksDB.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from statekit.backend.rocksdb import RocksBackend, link_database

# As the shard: the row of a key, and those of the keys that follow.
_TOGETHER = 65

# The size of RocksDB's blocks, and how it compresses them.
_BLOCK_BYTES = 4096
_LZ4 = pa.Codec("lz4_raw")

Rows = Iterator[tuple[bytes, bytes]]


class ColdRows:
    """All rows of a state in one table, and in a file of blocks.

    Parameters:
        database: a closed database, which is not changed.
        state: the state in it.
        directory: an empty directory.
    """

    def __init__(self, database: Path, state: str, directory: Path) -> None:
        self._path, self._state = directory / "db", state
        link_database(database, self._path)
        backend = self._opened()
        backend.compact()
        self._firsts, self._places = _write_blocks(
            backend.scan(state, b"", b"\xff"), directory / "blocks"
        )
        backend.close()
        self._blocks = os.open(directory / "blocks", os.O_RDONLY)

    def _opened(self) -> RocksBackend:
        return RocksBackend(self._path, [self._state], create=False)

    def read(self, keys: Sequence[bytes]) -> tuple[float, float]:
        """Read the rows of sorted keys; return the CPU seconds in RocksDB, and of the blocks.

        Opening and closing the database does not count.
        """
        backend = self._opened()
        in_rocksdb = _cpu_s(lambda: self._read_rows(backend, keys))
        backend.close()
        return in_rocksdb, _cpu_s(lambda: self._read_blocks(keys))

    def _read_rows(self, backend: RocksBackend, keys: Sequence[bytes]) -> None:
        for start in range(0, len(keys), _TOGETHER):
            rows = backend.get_many(self._state, keys[start : start + _TOGETHER])
            assert None not in rows

    def _read_blocks(self, keys: Sequence[bytes]) -> None:
        last = -1
        for key in keys:
            block = bisect_right(self._firsts, key) - 1
            if block != last:
                place, stored, size = self._places[block]
                _LZ4.decompress(os.pread(self._blocks, stored, place), size, asbytes=True)
                last = block


def _write_blocks(rows: Rows, path: Path) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Write rows as compressed blocks.

    Returns:
        The first key of each block; and its place, its size, and that of its rows.
    """
    firsts: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    block = bytearray()
    first = next(rows, (b"", b""))
    with path.open("wb") as file:

        def write() -> None:
            compressed = _LZ4.compress(bytes(block), asbytes=True)
            places.append((file.tell(), len(compressed), len(block)))
            file.write(compressed)
            block.clear()

        firsts.append(first[0])
        block += first[0] + first[1]
        for key, row in rows:
            if len(block) >= _BLOCK_BYTES:
                write()
                firsts.append(key)
            block += key + row
        write()
    return firsts, places


def _cpu_s(work: Callable[[], None]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
