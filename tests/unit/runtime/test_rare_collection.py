"""Garbage with cycles is collected between the epochs of a run in this process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import statekit as sk
from statekit.checkpoint.store import Store
from statekit.runtime import rare_collection


class Order(NamedTuple):
    number: int


class Node:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def usual_collection() -> Iterator[None]:
    """Collect garbage as a program does that has changed nothing about it."""
    before, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield
    gc.set_threshold(*before)
    if not was_enabled:
        gc.disable()


@pytest.mark.usefixtures("usual_collection")
def test_cycles_of_an_epoch_are_gone_in_the_next_one() -> None:
    cycles = rare_collection.RARE_COLLECTION[0] + 1_000
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    @sk.process(key="number")
    def cyclic(order: Order, seen: sk.ValueState[int]) -> None:
        seen.update(order.number)
        alive.append(sum(1 for one in made if one() is not None))
        made.extend([weakref.ref(Node()) for _ in range(cycles)])

    job = sk.Job("cycles")
    job.source("orders", Order).process(cyclic)
    job.run({"orders": [Order(0), Order(1)]}, epoch_size=1)
    assert alive == [0, 0]


@pytest.mark.parametrize("ask", ["exists", "read_if_there", "create"])
def test_an_answer_that_a_file_is_missing_or_there_keeps_nothing_in_a_cycle(
    tmp_path: Path, ask: str
) -> None:
    """The frames around it have all records of an epoch."""
    store, content = Store(tmp_path), b"{}"
    path = "epochs/1.json"
    for _ in range(2):  # the first time, modules are imported
        gc.collect()
        if ask == "create":
            store.create(path, content)  # the second time, the file is there
        else:
            assert not getattr(store, ask)(path)
    assert gc.collect() == 0


@pytest.mark.usefixtures("usual_collection")
def test_a_run_leaves_the_thresholds_of_its_program_as_they_were() -> None:
    with rare_collection.rare_collection_within_epochs(), rare_collection.rare_collection():
        assert gc.get_threshold()[0] > rare_collection.RARE_COLLECTION[0]
    assert gc.get_threshold() == (700, 10, 10)


def test_nothing_is_collected_where_collection_is_turned_off() -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        nodes = [weakref.ref(Node()) for _ in range(rare_collection.RARE_COLLECTION[0] + 1_000)]
        rare_collection.collect_between_epochs()
        assert all(node() is not None for node in nodes)
    finally:
        if was_enabled:
            gc.enable()
