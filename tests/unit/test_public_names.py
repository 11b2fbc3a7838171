"""The public names, pinned: adding or removing one is a decision."""

from __future__ import annotations

import inspect
import re
import rlcompleter
import runpy
import subprocess
import sys
from collections.abc import MutableMapping
from types import ModuleType

import pytest

import statekit
import statekit.query
import statekit.spark
import statekit.testing
import statekit.testing.machines
import statekit.testing.models
from statekit.backend.interface import Backend
from statekit.job.progress import Run
from statekit.job.stream import Windowed
from statekit.working_copy import lock

PUBLIC = [
    "TTL",
    "Aggregate",
    "AggregatingState",
    "Answer",
    "BaseOptions",
    "BootstrapError",
    "BroadcastState",
    "Change",
    "Collect",
    "CheckpointTransform",
    "Checkpointed",
    "Context",
    "ConnectorError",
    "CorruptCheckpointError",
    "Count",
    "Decimals",
    "Default",
    "EpochChanges",
    "Expression",
    "FailedRecord",
    "Feed",
    "FencedError",
    "FieldAggregate",
    "IncompleteEpochError",
    "Job",
    "KVStore",
    "Last",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "Mirror",
    "MirrorOptions",
    "OperatorListState",
    "OperatorState",
    "OperatorStream",
    "OwnAggregate",
    "Page",
    "PickleCodec",
    "Process",
    "ProcessError",
    "QueryError",
    "Recorder",
    "Redistribute",
    "Reduce",
    "ReducingState",
    "Replica",
    "ReplicaStatus",
    "RescaleError",
    "RestoreError",
    "Retention",
    "RocksOptions",
    "StateRow",
    "StateSchemaError",
    "StateTypeError",
    "StateView",
    "StatekitError",
    "StorageError",
    "Stream",
    "Sum",
    "Timer",
    "Timers",
    "Top",
    "Transformation",
    "ValueState",
    "View",
    "Windowed",
    "col",
    "count_windows",
    "digest",
    "expr",
    "feed",
    "lit",
    "mirror",
    "process",
    "read",
    "secret",
    "session",
    "sinks",
    "sources",
    "transform",
    "sliding",
    "tumbling",
]
TESTING = [
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyCopies",
    "Harness",
    "JobHarness",
    "Replay",
    "check",
    "check_aggregate",
    "check_migration",
    "check_redistribution",
    "check_reducer",
    "check_sink",
    "faulty",
    "replay",
    "states",
]

TESTING_MODELS = [
    "AggregatingModel",
    "ListModel",
    "MapModel",
    "ModelClocks",
    "ReducingModel",
    "StateModel",
    "TimersModel",
    "ValueModel",
    "model_of",
    "models_of",
]

TESTING_MACHINES = ["JobMachine", "JobModel"]

SPARK = [
    "Progress",
    "Query",
    "Transformed",
    "progress_of",
    "register",
    "session",
    "start",
    "transform_with_state",
]

MODULES = {
    "statekit": (statekit, PUBLIC),
    "statekit.testing": (statekit.testing, TESTING),
    "statekit.testing.machines": (statekit.testing.machines, TESTING_MACHINES),
    "statekit.testing.models": (statekit.testing.models, TESTING_MODELS),
    "statekit.spark": (statekit.spark, SPARK),
}

MEMBERS = {
    statekit.Job: """
        add bootstrap check explain from_json json_schema key_groups name plan run source start
        to_json
        """,
    statekit.Stream: """
        aggregate count distinct errors filter first flat_map join last late lookup map map_async
        name names of plan process record_class select sink top union window
        """,
    Windowed: "aggregate collect count last max mean min plan sum top",
    statekit.KVStore: """
        added_to append changes compare_and_set count exists expire first function get get_with
        increment last late multi_get multi_scan persist plan put put_if_absent reduce remove
        remove_range scan trim update versions
        """,
    Run: "epochs last_epoch mirrors sinks",
    statekit.Context: """
        epoch event_time input key operator processing_time shard timers watermark
        """,
    statekit.Replica: """
        all_views at checkpoint_id close epoch epoch_id get get_many oldest_epoch refresh status
        wait_for wait_for_other
        """,
}
"""What completion lists of the objects that users hold."""

EVERY = [(module, name) for module, (_, names) in MODULES.items() for name in names]


@pytest.mark.parametrize("platform", ["win32", "emscripten", "freebsd14"])
def test_other_platforms_are_refused_with_a_sentence(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ImportError, match=f"runs on Linux and macOS, and this is {platform}"):
        runpy.run_path(str(lock.__file__))


def test_the_module_that_refuses_other_platforms_is_imported_with_the_package() -> None:
    code = "import statekit, sys; sys.exit('statekit.working_copy.lock' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_these() -> None:
    for module, names in MODULES.values():
        assert sorted(module.__all__) == sorted(names)


@pytest.mark.parametrize(
    "module",
    [statekit, statekit.query, statekit.sinks, statekit.sources, statekit.spark, statekit.testing],
)
def test_completion_of_a_package_lists_its_public_names_only(module: ModuleType) -> None:
    assert dir(module) == sorted(module.__all__)
    completer = rlcompleter.Completer({"module": module})
    listed = [completer.complete("module.", n) for n in range(len(module.__all__) + 1)]
    assert listed.pop() is None
    names = {str(each).removeprefix("module.").rstrip("()") for each in listed}
    assert names == set(module.__all__)


@pytest.mark.parametrize("cls", MEMBERS, ids=lambda cls: cls.__name__)
def test_completion_of_an_object_lists_its_public_names_only(cls: type) -> None:
    assert [name for name in dir(cls) if not name.startswith("_")] == MEMBERS[cls].split()


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_public_name_is_documented(module: str, name: str) -> None:
    thing = getattr(MODULES[module][0], name)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    if inspect.isclass(thing):
        assert thing.__doc__, f"{name} inherits its docstring"


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_public_method_is_documented(module: str, name: str) -> None:
    thing = getattr(MODULES[module][0], name)
    if not inspect.isclass(thing):
        return
    for member, found in vars(thing).items():
        if not member.startswith("_") and (callable(found) or isinstance(found, property)):
            # What implements a protocol is documented there.
            said = [getattr(cls, member, None) for cls in (thing, Backend, MutableMapping)]
            assert any(map(inspect.getdoc, said)), f"{name}.{member} has no docstring"


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_the_help_of_a_class_has_its_arguments_or_says_what_creates_it(
    module: str, name: str
) -> None:
    cls = getattr(MODULES[module][0], name)
    if not inspect.isclass(cls) or issubclass(cls, Exception):
        return
    text = inspect.getdoc(cls) or ""
    if re.search(r"Created by|Declare a parameter|An element of", text):
        return
    varying = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind not in varying:
            described = re.search(rf"^ +(\w+, )*{parameter.name}(, \w+)*:", text, re.MULTILINE)
            assert described, f"{name}: nothing about {parameter.name}"


def test_every_error_has_a_kind_of_its_own() -> None:
    errors = [getattr(statekit, name) for name in PUBLIC if name.endswith("Error")]
    kinds = [error.kind for error in errors]
    assert len(set(kinds)) == len(kinds)
    assert all(issubclass(error, statekit.StatekitError) for error in errors)
