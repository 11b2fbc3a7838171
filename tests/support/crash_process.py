"""A process that runs the crash job for some epochs, and dies, stops or meets errors on the way.

What is acknowledged and published goes to files of their own in HOME, which are made whole or not
at all and never written again: the record that the supervisor holds the checkpoint against.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from statekit.backend import mutation
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint import references, retention
from statekit.checkpoint.gc import collector as collection
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.object_store import LocalObjects, RequestError
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import Retention
from statekit.errors import FencedError, RestoreError, StorageError
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.testing.faults import Faults, faulty
from statekit.working_copy import base_lifecycle as base_keeping
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies
from statekit.working_copy.uploader import uploader
from tests.support.crash_job import crash_job, records
from tests.support.offsets import records_read

DONE, BROKEN, FAILED, FENCED, REFUSED = 0, 1, 3, 4, 5
"""How a victim ends that is not killed. BROKEN: an error without a type, which is a bug."""

_CODES: dict[type[BaseException], int] = {
    StorageError: FAILED,
    FencedError: FENCED,
    RestoreError: REFUSED,
}
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

_WRITES = ("put", "create", "link", "delete")
_READS = ("get", "open", "head", "page", "names")

What = Literal["nothing", "die", "stop", "fail"]

BASES = {
    "bases": BaseOptions(replay_seconds=0, uploaded_per_changed=100),
    "bases now and then": BaseOptions(replay_seconds=0.004, uploaded_per_changed=2.5),
    "neither": BaseOptions(bases=False),
}
"""What a process may do to keep restores short."""

_STAGED_FOR = dt.timedelta(seconds=3)


@dataclass(frozen=True)
class Fault:
    """What happens at a call of the store.

    Parameters:
        what: nothing, the process dies, the process is stopped, or the call fails.
        at: at which call, counted from the first epoch's beginning, or of the start.
        after: whether the call had its effect first: an answer that was lost.
        times: how many calls fail from there on.
        early: whether calls of the start count.
        reads: whether calls that change nothing count.
    """

    what: What = "nothing"
    at: int = 0
    after: bool = False
    times: int = 1
    early: bool = False
    reads: bool = False


@dataclass(frozen=True)
class Life:
    """What a process is to do.

    Parameters:
        number: of this process among all that run on the checkpoint.
        seed: of the input.
        home: of the checkpoint, the records, and the working copies.
        parallelism: shards.
        epochs: how many to make at most.
        clock_us: what the wall clock shows at the start.
        fault: of the store.
        file_bytes: how large a file may become; None without a limit.
        back_to: roll back to this epoch first.
        bases: one of `BASES`.
        drains: whether what goes on beside the epochs is waited for after each.
        retention: how many epochs are kept; None for all.
        stumbles: which part of the store's operations fails, and is tried again.
    """

    number: int
    seed: int
    home: Path
    parallelism: int
    epochs: int
    clock_us: int
    fault: Fault
    file_bytes: int | None = None
    back_to: int | None = None
    bases: str = "neither"
    drains: bool = False
    retention: int | None = None
    stumbles: float = 0.0


class _Faults:
    """The one place where calls of the store are made to fail."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._calls = 0
        self._counts = fault.early

    def install(self) -> None:
        if self._fault.what == "nothing":
            return
        for name in (*_WRITES, *(_READS if self._fault.reads else ())):
            setattr(LocalObjects, name, self._faulty(getattr(LocalObjects, name)))

    def begin(self) -> None:
        self._counts = True

    def _faulty(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += self._counts
            fault = self._fault
            if not self._counts or not fault.at <= self._calls < fault.at + fault.times:
                return inner(*args, **kwargs)
            done = inner(*args, **kwargs) if fault.after else None
            if fault.what == "fail":
                raise RequestError("the network is down", may_pass=False)
            os.kill(os.getpid(), signal.SIGKILL if fault.what == "die" else signal.SIGSTOP)
            return done if fault.after else inner(*args, **kwargs)

        return call


def live(life: Life) -> None:
    """Run, and end with one of the codes above. For use as a target."""
    _end_with(life, _run)


def collect(life: Life) -> None:
    """Collect garbage, and end likewise. For use as a target."""
    _end_with(life, _collect)


def _end_with(life: Life, run: Callable[[Life], None]) -> None:
    with (life.home / "logs" / str(life.number)).open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        run(life)
    except BaseException as error:  # noqa: BLE001 - told to the supervisor
        resource.setrlimit(resource.RLIMIT_FSIZE, _NO_LIMIT)  # or there would be nothing to read
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(next((code for kind, code in _CODES.items() if isinstance(error, kind)), BROKEN))
    os._exit(DONE)


def _in_small() -> RocksOptions:
    """Let everything happen after some epochs that a real job does after many: the one place."""
    mutation.BATCH_BYTES_MAX = 1_000  # epochs that spill
    small = {"FILES_MAX": 3, "HISTORY_FILES_MAX": 6, "STAGED_FOR": _STAGED_FOR}
    for module in (references, base_keeping, retention, collection):
        for name in small.keys() & vars(module).keys():
            setattr(module, name, small[name])
    return RocksOptions(write_buffer_bytes=64 * 1024)


class _Remembering(Repository):
    """A checkpoint of whose given-up epochs the supervisor still sees what they were."""

    collected: Path

    def collect(self, paths: Iterable[str]) -> None:
        gone = list(paths)
        for path in gone:
            folder, _, name = path.partition("/")
            if folder == "epochs" and name.endswith(".json"):
                # It was made whole or not at all, and is never written again.
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.link(self.collected.parent / "checkpoint" / path, self.collected / name)
        super().collect(gone)


def _repository(life: Life) -> Repository:
    repository = _Remembering(life.home / "checkpoint")
    repository.collected = life.home / "collected"
    if not life.stumbles:
        return repository
    return faulty(repository, Faults(rate=life.stumbles, seed=life.number))


def _collect(life: Life) -> None:
    _in_small()
    faults = _Faults(life.fault)
    faults.install()
    repository = _repository(life)
    (life.home / "ready" / str(life.number)).touch()
    faults.begin()
    for _ in range(life.epochs):
        collector = Collector(repository, Retention(epochs=life.retention or 1), grace=_STAGED_FOR)
        collector.collect(sweep=True)


def _run(life: Life) -> None:
    options = _in_small()
    if life.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (life.file_bytes, resource.RLIM_INFINITY))
    faults = _Faults(life.fault)
    faults.install()
    began = time.monotonic_ns()
    runner = LocalRunner(
        crash_job().plan,
        _repository(life),
        DiskCopies(life.home / "working", options, BASES[life.bases]),
        RunOptions(
            parallelism=life.parallelism,
            from_epoch=life.back_to,
            retention=None if life.retention is None else Retention(epochs=life.retention),
            clock=lambda: life.clock_us + (time.monotonic_ns() - began) // 1000,
        ),
    )
    (life.home / "ready" / str(life.number)).touch()
    faults.begin()
    for _ in range(life.epochs):
        start = records_read(runner.coordinator.last, "seen")
        given = records(life.seed, start)
        runner.epoch(
            {"seen": given},
            outputs={"told": lambda told, epoch: publish(life, told, epoch)},
            offsets={"seen": start + len(given)},
        )
        made = runner.coordinator.last
        assert made is not None
        (life.home / "acknowledged" / f"{made.epoch}-{life.number}").touch()
        if life.drains:
            uploader().drain()


def publish(life: Life, told: list[Any], epoch: int) -> None:
    """Add what an epoch put out to the record, under the number of the epoch."""
    name, published = f"{epoch}-{life.number}", life.home / "published"
    try:
        (published / f".{name}").write_text(json.dumps(sorted(told)))
    except OSError as error:
        raise StorageError(f"the sink is full: {error}") from error
    (published / f".{name}").rename(published / name)
