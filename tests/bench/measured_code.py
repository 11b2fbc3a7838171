"""Which code a benchmark measures, and whether that has changed since.

Comments, docstrings and layout do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import statekit

_PACKAGE = Path(statekit.__file__).parent
_TOP = "statekit"
"""Stands for the modules at the top of the package."""

_STORED = (_TOP, "backend", "checkpoint", "codec", "working_copy")
_SHARD = (*_STORED, "functions", "records", "runtime", "state")
_SPARK = (*_SHARD, "job", "sinks", "spark")

_FOLDERS: dict[str, tuple[str, ...]] = {
    "serve": (*_STORED, "query", "server"),
    "replica": (*_STORED, "query", "records"),
    **dict.fromkeys(("tables", "as"), (*_STORED, "query")),
    "opening": (_TOP, "backend"),
    "store": (*_SPARK, "kv"),
    "mirror": (*_SHARD, "connectors", "job", "mirrors", "query", "sinks"),
    "checks": (*_SHARD, "job", "testing"),
    "kafka": (*_SHARD, "job", "connectors", "sinks", "sources"),
    **dict.fromkeys(("lake", "postgres"), ("connectors", "records", "sinks")),
    "nexmark-duckdb": (*_SHARD, "job", "sinks", "sources"),
    **dict.fromkeys(("bootstrap", "rescale"), (*_SHARD, "maintenance")),
    **dict.fromkeys(
        ("spark", "nexmark", "placement", "transforms", "timers", "ordered", "first", "shards"),
        _SPARK,
    ),
}
"""By the first words of a benchmark's name: two, or one. All others run shards without Spark."""


def code_of(benchmark: str) -> dict[str, str]:
    """Return a digest of each folder of the package that a benchmark measures."""
    first, *others = benchmark.split("-")
    others_run = _FOLDERS.get(first, (*_SHARD, "job"))
    folders = _FOLDERS.get("-".join((first, *others[:1])), others_run)
    return {folder: digest(_PACKAGE, folder) for folder in folders}


def changed_since(code: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders whose code is not what it was.

    Parameters:
        code: as `code_of` returned it.
    """
    now = {folder: digest(_PACKAGE, folder) for folder in code}
    return tuple(folder for folder in sorted(code) if now[folder] != code[folder])


@cache
def digest(package: Path, folder: str) -> str:
    """Return a digest of the code of a folder of a package."""
    paths = package.glob("*.py") if folder == _TOP else (package / folder).rglob("*.py")
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.relative_to(package).as_posix().encode())
        found.update(ast.dump(_without_docstrings(ast.parse(path.read_bytes()))).encode())
    return found.hexdigest()[:12]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return tree


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring: text by itself."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False
