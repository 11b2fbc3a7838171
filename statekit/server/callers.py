"""Callers: the token of each request, and the limit of refused requests per address.

A client that guesses tokens or scopes gets 429 at the limit, also for the right guess. Tokens that
the server has accepted from the address before, and did not refuse since, are still accepted: other
clients behind the same proxy keep reading.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statekit.server.access import Access, Token
from statekit.server.limits import Bucket
from statekit.server.problems import Problem, response_of

_AT_ONCE = 10
"""Capacity of the bucket of refusals, in seconds of the limit."""

_KEPT = 10_000
"""Limit of the remembered addresses, and of the remembered accepted tokens of addresses."""

OPEN_PAGES = frozenset({"/", "/healthz", "/readyz"})
"""Paths that need no token. Their requests are never refused, and their tokens are ignored."""

_OPEN_FOLDER = "/assets/"
_FORBIDDEN = 403
_TOKEN = "statekit.token"
"""Key of the request's token in an ASGI scope. The token is None if it is absent or unknown."""

K = TypeVar("K")
V = TypeVar("V")

Caller = tuple[str, str]
"""An address, and the digest of the token in a request from there."""


def token_of(scope: Scope) -> Token:
    """Return the token of a request that went through `Callers`.

    Raises:
        Problem: it has none, or an unknown one.
    """
    token: Token | None = scope.get(_TOKEN)
    if token is None:
        raise Problem(
            401,
            "unauthorized",
            "give a token of this server, as in `Authorization: Bearer …`",
            {"WWW-Authenticate": "Bearer"},
        )
    return token


def token_name(scope: Scope) -> str:
    """Return the name of a request's token, for logs; "-" if it is absent or unknown."""
    token: Token | None = scope.get(_TOKEN)
    return "-" if token is None else token.name


class Callers:
    """Finds the token of each request, and refuses addresses that were refused too often.

    Parameters:
        app: the application that answers requests.
        access: the tokens.
        per_s: limit of refused requests per second and address; None for no limit.
    """

    def __init__(self, app: ASGIApp, access: Access, per_s: float | None) -> None:
        self._app = app
        self._access = access
        self._per_s = None if access.is_open else per_s
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._accepted: OrderedDict[Caller, None] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of remembered addresses or of remembered accepted tokens: the larger one."""
        return max(len(self._buckets), len(self._accepted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        digest = digest_given(scope["headers"])
        if self._per_s is None:
            scope[_TOKEN] = self._access.token(digest)
            await self._app(scope, receive, send)
            return
        caller = address_of(scope.get("client")), digest
        try:
            scope[_TOKEN] = self._checked(caller, self._per_s)
        except Problem as problem:
            await response_of(problem)(scope, receive, send)
            return
        await self._app(scope, receive, self._noting(caller, self._per_s, send))

    def _checked(self, caller: Caller, per_s: float) -> Token | None:
        """Return the token of a caller. A caller without an accepted token is counted as refused
        here, before the answer, so that concurrent requests are counted too.

        Raises:
            Problem: the address was refused too often.
        """
        bucket = self._buckets.get(caller[0])
        if bucket is not None and caller not in self._accepted and not bucket.has_some(per_s):
            raise _too_many(bucket, per_s)
        token = self._access.token(caller[1])
        if token is None:
            self._refused(caller, per_s)
        else:
            _remember(self._accepted, caller, None)
        return token

    def _noting(self, caller: Caller, per_s: float, send: Send) -> Send:
        """Return a function that sends the messages of an answer, and counts a 403 as refused."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _FORBIDDEN:
                self._refused(caller, per_s)
            await send(message)

        return noting

    def _refused(self, caller: Caller, per_s: float) -> None:
        self._accepted.pop(caller, None)
        bucket = self._buckets.get(caller[0]) or Bucket(_AT_ONCE * per_s)
        _remember(self._buckets, caller[0], bucket)
        bucket.take(per_s)


def _too_many(bucket: Bucket, per_s: float) -> Problem:
    return Problem(
        429,
        "too_many",
        "too many requests of this address were refused: wait, and give a token that may read "
        "what you ask for",
        {"Retry-After": str(bucket.wait_s(per_s))},
    )


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Add a value as the newest one, and remove the oldest values above the limit."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)


def _is_open(path: str) -> bool:
    return path in OPEN_PAGES or path.startswith(_OPEN_FOLDER)


def digest_given(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the digest of the token in the headers of a request. It is the same for each spelling
    of the header, and empty for no token or several.

    >>> one = digest_given([(b"authorization", b"Bearer abc")])
    >>> one == digest_given([(b"authorization", b"bearer   abc ")])
    True
    >>> digest_given([(b"authorization", b"Bearer abc")] * 2), digest_given([])
    ('', '')
    """
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return ""
    scheme, _, token = given[0].partition(b" ")
    token = token.strip()
    return hashlib.sha256(token).hexdigest() if scheme.lower() == b"bearer" and token else ""


def address_of(client: tuple[str, int] | None) -> str:
    """Return the address that identifies a caller: for IPv6, its network of 64 bits.

    >>> address_of(("192.0.2.7", 5000)), address_of(("2001:db8::7", 5000)), address_of(None)
    ('192.0.2.7', '2001:db8::', '')
    >>> address_of(("::ffff:192.0.2.7", 5000))
    '192.0.2.7'
    """
    host = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
