"""Checks of numeric options of users."""

from __future__ import annotations

from statekit.foreign import foreign_hint
from statekit.shown import type_name


def int_fault(given: object, use: str, *, least: int = 0, most: int | None = None) -> str:
    """Return the fault of an int option, as text to append to its value in an error; empty if it is
    valid.

    A bool is no int. A number of NumPy or pandas is none either: the text has what to call.

    Parameters:
        use: what to give instead.
        least, most: the bounds; no upper one for None.

    >>> int_fault(3, "give an int"), int_fault(True, "give an int")
    ('', ': give an int')
    >>> import numpy as np
    >>> int_fault(np.int64(3), "give an int")
    ' is of type numpy.int64: call .item()'
    """
    if type(given) is int and least <= given and (most is None or given <= most):
        return ""
    return _foreign_fault(given) or f": {use}"


def number_fault(
    given: object, use: str, *, least: float = 0, most: float = float("inf"), above: bool = False
) -> str:
    """Return the fault of an int or float option, as `int_fault` does.

    Parameters:
        above: whether `least` itself is out of bounds.

    >>> number_fault(0.5, "give a share", most=1), number_fault(0, "give a share", above=True)
    ('', ': give a share')
    """
    if type(given) is int or type(given) is float:
        is_within = least < given <= most if above else least <= given <= most
        return "" if is_within else f": {use}"
    return _foreign_fault(given) or f": {use}"


def _foreign_fault(given: object) -> str:
    hint = foreign_hint(given)
    return f" is of type {type_name(given)}{hint}" if hint else ""
