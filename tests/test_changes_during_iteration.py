"""Maps and lists that change while they are iterated over: iteration sees them as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.state_driver import KEYS, Driver

STORED, PENDING = 30, 10
"""How many entries are committed when iteration begins, and how many were set in this epoch."""

Change = Callable[[Any, int], object]


@pytest.fixture(params=["memory", "rocks"])
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    """A map of even numbers and a list of numbers, partly stored; changes are flushed early."""
    monkeypatch.setattr("statekit.state.PENDING_ROWS_MAX", 16)
    path = tmp_path / "db" if request.param == "rocks" else None
    made = Driver(["by_number", "numbers"], path)
    _add(made, range(STORED))
    made.next_epoch()
    made.enter(KEYS[0])
    _add(made, range(STORED, STORED + PENDING))
    yield made
    made.close()


def _add(driver: Driver, numbers: range) -> None:
    for number in numbers:
        driver.states["by_number"][2 * number] = str(number)
        driver.states["numbers"].append(number)


def _clear_and_set_one(entries: Any, at: int) -> None:
    entries.clear()
    entries[at] = "new"


MAP_CHANGES: dict[str, Change] = {
    "removes the entry": lambda entries, at: entries.pop(at, None),
    "removes the next entry": lambda entries, at: entries.pop(at + 2, None),
    "removes the entry before": lambda entries, at: entries.pop(at - 2, None),
    "changes the next entry": lambda entries, at: entries.__setitem__(at + 2, "new"),
    "sets an entry that follows": lambda entries, at: entries.__setitem__(at + 1, "new"),
    "sets an entry before": lambda entries, at: entries.__setitem__(at - 1, "new"),
    "clears the map": lambda entries, at: entries.clear(),
    "clears the map and sets an entry": _clear_and_set_one,
}

# How a map is iterated over, and what that gives for each of its entries.
MAP_WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[int, str], object]]] = {
    "iter": (lambda entries: entries, lambda key, _: key),
    "keys": (lambda entries: entries.keys(), lambda key, _: key),
    "values": (lambda entries: entries.values(), lambda _, value: value),
    "items": (lambda entries: entries.items(), lambda key, value: (key, value)),
    "scan": (lambda entries: entries.scan(), lambda key, value: (key, value)),
}


@pytest.mark.parametrize("change", MAP_CHANGES)
@pytest.mark.parametrize("way", MAP_WAYS)
def test_iteration_over_a_map_that_changes_sees_it_as_it_was(
    driver: Driver, way: str, change: str
) -> None:
    entries = driver.states["by_number"]
    model = {2 * number: str(number) for number in range(STORED + PENDING)}
    iterated, shown = MAP_WAYS[way]
    expected = [shown(key, value) for key, value in model.items()]
    seen = []
    for found, key in zip(iterated(entries), list(model), strict=True):
        seen.append(found)
        MAP_CHANGES[change](entries, key)
        MAP_CHANGES[change](model, key)
    assert seen == expected
    assert dict(entries.items()) == model


@pytest.mark.parametrize("way", MAP_WAYS)
def test_an_iterator_over_a_map_that_is_taken_before_a_change_does_not_see_it(
    driver: Driver, way: str
) -> None:
    entries = driver.states["by_number"]
    iterated, shown = MAP_WAYS[way]
    expected = [shown(2 * number, str(number)) for number in range(STORED + PENDING)]
    before_clear, before_set = iter(iterated(entries)), iter(iterated(entries))
    entries[1] = "new"
    entries.clear()
    assert list(before_clear) == expected
    assert list(before_set) == expected
    assert list(iterated(entries)) == []


def _put_first(numbers: Any, at: int) -> None:
    numbers.clear()
    numbers.append(-at)


LIST_CHANGES: dict[str, Change] = {
    "appends": lambda numbers, at: numbers.append(at),
    "extends by many": lambda numbers, at: numbers.extend(range(20)),
    "clears the list": lambda numbers, at: numbers.clear(),
    "clears the list and appends": _put_first,
}

LIST_WAYS: dict[str, Callable[[Any], Iterator[int]]] = {
    "iter": iter,
    "reversed": reversed,
    "slice": lambda numbers: iter(numbers[3:20:2]),
    "slice from the end": lambda numbers: iter(numbers[-12:]),
}


@pytest.mark.parametrize("change", LIST_CHANGES)
@pytest.mark.parametrize("way", LIST_WAYS)
def test_iteration_over_a_list_that_changes_sees_it_as_it_was(
    driver: Driver, way: str, change: str
) -> None:
    numbers, model = driver.states["numbers"], list(range(STORED + PENDING))
    expected = list(LIST_WAYS[way](list(model)))
    seen = []
    for number in LIST_WAYS[way](numbers):
        seen.append(number)
        LIST_CHANGES[change](numbers, number)
        LIST_CHANGES[change](model, number)
    assert seen == expected
    assert numbers.get() == model


@pytest.mark.parametrize("way", LIST_WAYS)
def test_an_iterator_over_a_list_that_is_taken_before_a_change_does_not_see_it(
    driver: Driver, way: str
) -> None:
    numbers = driver.states["numbers"]
    expected = list(LIST_WAYS[way](list(range(STORED + PENDING))))
    before_append, before_clear = LIST_WAYS[way](numbers), LIST_WAYS[way](numbers)
    numbers.append(-1)
    numbers.clear()
    assert list(before_append) == expected
    assert list(before_clear) == expected


def test_positions_that_are_read_during_iteration_are_those_of_the_changed_list(
    driver: Driver,
) -> None:
    """An index, a slice and a search read the list as it is when they are called."""
    numbers = driver.states["numbers"]
    for number in numbers:
        if number == 0:
            numbers.append(1000)
        assert (numbers[-1], numbers[0], numbers[-1:]) == (1000, 0, [1000])
        assert numbers.index(1000) == STORED + PENDING
        assert numbers[number] == number
