"""Hosts: the names of the server that requests may use.

A page of another site can make its own name resolve to this machine, and then read a server without
tokens as if it were its own site. Its requests have the name of that site.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.server.answers.problems import Problem, response_of

ANY_HOST = "*"


class KnownHosts:
    """Passes on requests that use one of the server's names, and refuses others with a problem.

    Parameters:
        app: the application that answers them.
        hosts: the names; `ANY_HOST` for all.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().encode() for host in hosts)
        self._takes_any = ANY_HOST.encode() in self._hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._takes_any or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        problem = Problem(
            421,
            "unknown_host",
            "the server does not have this name: call it by its address, or start it with "
            "--allow-host NAME",
        )
        await response_of(problem)(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return host_of(given) in self._hosts


@lru_cache(maxsize=64)
def host_of(header: bytes) -> bytes:
    """Return the name in a Host header in lower case, without the port.

    >>> host_of(b"LocalHost:8321"), host_of(b"[::1]:8321"), host_of(b"::1")
    (b'localhost', b'[::1]', b'::1')
    """
    name, colon, port = header.lower().rpartition(b":")
    is_port = colon and port.isdigit() and (b":" not in name or name.endswith(b"]"))
    return name if is_port else header.lower()
