"""Hypothesis state machines that compare a state with its model.

A machine calls each public method of the state with generated arguments. Between calls it goes to
other keys, begins epochs, crashes, and flushes to memory or RocksDB after a few rows.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import tempfile
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from statekit.codec.annotations import struct_fields, struct_flavour, with_metadata
from statekit.errors import StateTypeError
from statekit.functions.state_parameters import state_spec
from statekit.runtime import key_iteration
from statekit.shown import shown
from statekit.state import base
from statekit.state.base import State, StateSpec
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.single_row_states import AggregatingState, ReducingState, ValueState
from statekit.testing.checks.job_machine import machine_settings
from statekit.testing.drivers.driver import Backend, check_backend
from statekit.testing.models import ModelClocks, model_of
from statekit.testing.runs.comparison import is_same
from statekit.testing.strategies import values
from statekit.timestamp import datetime_to_micros
from tests.support.state_driver import KEYS, StateDriver

_STATE = "state"  # its name
_NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class _Wrong:
    """A value of a class that no state declares."""


def _own(name: str) -> st.SearchStrategy[Any]:
    """Return the strategy that a machine has as an attribute, for arguments of its rules."""
    return st.runner().flatmap(lambda machine: getattr(machine, name))


_VALUES = _own("values")
_VALUE_LISTS = st.lists(_VALUES, max_size=7)
_BOUNDS = st.none() | st.integers(-7, 7)


class StateMachine(RuleBasedStateMachine):
    """Base of the machines: keys, epochs, crashes and time. Subclass the machine of a state type.

    Attributes of a subclass:
        state: the declaration, such as `Annotated[ValueState[int], Default(0)]`.
        backend: the backend of the rows: "memory" or "rocksdb".
        values: a strategy of the values to write; by default the values of the annotation.

    Attributes:
        handle: the state at the current key.
        model: its model.
    """

    state: ClassVar[Any]
    backend: ClassVar[Backend] = "memory"
    values: ClassVar[st.SearchStrategy[Any]]
    spec: ClassVar[StateSpec]
    _state_class: ClassVar[type[State]] = State

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "state" in vars(cls):
            cls._declare(cls.state)
        cls.TestCase.settings = machine_settings()

    def __init__(self) -> None:
        if not hasattr(type(self), "spec"):
            raise StateTypeError(
                f"{type(self).__name__} has no state: declare it in the class, as "
                "state = sk.ValueState[int]"
            )
        check_backend(self.backend)
        super().__init__()

    @classmethod
    def _declare(cls, annotation: Any) -> None:
        """Read the declaration of the state, and make the strategies of its types."""
        cls.spec = state_spec(cls.__name__, _STATE, annotation)
        if cls._state_class is State or not issubclass(cls.spec.state_class, cls._state_class):
            raise StateTypeError(
                f"{cls.__name__}.state declares a {cls.spec.state_class.__name__}: subclass the "
                "machine of that state type"
            )
        bare, _ = with_metadata(annotation)
        roles = cls.spec.state_class.type_parameters
        types = dict(zip(roles, typing.get_args(bare), strict=True))
        for name, made in cls._strategies(types).items():
            if name not in vars(cls):
                setattr(cls, name, made())

    @classmethod
    def _strategies(
        cls, types: Mapping[str, Any]
    ) -> dict[str, Callable[[], st.SearchStrategy[Any]]]:
        """Return functions that make the strategies, by name. They are called for the strategies
        that the subclass does not have.

        Parameters:
            types: in the brackets of the declaration, by their roles.
        """
        return {"values": lambda: values(types.get("input", types["value"]))}

    # ---------------------------------------------------------------------------- between the calls

    @initialize(pending_rows=st.sampled_from([3, 32_768]), keys=st.sampled_from([1, 2, 256]))
    def start(self, pending_rows: int, keys: int) -> None:
        """Begin at the first key.

        Parameters:
            pending_rows: the number of rows after which a state flushes.
            keys: the number of keys after which all states flush.
        """
        self._differs = False
        self._resources = contextlib.ExitStack()
        enter = self._resources.enter_context
        enter(mock.patch.object(base, "PENDING_ROWS_MAX", pending_rows))
        enter(mock.patch.object(key_iteration, "KEYS_MAX", keys))
        path = None
        if self.backend == "rocksdb":
            path = Path(enter(tempfile.TemporaryDirectory(prefix="statekit-machine-")))
        self._driver = StateDriver({_STATE: self.spec}, path)
        self._resources.callback(lambda: self._driver.close())
        self._clocks = ModelClocks(processing_time=_NOON, event_time=_NOON)
        self._models = {key: model_of(self.state, self._clocks) for key in KEYS}
        self._commit()

    def teardown(self) -> None:
        if hasattr(self, "_driver"):
            with self._resources:
                if not self._differs:
                    self.check_all_keys()

    @rule(key=st.sampled_from(KEYS))
    def go_to(self, key: str) -> None:
        """Apply all changes, and go to a key."""
        self._driver.enter(key)

    @rule(key=st.sampled_from(KEYS))
    def go_on_to(self, key: str) -> None:
        """Go to a key. Changes may stay in memory."""
        self._driver.go_on_to(key)

    @rule(quarters=st.integers(0, 5))
    def begin_epoch(self, quarters: int) -> None:
        """Commit the epoch and begin the next one, some quarters of the TTL later."""
        assert self._clocks.event_time is not None
        self._clocks.processing_time += quarters * self._quarter
        self._clocks.watermark = self._clocks.event_time = (
            self._clocks.event_time + quarters * self._quarter
        )
        self._commit()

    @rule()
    def crash(self) -> None:
        """Drop all uncommitted changes, and begin the epoch again."""
        key = self._driver.scope.key
        self._driver.crash()
        self._models, self._clocks = copy.deepcopy(self._committed)
        self._set_event_time()
        self._driver.enter(key)

    @precondition(lambda self: self.spec.ttl is not None)
    @rule(quarters=st.integers(1, 5))
    def advance_event_time(self, quarters: int) -> None:
        """Handle a later record, some quarters of the TTL after the one before."""
        assert self._clocks.event_time is not None
        self._clocks.event_time += quarters * self._quarter
        self._set_event_time()

    @precondition(lambda self: self.spec.ttl is not None)
    @rule(times=st.integers(1, 4), quarters=st.integers(1, 3), in_one_epoch=st.booleans())
    def keep_reading(self, times: int, quarters: int, in_one_epoch: bool) -> None:
        """Read the key several times, each some quarters of the TTL later."""
        for _ in range(times):
            if in_one_epoch:
                self.advance_event_time(quarters)
            else:
                self.begin_epoch(quarters)
            self.check()
        self.begin_epoch(0)
        self.check()

    @rule()
    def check_sizes(self) -> None:
        """Check the counts of rows and bytes of the state."""
        self._driver.enter(self._driver.scope.key)
        assert self._driver.counted()[_STATE] == self._driver.backend.sizes()[_STATE]

    @precondition(lambda self: self.spec.ttl is None)
    @rule()
    def reading_changes_nothing(self) -> None:
        """Check that a key which is only read is not written."""
        self._driver.enter(self._driver.scope.key)
        self.check()
        self._driver.scope.flush()
        assert not len(self._driver.scope.batch)

    def check(self) -> None:
        """Compare the contents of the state and of its model at the current key."""
        raise NotImplementedError

    def check_all_keys(self) -> None:
        """Compare the state and the model at each key."""
        for key in KEYS:
            self._driver.enter(key)
            self.check()

    def _commit(self) -> None:
        key = self._driver.scope.key
        watermark = self._clocks.watermark
        times = {"processing_us": datetime_to_micros(self._clocks.processing_time)}
        if watermark is not None:
            times["watermark_us"] = datetime_to_micros(watermark)
        self._driver.next_epoch(**times)
        self._committed = copy.deepcopy((self._models, self._clocks))
        self._set_event_time()
        self._driver.enter(key)

    def _set_event_time(self) -> None:
        assert self._clocks.event_time is not None
        self._driver.scope.clocks.event_us = datetime_to_micros(self._clocks.event_time)

    @property
    def _quarter(self) -> dt.timedelta:
        ttl = self.spec.ttl
        return dt.timedelta(microseconds=4 if ttl is None else ttl.duration_us) / 4

    # ------------------------------------------------------------------------------------ the calls

    @property
    def handle(self) -> Any:
        """The state at the current key."""
        return self._driver.states[_STATE]

    @property
    def model(self) -> Any:
        """The model of the state at the current key."""
        return self._models[self._driver.scope.key]

    @rule()
    def clear(self) -> None:
        """Remove the contents of the state at the current key."""
        self.both(lambda state: state.clear())

    def both(self, call: Callable[[Any], Any], *arguments: Any) -> None:
        """Call the model and the state, and compare their results or errors.

        Arguments and results are changed afterwards: neither may notice.

        Parameters:
            call: gets the model or the state. An iterator that it returns is read to its end.
            arguments: the values that the call writes.
        """
        expected, found = _outcome(call, self.model), _outcome(call, self.handle)
        self._differs = not is_same(found, expected)
        assert not self._differs, (
            f"the state returns {shown(found)}, and its model {shown(expected)}"
        )
        for value in (*arguments, found):
            _spoil(value)

    def refuses(self, call: Callable[[Any], Any]) -> None:
        """Check that the state refuses a call, which then changes nothing."""
        with contextlib.suppress(StateTypeError):
            call(self.handle)
            raise AssertionError("the state accepts a value that its type does not allow")
        self.check()


def _outcome(call: Callable[[Any], Any], of: Any) -> Any:
    """Return the result of a call, or the class of its error."""
    try:
        returned = call(of)
    except (LookupError, StateTypeError) as error:
        return type(error)
    return list(returned) if isinstance(returned, Iterator) else returned


def _spoil(value: Any) -> None:
    """Change the mutable parts of a value."""
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif struct_flavour(type(value)) is not None:
        parts = [getattr(value, field.name, None) for field in struct_fields(type(value))]
    else:
        parts = []
    for part in parts:
        _spoil(part)
    if isinstance(value, list):
        value.append(None)
    elif isinstance(value, dict | set):
        value.clear()


# ----------------------------------------------------------------------------------- one value


class _OneRowStateMachine(StateMachine):
    """Base for states that have one row of each key."""

    @rule()
    def exists(self) -> None:
        """Check for a value, which restarts no TTL."""
        self.both(lambda state: state.exists())


class ValueStateMachine(_OneRowStateMachine):
    """State machine that compares a `ValueState` with its model."""

    _state_class = ValueState

    @rule(value=_VALUES, by_property=st.booleans())
    def update(self, value: Any, by_property: bool) -> None:
        """Set the value."""
        if by_property:
            self.both(lambda state: setattr(state, "value", value), value)
        else:
            self.both(lambda state: state.update(value), value)

    @rule()
    def check(self) -> None:
        """Read the value in all ways."""
        self.both(lambda state: state.exists())
        self.both(lambda state: state.get())
        self.both(lambda state: state.value)

    @precondition(lambda self: not self.spec.codec.accepts(_Wrong()))
    @rule()
    def a_wrong_value_changes_nothing(self) -> None:
        """Set a value of another type."""
        self.refuses(lambda state: state.update(_Wrong()))


class _AddingStateMachine(_OneRowStateMachine):
    """Base for states that add up values."""

    @rule(value=_VALUES)
    def add(self, value: Any) -> None:
        """Add a value."""
        self.both(lambda state: state.add(value), value)

    @rule()
    def check(self) -> None:
        """Read the result."""
        self.both(lambda state: state.exists())
        self.both(lambda state: state.get())


class ReducingStateMachine(_AddingStateMachine):
    """State machine that compares a `ReducingState` with its model."""

    _state_class = ReducingState

    @precondition(lambda self: _checks_added(self.spec))
    @rule()
    def a_wrong_value_changes_nothing(self) -> None:
        """Add a value of another type."""
        self.refuses(lambda state: state.add(_Wrong()))


class AggregatingStateMachine(_AddingStateMachine):
    """State machine that compares an `AggregatingState` with its model."""

    _state_class = AggregatingState

    @precondition(lambda self: not self.spec.added.accepts(_Wrong()))
    @rule()
    def a_wrong_value_changes_nothing(self) -> None:
        """Add a value of another type."""
        self.refuses(lambda state: state.add(_Wrong()))


def _checks_added(spec: StateSpec) -> bool:
    """Return whether a `ReducingState` refuses values of other types. One that counts does not."""
    counts = spec.reduce is not None and spec.reduce.known == "count"
    return not counts and not spec.codec.accepts(_Wrong())


# ---------------------------------------------------------------------------------------- lists


class ListStateMachine(StateMachine):
    """State machine that compares a `ListState` with its model."""

    _state_class = ListState

    @rule(value=_VALUES)
    def append(self, value: Any) -> None:
        """Add an element."""
        self.both(lambda state: state.append(value), value)

    @rule(some=_VALUE_LISTS)
    def extend(self, some: list[Any]) -> None:
        """Add some elements."""
        self.both(lambda state: state.extend(iter(some)), some)

    @rule(some=_VALUE_LISTS)
    def update(self, some: list[Any]) -> None:
        """Replace the list."""
        self.both(lambda state: state.update(iter(some)), some)

    @rule()
    def update_from_itself(self) -> None:
        """Replace the list while it is read."""
        self.both(lambda state: state.update(reversed(state)))

    @rule()
    def check(self) -> None:
        """Read the whole list in all ways."""
        self.both(lambda state: (len(state), bool(state)))
        self.both(lambda state: state.get())
        self.both(lambda state: iter(state))
        self.both(lambda state: reversed(state))

    @rule()
    def read_length(self) -> None:
        """Read the length only, which restarts no TTL."""
        self.both(lambda state: (len(state), bool(state)))

    @rule(index=st.integers(-9, 9))
    def read_one(self, index: int) -> None:
        """Read one element."""
        self.both(lambda state: state[index])

    @precondition(lambda self: bool(self.model))
    @rule(place=st.integers(0, 8))
    def search(self, place: int) -> None:
        """Search an element that the list has."""
        elements = self.model.plain()
        element = elements[place % len(elements)]
        self.both(lambda state: (element in state, state.index(element), state.count(element)))

    @rule(start=_BOUNDS, stop=_BOUNDS, step=_BOUNDS.filter(lambda step: step != 0))
    def read_slice(self, start: int | None, stop: int | None, step: int | None) -> None:
        """Read some elements."""
        self.both(lambda state: state[start:stop:step])

    @rule(taken=st.integers(0, 4), clear=st.booleans(), some=_VALUE_LISTS)
    def iteration_sees_the_list_as_it_was(self, taken: int, clear: bool, some: list[Any]) -> None:
        """Change the list between two elements of an iteration."""

        def read(state: Any) -> list[Any]:
            forward, backward = iter(state), reversed(state)
            seen = list(islice(forward, taken))
            if clear:
                state.clear()
            state.extend(some)
            return [*seen, *forward, *backward]

        self.both(read, some)

    @precondition(lambda self: not self.spec.codec.accepts(_Wrong()))
    @rule(some=_VALUE_LISTS)
    def a_wrong_element_changes_nothing(self, some: list[Any]) -> None:
        """Write an element of another type."""
        self.refuses(lambda state: state.append(_Wrong()))
        self.refuses(lambda state: state.update([*some, _Wrong()]))


# ----------------------------------------------------------------------------------------- maps


def _map_keys(machine: MapStateMachine) -> st.SearchStrategy[Any]:
    """Return a strategy of keys, often those that the map has."""
    present = list(machine.model)
    return machine.map_keys | st.sampled_from(present) if present else machine.map_keys


_MAP_KEYS = st.runner().flatmap(_map_keys)
_ENTRIES = st.lists(st.tuples(_MAP_KEYS, _VALUES), max_size=5)


class MapStateMachine(StateMachine):
    """State machine that compares a `MapState` with its model.

    Attributes of a subclass:
        map_keys: a strategy of the keys; by default the values of the annotation.
    """

    _state_class = MapState
    map_keys: ClassVar[st.SearchStrategy[Any]]

    @classmethod
    def _strategies(
        cls, types: Mapping[str, Any]
    ) -> dict[str, Callable[[], st.SearchStrategy[Any]]]:
        return {**super()._strategies(types), "map_keys": lambda: values(types["key"])}

    @rule(key=_MAP_KEYS, value=_VALUES)
    def set(self, key: Any, value: Any) -> None:
        """Set an entry."""
        self.both(lambda state: state.__setitem__(key, value), value)

    @rule(key=_MAP_KEYS, value=_VALUES, places=st.lists(st.sampled_from(KEYS), max_size=3))
    def set_at_some_keys(self, key: Any, value: Any, places: list[str]) -> None:
        """Set the same entry of several maps."""
        for place in places:
            self.go_on_to(place)
            self.both(lambda state: state.__setitem__(key, value))

    @rule(entries=_ENTRIES)
    def update(self, entries: list[tuple[Any, Any]]) -> None:
        """Set some entries."""
        self.both(lambda state: state.update(entries), entries)

    @rule(key=_MAP_KEYS, value=_VALUES)
    def setdefault(self, key: Any, value: Any) -> None:
        """Set an entry if it is absent."""
        self.both(lambda state: state.setdefault(key, value), value)

    @rule(key=_MAP_KEYS)
    def delete(self, key: Any) -> None:
        """Remove an entry."""
        self.both(lambda state: state.__delitem__(key))

    @rule(key=_MAP_KEYS)
    def pop(self, key: Any) -> None:
        """Remove an entry and return its value."""
        self.both(lambda state: state.pop(key, "none"))

    @rule()
    def popitem(self) -> None:
        """Remove the entry with the smallest key."""
        self.both(lambda state: state.popitem())

    @rule(key=_MAP_KEYS)
    def read_one(self, key: Any) -> None:
        """Read an entry."""
        self.both(lambda state: key in state)
        self.both(lambda state: state.get(key))
        self.both(lambda state: state.get(key, "none"))
        self.both(lambda state: state[key])

    @rule()
    def check(self) -> None:
        """Read the whole map in all ways."""
        self.both(lambda state: (len(state), len(state.items()), bool(state)))
        self.both(lambda state: (list(state), list(state.keys())))
        self.both(lambda state: list(state.items()))
        self.both(lambda state: list(state.values()))
        self.both(lambda state: state.scan())
        self.both(lambda state: state.scan(reverse=True))
        self.both(lambda state: state == dict(self.model.plain()))

    @rule()
    def read_keys(self) -> None:
        """Read the keys only, which restarts no TTL."""
        self.both(lambda state: (list(state), len(state), bool(state)))

    @rule(value=_VALUES)
    def search(self, value: Any) -> None:
        """Search a value."""
        self.both(lambda state: value in state.values())

    @rule(lo=st.none() | _MAP_KEYS, hi=st.none() | _MAP_KEYS, reverse=st.booleans())
    def scan(self, lo: Any, hi: Any, reverse: bool) -> None:
        """Read the entries between two keys."""
        self.both(lambda state: state.scan(lo, hi, reverse=reverse))

    @rule(key=_MAP_KEYS)
    def floor(self, key: Any) -> None:
        """Read the entry at or below a key."""
        self.both(lambda state: state.floor(key))

    @rule(taken=st.integers(0, 4), clear=st.booleans(), entries=_ENTRIES)
    def iteration_sees_the_map_as_it_was(
        self, taken: int, clear: bool, entries: list[tuple[Any, Any]]
    ) -> None:
        """Change the map between two entries of an iteration."""

        def read(state: Any) -> list[Any]:
            items, found, keys = iter(state.items()), iter(state.values()), iter(state)
            seen = list(islice(items, taken))
            if clear:
                state.clear()
            state.update(entries)
            return [*seen, *items, *found, *keys]

        self.both(read, entries)

    @precondition(lambda self: not self.spec.codec.accepts(_Wrong()))
    @rule(key=_MAP_KEYS, value=_VALUES)
    def a_wrong_entry_changes_nothing(self, key: Any, value: Any) -> None:
        """Set entries with keys and values of other types."""
        self.refuses(lambda state: state.__setitem__(key, _Wrong()))
        self.refuses(lambda state: state.__setitem__(_Wrong(), value))
