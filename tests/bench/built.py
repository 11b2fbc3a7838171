"""State of millions of rows in seconds: made without running the job.

Keys, key groups and rows are computed as columns, and written as what an epoch leaves behind,
change files and working copies. Ten million rows take half a minute that way.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import statekit as sk
from statekit.backend.change_file import Changes
from statekit.backend.mutation import BATCH_ROWS_MAX, PUT, Batch
from statekit.backend.rocksdb import RocksBackend, link_database
from statekit.checkpoint.manifest import ShardReport, ShardState
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.clock import unique_id
from statekit.codec.key_codec import key_codec
from statekit.codec.value_codec import value_codec
from statekit.job.options import RunOptions
from statekit.keygroup import group_range, key_group
from statekit.runtime.coordinator import Coordinator
from statekit.working_copy.directory import DirectoryLease, Mark

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "10_000_000"))
GROUPS = 128
ROW_BYTES = 80
STATE = "last"

_WORDS, _WORD_BYTES = 1000, 8

Columns = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
"""Row keys and rows of a shard, in order: a row of bytes each."""


@dataclass
class Seen:
    key: int
    payload: bytes


@sk.process(key="key")
def keep(record: Seen, last: sk.ValueState[bytes]) -> None:
    last.update(record.payload)


def job() -> sk.Job:
    made = sk.Job("keep", key_groups=GROUPS)
    made.source("seen", Seen).process(keep)
    return made


def _rotated(words: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def groups_of(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The key groups of int keys: XXH64 of their eight bytes, as columns."""
    primes = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
    first, second, third, fourth = map(np.uint64, primes)
    found = _rotated(keys.view(np.uint64) * second, 31) * first
    found ^= np.uint64(42 + 0x27D4EB2F165667C5 + 8)
    found = _rotated(found, 27) * first + fourth
    found = (found ^ (found >> np.uint64(33))) * second
    found = (found ^ (found >> np.uint64(29))) * third
    return (found ^ (found >> np.uint64(32))).view(np.int64) % GROUPS


def payloads(count: int, seed: int, *, text: bool) -> npt.NDArray[np.uint8]:
    """What rows hold: random bytes, which nothing makes smaller, or words of some language."""
    draw = np.random.default_rng(seed)
    if not text:
        return draw.integers(0, 256, (count, ROW_BYTES), dtype=np.uint8)
    words = np.random.default_rng(0).integers(97, 123, (_WORDS, _WORD_BYTES), dtype=np.uint8)
    words[:, -1] = ord(" ")
    chosen = draw.integers(0, _WORDS, (count, ROW_BYTES // _WORD_BYTES), dtype=np.uint16)
    return words[chosen].reshape(count, ROW_BYTES)


def _columns(rows: int, groups: tuple[int, int], *, text: bool) -> Columns:
    """The rows of the keys 0, 1, … that fall into these key groups."""
    keys = np.arange(rows, dtype=np.int64)
    group = groups_of(keys)
    own = (group >= groups[0]) & (group <= groups[1])
    keys, group = keys[own], group[own]
    order = np.lexsort((keys, group))
    keys, group = keys[order], group[order]
    row_keys = np.empty((len(keys), 10), np.uint8)
    row_keys[:, :2] = group.astype(">u2").view(np.uint8).reshape(-1, 2)
    flipped = keys.view(np.uint64) ^ np.uint64(1 << 63)
    row_keys[:, 2:] = flipped.astype(">u8").view(np.uint8).reshape(-1, 8)
    head = value_codec(bytes).encode(bytes(ROW_BYTES))[:-ROW_BYTES]
    values = np.empty((len(keys), len(head) + ROW_BYTES), np.uint8)
    values[:, : len(head)] = np.frombuffer(head, np.uint8)
    values[:, len(head) :] = payloads(len(keys), groups[0], text=text)
    assert row_keys[0, 2:].tobytes() == key_codec(int).encode(int(keys[0]))
    assert key_group(int(keys[0]), GROUPS) == group[0]
    return row_keys, values


def _binary(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, length = rows.shape
    offsets = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _pieces(
    keys: npt.NDArray[np.uint8], values: npt.NDArray[np.uint8], size: int
) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Row keys with their rows, so many at a time."""
    for start in range(0, len(keys), size):
        span = slice(start, start + size)
        yield zip(_binary(keys[span]).to_pylist(), _binary(values[span]).to_pylist(), strict=True)


def _build_shard(
    home: Path, checkpoint_id: str, rows: int, groups: tuple[int, int], text: bool
) -> str:
    """The change file and the working copy of one shard; its report as JSON."""
    keys, values = _columns(rows, groups, text=text)
    size = keys.size + values.size
    repository, attempt = Repository(home / "checkpoint"), unique_id()
    changes = Changes([STATE])
    for rows_of in _pieces(keys, values, BATCH_ROWS_MAX):
        changes.append(Batch((STATE, PUT, key, row) for key, row in rows_of))
    finished = changes.finish()
    assert finished is not None
    ref = repository.put_changes("keep", *finished)
    changes.drop()
    lease = DirectoryLease.take(home / "local" / checkpoint_id / "keep" / "{}-{}".format(*groups))
    backend = RocksBackend(lease.home / "db", [STATE])
    for rows_of in _pieces(keys, values, 1_000_000):
        backend.load(STATE, rows_of)
    backend.close()
    lease.set_mark(Mark(attempt=attempt, last=ref.path, states=(STATE,)))
    lease.release()
    shard = ShardState(
        first_group=groups[0],
        last_group=groups[1],
        attempt=attempt,
        changed=0,
        files=(ref,),
        is_complete=True,
        chain=ReplayCost().followed_by(ref, size),
        rows={STATE: len(keys)},
        bytes={STATE: size},
    )
    return ShardReport(operator="keep", shard=shard).model_dump_json()


def build(home: Path, rows: int, shards: int, *, text: bool = False) -> None:
    """A checkpoint of one epoch with its working copies."""
    coordinator = Coordinator.open(
        job().plan, Repository(home / "checkpoint"), RunOptions(parallelism=shards)
    )
    coordinator.begin()
    reports = []
    for shard in range(shards):
        groups = group_range(shard, shards, GROUPS)
        arguments = (home, coordinator.job_file.id, rows, groups, text)
        reports.append(ShardReport.model_validate_json(apart(_build_shard, *arguments)[0]))
    coordinator.commit(reports)


def cloned(home: Path, target: Path) -> Path:
    """The same again, sharing all files that never change."""
    shutil.copytree(home / "checkpoint", target / "checkpoint", copy_function=os.link)
    for clean in (home / "local").glob("*/*/*/clean"):
        copy = target / clean.parent.relative_to(home)
        link_database(clean.parent / "db", copy / "db")
        shutil.copyfile(clean, copy / "clean")
        (copy / "lock").touch()
    return target


def apart(function: Callable[..., Any], *arguments: object) -> tuple[Any, int]:
    """Run a function in a process of its own: its result, and the most memory it took, in KB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        result = process.submit(function, *arguments).result()
        return result, process.submit(_peak_kb).result()


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
