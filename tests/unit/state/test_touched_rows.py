"""Only what is touched is read, decoded, encoded and written."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from statekit.backend.mutation import Batch
from statekit.state.base import StateSpec
from tests.support.counting_backend import CountingBackend
from tests.support.state_driver import SPECS, Box, Driver


class Counted(Driver):
    """A driver whose backend and codecs count."""

    backend: CountingBackend

    def __init__(self, *names: str) -> None:
        self.decoded: Counter[str] = Counter()
        self.encoded: Counter[str] = Counter()
        super().__init__(list(names), wrap=CountingBackend)
        self.specs = {name: self._counting(SPECS[name]) for name in names}
        self.bind()

    def _counting(self, spec: StateSpec) -> StateSpec:
        def counted(counter: Counter[str], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def counting(value: Any) -> Any:
                counter[spec.name] += 1
                return call(value)

            return counting

        codec = dataclasses.replace(
            spec.codec,
            encode=counted(self.encoded, spec.codec.encode),
            decode=counted(self.decoded, spec.codec.decode),
        )
        return dataclasses.replace(spec, codec=codec)

    def reset(self) -> None:
        """Start counting now, in a new visit."""
        self.next_epoch()
        counters = (self.backend.read, self.backend.written, self.backend.deleted)
        for counter in (*counters, self.backend.ranges_deleted, self.decoded, self.encoded):
            counter.clear()

    def counts(self, name: str) -> dict[str, int]:
        """What happened to one state until the key was left."""
        self.scope.flush()
        self.spill()
        backend = self.backend
        found = {
            "read": backend.read[name],
            "decoded": self.decoded[name],
            "encoded": self.encoded[name],
            "written": backend.written[name],
            "deleted": backend.deleted[name],
            "ranges deleted": backend.ranges_deleted[name],
        }
        return {what: count for what, count in found.items() if count}


def filled(name: str, rows: int) -> Counted:
    driver = Counted(name)
    state: Any = driver.states[name]
    if name == "boxes":
        state.update({(str(number), True): Box([number]) for number in range(rows)})
    elif name == "by_number":
        state.update({number: str(number) for number in range(rows)})
    else:
        state.extend(range(rows))
    driver.reset()
    return driver


ONE_OF_EACH = {"read": 1, "decoded": 1, "encoded": 1, "written": 1}


def test_updating_one_entry_of_a_large_map_touches_one_row() -> None:
    driver = filled("by_number", 10_000)
    entries = driver.states["by_number"]
    for _ in range(5):
        entries[77] = entries[77] + "!"
    assert driver.counts("by_number") == ONE_OF_EACH


def test_updating_one_mutable_entry_of_a_large_map_touches_one_row() -> None:
    driver = filled("boxes", 10_000)
    boxes = driver.states["boxes"]
    box = boxes["77", True]
    box.items.append(1)
    boxes["77", True] = box
    assert driver.counts("boxes") == ONE_OF_EACH


def test_setting_an_entry_looks_at_that_entry_only_and_decodes_nothing() -> None:
    driver = filled("by_number", 10_000)
    driver.states["by_number"][77] = "x"
    assert driver.counts("by_number") == {"read": 1, "encoded": 1, "written": 1}


def test_deleting_an_entry_decodes_and_writes_nothing_else() -> None:
    driver = filled("boxes", 10_000)
    del driver.states["boxes"]["77", True]
    assert driver.counts("boxes") == {"read": 1, "deleted": 1}


def test_append_reads_nothing_and_writes_one_row() -> None:
    driver = filled("numbers", 10_000)
    driver.states["numbers"].append(1)
    assert driver.counts("numbers") == {"encoded": 1, "written": 1}


def test_an_untouched_state_does_nothing() -> None:
    names = ["number", "numbers", "by_number", "total", "mean", "box"]
    driver = Counted(*names)
    driver.states["number"].update(1)
    assert driver.counts("number") == {"read": 1, "encoded": 1, "written": 1}
    for name in names[1:]:
        assert driver.counts(name) == {}


@pytest.mark.parametrize("name", ["number", "total"])
def test_a_value_is_read_and_written_once_per_visit_however_many_records_come(name: str) -> None:
    driver = Counted(name)
    state = driver.states[name]
    write = state.update if name == "number" else state.add
    write(1)
    driver.reset()
    state = driver.states[name]
    write = state.update if name == "number" else state.add
    for _ in range(100):
        assert state.get() is not None
        write(2)
    assert driver.counts(name) == ONE_OF_EACH


def test_a_mutable_value_is_read_and_written_once_and_decoded_per_get() -> None:
    driver = Counted("box")
    driver.states["box"].update(Box([]))
    driver.reset()
    for number in range(10):
        box = driver.states["box"].get()
        box.items.append(number)
        driver.states["box"].update(box)
    assert driver.counts("box") == {"read": 1, "decoded": 10, "encoded": 10, "written": 1}


@pytest.mark.parametrize("name", ["number", "box", "total"])
def test_reading_a_value_writes_nothing(name: str) -> None:
    driver = Counted(name)
    assert driver.states[name].get() is None
    assert driver.states[name].get() is None
    assert driver.counts(name) == {"read": 1}


def test_updating_a_value_looks_at_its_row_once_and_decodes_nothing() -> None:
    driver = Counted("number")
    driver.states["number"].update(1)
    driver.states["number"].update(2)
    assert driver.states["number"].get() == 2
    assert driver.counts("number") == {"read": 1, "encoded": 1, "written": 1}


def test_clearing_a_value_decodes_nothing_and_deletes_once() -> None:
    driver = Counted("number")
    driver.states["number"].update(1)
    driver.states["number"].clear()
    driver.states["number"].clear()
    assert driver.counts("number") == {"read": 1, "deleted": 1}


@pytest.mark.parametrize("name", ["numbers", "by_number"])
def test_clearing_many_rows_counts_them_and_is_one_range_deletion(name: str) -> None:
    driver = Counted(name)
    prefix = driver.scope.prefix
    batch = Batch()
    for number in range(100_000):
        batch.put(name, prefix + number.to_bytes(12, "big"), b"\x01")
    driver.backend.write(batch)
    driver.reset()
    driver.states[name].clear()
    assert driver.counts(name) == {"read": 100_000, "ranges deleted": 1}
    assert not driver.states[name]


@pytest.mark.parametrize("name", ["numbers", "by_number"])
def test_clearing_an_empty_state_deletes_nothing(name: str) -> None:
    driver = Counted(name)
    driver.states[name].clear()
    assert driver.counts(name) == {}


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("numbers", bool),
        ("by_number", bool),
        ("boxes", bool),
        ("by_number", lambda state: 77 in state),
        ("by_number", lambda state: -1 in state),
        ("boxes", lambda state: ("77", True) in state),
    ],
)
def test_asking_whether_something_is_there_reads_at_most_one_row(
    name: str, question: Callable[[Any], bool]
) -> None:
    driver = filled(name, 10_000)
    question(driver.states[name])
    found = driver.counts(name)
    assert found["read"] == 1
    assert found.keys() <= {"read", "decoded"}


@pytest.mark.parametrize("name", ["number", "box"])
def test_exists_reads_one_row(name: str) -> None:
    driver = Counted(name)
    driver.states[name].update(1 if name == "number" else Box([1]))
    driver.reset()
    assert driver.states[name].exists()
    assert driver.counts(name)["read"] == 1


def test_a_range_of_a_map_reads_only_that_range() -> None:
    driver = filled("by_number", 10_000)
    assert [key for key, _ in driver.states["by_number"].scan(100, 103)] == [100, 101, 102]
    assert driver.counts("by_number") == {"read": 3, "decoded": 3}


def test_keys_and_len_decode_no_value() -> None:
    driver = filled("by_number", 1000)
    entries = driver.states["by_number"]
    assert len(entries) == sum(1 for _ in entries) == 1000
    assert driver.counts("by_number") == {"read": 2000}


def test_reading_a_list_reads_each_row_once() -> None:
    driver = filled("numbers", 1000)
    numbers = driver.states["numbers"]
    assert len(numbers.get()) == 1000
    assert numbers.index(999) == 999
    assert numbers[-3:] == [997, 998, 999]
    assert driver.counts("numbers") == {"read": 3000, "decoded": 3000}


def test_the_first_and_the_last_elements_of_a_list_are_found_without_the_rest() -> None:
    driver = filled("numbers", 10_000)
    numbers = driver.states["numbers"]
    assert (numbers[0], numbers[-1], numbers[:2]) == (0, 9999, [0, 1])
    assert driver.counts("numbers") == {"read": 4, "decoded": 4}
