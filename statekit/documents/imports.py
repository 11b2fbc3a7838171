"""Names of functions and classes in documents, and their import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.loader import load_module
from statekit.shown import shown


def import_path(of: Any) -> str:
    """Return the name `module:name` by which any process imports a function or a class.

    Raises:
        StateTypeError: there is none: it is a lambda, or stands in a function or in a script.

    >>> from collections import OrderedDict
    >>> import_path(OrderedDict)
    'collections:OrderedDict'
    """
    module, name = _named(of)
    if module is None or name is None:
        raise StateTypeError(
            f"{shown(of, 100)} has no name that a module knows: give a function or class that "
            "is at the top of a module"
        )
    if module == "__main__":
        raise StateTypeError(
            f"{name} is in a script, which no other process can import: put it into a module"
        )
    container = sys.modules.get(module)
    if isinstance(of, Process) and _attribute(container, of.name) is of:
        return f"{module}:{of.name}"  # its function may be one within another function
    if "<" in name:
        kind = "a lambda" if "<lambda>" in name else f"{name}, which stands in a function,"
        raise StateTypeError(
            f"{kind} cannot be imported by another process: put it at the top of a module"
        )
    if _attribute(container, name) != of:
        raise StateTypeError(
            f"{module} has something else under the name {name}: give what the module has, or "
            "another name to one of both"
        )
    return f"{module}:{name}"


def import_by_path(path: str, modules: Sequence[str] | None) -> Any:
    """Import a function or class that a document names.

    Parameters:
        path: `module:name`.
        modules: the packages and modules that may be imported; None for any.

    Raises:
        StateTypeError: it may not be imported, the import fails, or the module does not define it.
    """
    module, colon, name = path.partition(":")
    if not (colon and module and name):
        raise StateTypeError(f"{shown(path)} names nothing: write module:name, as in shop:total")
    if modules is not None and not any(_is_in(module, allowed) for allowed in modules):
        allowed = ", ".join(modules) or "none"
        raise StateTypeError(
            f"{shown(path)}: the module {module} may not be imported here: allowed are {allowed}"
        )
    container = load_module(path, module)
    found = _attribute(container, name)
    # What a module has imported is another module's, which may not be allowed.
    if found is None or _named(found)[0] != module:
        raise StateTypeError(f"{shown(path)}: the module {module} does not define {name}")
    return found


def _named(of: Any) -> tuple[str | None, str | None]:
    """Return the names of the module and, within it, of a function or class."""
    named = of.fn if isinstance(of, Process) else of
    return getattr(named, "__module__", None), getattr(named, "__qualname__", None)


def _attribute(container: Any, name: str) -> Any:
    for part in name.split("."):
        container = getattr(container, part, None)
    return container


def _is_in(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")
