"""Tables: all rows of a state after an epoch, as a file that DuckDB, Polars and pandas read from
its address.

These read parts of a file, in several requests. So each file is written once, in a directory of the
server, and is kept for a while.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse

from statekit.query.export import Format, export
from statekit.query.read import read
from statekit.query.view import View
from statekit.server.disk import Disk
from statekit.server.problems import Problem
from statekit.server.served_job import ServedJob

MEDIA_TYPES: dict[Format, str] = {
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
}
"""The formats of tables."""

_FILES_MAX = 16
_WRITTEN_AT_ONCE = 2
_REMOVED_AFTER_S = 60.0


class Tables:
    """Writes tables, and keeps the last ones that were asked for.

    Parameters:
        disk: of the server.
        most: how many may be written, or wait for it, at a time.
    """

    def __init__(self, disk: Disk, most: int) -> None:
        self._disk, self._most = disk, most
        self._directory = disk.below("tables")
        self._files: OrderedDict[str, asyncio.Task[Path]] = OrderedDict()
        self._numbers = itertools.count()
        self._writing = asyncio.Semaphore(_WRITTEN_AT_ONCE)

    async def response(
        self, job: ServedJob, view: View, operator: str, state: str, to: Format
    ) -> FileResponse:
        """Return a table as the answer of a request.

        Raises:
            QueryError: there is no such state, or its epoch was collected.
            CorruptCheckpointError, StorageError: it cannot be read, or not be written.
            Problem: too many are being written, or the server may not take more of the disk.
        """
        tag = f"{job.identity}.{operator}.{state}.{view.epoch}.{to}"
        task = self._files.get(tag)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            await self._check()
            path = self._directory / f"{next(self._numbers)}.{to}"
            writing = self._written(job.checkpoint, view.epoch, operator, state, to, path)
            task = self._files[tag] = asyncio.ensure_future(writing)
        self._files.move_to_end(tag)
        path = await asyncio.shield(task)
        self._remove_old()
        return FileResponse(
            path,
            media_type=MEDIA_TYPES[to],
            headers={"ETag": f'"{tag}"', "Statekit-Epoch": str(view.epoch)},
        )

    async def _check(self) -> None:
        """Check that one more table may be written."""
        if sum(not task.done() for task in self._files.values()) >= self._most:
            raise Problem(
                503,
                "too_many",
                "too many files are being written already: try again",
                {"Retry-After": "5"},
            )
        if await run_in_threadpool(lambda: self._disk.is_full):
            self._remove_old(most=0)
        await run_in_threadpool(self._disk.check_request)

    async def _written(
        self, checkpoint: str, epoch: int, operator: str, state: str, to: Format, path: Path
    ) -> Path:
        def write() -> None:
            export(read(checkpoint, operator, state, epoch), path, to, overwrite=True)

        async with self._writing:
            await run_in_threadpool(write)
        return path

    def _remove_old(self, most: int = _FILES_MAX) -> None:
        """Remove the files that were asked for longest ago.

        Parameters:
            most: how many stay.
        """
        while len(self._files) > most:
            tag, task = next(iter(self._files.items()))
            if not task.done():
                return
            del self._files[tag]
            if not task.cancelled() and task.exception() is None:
                # Later, as requests that have begun may not have opened it yet.
                remove = partial(task.result().unlink, missing_ok=True)
                asyncio.get_running_loop().call_later(_REMOVED_AFTER_S, remove)
