"""`RocksOptions`: the memory and disk limits of working copies in a worker process."""

from __future__ import annotations

from dataclasses import dataclass, fields

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault
from statekit.shown import shown

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_MOST_BYTES = 1 << 50

# The least and the most of each option.
_BOUNDS = {
    "block_cache_bytes": (64 * _KIB, _MOST_BYTES),
    "write_buffer_bytes": (64 * _KIB, 64 * _GIB),
    "write_memory_bytes": (_MIB, _MOST_BYTES),
    "open_files": (16, 1 << 20),
    "bloom_bits": (0, 64),
    "disk_limit_bytes": (_MIB, _MOST_BYTES),
    "disk_reserve_bytes": (0, _MOST_BYTES),
}


@dataclass(frozen=True)
class RocksOptions:
    """Limits of RocksDB in a worker process, and of working copies on the disk of a host.

    A process needs about `block_cache_bytes + write_memory_bytes`, for any number of shards and
    states. On Spark there is a process per core.

    Parameters:
        block_cache_bytes: memory for blocks, indexes and filters, for all shards of a process. More
            makes repeated reads cheaper.
        write_buffer_bytes: memory per state and shard for rows that were written in an epoch; a
            full buffer is flushed to the disk within the epoch. More gives fewer, larger files.
        write_memory_bytes: memory for the write buffers of all states and shards of a process. At
            the limit, buffers are flushed before they are full; at 1.5 times the limit, writers
            wait for the disk.
        open_files: files that a shard keeps open at a time. More avoids opening files again.
        bloom_bits: filter bits per key, in the block cache; makes reads of absent rows cheap. 0
            turns the filters off.
        disk_limit_bytes: the disk space of all working copies below a working directory. Above it,
            the least recently used copies that are not in use are removed. A removed copy costs a
            restore, so allow space for all shards of a host. None: no limit.
        disk_reserve_bytes: disk space to keep free. Below it, copies that were not used for ten
            minutes are removed likewise.

    Raises:
        StateTypeError: a value is not a whole number, or out of bounds.

    >>> RocksOptions(block_cache_bytes=256 * 1024 * 1024).bloom_bits
    10
    """

    block_cache_bytes: int = 64 * _MIB
    write_buffer_bytes: int = 32 * _MIB
    write_memory_bytes: int = 128 * _MIB
    open_files: int = 512
    bloom_bits: int = 10
    disk_limit_bytes: int | None = None
    disk_reserve_bytes: int = 256 * _MIB

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is None and option.default is None:
                continue
            least, most = _BOUNDS[option.name]
            use = f"give a whole number from {least} to {most}"
            if fault := int_fault(value, use, least=least, most=most):
                raise StateTypeError(f"RocksOptions({option.name}={shown(value)}){fault}")


def check_options(rocksdb: object, keep_copies: object) -> None:
    """Check the types of the options of a start.

    Raises:
        StateTypeError: an option is of another type.
    """
    if rocksdb is not None and not isinstance(rocksdb, RocksOptions):
        raise StateTypeError(f"rocksdb={rocksdb!r}: give statekit.RocksOptions(...)")
    if keep_copies is not None and not isinstance(keep_copies, bool):
        raise StateTypeError(f"keep_copies={keep_copies!r}: give True, False or None")
