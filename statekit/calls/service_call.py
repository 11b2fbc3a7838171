"""A call of a service: an `async` function of a user, with timeout and retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from statekit.calls.event_loops import Client, event_loop
from statekit.errors import CALL_FAILURES, ProcessError
from statekit.shown import shown

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_GOLDEN = 0.618


class ServiceError(Exception):
    """All attempts of a call have failed.

    Parameters:
        records: of the call.
        error: of the last attempt.
        attempts: how many there were.
    """

    def __init__(self, records: Sequence[Any], error: BaseException, attempts: int) -> None:
        super().__init__(records, error, attempts)
        self.records = records
        self.error = error
        self.attempts = attempts

    @property
    def times(self) -> str:
        """The number of attempts as text."""
        return "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"


@dataclass(frozen=True)
class ServiceCall:
    """An `async` function with its options.

    Parameters:
        fn: takes a record, or a list of records with `batch`; then the client, if there is one.
        name: of the stream of its outputs, for messages.
        many: a result is a list of outputs, and not one output. None is no output.
        concurrency: the largest number of open calls per task.
        timeout_s: of each attempt.
        retries: the largest number of attempts after the first one.
        ordered: outputs are in the order of the records.
        batch: the largest number of records of a call; None for a function of one record.
        client: returns the client that is opened once per process; None without one.
        copy: copies a record, so that each attempt gets one that no attempt has changed; None for
            records that cannot change.
    """

    fn: Callable[..., Awaitable[Any]]
    name: str
    many: bool
    concurrency: int
    timeout_s: float
    retries: int
    ordered: bool
    batch: int | None = None
    client: Client | None = None
    copy: Callable[[Any], Any] | None = None

    async def outputs(self, records: Sequence[Any], number: int = 0) -> list[list[Any]]:
        """Call the service for some records, and return the outputs for each of them.

        Parameters:
            number: of the call, so that calls that fail together pause for different times.

        Raises:
            ServiceError: all attempts have failed.
            ProcessError: the result does not fit the annotation of the function.
        """
        for attempt in count(1):
            try:
                async with asyncio.timeout(self.timeout_s) as limit:
                    results = await self._called(records)
                break
            except (asyncio.CancelledError, *CALL_FAILURES) as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                if attempt > self.retries:
                    failed = self._no_answer if limit.expired() else error
                    raise ServiceError(records, failed, attempt) from error
                await asyncio.sleep(_pause_s(attempt, number))
        return [list(self._outputs_of(result)) for result in self._checked(results, records)]

    @property
    def _no_answer(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self.timeout_s:g} s")

    def outputs_of_record(self, record: Any) -> list[Any]:
        """Call the service for one record in the event loop, and return the outputs.

        Raises:
            BaseException: the error of the last attempt.
        """
        try:
            (outputs,) = event_loop().run(self.outputs([record]))
        except ServiceError as failed:
            raise failed.error from None
        return outputs

    async def _called(self, records: Sequence[Any]) -> Any:
        given = records if self.copy is None else list(map(self.copy, records))
        clients = () if self.client is None else (await event_loop().client(self.client),)
        return await self.fn(given[0] if self.batch is None else list(given), *clients)

    def _checked(self, results: Any, records: Sequence[Any]) -> Sequence[Any]:
        """Return one result per record."""
        if self.batch is None:
            return [results]
        if not isinstance(results, list | tuple) or len(results) != len(records):
            found = f"{len(results)} results" if isinstance(results, list | tuple) else None
            raise ProcessError(
                f"map_async {self.name!r} returned {found or shown(results)} for a batch of "
                f"{len(records)} records: return a list with one result per record, with None for "
                "a record without an output. Nothing of this epoch is committed"
            )
        return results

    def _outputs_of(self, result: Any) -> Iterator[Any]:
        if result is None:
            return
        if not self.many:
            yield result
        elif isinstance(result, list | tuple | Iterator):
            yield from result
        else:
            raise ProcessError(
                f"map_async {self.name!r} returned {shown(result)} for a record, and is declared "
                "to return a list: return a list of outputs. Nothing of this epoch is committed"
            )


def _pause_s(attempt: int, number: int) -> float:
    """Return the pause after an attempt: twice as long each time.

    Calls that fail together do not try again together: their pauses differ by up to a half.
    """
    longest = min(_FIRST_PAUSE_S * 2.0 ** (attempt - 1), _LONGEST_PAUSE_S)
    return longest * (0.5 + 0.5 * (number * _GOLDEN % 1.0))
