"""Proxies: the address of a client behind proxies that the server trusts.

Each proxy appends the address of its own peer to `X-Forwarded-For`. The peer sent the entries
before that, and may have invented them. So the header is read from its end, as long as the address
is that of a trusted proxy. `Forwarded` is not read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from statekit.errors import StateTypeError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HEADER = b"x-forwarded-for"

_HOPS_MAX = 32
"""Limit of the entries of the header that are read, since clients may send any number."""


class TrustedProxies:
    """Replaces the addresses of trusted proxies in requests by those of the clients.

    Parameters:
        app: the application that answers requests.
        proxies: the networks of the trusted proxies.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[Network]) -> None:
        self._app = app
        self._proxies = tuple(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._proxies and scope.get("client"):
            headers = (value for name, value in scope["headers"] if name == _HEADER)
            found = client_behind(scope["client"][0], headers, self._proxies)
            scope["client"] = (found, 0)
        await self._app(scope, receive, send)


def trusted_networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Parse the networks of proxies: addresses, or networks in CIDR notation.

    Raises:
        StateTypeError: a text is neither.

    >>> trusted_networks(["127.0.0.1", "10.0.0.0/8", "::1"])
    (IPv4Network('127.0.0.1/32'), IPv4Network('10.0.0.0/8'), IPv6Network('::1/128'))
    """
    return tuple(map(_network, given))


def _network(given: str) -> Network:
    try:
        return ipaddress.ip_network(given, strict=False)
    except ValueError as error:
        raise StateTypeError(
            f"{given!r} is not the address of a proxy ({error}): the server was not started. Give "
            "an address, or a network in CIDR notation, as in --trusted-proxy 127.0.0.1 or "
            "--trusted-proxy 10.0.0.0/8"
        ) from error


def client_behind(peer: str, forwarded: Iterable[bytes], proxies: Sequence[Network]) -> str:
    """Return the address of the client of a request: the last one that is not a trusted proxy's.

    Parameters:
        peer: the address of the connection.
        forwarded: the `X-Forwarded-For` headers of the request, in order.
        proxies: the networks of the trusted proxies.

    Returns:
        The address of the client. If an entry is not an address, that of the proxy that added it.

    >>> client_behind("127.0.0.1", [b"6.6.6.6, 192.0.2.7"], trusted_networks(["127.0.0.1"]))
    '192.0.2.7'
    >>> client_behind("192.0.2.7", [b"6.6.6.6"], trusted_networks(["127.0.0.1"]))
    '192.0.2.7'
    """
    address = _address(peer)
    if address is None:
        return peer
    entries = b",".join(forwarded).rsplit(b",", _HOPS_MAX)[-_HOPS_MAX:]
    while _is_in(address, proxies) and entries:
        before = _address(entries.pop().decode("latin-1"))
        if before is None:
            break
        address = before
    return str(address)


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Return the address of an entry without its port; None if it is not an address."""
    host = text.strip(" \t")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:  # an IPv4 address with a port
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
