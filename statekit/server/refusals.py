"""Refusals: how often requests of one address may be refused, for want of a token that may read.

Whoever guesses tokens, or scopes, gets 429 then, also for the right guess. Tokens that were used
from the address before, and were not refused, go on: others behind the same proxy keep reading.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statekit.server.limits import Bucket
from statekit.server.problems import Problem, response_of

_AT_ONCE = 10
"""How many seconds' worth of refusals may come at once."""

_KEPT = 10_000
"""Addresses, and tokens of addresses, that are remembered."""

_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz"})
_REFUSED = frozenset({401, 403})

Caller = tuple[str, bytes]
"""An address, and the digest of what it gave as a token."""


class Refusals:
    """Answers requests of addresses that were not refused too often.

    Parameters:
        app: answers them.
        per_s: how many may be refused per second and address.
    """

    def __init__(self, app: ASGIApp, per_s: float) -> None:
        self._app = app
        self._per_s = per_s
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._known: OrderedDict[Caller, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        caller = _caller(scope)
        bucket = self._buckets.get(caller[0])
        if bucket is not None and caller not in self._known and not bucket.has_some(self._per_s):
            await response_of(self._too_many(bucket))(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(caller, message["status"])
            await send(message)

        await self._app(scope, receive, noting)

    def _note(self, caller: Caller, status: int) -> None:
        """Remember whether a request was refused."""
        if status not in _REFUSED:
            self._known[caller] = None
            self._known.move_to_end(caller)
            _forget_oldest(self._known)
            return
        self._known.pop(caller, None)
        bucket = self._buckets.setdefault(caller[0], Bucket(_AT_ONCE * self._per_s))
        self._buckets.move_to_end(caller[0])
        bucket.take(self._per_s)
        _forget_oldest(self._buckets)

    def _too_many(self, bucket: Bucket) -> Problem:
        return Problem(
            429,
            "too_many",
            "too many requests of this address were refused: wait, and give a token that may read "
            "what you ask for",
            {"Retry-After": str(bucket.wait_s(self._per_s))},
        )


def _forget_oldest(kept: OrderedDict[Caller, None] | OrderedDict[str, Bucket]) -> None:
    while len(kept) > _KEPT:
        kept.popitem(last=False)


def _caller(scope: Scope) -> Caller:
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return address_of(scope.get("client")), hashlib.sha256(given).digest()


def address_of(client: tuple[str, int] | None) -> str:
    """Return what the addresses of one caller have in common: of IPv6, a network of 64 bits.

    >>> address_of(("192.0.2.7", 5000)), address_of(("2001:db8::7", 5000)), address_of(None)
    ('192.0.2.7', '2001:db8::', '')
    """
    host = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        number = int(ipaddress.IPv6Address(host.partition("%")[0]))
    except ValueError:
        return host
    return str(ipaddress.IPv6Address(number >> 64 << 64))
