"""What a change of parallelism costs: at restart and offline, against `cp` of the same files.

The state is made without running the job: keys, key groups and rows are computed as columns, and
written as what an epoch leaves behind, change files and working copies. Ten million rows take half
a minute that way.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import statekit as sk
from statekit.clock import unique_id
from statekit.codec import value_codec
from statekit.coordinator import Coordinator
from statekit.copy_home import WHOLE, Lease, Mark
from statekit.key_codec import key_codec
from statekit.keygroup import group_range, key_group, shard_of_group
from statekit.local import LocalRunner
from statekit.manifest import ShardReport, ShardState
from statekit.mutation import BATCH_ROWS_MAX, ChangeFileWriter
from statekit.repository import Repository
from statekit.rocks import RocksBackend, link_database
from statekit.working_copy import DiskCopies
from tests.bench.report import Row

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "10_000_000"))
RUNS = 3
GROUPS = 128
ROW_BYTES = 80
STATE = "last"

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


# ------------------------------------------------------------------------------------- building


def _rotated(words: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _groups_of(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The key groups of int keys: XXH64 of their eight bytes, as columns."""
    primes = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
    first, second, third, fourth = map(np.uint64, primes)
    found = _rotated(keys.view(np.uint64) * second, 31) * first
    found ^= np.uint64(42 + 0x27D4EB2F165667C5 + 8)
    found = _rotated(found, 27) * first + fourth
    found = (found ^ (found >> np.uint64(33))) * second
    found = (found ^ (found >> np.uint64(29))) * third
    return (found ^ (found >> np.uint64(32))).view(np.int64) % GROUPS


def _columns(rows: int, groups: tuple[int, int]) -> Columns:
    """The rows of the keys 0, 1, … that fall into these key groups."""
    keys = np.arange(rows, dtype=np.int64)
    group = _groups_of(keys)
    own = (group >= groups[0]) & (group <= groups[1])
    keys, group = keys[own], group[own]
    order = np.lexsort((keys, group))
    keys, group = keys[order], group[order]
    row_keys = np.empty((len(keys), 10), np.uint8)
    row_keys[:, :2] = group.astype(">u2").view(np.uint8).reshape(-1, 2)
    flipped = keys.view(np.uint64) ^ np.uint64(1 << 63)
    row_keys[:, 2:] = flipped.astype(">u8").view(np.uint8).reshape(-1, 8)
    head = value_codec(bytes).encode(bytes(ROW_BYTES))[:-ROW_BYTES]
    values = np.random.default_rng(0).integers(
        0, 256, (len(keys), len(head) + ROW_BYTES), dtype=np.uint8
    )
    values[:, : len(head)] = np.frombuffer(head, np.uint8)
    assert row_keys[0, 2:].tobytes() == key_codec(int).encode(int(keys[0]))
    assert key_group(int(keys[0]), GROUPS) == group[0]
    return row_keys, values


def _binary(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, length = rows.shape
    offsets = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _build_shard(home: Path, checkpoint_id: str, rows: int, groups: tuple[int, int]) -> str:
    """The change file and the working copy of one shard; its report as JSON."""
    keys, values = _columns(rows, groups)
    repository, attempt = Repository(home / "checkpoint"), unique_id()
    with tempfile.TemporaryFile(dir=home) as file:
        writer = ChangeFileWriter(file, [STATE])
        for start in range(0, len(keys), BATCH_ROWS_MAX):
            span = slice(start, start + BATCH_ROWS_MAX)
            writer.append_columns(STATE, _binary(keys[span]), _binary(values[span]))
        writer.close()
        ref = repository.put_changes("keep", file, writer.rows)
    lease = Lease.take(home / "local" / checkpoint_id / "keep" / "{}-{}".format(*groups))
    backend = RocksBackend(lease.home / "db", [STATE])
    for start in range(0, len(keys), 1_000_000):
        span = slice(start, start + 1_000_000)
        rows_of = _binary(keys[span]).to_pylist(), _binary(values[span]).to_pylist()
        backend.load(STATE, zip(*rows_of, strict=True))
    backend.close()
    lease.set_mark(Mark(attempt, WHOLE), [STATE])
    lease.release()
    shard = ShardState(
        first_group=groups[0],
        last_group=groups[1],
        attempt=attempt,
        changed=0,
        files=(ref,),
        rows={STATE: len(keys)},
        bytes={STATE: keys.size + values.size},
    )
    return ShardReport(operator="keep", shard=shard).model_dump_json()


def _build(home: Path, rows: int, shards: int) -> None:
    """A checkpoint of one epoch with its working copies."""
    coordinator = Coordinator(job(), Repository(home / "checkpoint"), parallelism=shards)
    coordinator.begin()
    reports = []
    for shard in range(shards):
        arguments = (home, coordinator.job_file.id, rows, group_range(shard, shards, GROUPS))
        reports.append(ShardReport.model_validate_json(_apart(_build_shard, *arguments)[0]))
    coordinator.commit(reports)


def _cloned(home: Path, target: Path) -> Path:
    """The same again, sharing all files that never change."""
    shutil.copytree(home / "checkpoint", target / "checkpoint", copy_function=os.link)
    for clean in (home / "local").glob("*/*/*/clean"):
        copy = target / clean.parent.relative_to(home)
        link_database(clean.parent / "db", copy / "db")
        shutil.copyfile(clean, copy / "clean")
        (copy / "lock").touch()
    return target


# ------------------------------------------------------------------------------------ measuring


def _apart(function: Callable[..., Any], *arguments: object) -> tuple[Any, int]:
    """Run a function in a process of its own: its result, and the most memory it took, in KB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        result = process.submit(function, *arguments).result()
        return result, process.submit(_peak_kb).result()


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _restart(home: Path, shards: int) -> float:
    """Seconds from the start to the commit of an epoch with a record for every shard."""
    keys: dict[int, int] = {}
    number = 0
    while len(keys) < shards:
        keys.setdefault(shard_of_group(key_group(number, GROUPS), shards, GROUPS), number)
        number += 1
    records = [Seen(key, b"x") for key in keys.values()]
    begun = time.perf_counter()
    runner = LocalRunner(
        job(), Repository(home / "checkpoint"), DiskCopies(home / "local"), parallelism=shards
    )
    runner.epoch({"seen": records})
    return time.perf_counter() - begun


def _offline(home: Path, shards: int) -> tuple[float, float, int]:
    """Seconds of the command, those of them after Python has started, and its peak KB."""
    code = (
        "import sys, resource; from statekit.cli import main; sys.argv[0] = 'statekit'\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    words = ["rescale", str(home / "checkpoint"), "--to", str(shards)]
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    seconds, told = time.perf_counter() - begun, done.stdout.decode()
    working = re.search(r"in ([\d.]+) s", told)
    assert working is not None, told
    return seconds, float(working[1]), int(told.split()[-1])


def _copied(source: Path, target: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    seconds = time.perf_counter() - begun
    shutil.rmtree(target)
    return seconds


def _once(home: Path, scratch: Path, before: int, after: int) -> dict[str, float]:
    found = {
        "cp of copies": _copied(home / "local", scratch / "cp"),
        "cp of data": _copied(home / "checkpoint" / "data", scratch / "cp"),
    }
    for name, shards in (("unchanged", before), ("restart", after)):
        clone = _cloned(home, scratch / "clone")
        found[name], kb = _apart(_restart, clone, shards)
        found[f"{name} KB"] = kb
        shutil.rmtree(clone)
    clone = _cloned(home, scratch / "clone")
    found["offline"], found["offline working"], found["offline KB"] = _offline(clone, after)
    shutil.rmtree(clone)
    return found


def rescaling() -> list[Row]:
    """4 → 8 and 8 → 4 shards."""
    table = []
    for before, after in ((4, 8), (8, 4)):
        with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
            home = Path(directory) / "built"
            _build(home, ROWS, before)
            scratch = Path(directory) / "scratch"
            scratch.mkdir()
            _copied(home, scratch / "cp")  # so that no run is the first to read the files
            runs = [_once(home, scratch, before, after) for _ in range(RUNS)]
        table += _rows_of(before, after, runs)
    return table


def _rows_of(before: int, after: int, runs: list[dict[str, float]]) -> list[Row]:
    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(run) for run in runs)

    restart = median(lambda run: run["restart"] - run["unchanged"])
    memory = max(run[name] for run in runs for name in run if name.endswith("KB")) / 1024
    what = f"{ROWS:,} rows, {before} → {after} shards"
    return [
        Row(
            f"{what}: restart",
            f"{restart:+.3f} s over {median(lambda run: run['unchanged']):.3f} s unchanged, "
            f"cp {median(lambda run: run['cp of copies']):.3f} s, "
            f"{median(lambda r: (r['restart'] - r['unchanged']) / r['cp of copies']):.2f} of it",
            "≤ 2",
        ),
        Row(
            f"{what}: offline",
            f"{median(lambda run: run['offline']):.3f} s, "
            f"{median(lambda run: run['offline working']):.2f} s after Python has started, "
            f"cp {median(lambda run: run['cp of data']):.3f} s, "
            f"{median(lambda run: run['offline working'] / run['cp of data']):.2f} of it",
            "≤ 2",
        ),
        Row(f"{what}: peak memory", f"{memory:.0f} MB", "< 1024 MB"),
    ]
