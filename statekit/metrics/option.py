"""Option `metrics=` of a run."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from statekit.errors import StatekitError
from statekit.metrics.address import Address

if TYPE_CHECKING:
    from statekit.metrics.endpoint import Endpoint


def open_endpoint(given: object) -> Endpoint | None:
    """Bind an endpoint to the address in the option `metrics=`, and return it; None for None.

    Raises:
        StateTypeError: it is not an address.
        StatekitError: prometheus-client is not installed.
        StorageError: the machine has no such address, or another process uses the port.
    """
    if given is None:
        return None
    address = Address.of(given)
    if importlib.util.find_spec("prometheus_client") is None:
        raise StatekitError(
            f"metrics={given!r} needs prometheus-client: pip install 'statekit[metrics]'. Nothing "
            "was started"
        )
    from statekit.metrics.endpoint import Endpoint

    return Endpoint(address)
