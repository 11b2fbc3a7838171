"""A small checkpoint with everything in it, and a checkpoint whose bytes can be replaced."""

from __future__ import annotations

import datetime as dt
import random
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.leases.reader_lease import ReaderLease
from statekit.checkpoint.manifest import EpochNote
from statekit.checkpoint.object_store import FileBytes, FilePage, RequestError, Stored, StoreOptions
from statekit.checkpoint.paths import SPARK
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.job.options import RunOptions
from statekit.maintenance.rescale.offline import rescale_offline
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.runtime.local import LocalRunner
from statekit.timestamp import datetime_to_micros
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from statekit.working_copy.uploader import uploader
from tests.support.all_row_kinds import KEYS, START, Step, Told, keep, keep_in_order
from tests.unit.checkpoint.test_spark_log import part

GROUPS = 8
_THEN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
LOST = "data/keep/" + "0" * 32 + ".changes.arrow"

Shared = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]
Newest = Annotated[sk.OperatorListState[str], sk.Redistribute("union")]


@sk.process(key="key")
def share(step: Step, shared: Shared, names: Newest) -> Iterator[Told]:
    shared.append(step.n)
    if step.n % 4 == 0:
        names.append(step.key)
    yield step.key, "shared", len(shared)


def job(*processes: Any) -> sk.Job:
    """Rows of every kind: state with and without TTL, timers, buffered records, operator state.

    Parameters:
        processes: what runs; all there are if none is given.
    """
    made = sk.Job("whole", key_groups=GROUPS)
    steps = made.source("steps", Step)
    for process in processes or (keep, keep_in_order, share):
        steps.process(process).sink(f"{process.name}-out")
    return made


def steps(number: int) -> list[Step]:
    """The records of an epoch."""
    drawn = random.Random(number)
    return [
        Step(
            drawn.choice(KEYS),
            drawn.randint(0, 20),
            START + dt.timedelta(seconds=25 * number - drawn.randint(0, 40)),
        )
        for _ in range(6)
    ]


def run(repository: Repository, first: int, last: int, parallelism: int) -> None:
    """Some epochs, each with its own records and processing time."""
    runner = LocalRunner(
        job().plan, repository, MemoryCopies(), RunOptions(parallelism=parallelism)
    )
    for number in range(first, last + 1):
        at = datetime_to_micros(START + dt.timedelta(seconds=20 * number + 20))
        runner.epoch({"steps": steps(number)}, at_us=at)


def make(repository: Repository) -> None:
    """Epochs of two shards, a rollback, other parallelisms, a savepoint, a lease, leftovers, Spark.

    Epochs 0 to 2 have two shards; 3 stands where 1 stood; 4 has three shards, made of slices; in 5
    they ran; 6 has two again, and nothing has run since.
    """
    run(repository, 0, 2, 2)
    plan(repository, 1).carry_out()
    run(repository, 4, 5, 3)
    rescale_offline(repository, 2, job=job())
    write_savepoint(repository, "saved")
    ReaderLease.take(repository, "index", 5)
    repository.write_note(EpochNote(epoch=7, what="records", processing_time_us=0))
    repository.create(LOST, b"of an attempt that did not win")
    for path, data in planned_part().items():
        repository.create(f"{SPARK}/{path}", data)
        above, _, name = path.rpartition("/")
        repository.create(f"{SPARK}/{above}{'/' if above else ''}.{name}.crc", hadoop_sums(data))


def make_with_bases(repository: Repository, working: Path) -> None:
    """Histories, bases, a change of parallelism, and a collection at the end.

    Bases are those that working copies make. Only the last epochs are left, and what they need.

    Parameters:
        working: for working copies.
    """
    with pytest.MonkeyPatch.context() as patched:
        for where, most in _SOONER.items():
            patched.setattr(where, most)
        for bases in (False, True, False):
            _run_on_disk(repository, working, 2, epochs=4, bases=bases)
        rescale_offline(repository, 3, job=_smaller())
        _run_on_disk(repository, working, 3, epochs=6, bases=False)
        for _ in range(2):
            _run_on_disk(repository, working, 3, epochs=1, bases=True)
    Collector(repository, sk.Retention(epochs=2), grace=dt.timedelta(0)).collect(sweep=True)


def _smaller() -> sk.Job:
    """So many bytes are damaged one by one."""
    return job(keep_in_order, share)


_SOONER = {
    "statekit.checkpoint.references.FILES_MAX": 2,
    "statekit.checkpoint.references.HISTORY_FILES_MAX": 4,
}
"""What happens with many files, with few."""


def _run_on_disk(
    repository: Repository, working: Path, parallelism: int, *, epochs: int, bases: bool
) -> None:
    """Run epochs of one record each, and wait for the uploads that they began."""
    options = BaseOptions(replay_seconds=0, bases=bases, uploaded_per_changed=100)
    copies = DiskCopies(working, bases=options)
    runner = LocalRunner(_smaller().plan, repository, copies, RunOptions(parallelism=parallelism))
    for _ in range(epochs):
        number = runner.coordinator.epoch
        at = datetime_to_micros(START + dt.timedelta(seconds=20 * number + 20))
        runner.epoch({"steps": steps(number)[:1]}, at_us=at)
        assert uploader().drain(60)


def planned_part() -> dict[str, bytes]:
    """Spark's part when it has planned its first micro-batch."""
    return {path: data for path, data in part(1).items() if not path.startswith("commits/")}


def hadoop_sums(data: bytes) -> bytes:
    """What Hadoop's local file system keeps beside a file."""
    pieces = [data[start : start + 512] for start in range(0, len(data), 512)]
    sums = b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)
    return b"crc\x00" + struct.pack(">i", 512) + sums


class Kept:
    """Files in a dict, to be read."""

    keeps_order = True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.read_paths: set[str] = set()

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        self.read_paths.add(path)
        data = self._data(path)
        return FileBytes(data[start:] if size is None else data[start : start + size], len(data))

    def head(self, path: str) -> Stored:
        return Stored(path, len(self._data(path)), _THEN)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        inside = (path for path in self.files if not under or path.startswith(f"{under}/"))
        return FilePage(
            [self.head(path) for path in inside if behind is None or path > behind], None
        )

    def names(self, under: str) -> list[str]:
        return [path for path in self.files if path.rpartition("/")[0] == under]

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        raise RequestError(f"{path} is not to be written", may_pass=False)

    create = put

    def delete(self, paths: Sequence[str]) -> None:
        raise RequestError(f"{paths} are not to be deleted", may_pass=False)

    def move(self, path: str, target: str) -> None:
        raise RequestError(f"{path} is not to be moved to {target}", may_pass=False)

    def sync_folder(self, folder: str) -> None:
        raise RequestError(f"nothing is to be deleted in {folder}", may_pass=False)

    def _data(self, path: str) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None


class Files(Repository):
    """A checkpoint that is a dict of files, any of which may be replaced for a while.

    It is read by the very code that reads others: only where bytes come from is different.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.url, self.root = "memory://", None
        self._options = StoreOptions()
        self.files = dict(files)
        self._objects = self.kept = Kept(self.files)

    @classmethod
    def copied(cls, directory: Path) -> Files:
        """The same files as in a directory."""
        found = (path for path in directory.rglob("*") if path.is_file())
        return cls({str(path.relative_to(directory)): path.read_bytes() for path in found})
