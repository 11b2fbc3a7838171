"""A harness in a process of its own, which a crash kills.

`ProcessMemory` restores the memory that Python can look into. Here nothing has to be restored: each
process is a copy of one that has never called a function of the user.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from statekit.job.job import Job
from statekit.testing.drivers.driver import Backend
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.drivers.processes import Child

_PROPERTIES = ("epoch", "is_drained", "parallelism", "watermark")
"""The properties of `JobHarness` that runs use."""

_MEMORY_DISK = Path("/dev/shm")


def killed_harness(
    job: Job, parallelism: int | None = None, backend: Backend = "memory"
) -> JobHarness:
    """Return a harness whose crashes kill a process. The last one ends with the harness.

    This process must have no threads, and must not have called a function of the job.

    Parameters:
        job, parallelism, backend: as for `JobHarness`.
    """
    return cast(JobHarness, _KilledHarness(job, parallelism, backend))


class _KilledHarness:
    """A harness with the attributes of a `JobHarness` that runs use."""

    def __init__(self, job: Job, parallelism: int | None, backend: Backend) -> None:
        self._job, self._backend = job, backend
        place = _MEMORY_DISK if _MEMORY_DISK.is_dir() else None
        self._home = tempfile.TemporaryDirectory(prefix="statekit-killed-", dir=place)
        self._clock: Any = None
        self._child = self._started(parallelism)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._child.call(name) if name in _PROPERTIES else partial(self._child.call, name)

    def _started(self, parallelism: int | None) -> Child:
        return Child(partial(JobHarness, self._job, parallelism, self._backend, self._home.name))

    def set_clock(self, to: Any) -> None:
        """Set the processing time, also for later processes."""
        self._clock = to
        self._child.call("set_clock", to)

    def attempt(self, records: Mapping[str, Any]) -> Any:
        """Run one epoch, and crash right before its commit."""
        published = self._child.call("attempt", records)
        self.crash()
        return published

    def crash(self) -> None:
        """Kill the process, and continue in a new one."""
        self.rescale(self._child.call("parallelism"))

    def rescale(self, parallelism: int) -> None:
        """Kill the process, and continue in a new one with so many shards."""
        self._child.kill()
        self._child = self._started(parallelism)
        if self._clock is not None:
            self._child.call("set_clock", self._clock)
