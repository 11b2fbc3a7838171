"""States of every kind, and a driver of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import statekit as sk
from statekit.backend.interface import Backend
from statekit.testing.state_driver import StateDriver

KEYS = ["a", "b", "c\x00", ""]


@dataclass
class Box:
    """A mutable value."""

    items: list[int]


class Row(NamedTuple):
    key: str


def concat(left: list[int], right: list[int]) -> list[int]:
    return left + right


def extend_in_place(left: list[int], right: list[int]) -> list[int]:
    left.extend(right)
    return left


def add_to_list(accumulator: list[int], value: int) -> list[int]:
    accumulator.append(value)
    return accumulator


def keep_added(accumulator: list[list[int]], value: list[int]) -> list[list[int]]:
    accumulator.append(value)
    return accumulator


def mean_add(accumulator: tuple[float, int], value: float) -> tuple[float, int]:
    return accumulator[0] + value, accumulator[1] + 1


MEAN = sk.Aggregate(create=lambda: (0.0, 0), add=mean_add, result=lambda pair: pair[0] / pair[1])
LISTED = sk.Aggregate(create=list[int], add=add_to_list, result=lambda listed: sorted(listed))
KEPT = sk.Aggregate(create=list[list[int]], add=keep_added, result=lambda kept: kept)


@sk.process(key="key")
def every_state(
    row: Row,
    number: sk.ValueState[int],
    box: sk.ValueState[Box],
    maybe: sk.ValueState[int | None],
    zero: Annotated[sk.ValueState[int], sk.Default(0)],
    empty: Annotated[sk.ValueState[list[int]], sk.Default([7])],
    pickled: Annotated[sk.ValueState[complex], sk.PickleCodec()],
    numbers: sk.ListState[int],
    lists: sk.ListState[list[int]],
    maybes: sk.ListState[str | None],
    by_number: sk.MapState[int, str],
    boxes: sk.MapState[tuple[str, bool], Box],
    optionals: sk.MapState[str, int | None],
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
    least: Annotated[sk.ReducingState[int], sk.Reduce("min")],
    most: Annotated[sk.ReducingState[str], sk.Reduce(max)],
    count: Annotated[sk.ReducingState[int], sk.Reduce("count")],
    joined: Annotated[sk.ReducingState[list[int]], sk.Reduce(concat)],
    grown: Annotated[sk.ReducingState[list[int]], sk.Reduce(extend_in_place)],
    last: Annotated[sk.ReducingState[list[int]], sk.Reduce(lambda old, new: new)],
    mean: Annotated[sk.AggregatingState[float, tuple[float, int], float], MEAN],
    listed: Annotated[sk.AggregatingState[int, list[int], list[int]], LISTED],
    kept: Annotated[sk.AggregatingState[list[int], list[list[int]], list[list[int]]], KEPT],
) -> None:
    """Declares a state of each kind; the tests drive the handles."""


SPECS = {spec.name: spec for spec in every_state.states}
DECLARATIONS = {name: every_state.signature.hints[name] for name in SPECS}


class Driver(StateDriver):
    """Drives some of these states.

    Parameters:
        names: of the states.
        path, wrap: as for `StateDriver`.
    """

    def __init__(
        self,
        names: list[str],
        path: Path | None = None,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> None:
        super().__init__({name: SPECS[name] for name in names}, path, wrap)
