"""Reading state from outside of a job: `reader`, tables, change feed and replica.

Nothing here writes to a checkpoint, except the leases of readers. May import `job` and whatever
that may import.
"""

from __future__ import annotations

from typing import Any

_OF_CLIENT = ("AsyncClient", "Client", "WatchEvent")


def __getattr__(name: str) -> Any:
    """Return a name of `client`, which needs httpx: nothing else here does."""
    if name not in _OF_CLIENT:
        raise AttributeError(f"module 'statekit.query' has no attribute {name!r}")
    from statekit.query import client

    return getattr(client, name)
