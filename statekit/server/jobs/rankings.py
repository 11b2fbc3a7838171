"""Rankings of keys. One runs at a time, and the last results are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request

from statekit.query.replica.view import View
from statekit.query.tables.child_process import ChildLimitError, ForkServer
from statekit.query.tables.top import Measure
from statekit.query.tables.top_in_child import TopRequest, top_as_json
from statekit.server.admission.queues import Admission
from statekit.server.answers.problems import Problem
from statekit.server.jobs.disk import Disk
from statekit.server.jobs.served_job import ServedJob

LIMIT_MAX = 100
"""Number of keys that each ranking finds: an answer has the first of them."""

_SECONDS, _KEPT = 120.0, 64


class _Found(msgspec.Struct):
    """A ranking whose parts are encoded JSON."""

    keys: list[msgspec.Raw]
    key_groups: msgspec.Raw
    epochs: msgspec.Raw


class Rankings:
    """Ranks the keys of states, in processes of their own.

    Parameters:
        memory_bytes: memory limit of a process.
        disk: of the server.
        admission: of the server.
        forks: forks the processes.
    """

    def __init__(
        self, memory_bytes: int, disk: Disk, admission: Admission, forks: ForkServer
    ) -> None:
        self._memory_bytes, self._directory = memory_bytes, disk.below("rankings")
        self._admission, self._forks = admission, forks
        self._found: dict[TopRequest, _Found] = {}

    async def top(
        self,
        request: Request,
        token: str | None,
        job: ServedJob,
        view: View,
        operator: str,
        states: Sequence[str],
        by: Measure,
        limit: int,
    ) -> msgspec.Raw:
        """Return the ranking of an epoch as JSON. It ends if the client leaves.

        Parameters:
            token: the name of the request's token; None if everyone may read.

        Raises:
            Problem: too many wait already, the ranking takes too long or too much memory, the
                checkpoint no longer has the epoch, or the server ends.
            QueryError: there is no such state.
        """
        wanted = TopRequest(
            job.checkpoint, view.id, operator, tuple(states), by, LIMIT_MAX, self._memory_bytes
        )

        def count(is_unwanted: Callable[[], bool]) -> bytes:
            try:
                return top_as_json(
                    wanted,
                    timeout_s=_SECONDS,
                    is_unwanted=is_unwanted,
                    below=self._directory,
                    forks=self._forks,
                )
            except ChildLimitError as error:
                raise Problem(413, "too_large", str(error)) from error

        found = self._found.get(wanted)
        if found is None:
            async with job.reads_checkpoint(view):
                data = await self._admission.run(
                    "rankings", count, request, token=token, same=wanted
                )
            found = msgspec.json.decode(data, type=_Found)
            if len(self._found) >= _KEPT:
                self._found.pop(next(iter(self._found)))
            self._found[wanted] = found
        cut = _Found(found.keys[:limit], found.key_groups, found.epochs)
        return msgspec.Raw(msgspec.json.encode(cut))
