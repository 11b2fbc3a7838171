"""Limits of requests: how many, and how large."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from statekit.clock import stopwatch_s
from statekit.server.problems import Problem


class Bucket:
    """What is left of what may come at once; it fills again over time.

    Parameters:
        most: how much that is.
    """

    def __init__(self, most: float) -> None:
        self.left = self._most = most
        self._at_s = stopwatch_s()

    def has_some(self, per_s: float) -> bool:
        """Return whether there is something left.

        Parameters:
            per_s: how fast it fills.
        """
        now_s = stopwatch_s()
        self.left = min(self._most, self.left + (now_s - self._at_s) * per_s)
        self._at_s = now_s
        return self.left >= 1

    def take(self, per_s: float) -> bool:
        """Take one, and return whether there was one."""
        if not self.has_some(per_s):
            return False
        self.left -= 1
        return True

    def wait_s(self, per_s: float) -> int:
        """Return how many seconds to wait for the next one."""
        return max(1, round((1 - self.left) / per_s))


@dataclass
class Limits:
    """How much requests may ask for.

    Parameters:
        requests_per_s: of one token; None for any number. Twice as many may come at once.
        refusals_per_s: of one address, with 401 and 403; None for any number. Ten times as many may
            come at once.
        body_bytes: the largest body.
        watchers: how many may watch at a time.
        tables: how many files of states may be written or wait for it, at a time.
        seconds: how long a request may take until its answer begins.
    """

    requests_per_s: float | None = None
    refusals_per_s: float | None = 10.0
    body_bytes: int = 8 * 1024 * 1024
    watchers: int = 500
    tables: int = 16
    seconds: float = 120.0
    _buckets: dict[str, Bucket] = field(default_factory=dict, repr=False)

    def count(self, name: str) -> None:
        """Count a request of a token.

        Raises:
            Problem: it has made too many.
        """
        rate = self.requests_per_s
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

    def forget(self, name: str) -> None:
        """Forget a request that is counted once more elsewhere."""
        if name in self._buckets:
            self._buckets[name].left += 1


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: it is too large.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body_bytes:
            raise Problem(
                413,
                "too_large",
                f"a body may have {limits.body_bytes:,} bytes: divide the request",
                {"Connection": "close"},
            )
        parts.append(part)
    return b"".join(parts)
