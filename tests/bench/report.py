"""What a benchmark says: a measurement, its result and what was wanted."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    measured: str
    result: str
    wanted: str
