"""What a process takes for working copies does not grow with shards, states and rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from tests.support.counting_job import Entry, entries, tally_job
from tests.support.timeouts import PATIENCE_S

MIB = 1024 * 1024

# Prints by how many MB a process grew while it wrote, and read, far more than it may keep.
GROWTH = """
import os, sys, tempfile
from pathlib import Path
from tests.support.mutations import Put, batch_of
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions

MIB = 1024 * 1024
shards, states, rows = map(int, sys.argv[1:])
options = RocksOptions(block_cache_bytes=8 * MIB, write_memory_bytes=16 * MIB)
names = [f"s{number}" for number in range(states)]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB

def run(home, shard, rows):
    backend = RocksBackend(f"{home}/{shard}", names, options)
    peak = 0
    for start in range(0, rows, 200):
        for name in names:
            puts = [Put(name, b"%08d" % n, os.urandom(1000)) for n in range(start, start + 200)]
            backend.write(batch_of(puts))
        peak = max(peak, resident())
    backend.flush()
    for name in names:
        read = sum(1 for _ in backend.scan(name, b"", b"~"))
        assert read == rows, (read, rows)
        peak = max(peak, resident())
    backend.close()
    return peak

with tempfile.TemporaryDirectory() as home:
    run(home, "warm", 200)
    before = resident()
    print(max(run(home, shard, rows) for shard in range(shards)) - before)
"""


@pytest.mark.parametrize(
    ("shards", "states", "rows"),
    [(64, 3, 600), (1, 30, 4000), (1, 1, 120_000)],
    ids=["64 shards", "30 states", "120 MB in one state"],
)
def test_a_process_keeps_to_its_memory(shards: int, states: int, rows: int) -> None:
    """Each case writes some 120 MB, and the options allow for 24 MB."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GROWTH, *map(str, (shards, states, rows))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 70, f"grew by {done.stdout.strip()} MB"


# Prints by how many MB a process grew whose databases are written faster than a disk takes it in,
# while one that is not written any more holds what its buffers have.
GROWTH_ON_A_SLOW_DISK = """
import os, sys, tempfile, threading
from pathlib import Path
from statekit.backend import rocksdb
from statekit.backend.rocksdb import RocksBackend
from statekit.backend.rocksdb_options import RocksOptions
from tests.support.mutations import Put, batch_of

MIB = 1024 * 1024
in_threads = sys.argv[1] == "threads"
options = RocksOptions(block_cache_bytes=8 * MIB, write_memory_bytes=8 * MIB)
names = ["a", "b", "c"]
made = rocksdb._rocksdb_options

def of_a_slow_disk(options, *, create):
    found = made(options, create=create)
    found.set_ratelimiter(12 * MIB, 10_000, 10)
    return found

rocksdb._rocksdb_options = of_a_slow_disk

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB

def write(backend, start, count=100):
    for name in names:
        puts = [Put(name, b"%08d" % n, os.urandom(1000)) for n in range(start, start + count)]
        backend.write(batch_of(puts))
    peaks.append(resident())

peaks = []
with tempfile.TemporaryDirectory() as home:
    idle, *backends = [RocksBackend(f"{home}/{shard}", names, options) for shard in range(13)]
    before = resident()
    write(idle, 0, 2000)
    steps = range(0, 1500, 100)
    if in_threads:
        run = lambda backend: [write(backend, start) for start in steps]
        threads = [threading.Thread(target=run, args=(backend,)) for backend in backends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for start in steps:
            for backend in backends:
                write(backend, start)
    print(max(peaks) - before)
    for backend in [idle, *backends]:
        backend.flush()
        assert sum(1 for _ in backend.scan("b", b"", b"~")) == (2000 if backend is idle else 1500)
        backend.close()
"""


@pytest.mark.parametrize("how", ["in turn", "threads"])
def test_many_databases_that_are_open_at_once_on_a_slow_disk_wait_for_the_disk_only(
    how: str,
) -> None:
    """They write 54 MB, and the options allow for 16 MB."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GROWTH_ON_A_SLOW_DISK, how],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 36, f"grew by {done.stdout.strip()} MB"


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options",
    [
        {"block_cache_bytes": 0},
        {"block_cache_bytes": -1},
        {"block_cache_bytes": "64MB"},
        {"block_cache_bytes": 1 << 60},
        {"block_cache_bytes": None},
        {"write_buffer_bytes": 1024},
        {"write_buffer_bytes": 1e9},
        {"write_memory_bytes": 0},
        {"write_memory_bytes": True},
        {"open_files": -1},
        {"open_files": 1 << 40},
        {"bloom_bits": -1},
        {"bloom_bits": 1000},
        {"bloom_bits": 9.5},
        {"disk_limit_bytes": 0},
        {"disk_limit_bytes": "1TB"},
        {"disk_reserve_bytes": -5},
        {"disk_reserve_bytes": None},
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_bounds(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(sk.StateTypeError, match=rf"RocksOptions\({name}=.*whole number from \d+"):
        sk.RocksOptions(**options)


def test_an_option_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="block_cache_size"):
        sk.RocksOptions(block_cache_size=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "given", [{"rocksdb": {"bloom_bits": 3}}, {"rocksdb": sk.RocksOptions}, {"keep_copies": "auto"}]
)
def test_a_run_is_refused_other_things_in_place_of_options(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(sk.StateTypeError, match=f"^{name}="):
        tally_job().run({"records": []}, **given)


def test_the_least_that_may_be_asked_for_works(tmp_path: Path) -> None:
    least = sk.RocksOptions(
        block_cache_bytes=64 * 1024,
        write_buffer_bytes=64 * 1024,
        write_memory_bytes=MIB,
        open_files=16,
        bloom_bits=0,
        disk_limit_bytes=MIB,
        disk_reserve_bytes=0,
    )
    records: list[Entry] = [each for epoch in range(30) for each in entries(epoch, 100, 200)]
    expected = tally_job(8).run({"records": records}, epoch_size=100)
    done = tally_job(8).run(
        {"records": records},
        epoch_size=100,
        backend="rocksdb",
        working_directory=tmp_path,
        rocksdb=least,
    )
    assert done.outputs == expected.outputs
