"""Writer of tests for the user: values as Python code, the imports, and the test function."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import math
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pydantic
from pydantic.fields import FieldInfo

_MODULES = ("datetime", "decimal", "pytest", "uuid", "zoneinfo")

_EVERYWHERE = ("builtins", "__main__")
"""Modules whose names need no import: Python's own, and that of a notebook."""


class CodeWriter:
    """Writer of one test. It collects the names of the user that the test has to import.

    >>> import decimal, uuid
    >>> CodeWriter().source_of([decimal.Decimal("1.50"), {"id": uuid.UUID(int=1)}])
    "[decimal.Decimal('1.50'), {'id': uuid.UUID('00000000-0000-0000-0000-000000000001')}]"
    """

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._not_imported: set[str] = set()

    def source_of(self, value: Any) -> str:
        """Return Python code that makes an equal value. It refers to classes of the user by their
        names.
        """
        cls = type(value)
        match value:
            case enum.Enum():
                is_member = value.name in cls.__members__  # and not several flags together
                name = self.name_of(cls)
                return f"{name}.{value.name}" if is_member else f"{name}({value.value!r})"
            case float() if not math.isfinite(value):
                return f"float({str(value)!r})"
            case decimal.Decimal() | uuid.UUID():
                return f"{cls.__module__}.{value!r}"
            case dict():
                parts = (
                    f"{self.source_of(key)}: {self.source_of(part)}" for key, part in value.items()
                )
                return f"{{{', '.join(parts)}}}"
            case list():
                return f"[{self._joined(value)}]"
            case set() | frozenset() if value:
                members = f"{{{self._joined(value)}}}"
                return members if cls is set else f"frozenset({members})"
            case tuple() if not hasattr(value, "_fields"):
                return f"({self._joined(value)}{',' if len(value) == 1 else ''})"
        fields = _fields_of(value)
        if fields is None:
            text = repr(value)
            if cls.__module__ != "builtins" and text.startswith(f"{cls.__name__}("):
                self.name_of(cls)
            return text
        if all(map(str.isidentifier, fields)):
            arguments = ", ".join(f"{name}={self.source_of(of)}" for name, of in fields.items())
        else:  # aliases of pydantic may be any text
            arguments = f"**{self.source_of(fields)}"
        return f"{self.name_of(cls)}({arguments})"

    def _joined(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.source_of, values))

    def name_of(self, named: Any, defined: Any = None) -> str:
        """Return the name of a class or function of the user. The test imports it if possible.

        Parameters:
            named: a class or a process function.
            defined: the object that was defined under the name, if it was decorated.
        """
        defined = named if defined is None else defined
        name = str(getattr(defined, "__qualname__", "")).rpartition("<locals>.")[-1]
        module = defined.__module__
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not named:
            return name if module in _EVERYWHERE else self.variable(name, named)
        self._take(module, name)
        return name

    def variable(self, name: str, value: Any) -> str:
        """Return the name of an object of the user that may not know its module, such as a job. It
        is imported from any module that has it.

        Parameters:
            name: the name of the object in the test, if no module has it.
        """
        modules = sorted(sys.modules.items(), key=lambda each: _has_its_names(each[0]))
        for module, found in modules:
            names = (
                []
                if module.startswith("statekit.")
                else list(getattr(found, "__dict__", {}).items())
            )
            named = [each for each, of in names if of is value and each.isidentifier()]
            if named:
                chosen = name if name in named else named[0]
                self._take(module, chosen)
                return chosen
        chosen = name if name[:1].isidentifier() else "function"  # a lambda has no name
        self._not_imported.add(_root(chosen))
        return chosen

    def _take(self, module: str, name: str) -> None:
        """Note that a test imports a name of a module, or that its file has to have the name."""
        if not _has_its_names(module):
            self._names.setdefault(module, set()).add(_root(name))
        elif module not in _EVERYWHERE:
            self._not_imported.add(_root(name))

    def test(self, name: str, body: Iterable[str], kit: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a test, with its imports.

        Parameters:
            name: the name of the tested job or function; any text.
            body: the lines of the function.
            kit: names of `statekit.testing` that it may use.
        """
        lines = list(body)
        text = "\n".join(lines)
        for module in _MODULES:
            if re.search(rf"\b{module}\.", text):
                yield f"import {module}"
        for module, names in sorted(self._names.items()):
            yield f"from {module} import {', '.join(sorted(names))}"
        used = sorted(each for each in kit if re.search(rf"\b{each}\(", text))
        yield f"from statekit.testing import {', '.join(used)}"
        words = re.sub(r"\W+", "_", name)
        yield ""
        if self._not_imported:
            yield f"# For a file that has {', '.join(sorted(self._not_imported))}."
        yield f"def test_{words}() -> None:"
        yield from (f"    {line}" for line in lines)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the arguments that make an equal record, by name; None if the value is no record."""
    if isinstance(value, type):
        return None
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value):
        made = [field for field in dataclasses.fields(value) if field.init]
        return {field.name: getattr(value, field.name) for field in made}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, pydantic.BaseModel):
        declared = type(value).model_fields
        return {alias_of(field) or name: getattr(value, name) for name, field in declared.items()}
    return None


def alias_of(field: FieldInfo) -> str | None:
    """Return the alias under which a pydantic model takes a field; None if it has none."""
    alias = field.validation_alias
    if isinstance(alias, pydantic.AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else field.alias


def _root(name: str) -> str:
    """Return the name to import: the class of `Order.Color` or `Box[int]`."""
    return re.split(r"[.\[]", name)[0]


def _has_its_names(module: str) -> bool:
    """Return whether a test can use the names of a module without an import: they are available
    everywhere, or the test can be put into that module.
    """
    name = module.rpartition(".")[-1]
    return name in (*_EVERYWHERE, "conftest") or bool(re.match(r"test_|\w+_test$", name))
