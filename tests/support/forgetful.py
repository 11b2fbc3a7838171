"""A module of the user that keeps something between calls."""

from __future__ import annotations

CALLS: list[int] = []
count = 0


def counted() -> int:
    """Return how often this was called in the process."""
    global count
    count += 1
    return count
