"""Addresses at which Prometheus reads the metrics of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault
from statekit.shown import shown

LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]+)")


@dataclass(frozen=True)
class Address:
    """The address of an endpoint.

    Parameters:
        host: a name or an IP address.
        port: the port; 0 for a free one.
    """

    host: str
    port: int

    @classmethod
    def of(cls, given: object) -> Address:
        """Parse an address: a port of the loopback address, or "host:port".

        Raises:
            StateTypeError: it is neither.

        >>> Address.of(9464), Address.of("0.0.0.0:9464"), Address.of("[::1]:0")
        (127.0.0.1:9464, 0.0.0.0:9464, [::1]:0)
        """
        host, port = LOOPBACK, given
        if isinstance(given, str) and (match := _ADDRESS.fullmatch(given)) is not None:
            host, port = match["ipv6"] or match["host"], int(match["port"])
        if type(port) is not int:
            use = (
                f"give a port such as 9464, which is one of {LOOPBACK}, or a text such as "
                '"0.0.0.0:9464"'
            )
            fault = int_fault(port, use)
            raise StateTypeError(f"metrics={shown(given)}{fault}. Nothing was started")
        if not 0 <= port <= PORT_MAX:
            raise StateTypeError(
                f"metrics={given!r}: {port} is no port: give a number from 1 to {PORT_MAX}, or 0 "
                "for a free port. Nothing was started"
            )
        return cls(host, port)

    def __repr__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
