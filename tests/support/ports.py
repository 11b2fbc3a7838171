"""Ports for servers of tests that cannot choose one themselves."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _COUNT = 10_000, 22_000
"""Below the ports that Linux gives to connections (from 32,768 on): a connection of another test
must not take the port before the server does, which may be seconds later.
"""
_ports = itertools.count(os.getpid() * 61)
"""Processes of tests begin at different ports, and do not ask for the same one twice."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens to, for a server that starts soon.

    Parameters:
        host: the address that the server will listen to.
    """
    while True:
        port = _FIRST + next(_ports) % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:  # another server has it
                continue
        return port
