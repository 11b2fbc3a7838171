"""Option `metrics=` of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statekit.metrics.address import Address
from statekit.optional_packages import check_installed

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
    check_installed(f"metrics={given!r}", "prometheus-client", "metrics", "prometheus_client")
    from statekit.metrics.endpoint import Endpoint

    return Endpoint(address)
