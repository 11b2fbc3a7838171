"""`RocksOptions`: the memory and disk that working copies may use in a worker process."""

from __future__ import annotations

from dataclasses import dataclass, fields

from statekit.errors import StateTypeError

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
    """What a worker process may spend on RocksDB, and working copies on the disk of its host.

    A process holds about `block_cache_bytes + write_memory_bytes`, however many shards and states
    it has. On Spark there is a process per core.

    Parameters:
        block_cache_bytes: memory for blocks of data, indexes and filters, one for all shards of a
            process. More makes reads of rows that were read before cheaper.
        write_buffer_bytes: memory per state and shard for rows that were written in an epoch; a
            full buffer goes to the disk within the epoch. More makes fewer, larger files.
        write_memory_bytes: memory for the write buffers of all states and shards of a process
            together. When it is used up, buffers go to the disk before they are full; where the
            disk is so slow that those on their way take half as much again, writers wait for it.
        open_files: files that a shard keeps open at a time. More saves opening them again.
        bloom_bits: per key; makes reads of absent rows cheap, and takes so many bits of the block
            cache for each row. 0 turns the filters off.
        disk_limit_bytes: how much all working copies below a working directory may take. When they
            take more, those that nobody uses are removed, the least recently used first. To make a
            copy anew costs a restore, so give it room for all shards of a host. None: no limit.
        disk_reserve_bytes: how much of the disk is to be left free; when less is, copies that
            nobody used for ten minutes are removed likewise.

    Raises:
        StateTypeError: a value is no whole number, or out of bounds.

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
            if type(value) is not int or not least <= value <= most:
                raise StateTypeError(
                    f"RocksOptions({option.name}={value!r}): give a whole number from {least} to "
                    f"{most}"
                )


def check_options(rocksdb: object, keep_copies: object) -> None:
    """Refuse what a start is given in place of options.

    Raises:
        StateTypeError: it is of another type.
    """
    if rocksdb is not None and not isinstance(rocksdb, RocksOptions):
        raise StateTypeError(f"rocksdb={rocksdb!r}: give statekit.RocksOptions(...)")
    if keep_copies is not None and not isinstance(keep_copies, bool):
        raise StateTypeError(f"keep_copies={keep_copies!r}: give True, False or None")
