"""States of every kind, and drivers that move states between keys and epochs as tasks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.backend.interface import Backend, MemoryBackend, StateSize
from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint.job_file import EXPIRY
from statekit.codec.key_codec import key_codec
from statekit.keygroup import pack_group
from statekit.runtime.key_iteration import KeyIteration
from statekit.state.base import State, StateSpec
from statekit.state.key_scope import Clocks, KeyScope
from statekit.watermark import BEGINNING

KEYS = ["a", "b", "c\x00", ""]

_GROUP = 7
_KEY_CODEC = key_codec(str)
_END = b"\xff" * 16  # behind all keys of rows


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


class StateDriver:
    """Driver of states without a job: it binds them to keys, which are texts, flushes them, begins
    epochs and crashes.

    Parameters:
        specs: the states by name.
        path: a directory for RocksDB; None keeps rows in memory.
        wrap: takes the backend with the rows, and returns the backend for the states.

    Attributes:
        states: their handles at the current key.
        scope: the key scope.
        backend: the backend with the rows.
        processing_us, watermark_us: the times of the epoch.
    """

    def __init__(
        self,
        specs: Mapping[str, StateSpec],
        path: Path | None = None,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> None:
        self.specs = dict(specs)
        self.path = path
        self.wrap = wrap
        self.epoch = 0
        self.processing_us = self.watermark_us = BEGINNING
        self.sizes = {name: StateSize(0, 0) for name in specs}
        self._families = [*specs]
        if any(spec.ttl is not None for spec in specs.values()):
            self._families.append(EXPIRY)
        self._crashes = 0
        self._committed = Batch()
        self.backend = self._opened()
        self.bind()

    def _opened(self) -> Backend:
        if self.path is None:
            return self.wrap(MemoryBackend(self._families))
        self.path.mkdir(parents=True, exist_ok=True)
        return self.wrap(RocksBackend(self.path / str(self._crashes), self._families))

    def bind(self) -> None:
        """Bind the states to the epoch, at the first key."""
        clocks = Clocks(self.watermark_us, self.processing_us, self.watermark_us)
        self.scope = KeyScope("op", self.epoch, Batch(), self.spill, clocks=clocks)
        self.scope.broadcasting = True
        self.states: dict[str, Any] = {
            name: spec.bind(self.scope, self.backend) for name, spec in self.specs.items()
        }
        self._iteration = KeyIteration(self.scope, _KEY_CODEC, ("key",))
        self.enter("a")

    def spill(self) -> None:
        """Apply the batch to the backend."""
        if len(self.scope.batch):
            self.backend.write(self.scope.batch)
            self.scope.batch.clear()

    def enter(self, key: str) -> None:
        """Apply all changes and enter a key."""
        self._iteration.apply_changes()
        self.go_on_to(key)

    def go_on_to(self, key: str) -> None:
        """Enter a key. The key iteration decides whether changes are flushed."""
        self._iteration.enter(pack_group(_GROUP) + _KEY_CODEC.encode(key), key)

    def counted(self) -> dict[str, StateSize]:
        """Return rows and bytes per state: those of earlier epochs, plus those that this epoch
        added.
        """
        return {
            name: StateSize(size.rows + state.rows_added, size.bytes + state.bytes_added)
            for (name, size), state in zip(self.sizes.items(), self.states.values(), strict=True)
        }

    def next_epoch(self, processing_us: int = BEGINNING, watermark_us: int = BEGINNING) -> None:
        """Commit the epoch and begin the next one. RocksDB is closed and opened again.

        Parameters:
            processing_us, watermark_us: the times of the next epoch.
        """
        self._sweep()
        self.sizes = self.counted()
        self._committed = self._rows()
        self.epoch += 1
        self.processing_us, self.watermark_us = processing_us, watermark_us
        if isinstance(self.backend, RocksBackend):
            self.backend.flush()
            self.backend.close()
            self.backend = self._opened()
        self.bind()

    def crash(self) -> None:
        """Drop all changes of the epoch, also those that are in the backend, and begin it again."""
        self.backend.close()
        self._crashes += 1
        self.backend = self._opened()
        self.backend.write(self._committed)
        self.bind()

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    def _sweep(self) -> None:
        """Apply all changes, and remove expired rows."""
        self.scope.flush()
        self.spill()
        self.scope.clocks.end_timers(self.watermark_us)
        states: list[State] = list(self.states.values())
        for state in states:
            if state.expiry is not None:
                state.sweep((_GROUP, _GROUP))
        self.spill()

    def _rows(self) -> Batch:
        rows = Batch()
        for family in self._families:
            for row_key, row in self.backend.scan(family, b"", _END):
                rows.put(family, row_key, row)
        return rows


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
