"""Read what commands print."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from statekit.cli.tables import out


def printed(print_it: Callable[[], None]) -> str:
    """Return what a function prints on a terminal of 120 columns."""
    with patch.object(out, "_width", 120), out.capture() as captured:
        print_it()
    return captured.get()
