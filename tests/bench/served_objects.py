"""The process function of `tests.bench.served_state`, for clients that want objects of a
dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass

import statekit as sk
from tests.bench.served_state import Change


@dataclass(frozen=True)
class Value:
    number: int
    text: str


@sk.process(key="key")
def store(change: Change, value: sk.ValueState[Value]) -> None:
    held = value.get()
    value.update(Value(0 if held is None else held.number + 1, f"text {change.key}"))
