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
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statekit.server.admission.access import Access, Token
from statekit.server.admission.limits import Bucket
from statekit.server.answers.problems import Problem, response_of

_AT_ONCE = 10
"""Capacity of the bucket of refusals, in seconds of the limit."""

_KEPT = 10_000
"""Limit of the remembered addresses, and of the remembered accepted tokens of addresses."""

OPEN_PAGES = frozenset({"/", "/healthz", "/readyz"})
"""Paths that need no token. Their requests are never refused, and their tokens are ignored."""

PAGES = "/-/"
"""Folder of the addresses of the dashboard's pages. Aliases of jobs do not begin with a dash."""

FORMS = f"{PAGES}submitted"
"""Page of the submitted jobs. Its forms, and those of the pages below, change jobs."""

_OPEN_FOLDER = "/assets/"
_COOKIE = "statekit-token"
_FORBIDDEN = 403
_TOKEN = "statekit.token"
"""Key of the request's token in an ASGI scope. The token is None if it is absent or unknown."""

_CALLERS = "statekit.callers"
"""Key of the callers in the ASGI scope of a page."""

_REFUSED = "statekit.refused"
"""Key of the problem of a page whose address was refused too often."""

K = TypeVar("K")
V = TypeVar("V")

Caller = tuple[str, str]
"""An address, and the digest of the token in a request from there."""


def token_of(scope: Scope) -> Token:
    """Return the token of a request that went through `Callers`.

    Raises:
        Problem: it has none, or an unknown one; or its address was refused too often.
    """
    if (refused := scope.get(_REFUSED)) is not None:
        raise refused
    token: Token | None = scope.get(_TOKEN)
    if token is None:
        raise Problem(
            401,
            "unauthorized",
            "give a token of this server, as in `Authorization: Bearer …`; commands take it from "
            "STATEKIT_TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )
    return token


def token_name(scope: Scope) -> str:
    """Return the name of a request's token, for logs; "-" if it is absent or unknown."""
    token: Token | None = scope.get(_TOKEN)
    return "-" if token is None else token.name


def check_typed(scope: Scope, typed: str) -> bool:
    """Return whether the server knows a token that a user typed into a page. An unknown one counts
    as a refused request.

    Raises:
        Problem: the address was refused too often.
    """
    callers: Callers = scope[_CALLERS]
    caller = address_of(scope.get("client")), hashlib.sha256(typed.encode()).hexdigest()
    return callers.checked(caller) is not None


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie with the token of pages. It has the port of the server, since
    browsers do not tell the cookies of two servers on one machine apart.

    >>> cookie_name({"headers": [(b"host", b"localhost:8700")]}), cookie_name({"headers": []})
    ('statekit-token-8700', 'statekit-token')
    """
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    _, _, port = host.decode("latin-1").rpartition(":")
    return f"{_COOKIE}-{port}" if port.isdecimal() else _COOKIE


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
        is_page = scope["path"].startswith(PAGES)
        digest = _digest_of_page(scope) if is_page else digest_given(scope["headers"])
        caller = address_of(scope.get("client")), digest
        if is_page:
            scope[_CALLERS] = self
        try:
            # A page without a token asks for one, and makes no guess known.
            is_asking = is_page and not digest and not self._access.is_open
            scope[_TOKEN] = None if is_asking else self.checked(caller)
        except Problem as problem:
            if not is_page:
                await response_of(problem)(scope, receive, send)
                return
            scope[_REFUSED] = problem
        await self._app(scope, receive, self._noting(caller, send))

    def checked(self, caller: Caller) -> Token | None:
        """Return the token of a caller; None if it is unknown. A caller without an accepted token
        is counted as refused here, before the answer, so that concurrent requests are counted too.

        Raises:
            Problem: the address was refused too often.
        """
        per_s = self._per_s
        if per_s is None:
            return self._access.token(caller[1])
        bucket = self._buckets.get(caller[0])
        if bucket is not None and caller not in self._accepted and not bucket.has_some(per_s):
            raise _too_many(bucket, per_s)
        token = self._access.token(caller[1])
        if token is None:
            self._refused(caller, per_s)
        else:
            _remember(self._accepted, caller, None)
        return token

    def _noting(self, caller: Caller, send: Send) -> Send:
        """Return a function that sends the messages of an answer, and counts a 403 as refused."""
        per_s = self._per_s
        if per_s is None:
            return send

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


def _digest_of_page(scope: Scope) -> str:
    """Return the digest of the token in the cookie of a page; empty for no token or several, and
    for requests that are neither reads nor forms of jobs.
    """
    is_form = scope["method"] == "POST" and scope["path"].startswith(f"{FORMS}/")
    if scope["method"] not in ("GET", "HEAD") and not is_form:
        return ""
    name = cookie_name(scope).encode()
    pairs = [
        pair.strip().partition(b"=")
        for header, value in scope["headers"]
        if header == b"cookie"
        for pair in value.split(b";")
    ]
    given = [unquote_to_bytes(value) for own, _, value in pairs if own == name]
    return hashlib.sha256(given[0]).hexdigest() if len(given) == 1 and given[0] else ""


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
