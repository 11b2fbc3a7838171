"""The store is written against the public names of statekit, as a user could write it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import statekit
from tests.support.places import ROOT

# What a user has in other ways: messages with values and types of users, whether a value, a
# number, a duration or a choice of bounds is of its type, calls that a document of the job keeps,
# and the class of `job.plan`.
MESSAGES_AND_CHECKS = {
    "statekit.state.closed_bounds": {"ClosedBounds", "closed_ends"},
    "statekit.declared_call": {"declarable"},
    "statekit.job.declarations": {"declares"},
    "statekit.job.plan": {"Plan"},
    "statekit.state.options": {"ttl_fault"},
    "statekit.shown": {"shown"},
    "statekit.codec.annotations": {"show"},
    "statekit.number_faults": {"int_fault"},
    "statekit.timestamp": {"duration_to_micros"},
    "statekit.codec.value_codec": {"ValueCodec", "value_codec"},
}
MODULES = sorted((ROOT / "statekit" / "kv").glob("*.py"))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module imports from statekit, outside of the store."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((of.name, "") for of in node.names if of.name.startswith("statekit"))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.startswith("statekit") and not module.startswith("statekit.kv"):
                yield from ((module, of.name) for of in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_public_names_only(path: Path) -> None:
    for module, name in imported(ast.parse(path.read_text())):
        if name in MESSAGES_AND_CHECKS.get(module, ()):
            continue
        assert name in statekit.__all__, f"{path.name}: {module}.{name} is not public"
        assert getattr(importlib.import_module(module), name) is getattr(statekit, name)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_reads_no_private_attribute_of_others(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            is_special = node.attr.startswith("__") and node.attr.endswith("__")
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            assert is_special or own, f"{path.name}, line {node.lineno}: {node.attr} is private"
