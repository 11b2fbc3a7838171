"""States of every kind, and a driver that visits keys with them as the task does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.backend.interface import Backend, MemoryBackend, StateSize
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.runtime.key_iteration import KeyIteration
from statekit.state.key_scope import KeyScope

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


class Driver:
    """Handles of some states: enters and leaves keys, spills, and starts new epochs."""

    def __init__(
        self,
        names: list[str],
        path: Path | None = None,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> None:
        self.names = names
        self.path = path
        self.wrap = wrap
        self.specs = {name: SPECS[name] for name in names}
        self.epoch = 0
        self.sizes = {name: StateSize(0, 0) for name in names}
        self.backend = self.opened()
        self.bind()

    def opened(self) -> Backend:
        if self.path is None:
            return self.wrap(MemoryBackend(self.names))
        return self.wrap(RocksBackend(self.path, self.names))

    def bind(self) -> None:
        self.visit = KeyScope("op", self.epoch, Batch(), self.spill)
        self.states: dict[str, Any] = {
            name: spec.bind(self.visit, self.backend) for name, spec in self.specs.items()
        }
        self.walk = KeyIteration(self.visit, every_state.key_codec, ("key",))
        self.enter(KEYS[0])

    def spill(self) -> None:
        if len(self.visit.batch):
            self.backend.write(self.visit.batch)
            self.visit.batch.clear()

    def enter(self, key: str) -> None:
        """Go to a key when all that was changed before has been applied."""
        self.walk.apply_changes()
        self.go_on_to(key)

    def go_on_to(self, key: str) -> None:
        """Go to a key, and let changes be handed on when the walk thinks it is time."""
        self.walk.enter(b"\x00\x07" + every_state.key_codec.encode(key), key)

    def counted(self) -> dict[str, StateSize]:
        """Rows and bytes per state: those of earlier epochs, and what this one added."""
        return {
            name: StateSize(size.rows + state.rows_added, size.bytes + state.bytes_added)
            for (name, size), state in zip(self.sizes.items(), self.states.values(), strict=True)
        }

    def next_epoch(self) -> None:
        """Handles go, rows stay; on disk, the database is closed and opened again."""
        self.visit.flush()
        self.spill()
        self.sizes = self.counted()
        self.epoch += 1
        if isinstance(self.backend, RocksBackend):
            self.backend.flush()
            self.backend.close()
            self.backend = self.opened()
        self.bind()

    def close(self) -> None:
        self.backend.close()
