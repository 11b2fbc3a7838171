"""One key may hold far more than fits comfortably in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

import statekit as sk
from statekit.testing import Harness

# Prints by how many MB the process grew over one epoch that writes a million rows of one key, and
# one that reads them all.
GROWTH = """
import resource, sys, tempfile
from collections.abc import Iterator
from typing import NamedTuple
import statekit as sk
from statekit.testing import Harness

class Command(NamedTuple):
    key: str
    count: int

@sk.process(key="key")
def large(
    command: Command, items: sk.ListState[int], entries: sk.MapState[int, int]
) -> Iterator[int]:
    if command.count:
        STATE
    else:
        yield sum(READ)

def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with tempfile.TemporaryDirectory() as checkpoint:
    harness = Harness(large, backend="rocksdb", checkpoint=checkpoint)
    harness.send(Command("warm", 40_000), Command("warm", 0))
    before = peak()
    assert harness.send(Command("k", 1_000_000)) == []
    assert harness.send(Command("k", 0)) == [sum(range(1_000_000))]
    print(peak() - before)
"""
SHAPES = {
    "list": ("items.extend(range(command.count))", "items"),
    "map": ("for number in range(command.count): entries[number] = number", "entries.values()"),
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_million_rows_of_one_key_are_never_all_in_memory(shape: str) -> None:
    write, read = SHAPES[shape]
    code = GROWTH.replace("STATE", write).replace("READ", read)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150, f"grew by {done.stdout.strip()} MB"


class Blob(NamedTuple):
    key: str
    size: int


@sk.process(key="key")
def blobs(
    blob: Blob, value: sk.ValueState[bytes], entries: sk.MapState[str, bytes]
) -> Iterator[int]:
    if blob.size:
        value.update(b"\x07" * blob.size)
        entries["large"] = b"\x08" * blob.size
    yield len(value.get() or b"") + len(entries["large"])


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_row_of_64_megabytes_works(tmp_path: Path, backend: Literal["memory", "rocksdb"]) -> None:
    size = 64 * 1024 * 1024
    harness = Harness(blobs, backend=backend, checkpoint=tmp_path)
    assert harness.send(Blob("k", size)) == [2 * size]
    assert harness.send(Blob("k", 0)) == [2 * size]
    again = Harness(blobs, backend=backend, checkpoint=tmp_path)
    assert again.state("value", "k") == b"\x07" * size
