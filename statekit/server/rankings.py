"""Rankings of keys, one at a time; the last ones are remembered."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from statekit.query.top import Measure
from statekit.query.top_in_child import TopRequest, top_as_json
from statekit.query.view import View
from statekit.server.long_work import LongWork
from statekit.server.served_job import ServedJob

_SECONDS, _KEPT = 120.0, 64


class Rankings:
    """Counts the keys of states, in processes of their own."""

    def __init__(self) -> None:
        self._work = LongWork("rankings", at_once=1)
        self._found: dict[tuple[int, TopRequest], bytes] = {}

    async def top(
        self,
        request: Request,
        job: ServedJob,
        view: View,
        operator: str,
        state: str | None,
        by: Measure,
        limit: int,
    ) -> bytes:
        """Return the ranking of an epoch as JSON, as long as the client waits.

        Raises:
            Problem: too many wait already.
            QueryError: there is no such state, or it takes too long.
        """
        wanted = TopRequest(job.checkpoint, view.epoch, operator, state, by, limit)

        def count(is_unwanted: Callable[[], bool]) -> bytes:
            return top_as_json(wanted, timeout_s=_SECONDS, is_unwanted=is_unwanted)

        place = (view.processing_time_us, wanted)  # another version has epochs of the same number
        found = self._found.get(place)
        if found is None:
            found = await self._work.run(request, count)
            if len(self._found) >= _KEPT:
                self._found.pop(next(iter(self._found)))
            self._found[place] = found
        return found
