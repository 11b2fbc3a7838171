"""A public class or function of the package has a name that no other module gives to another."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.places import ROOT

PACKAGE = ROOT / "statekit"
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BOTH_PUBLIC = {"session", "csv", "json_lines", "kafka", "parquet", "postgres", "spark"}
"""Windows of `sk.session` and `statekit.spark.session`, `sk.sources.csv` and `sk.sinks.csv`,
`sk.sources.spark` and a fixture: users know each by the module it is in.
"""


def modules_by_name() -> dict[str, set[str]]:
    """The modules that define each public class or function at their top, below the package."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(PACKAGE)))
    return found


def test_no_public_name_is_in_two_modules() -> None:
    wrong = [
        f"{name} is in {' and '.join(sorted(modules))}: rename one, or begin it with an underscore"
        for name, modules in modules_by_name().items()
        if len(modules) > 1 and name not in BOTH_PUBLIC
    ]
    assert not wrong, "\n".join(wrong)
