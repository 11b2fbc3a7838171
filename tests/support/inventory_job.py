"""A job with a state of each kind, in two versions, and what it holds, by plain Python.

The second version declares `weight` as float where the first declares int, so that a checkpoint of
the first can be migrated.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import statekit as sk
from statekit.backend.interface import Backend, MemoryBackend
from statekit.backend.mutation import Batch
from statekit.checkpoint.repository import group_bounds
from statekit.functions.process import Process
from statekit.query.rows.reader import CheckpointReader
from tests.support.loaded_rows import load
from tests.support.mutations import Put, batch_of

__all__ = ["Held", "Item", "Move", "held_in", "inventory_job"]


class Move(NamedTuple):
    """A change of an item. With size 0, everything that is stored for the item is removed."""

    item: int
    number: int
    size: int


def _shared(count: int, shards: int) -> list[int]:
    return [count, *[0] * (shards - 1)]


Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]
Handled = Annotated[sk.OperatorState[int], sk.Default(0), sk.Redistribute(split=_shared, merge=sum)]
Numbers = Annotated[sk.OperatorListState[int], sk.Redistribute("even")]


def _moved(
    move: Move,
    note: sk.ValueState[str],
    places: sk.MapState[int, int],
    log: sk.ListState[int],
    total: sk.ReducingState[int],
    weight: sk.ValueState[Any],
    handled: sk.OperatorState[int],
    numbers: sk.OperatorListState[int],
) -> str:
    """Apply a move; returns what was stored for the item before it."""
    item = Item(note.get(), dict(places), list(log), total.get(), weight.get())
    handled.update((handled.get() or 0) + 1)
    numbers.append(move.number)
    if not move.size:
        for state in (note, places, log, total, weight):
            state.clear()
        return item.shown(move.item)
    note.update(_note(move))
    places[move.number % 7] = move.number
    places.pop((move.number + 1) % 7, None)
    log.append(move.number)
    total.add(move.number)
    weight.update(move.size)
    return item.shown(move.item)


def _note(move: Move) -> str:
    """Text that takes little in a file, so that the changes of a few epochs pay for a base."""
    return chr(ord("a") + move.number % 26) * move.size


@cache
def _process(version: int) -> Process[Any, Any, Any]:
    if version == 1:

        @sk.process(key="item")
        def inventory(
            move: Move,
            note: sk.ValueState[str],
            places: sk.MapState[int, int],
            log: sk.ListState[int],
            total: Total,
            weight: sk.ValueState[int],
            handled: Handled,
            numbers: Numbers,
        ) -> Iterator[str]:
            yield _moved(move, note, places, log, total, weight, handled, numbers)

        return inventory
    return _second_version()


def _second_version() -> Process[Any, Any, Any]:
    @sk.process(key="item")
    def inventory(
        move: Move,
        note: sk.ValueState[str],
        places: sk.MapState[int, int],
        log: sk.ListState[int],
        total: Total,
        weight: sk.ValueState[float],
        handled: Handled,
        numbers: Numbers,
    ) -> Iterator[str]:
        yield _moved(move, note, places, log, total, weight, handled, numbers)

    return inventory


def inventory_job(version: int, key_groups: int | None = None) -> sk.Job:
    """The job, with one source and one sink.

    Parameters:
        version: 1 or 2.
        key_groups: for a new checkpoint.
    """
    job = sk.Job("inventory", key_groups=key_groups)
    job.source("records", Move).process(_process(version)).sink("outputs")
    return job


# ------------------------------------------------------------------------------------- the model


@dataclass
class Item:
    """What is stored for one item."""

    note: str | None = None
    places: dict[int, int] = field(default_factory=dict)
    log: list[int] = field(default_factory=list)
    total: int | None = None
    weight: float | None = None

    def shown(self, item: int) -> str:
        """The output for a move of the item, if this was stored before it."""
        weight = None if self.weight is None else float(self.weight)
        return repr((item, self.note, sorted(self.places.items()), self.log, self.total, weight))


@dataclass
class Held:
    """Everything that is stored.

    Parameters:
        items: those for which something is stored.
        numbers: of all moves so far.
    """

    items: dict[int, Item] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)

    def after(self, moves: Iterable[Move]) -> tuple[Held, list[str]]:
        """What is stored after more moves, and the outputs for them."""
        made, outputs = copy.deepcopy(self), []
        for move in moves:
            item = made.items.pop(move.item, Item())
            outputs.append(item.shown(move.item))
            made.numbers.append(move.number)
            if not move.size:
                continue
            item.note = _note(move)
            item.places[move.number % 7] = move.number
            item.places.pop((move.number + 1) % 7, None)
            item.log.append(move.number)
            item.total = (item.total or 0) + move.number
            item.weight = move.size
            made.items[move.item] = item
        return made, outputs


# --------------------------------------------------------------------------------- what is stored


class _InMemory(CheckpointReader):
    """A reader that unpacks an operator once, in memory: for few rows that are read often."""

    _unpacked: Batch | None = None

    def unpack(
        self, operator: str, directory: str | Path, groups: tuple[int, int] | None = None
    ) -> Backend:
        backend = MemoryBackend(self.operator(operator).holds)
        everything = 0, self.job.key_groups - 1
        if self._unpacked is None:
            load(self.repository, backend, operator, *everything, self.manifest.epoch)
            bounds = group_bounds(*everything)
            rows = (
                (state, *row) for state in backend.states for row in backend.scan(state, *bounds)
            )
            self._unpacked = batch_of(list(starmap(Put, rows)))
        else:
            backend.write(self._unpacked)
        return backend


def held_in(root: Path) -> Held:
    """Everything that a checkpoint holds, read by its schema alone.

    It also makes sure that operator state is complete: the count of all shards is that of the
    moves.
    """
    reader, found = _InMemory(root), Held()
    for name in ("note", "places", "log", "total", "weight"):
        for number, value in reader.rows("inventory", name, root):
            setattr(found.items.setdefault(number, Item()), name, value)
    shards = reader.operator_state("inventory", "numbers")
    found.numbers = sorted(number for shard in shards for number in shard)
    counts = reader.operator_state("inventory", "handled")
    assert sum(count or 0 for count in counts) == len(found.numbers)
    return found
