"""Pushdown: finds the single key of a query, so that only its key group is read.

A key is found if the query selects from one table, and its condition compares each part of the key
with a constant. DuckDB parses the query. In all other cases, all rows are read. The query has its
complete condition in both cases, so its result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from statekit.sql.statements import parts

_KINDS: dict[str, Callable[[str], Any]] = {
    "STRING": str,
    "INTEGER": int,
    "BOOLEAN": lambda text: text.lower() == "true",
}


def key_of(
    statements: Sequence[Any], table: tuple[str, str], key: Sequence[str]
) -> list[Any] | None:
    """Return the parts of the single key that a query reads; None if it may read several keys.

    Parameters:
        statements: the syntax tree of the query, as `parsed` returns it.
        table: the schema and the name of the table that it reads.
        key: the names of the key columns.
    """
    try:
        (statement,) = statements
        node = statement["node"]
        source = node["from_table"]
        is_simple = (
            _reads(statement) == 1
            and not source["column_name_alias"]
            and node["type"] == "SELECT_NODE"
            and not node["cte_map"]["map"]
            and source["type"] == "BASE_TABLE"
            and _folded(source["schema_name"], source["table_name"]) == _folded(*table)
        )
        names = _folded(source["alias"], source["table_name"])
        equal = dict(_equalities(node["where_clause"], set(names))) if is_simple else {}
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return [equal[name] for name in key] if key and equal.keys() >= set(key) else None


def _reads(statement: Any) -> int:
    """Return the number of tables that a statement reads. A table function counts as 2, since it
    may read any table.
    """
    kinds = {"BASE_TABLE": 1, "TABLE_FUNCTION": 2}
    return sum(kinds.get(str(part.get("type")), 0) for part in parts(statement))


def _folded(*names: str) -> tuple[str, ...]:
    return tuple(name.casefold() for name in names)


def _equalities(condition: Mapping[str, Any] | None, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the columns, and their values, that a condition requires to be equal to a constant."""
    if condition is None:
        return
    if condition["type"] == "CONJUNCTION_AND":
        for part in condition["children"]:
            yield from _equalities(part, names)
    elif condition["type"] == "COMPARE_EQUAL":
        for one, other in (("left", "right"), ("right", "left")):
            column, constant = condition[one], condition[other]
            if column["class"] == "COLUMN_REF" and constant["class"] == "CONSTANT":
                *qualifiers, name = column["column_names"]
                literal = constant["literal"]
                if literal["kind"] not in _KINDS or _reads_otherwise(literal["text"]):
                    continue
                if set(_folded(*qualifiers[-1:])) <= names:
                    yield name, _KINDS[literal["kind"]](literal["text"])


def _reads_otherwise(text: str) -> bool:
    """Return whether statekit reads a text as another key than the text itself: None, or JSON."""
    return text == "null" or text.startswith('"')
