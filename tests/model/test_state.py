"""Every state type behaves like the plain Python value it stands for, whatever happens between."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import statekit as sk
from statekit.runtime import key_iteration as key_walk
from statekit.state import base as state_module
from tests.support.state_driver import KEYS, Box, Driver

ABSENT: Any = object()

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
number_lists = st.lists(st.integers(-3, 3), max_size=3)
list_bounds = st.none() | st.integers(-7, 7)


def owned(value: Any) -> Any:
    """A copy that later changes of `value` do not reach."""
    if isinstance(value, Box):
        return Box(value.items[:])
    return value[:] if isinstance(value, list) else value


def spoil(value: Any) -> None:
    """Change a value after it was given to a state, or read from it: nobody may see that."""
    inside = value.items if isinstance(value, Box) else value
    if isinstance(inside, list):
        for part in inside:
            spoil(part)
        inside.append(99)


class Machine(RuleBasedStateMachine):
    """Goes from key to key; `models` has what each state holds per key, as plain Python."""

    states: list[str]
    on_disk = False

    @initialize(pending=st.sampled_from([3, 32_768]), at_once=st.sampled_from([1, 2, 256]))
    def start(self, pending: int, at_once: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(state_module, "PENDING_ROWS_MAX", pending)
        self.patch.setattr(key_walk, "KEYS_MAX", at_once)
        self.driver = Driver(self.states, Path(self.folder.name) / "db" if self.on_disk else None)
        self.models: dict[tuple[str, str], Any] = {}

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            try:
                for key in KEYS:
                    self.driver.enter(key)
                    self.compare()
            finally:
                self.driver.close()
                self.patch.undo()
                self.folder.cleanup()

    @rule(key=st.sampled_from(KEYS))
    def go_to(self, key: str) -> None:
        self.driver.enter(key)

    @rule(key=st.sampled_from(KEYS))
    def go_on_to(self, key: str) -> None:
        self.driver.go_on_to(key)

    @rule()
    def begin_another_epoch(self) -> None:
        key = self.driver.visit.key
        self.driver.next_epoch()
        self.driver.enter(key)

    @rule()
    def a_visit_that_only_reads_changes_nothing(self) -> None:
        self.driver.enter(self.driver.visit.key)
        self.compare()
        self.driver.visit.flush()
        assert not len(self.driver.visit.batch)

    @rule()
    def what_states_count_is_what_they_hold(self) -> None:
        self.driver.enter(self.driver.visit.key)
        assert self.driver.counted() == self.driver.backend.sizes()

    def state(self, name: str) -> Any:
        return self.driver.states[name]

    def held(self, name: str, blank: Any = ABSENT) -> Any:
        return self.models.get((name, self.driver.visit.key), blank)

    def hold(self, name: str, value: Any) -> None:
        self.models[name, self.driver.visit.key] = value

    def drop(self, name: str) -> None:
        self.models.pop((name, self.driver.visit.key), None)

    def compare(self) -> None:
        """Check everything that is held at the current key."""
        raise NotImplementedError


# ---------------------------------------------------------------------------------------- value

VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "number": (numbers, None),
    "box": (st.builds(Box, number_lists), None),
    "maybe": (numbers | st.none(), None),
    "zero": (numbers, 0),
    "empty": (number_lists, [7]),
    "pickled": (st.complex_numbers(allow_nan=False), None),
}
value_names = st.sampled_from(sorted(VALUES))


class ValueMachine(Machine):
    states = sorted(VALUES)

    @rule(name=value_names, data=st.data(), by_property=st.booleans())
    def update(self, name: str, data: st.DataObject, by_property: bool) -> None:
        value = data.draw(VALUES[name][0])
        if by_property:
            self.state(name).value = value
        else:
            self.state(name).update(value)
        self.hold(name, owned(value))
        spoil(value)

    @rule(name=value_names)
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.drop(name)

    @rule(name=value_names)
    def check(self, name: str) -> None:
        expected = self.held(name, VALUES[name][1])
        assert self.state(name).get() == expected
        assert self.state(name).value == expected
        assert self.state(name).exists() == (self.held(name) is not ABSENT)

    @rule(name=st.sampled_from(["box", "empty"]))
    def change_what_was_read_and_not_write_it(self, name: str) -> None:
        spoil(self.state(name).get())
        self.check(name)

    @rule(name=st.sampled_from(["number", "box", "zero", "empty", "pickled"]))
    def a_wrong_value_changes_nothing(self, name: str) -> None:
        with pytest.raises(sk.StateTypeError):
            self.state(name).update(None)
        self.check(name)

    def compare(self) -> None:
        for name in self.states:
            self.check(name)


# ----------------------------------------------------------------------------------------- list

LISTS: dict[str, st.SearchStrategy[Any]] = {
    "numbers": numbers,
    "lists": number_lists,
    "maybes": st.none() | st.text(max_size=2),
}
list_names = st.sampled_from(sorted(LISTS))


class ListMachine(Machine):
    states = sorted(LISTS)

    @rule(name=list_names, data=st.data())
    def append(self, name: str, data: st.DataObject) -> None:
        value = data.draw(LISTS[name])
        self.state(name).append(value)
        self.hold(name, [*self.held(name, []), owned(value)])
        spoil(value)

    @rule(name=list_names, data=st.data())
    def extend(self, name: str, data: st.DataObject) -> None:
        values = data.draw(st.lists(LISTS[name], max_size=5))
        self.state(name).extend(iter(values))
        self.hold(name, self.held(name, []) + values)

    @rule(name=list_names, data=st.data())
    def update(self, name: str, data: st.DataObject) -> None:
        values = data.draw(st.lists(LISTS[name], max_size=7))
        self.state(name).update(iter(values))
        self.hold(name, [owned(value) for value in values])
        spoil(values)

    @rule(name=list_names)
    def update_from_itself(self, name: str) -> None:
        self.state(name).update(reversed(self.state(name)))
        self.hold(name, self.held(name, [])[::-1])

    @rule(name=list_names)
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.drop(name)

    @rule(name=list_names)
    def read_whole(self, name: str) -> None:
        state, expected = self.state(name), self.held(name, [])
        assert list(state) == expected
        assert state.get() == expected
        assert list(reversed(state)) == expected[::-1]
        assert len(state) == len(expected)
        assert bool(state) == bool(expected)

    @rule(name=list_names, index=st.integers(-9, 9))
    def read_one(self, name: str, index: int) -> None:
        state, expected = self.state(name), self.held(name, [])
        if not -len(expected) <= index < len(expected):
            with pytest.raises(IndexError, match=name):
                state[index]
            return
        value = expected[index]
        assert state[index] == value
        assert value in state
        assert state.index(value) == expected.index(value)
        assert state.count(value) == expected.count(value)

    @rule(name=list_names, start=list_bounds, stop=list_bounds, step=list_bounds)
    def read_a_slice(
        self, name: str, start: int | None, stop: int | None, step: int | None
    ) -> None:
        assume(step != 0)
        cut = slice(start, stop, step)
        assert self.state(name)[cut] == self.held(name, [])[cut]

    @rule(name=list_names, taken=st.integers(0, 4), clear=st.booleans(), data=st.data())
    def iteration_sees_the_list_as_it_was(
        self, name: str, taken: int, clear: bool, data: st.DataObject
    ) -> None:
        before = list(self.held(name, []))
        forward, backward = iter(self.state(name)), reversed(self.state(name))
        seen = list(islice(forward, taken))
        if clear:
            self.clear(name)
        self.extend(name, data)
        assert seen + list(forward) == before
        assert list(backward) == before[::-1]

    @rule()
    def change_elements_that_were_read(self) -> None:
        for element in self.state("lists"):
            spoil(element)
        self.read_whole("lists")

    @rule(name=st.sampled_from(["numbers", "lists"]), data=st.data())
    def a_wrong_element_changes_nothing(self, name: str, data: st.DataObject) -> None:
        with pytest.raises(sk.StateTypeError):
            self.state(name).append(None)
        with pytest.raises(sk.StateTypeError):
            self.state(name).update([*data.draw(st.lists(LISTS[name], max_size=4)), None])
        self.read_whole(name)

    def compare(self) -> None:
        for name in self.states:
            self.read_whole(name)


# ------------------------------------------------------------------------------------------ map

MAPS: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "by_number": (st.integers(-4, 4), st.text(max_size=2)),
    "boxes": (
        st.tuples(st.sampled_from(["", "x", "x\x00", "xy"]), st.booleans()),
        st.builds(Box, number_lists),
    ),
    "optionals": (st.sampled_from(["", "é", "z", "\x00", "\U0001f600"]), st.none() | numbers),
}
map_names = st.sampled_from(sorted(MAPS))


class MapMachine(Machine):
    states = sorted(MAPS)

    def in_order(self, name: str) -> list[tuple[Any, Any]]:
        return sorted(self.held(name, {}).items(), key=lambda item: item[0])

    def without(self, name: str, key: Any) -> None:
        self.hold(name, {k: v for k, v in self.held(name, {}).items() if k != key})

    @rule(name=map_names, data=st.data())
    def set_one(self, name: str, data: st.DataObject) -> None:
        key, value = data.draw(MAPS[name][0]), data.draw(MAPS[name][1])
        self.state(name)[key] = value
        self.hold(name, {**self.held(name, {}), key: owned(value)})
        spoil(value)

    @rule(name=map_names, data=st.data())
    def delete(self, name: str, data: st.DataObject) -> None:
        key = data.draw(MAPS[name][0])
        if key not in self.held(name, {}):
            with pytest.raises(KeyError):
                del self.state(name)[key]
            return
        del self.state(name)[key]
        self.without(name, key)

    @rule(name=map_names, data=st.data())
    def pop(self, name: str, data: st.DataObject) -> None:
        key = data.draw(MAPS[name][0])
        assert self.state(name).pop(key, "none") == self.held(name, {}).get(key, "none")
        self.without(name, key)

    @rule(name=map_names)
    def popitem_takes_the_smallest_key(self, name: str) -> None:
        if not self.held(name, {}):
            with pytest.raises(KeyError):
                self.state(name).popitem()
            return
        first = self.in_order(name)[0]
        assert self.state(name).popitem() == first
        self.without(name, first[0])

    @rule(name=map_names, data=st.data())
    def setdefault(self, name: str, data: st.DataObject) -> None:
        key, value = data.draw(MAPS[name][0]), data.draw(MAPS[name][1])
        held = dict(self.held(name, {}))
        given = owned(value)
        assert self.state(name).setdefault(key, given) == held.setdefault(key, value)
        spoil(given)
        self.hold(name, held)

    @rule(name=map_names, data=st.data())
    def update(self, name: str, data: st.DataObject) -> None:
        values = data.draw(st.dictionaries(*MAPS[name], max_size=5))
        self.state(name).update(values)
        self.hold(name, {**self.held(name, {}), **values})

    @rule(name=map_names)
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.drop(name)

    @rule(name=map_names, data=st.data())
    def read_one(self, name: str, data: st.DataObject) -> None:
        key, state, held = data.draw(MAPS[name][0]), self.state(name), self.held(name, {})
        assert (key in state) == (key in held)
        assert state.get(key) == held.get(key)
        assert state.get(key, "none") == held.get(key, "none")
        if key in held:
            assert state[key] == held[key]
        else:
            with pytest.raises(KeyError):
                state[key]

    @rule(name=map_names)
    def read_whole(self, name: str) -> None:
        state, expected = self.state(name), self.in_order(name)
        assert list(state.items()) == list(state.scan()) == expected
        assert list(state) == list(state.keys()) == [key for key, _ in expected]
        assert list(state.values()) == [value for _, value in expected]
        assert len(state) == len(state.items()) == len(expected)
        assert bool(state) == bool(expected)
        assert state == dict(expected)
        assert all(value in state.values() for _, value in expected)
        assert "nowhere" not in state.values()

    @rule(name=map_names, data=st.data())
    def scan(self, name: str, data: st.DataObject) -> None:
        lo, hi = (data.draw(st.none() | MAPS[name][0]) for _ in range(2))
        assert list(self.state(name).scan(lo, hi)) == [
            (key, value)
            for key, value in self.in_order(name)
            if (lo is None or key >= lo) and (hi is None or key < hi)
        ]

    @rule(name=map_names, taken=st.integers(0, 4), clear=st.booleans(), data=st.data())
    def iteration_sees_the_map_as_it_was(
        self, name: str, taken: int, clear: bool, data: st.DataObject
    ) -> None:
        state, before = self.state(name), self.in_order(name)
        items, values, keys = iter(state.items()), iter(state.values()), iter(state)
        seen = list(islice(items, taken))
        if clear:
            self.clear(name)
        self.update(name, data)
        assert seen + list(items) == before
        assert list(keys) == [key for key, _ in before]
        assert list(values) == [value for _, value in before]

    @rule()
    def change_values_that_were_read(self) -> None:
        for key, value in self.state("boxes").items():
            spoil(value)
            spoil(self.state("boxes")[key])
            spoil(self.state("boxes").get(key))
        self.read_whole("boxes")

    @rule(name=st.sampled_from(["by_number", "boxes"]), data=st.data())
    def a_wrong_entry_changes_nothing(self, name: str, data: st.DataObject) -> None:
        key, value = data.draw(MAPS[name][0]), data.draw(MAPS[name][1])
        with pytest.raises(sk.StateTypeError):
            self.state(name)[key] = None
        with pytest.raises(sk.StateTypeError):
            self.state(name)[1.5] = value
        self.read_whole(name)

    def compare(self) -> None:
        for name in self.states:
            self.read_whole(name)


# --------------------------------------------------------------------- reducing and aggregating


def joined(added: list[Any]) -> list[Any]:
    return [one for part in added for one in part]


FOLDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[list[Any]], Any]]] = {
    "total": (st.integers(-9, 9), sum),
    "least": (numbers, min),
    "most": (st.text(max_size=2), max),
    "count": (numbers, len),
    "joined": (number_lists, joined),
    "grown": (number_lists, joined),
    "last": (number_lists, lambda added: added[-1]),
    "mean": (st.integers(-9, 9).map(float), lambda added: sum(added) / len(added)),
    "listed": (st.integers(-9, 9), sorted),
    "kept": (number_lists, lambda added: added),
}
fold_names = st.sampled_from(sorted(FOLDS))


class FoldMachine(Machine):
    states = sorted(FOLDS)

    @rule(name=fold_names, data=st.data())
    def add(self, name: str, data: st.DataObject) -> None:
        value = data.draw(FOLDS[name][0])
        self.state(name).add(value)
        self.hold(name, [*self.held(name, []), owned(value)])
        spoil(value)

    @rule(name=fold_names)
    def check(self, name: str) -> None:
        added = self.held(name, None)
        assert self.state(name).get() == (None if added is None else FOLDS[name][1](added))

    @rule(name=fold_names)
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.drop(name)

    @rule(name=st.sampled_from(["joined", "grown", "last", "listed", "kept"]))
    def change_what_was_read(self, name: str) -> None:
        spoil(self.state(name).get())
        self.check(name)

    @rule(name=st.sampled_from([name for name in sorted(FOLDS) if name != "count"]))
    def a_wrong_value_changes_nothing(self, name: str) -> None:
        with pytest.raises(sk.StateTypeError):
            self.state(name).add(b"bytes")
        self.check(name)

    def compare(self) -> None:
        for name in self.states:
            self.check(name)


# ---------------------------------------------------------------------------- all, side by side


class AllMachine(Machine):
    """One state of each kind at one key, interleaved: no state sees another's rows."""

    states = ["box", "numbers", "by_number", "total"]  # noqa: RUF012 - as in the base

    @rule(value=number_lists)
    def write_all(self, value: list[int]) -> None:
        self.state("box").update(Box(value))
        self.state("numbers").extend(value)
        self.state("by_number").update({one: str(one) for one in value})
        for one in value:
            self.state("total").add(one)
        self.hold("box", Box(value))
        self.hold("numbers", self.held("numbers", []) + value)
        entries = {one: str(one) for one in value}
        self.hold("by_number", {**self.held("by_number", {}), **entries})
        if value or self.held("total") is not ABSENT:
            self.hold("total", self.held("total", 0) + sum(value))

    @rule(name=st.sampled_from(states))
    def clear(self, name: str) -> None:
        self.state(name).clear()
        self.drop(name)

    @rule()
    def compare(self) -> None:
        assert self.state("box").get() == self.held("box", None)
        assert self.state("numbers").get() == self.held("numbers", [])
        assert list(self.state("by_number").items()) == sorted(self.held("by_number", {}).items())
        assert self.state("total").get() == self.held("total", None)


MACHINES = [ValueMachine, ListMachine, MapMachine, FoldMachine, AllMachine]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_states_in_memory_behave_like_plain_python_values(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_states_in_rocksdb_behave_like_plain_python_values(machine: type[Machine]) -> None:
    on_disk = type(f"{machine.__name__}OnDisk", (machine,), {"on_disk": True})
    run_state_machine_as_test(
        on_disk,
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
