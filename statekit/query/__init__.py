"""Reading state from outside of a job: the clients of a server, and a folder for each other way.

Nothing here writes to a checkpoint, except the leases of readers. May import `query/changes` and
whatever that may import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statekit.query.client import AsyncClient, Client, WatchEvent

__all__ = ["AsyncClient", "Client", "WatchEvent"]


if not TYPE_CHECKING:  # else every name would be one of this package, to mypy

    def __getattr__(name: str) -> Any:
        """Import `client` on first use, and return a name of it: only this module needs httpx."""
        if name not in __all__:
            raise AttributeError(f"module 'statekit.query' has no attribute {name!r}")
        from statekit.query import client

        return getattr(client, name)


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
