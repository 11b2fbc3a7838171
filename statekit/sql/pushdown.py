"""Pushdown: the one key that a query is about, so that only its key group is read.

It is found where a query selects from one table, and its condition says what each part of the key
equals. DuckDB parses the query. A form that is not known here is no pushdown, and the query is
still right: it is run on the rows of that key with its whole condition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_KINDS: dict[str, Callable[[str], Any]] = {
    "STRING": str,
    "INTEGER": int,
    "BOOLEAN": lambda text: text.lower() == "true",
}


def key_of(serialized: str, table: tuple[str, str], key: Sequence[str]) -> list[Any] | None:
    """Return the key that a query is about, its parts in order; None if it may be about several.

    Parameters:
        serialized: the query as `json_serialize_sql` of DuckDB gives it.
        table: the schema and name of the one table that it reads.
        key: the columns of the key.
    """
    try:
        (statement,) = json.loads(serialized)["statements"]
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


def _reads(part: Any) -> int:
    """Return how many tables a part of a query reads. A function may read any."""
    if isinstance(part, list):
        return sum(map(_reads, part))
    if not isinstance(part, dict):
        return 0
    kinds = {"BASE_TABLE": 1, "TABLE_FUNCTION": 2}
    return kinds.get(str(part.get("type")), 0) + sum(map(_reads, part.values()))


def _folded(*names: str) -> tuple[str, ...]:
    return tuple(name.casefold() for name in names)


def _equalities(condition: Mapping[str, Any] | None, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield columns with the value that each must have for a condition to hold."""
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
    """Return whether a text is another key where keys are read from text: None, or a JSON text."""
    return text == "null" or text.startswith('"')
