"""Limits of requests: their number and their size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from starlette.requests import Request

from statekit.clock import stopwatch_s
from statekit.server.admission.options import ServerOptions
from statekit.server.answers.problems import Problem

_BODY_BYTES_MAX = 8 * 2**20


class Bucket:
    """Token bucket: the number of requests that may still be made at once. It refills over time.

    Parameters:
        most: the capacity.
    """

    def __init__(self, most: float) -> None:
        self.left = self._most = most
        self._at_s = stopwatch_s()

    def has_some(self, per_s: float) -> bool:
        """Refill the bucket, and return whether at least one request is left.

        Parameters:
            per_s: the refill rate, in requests per second.
        """
        now_s = stopwatch_s()
        self.left = min(self._most, self.left + (now_s - self._at_s) * per_s)
        self._at_s = now_s
        return self.left >= 1

    def take(self, per_s: float) -> bool:
        """Take one request, and return whether there was one."""
        if not self.has_some(per_s):
            return False
        self.left -= 1
        return True

    def wait_s(self, per_s: float) -> int:
        """Return the seconds to wait for the next request, at least 1."""
        return max(1, round((1 - self.left) / per_s))


class Queue(NamedTuple):
    """Limits of a queue of requests.

    Parameters:
        what: what its requests do, for errors.
        most: limit of the requests that run or wait.
        of_token: limit of such requests of one token.
        at_once: number of requests that run at a time; the others wait in order of arrival.
        at_once_of_token: number of such requests of one token.
        retry_s: seconds after which a refused client may try again.
        gives_way: pause between requests while there are single reads.
    """

    what: str
    most: int = sys.maxsize
    of_token: int = sys.maxsize
    at_once: int = sys.maxsize
    at_once_of_token: int = sys.maxsize
    retry_s: int = 5
    gives_way: bool = False


def queues_of(options: ServerOptions) -> Mapping[str, Queue]:
    """Return the queues of all requests that wait or take long, by name."""
    return {
        "reads": Queue("reads of many rows wait", at_once=2, gives_way=True),
        "histories": Queue("histories wait", most=16, at_once=2),
        "queries": Queue("queries wait", most=16, at_once=2),
        "rankings": Queue("rankings wait", most=16, of_token=2, at_once=1),
        "tables": Queue("files are being written", most=options.tables, at_once=2),
        "submissions": Queue("submissions wait", most=100, at_once=2, at_once_of_token=1),
        "waits": Queue("requests wait for an epoch", options.waits, options.waits_of_token),
        "watchers": Queue("watch", most=options.watchers, retry_s=10),
    }


class Rates:
    """Counts the requests of each token. Twice as many as in a second may arrive at once.

    Parameters:
        per_s: limit of requests per second of one token; None for no limit.
    """

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._buckets: dict[str, Bucket] = {}

    def count(self, name: str) -> None:
        """Count a request of a token.

        Raises:
            Problem: the token has made too many requests.
        """
        rate = self._per_s
        if rate is None:
            return
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(max(1.0, 2 * rate))
        if not bucket.take(rate):
            raise Problem(
                429,
                "too_many",
                f"this token may make {rate:g} requests per second: wait, or ask for many keys at "
                "once",
                {"Retry-After": str(bucket.wait_s(rate))},
            )


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: it is too large.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _BODY_BYTES_MAX:
            raise Problem(
                413,
                "too_large",
                f"a body may have {_BODY_BYTES_MAX:,} bytes: divide the request",
                {"Connection": "close"},
            )
        parts.append(part)
    return b"".join(parts)
