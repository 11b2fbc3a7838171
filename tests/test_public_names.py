"""The public names, pinned: adding or removing one is a decision."""

from __future__ import annotations

import inspect
from collections.abc import MutableMapping

import pytest

import statekit
import statekit.testing
from statekit.backend import Backend

PUBLIC = [
    "TTL",
    "Aggregate",
    "AggregatingState",
    "BaseOptions",
    "BroadcastState",
    "Checkpointed",
    "Context",
    "CorruptCheckpointError",
    "Count",
    "Default",
    "FencedError",
    "FieldAggregate",
    "IncompleteEpochError",
    "Job",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "OperatorListState",
    "OperatorState",
    "PickleCodec",
    "Process",
    "ProcessError",
    "QueryError",
    "Redistribute",
    "Reduce",
    "ReducingState",
    "RescaleError",
    "RestoreError",
    "Retention",
    "RocksOptions",
    "StateSchemaError",
    "StateTypeError",
    "StatekitError",
    "StorageError",
    "Stream",
    "Sum",
    "Timer",
    "Timers",
    "ValueState",
    "Windowed",
    "process",
    "session",
    "sinks",
    "sliding",
    "tumbling",
]
TESTING = [
    "CountingBackend",
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyCopies",
    "Harness",
    "bind",
    "check_redistribution",
    "faulty",
]

EVERY = [("statekit", name) for name in PUBLIC] + [("statekit.testing", name) for name in TESTING]
MODULES = {"statekit": statekit, "statekit.testing": statekit.testing}


def test_the_public_names_are_these() -> None:
    assert sorted(statekit.__all__) == sorted(PUBLIC)
    assert sorted(statekit.testing.__all__) == sorted(TESTING)


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_public_name_is_documented(module: str, name: str) -> None:
    thing = getattr(MODULES[module], name)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    if inspect.isclass(thing):
        assert thing.__doc__, f"{name} inherits its docstring"


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_public_method_is_documented(module: str, name: str) -> None:
    thing = getattr(MODULES[module], name)
    if not inspect.isclass(thing):
        return
    for member, found in vars(thing).items():
        if not member.startswith("_") and (callable(found) or isinstance(found, property)):
            # What implements a protocol is documented there.
            said = [getattr(cls, member, None) for cls in (thing, Backend, MutableMapping)]
            assert any(map(inspect.getdoc, said)), f"{name}.{member} has no docstring"


def test_every_error_has_a_kind_of_its_own() -> None:
    errors = [getattr(statekit, name) for name in PUBLIC if name.endswith("Error")]
    kinds = [error.kind for error in errors]
    assert len(set(kinds)) == len(kinds)
    assert all(issubclass(error, statekit.StatekitError) for error in errors)
