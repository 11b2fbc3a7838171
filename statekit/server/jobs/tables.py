"""Tables: all rows of a state after an epoch, as a file for DuckDB, Polars and pandas.

These tools read parts of a file, in several requests. So each file is of one epoch, which is in its
address. The server writes it once, in its own directory, and keeps it for a while, maybe longer
than the epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import xxhash
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from statekit.checkpoint.epoch_id import EpochId
from statekit.clock import stopwatch_s
from statekit.errors import QueryError
from statekit.query.replica.view import View
from statekit.query.tables.child_process import ForkServer
from statekit.query.tables.export import Format
from statekit.query.tables.export_in_child import ExportRequest
from statekit.query.tables.read import WideIntError, WideInts
from statekit.server.admission.queues import Admission
from statekit.server.answers.conditions import Range, Validators, ranges_of
from statekit.server.answers.problems import Problem, closing
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.served_job import ServedJob
from statekit.timestamp import instant

MEDIA_TYPES: dict[Format, str] = {
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
}
"""Media types of the formats of tables."""

_FILES_MAX, _SMALL_BYTES = 16, 2**20
_SECONDS = 3600.0

_HERE_BYTES_MAX = 2**20
"""Up to this size of an operator's state, a thread of the server writes a table. For larger states,
a process of its own does, and other requests do not wait for it.
"""

_KEPT_S = 60.0
"""Seconds that a file is kept after the last request, so that a reader gets all of its parts."""


class Asked(NamedTuple):
    """A table that a request asks for.

    Parameters:
        operator, state: their names.
        to: the format.
        wide_ints: column type of ints, for states with ints of 2^63 or more.
    """

    operator: str
    state: str
    to: Format
    wide_ints: WideInts


class _File(NamedTuple):
    """A table on the disk, and its size in bytes."""

    path: Path
    size: int


@dataclass(eq=False)
class _Table:
    """A table that is being written, or was written.

    Parameters:
        validators: the tag and the time of its content.
        writing: the task that writes it.

    Attributes:
        asked_s: the time of the last request for it, in seconds of a monotonic clock.
    """

    validators: Validators
    writing: asyncio.Task[_File]
    asked_s: float = field(default_factory=stopwatch_s)

    @property
    def is_there(self) -> bool:
        """True if it was written without an error."""
        task = self.writing
        return task.done() and not task.cancelled() and task.exception() is None


class Tables:
    """Writes tables, and keeps the last requested ones.

    Parameters:
        disk: of the server.
        admission: of the server.
        forks: forks the processes that write large tables.
    """

    def __init__(self, disk: Disk, admission: Admission, forks: ForkServer) -> None:
        self._disk, self._admission, self._forks = disk, admission, forks
        self._ends = threading.Event()
        self._directory = disk.below("tables")
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._numbers = itertools.count()

    def kept(
        self, job: ServedJob, epoch_id: EpochId, asked: Asked, request: Request
    ) -> Response | None:
        """Return the answer of a request with a table that was written already; else None.

        Raises:
            Problem: the request asks for parts that the table does not have, or its conditions do
                not hold.
        """
        table = self._tables.get(_tag(job, epoch_id, asked))
        if table is None or not table.is_there:
            return None
        return self._answer(table, epoch_id, asked, request)

    async def response(
        self, job: ServedJob, view: View, asked: Asked, request: Request
    ) -> Response:
        """Return the answer of a request with a table. Write the table if it is not kept.

        Raises:
            CorruptCheckpointError, StorageError: the state cannot be read, or the table cannot be
                written.
            Problem: too many tables are being written, the server may not take more of the disk,
                the checkpoint no longer has the epoch, or an int is too wide; or as for `kept`.
        """
        validators = _validators(job, view, asked)
        if (unchanged := _unchanged(validators, request)) is not None:
            return unchanged
        table = await self._table(job, view, asked, validators)
        return self._answer(table, view.id, asked, request)

    async def redirect(
        self, job: ServedJob, view: View, asked: Asked, location: str, *, with_content: bool
    ) -> Response:
        """Return a redirect to the address of a table.

        Parameters:
            location: the address.
            with_content: add the table itself, if it is small, for clients that do not follow
                redirects.

        Raises:
            CorruptCheckpointError, StorageError, Problem: as for `response`, with the content.
        """
        epoch = {"Statekit-Epoch": str(view.epoch)}
        headers = {"Location": location, "Cache-Control": "no-store", **epoch}
        if with_content:
            table = await self._table(job, view, asked, _validators(job, view, asked))
            file = table.writing.result()
            if file.size <= _SMALL_BYTES:
                content = await run_in_threadpool(file.path.read_bytes)
                return Response(content, 307, headers, MEDIA_TYPES[asked.to])
        return Response(status_code=307, headers=headers)

    async def _table(
        self, job: ServedJob, view: View, asked: Asked, validators: Validators
    ) -> _Table:
        """Return a table once it is written. Start to write it if it is not kept."""
        tag = validators.tag
        table = self._tables.get(tag)
        if table is None or (table.writing.done() and not table.is_there):
            path = self._directory / f"{next(self._numbers)}.{asked.to}"
            writing = asyncio.ensure_future(self._written(job, view, asked, path))
            table = self._tables[tag] = _Table(validators, writing)
        async with job.reads_checkpoint(view):
            await asyncio.shield(table.writing)
        table.asked_s = stopwatch_s()
        self._tables.move_to_end(tag)
        self._remove_old()
        return table

    def _answer(self, table: _Table, epoch_id: EpochId, asked: Asked, request: Request) -> Response:
        validators, file = table.validators, table.writing.result()
        if (unchanged := _unchanged(validators, request)) is not None:
            return unchanged
        self._tables.move_to_end(validators.tag)
        table.asked_s = stopwatch_s()
        has_range = request.method == "GET" and validators.has_range(request.headers)
        ranges = ranges_of(request.headers["range"], file.size) if has_range else []
        own = {"Statekit-Epoch": str(epoch_id.epoch), "Cache-Control": "no-cache"}
        return _Parts(file.path, ranges, {**validators.headers, **own}, MEDIA_TYPES[asked.to])

    async def _check_space(self) -> None:
        """Check that one more table may be written."""
        if await run_in_threadpool(lambda: self._disk.is_full):
            self._remove_old(is_full=True)
        await run_in_threadpool(self._disk.check_request)

    async def _written(self, job: ServedJob, view: View, asked: Asked, path: Path) -> _File:
        request = ExportRequest(
            checkpoint=job.checkpoint,
            epoch=view.id,
            operator=asked.operator,
            state=asked.state,
            wide_ints=asked.wide_ints,
            to=asked.to,
            into=str(path),
        )

        def write() -> _File:
            sizes = view.sizes(asked.operator).values()  # of all shards
            if sum(size for _, size in sizes) < _HERE_BYTES_MAX:
                request.carry_out()
            else:
                request.carry_out_in(
                    self._forks,
                    timeout_s=_SECONDS,
                    is_unwanted=self._ends.is_set,
                    below=self._directory,
                )
            return _File(path, path.stat().st_size)

        with self._admission.place("tables"):
            await self._check_space()
            try:
                async with self._admission.turn("tables"):
                    return await run_in_threadpool(write)
            except WideIntError as error:
                raise Problem(400, "wide_ints", str(error)) from error
            except QueryError as error:
                raise (closing() if self._ends.is_set() else error) from error

    def end(self) -> None:
        """End the processes that write tables."""
        self._ends.set()

    def _remove_old(self, *, is_full: bool = False) -> None:
        """Remove files that were not requested for `_KEPT_S`, except the last `_FILES_MAX` files.

        Parameters:
            is_full: remove all files, after a time in which running requests can open them.
        """
        for tag, table in list(self._tables.items()):
            is_old = len(self._tables) > _FILES_MAX and stopwatch_s() - table.asked_s > _KEPT_S
            if not table.writing.done() or not (is_old or is_full):
                continue
            del self._tables[tag]
            if table.is_there:
                remove = partial(table.writing.result().path.unlink, missing_ok=True)
                asyncio.get_running_loop().call_later(_KEPT_S if is_full else 0, remove)


class _Parts(FileResponse):
    """The response with a file, or parts of it.

    Parameters:
        path: of the file.
        ranges: the parts, which lie in the file; empty for all of it.
        headers: of the answer.
        media_type: of the file.
    """

    def __init__(
        self, path: Path, ranges: Sequence[Range], headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(path, headers=headers, media_type=media_type)
        self._ranges = ranges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The ranges were checked before, with the conditions, and apply only to GET requests.
        own = MutableHeaders(raw=list(scope["headers"]))
        del own["range"], own["if-range"]
        if self._ranges and scope["method"] == "GET":
            own["range"] = "bytes=" + ",".join(f"{first}-{last}" for first, last in self._ranges)
        await super().__call__({**scope, "headers": own.raw}, receive, send)


def _validators(job: ServedJob, view: View, asked: Asked) -> Validators:
    modified = instant(view.manifest.committed_at_us).replace(microsecond=0)
    return Validators(_tag(job, view.id, asked), modified)


def _tag(job: ServedJob, epoch_id: EpochId, asked: Asked) -> str:
    """Return the strong tag of a table: it identifies the bytes of the file."""
    parts = repr((job.identity, epoch_id, asked, _versions())).encode()
    return f'"{xxhash.xxh3_128_hexdigest(parts)}"'


@cache
def _versions() -> tuple[str, str]:
    """Return the versions of statekit and PyArrow: other versions may write other bytes."""
    return version("statekit"), pa.__version__


def _unchanged(validators: Validators, request: Request) -> Response | None:
    """Return the answer of a request whose client has the file already; None if it does not.

    Raises:
        Problem: the request is about another file.
    """
    match validators.failed(request.headers):
        case 304:
            headers = {**validators.headers, "Cache-Control": "no-cache"}
            return Response(status_code=304, headers=headers)
        case 412:
            raise Problem(
                412,
                "precondition",
                "the file is another one than the request is about (If-Match, "
                "If-Unmodified-Since): ask for its length and its tag again",
                validators.headers,
            )
    return None
