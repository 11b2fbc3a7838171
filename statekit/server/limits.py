"""Limits of requests: how many, and how large."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from statekit.clock import stopwatch_s
from statekit.server.problems import Problem


@dataclass
class _Bucket:
    left: float
    at_s: float


@dataclass
class Limits:
    """How much requests may ask for.

    Parameters:
        requests_per_s: of one token; None for any number. Twice as many may come at once.
        body_bytes: the largest body.
        watchers: how many may watch at a time.
    """

    requests_per_s: float | None = None
    body_bytes: int = 8 * 1024 * 1024
    watchers: int = 500
    _buckets: dict[str, _Bucket] = field(default_factory=dict, repr=False)

    def count(self, name: str) -> None:
        """Count a request of a token.

        Raises:
            Problem: it has made too many.
        """
        rate = self.requests_per_s
        if rate is None:
            return
        now_s, most = stopwatch_s(), max(1.0, 2 * rate)
        bucket = self._buckets.setdefault(name, _Bucket(most, now_s))
        bucket.left = min(most, bucket.left + (now_s - bucket.at_s) * rate)
        bucket.at_s = now_s
        if bucket.left < 1:
            raise Problem(
                429,
                "too_many",
                f"this token may make {rate:g} requests per second: wait, or ask for many keys at "
                "once",
                {"Retry-After": str(max(1, round((1 - bucket.left) / rate)))},
            )
        bucket.left -= 1

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
