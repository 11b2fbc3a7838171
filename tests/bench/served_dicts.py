"""The process function of `tests.bench.served_state`, for clients that want dicts."""

from __future__ import annotations

from typing import TypedDict

import statekit as sk
from tests.bench.served_state import Change


class Value(TypedDict):
    number: int
    text: str


@sk.process(key="key")
def store(change: Change, value: sk.ValueState[Value]) -> None:
    held = value.get()
    number = 0 if held is None else held["number"] + 1
    value.update(Value(number=number, text=f"text {change.key}"))
