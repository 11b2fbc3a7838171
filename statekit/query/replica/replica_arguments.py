"""Replica arguments: checks that refuse a wrong argument instead of misreading it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from statekit.checkpoint.job_file import JobFile
from statekit.errors import QueryError, StateTypeError
from statekit.functions.process import Process
from statekit.number_faults import int_fault
from statekit.shown import shown

Functions = Mapping[str, Process[Any, Any, Any]]
"""Process functions, by the name of their operator."""


def operator_names(operators: Any) -> tuple[str, ...] | None:
    """Return the `operators` argument as a tuple of names; None for all.

    Raises:
        StateTypeError: they are not names.
    """
    if operators is None:
        return None
    names = () if isinstance(operators, str) or not isinstance(operators, Iterable) else operators
    names = tuple(names)
    if not names or not all(isinstance(name, str) for name in names):
        raise StateTypeError(
            f"operators={shown(operators, 100)}: give the names of operators in a list, such as "
            'operators=["sales"], or None for all'
        )
    return names


def key_group_range(key_groups: Any) -> tuple[int, int] | None:
    """Return the `key_groups` argument as the first and the last key group; None for all.

    Raises:
        StateTypeError: they are not two ints.
    """
    if key_groups is None:
        return None
    use = "give the first and the last key group, such as key_groups=(0, 63), or None for all"
    if not isinstance(key_groups, tuple | list) or len(key_groups) != 2:
        raise StateTypeError(f"key_groups={shown(key_groups, 100)}: {use}")
    if fault := "".join(int_fault(group, use) for group in key_groups if type(group) is not int):
        raise StateTypeError(f"key_groups={shown(key_groups, 100)}{fault}")
    return key_groups[0], key_groups[1]


def functions_by_operator(functions: Any) -> Functions:
    """Return process functions by the name of their operator.

    Raises:
        StateTypeError: they are not process functions.
    """
    named: dict[Any, Any] = {}
    if isinstance(functions, Mapping):
        named = dict(functions)
    elif isinstance(functions, Iterable) and not isinstance(functions, str):
        named = {getattr(function, "name", None): function for function in functions}
    else:
        named[None] = functions
    for name, function in named.items():
        if not (isinstance(name, str) and isinstance(function, Process)):
            raise StateTypeError(
                f"functions={shown(functions, 100)}: give process functions, which are decorated "
                "with "
                "@process, in a list or by the name of their operator, such as functions=[sales] "
                'or functions={"sales": sales}'
            )
    return named


def check_functions(functions: Collection[str], job: JobFile) -> None:
    """Check that a job has an operator for each process function.

    Parameters:
        functions: the names of the operators.

    Raises:
        QueryError: a function has no operator.
    """
    names = [operator.name for operator in job.operators]
    for name in functions:
        if name not in names:
            raise QueryError(
                f"functions= has a function for operator {name!r}, and job {job.name!r} has no "
                f"such operator: it has {', '.join(names)}. Give functions by the name of their "
                f'operator, such as functions={{"{names[0] if names else "sales"}": {name}}}'
            )


def listed_keys(keys: Iterable[Any]) -> list[Any]:
    """Return keys as a list.

    Raises:
        StateTypeError: the argument is a single key.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise StateTypeError(
            f"keys={shown(keys, 100)} is one key: give several keys in a list, or use get"
        )
    return keys if isinstance(keys, list) else list(keys)
