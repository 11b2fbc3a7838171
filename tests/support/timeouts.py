"""How long tests wait."""

from __future__ import annotations

__all__ = ["PATIENCE_S"]

PATIENCE_S = 600.0
"""What was started and has not come to its end by then hangs. On machines that others use as well,
what takes a second may take half a minute."""
