"""Scalars of NumPy and pandas. No state, key, record or output accepts them.

Some of them are subclasses of Python's own types, with other values: a `pandas.Timestamp` has
nanoseconds. They are refused everywhere, so that no value is cut and none is read back as another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from statekit.errors import CALL_FAILURES

_ABSENT = "it stands for an absent value: use None, in a type that allows None"
_HINTS = {
    "NaTType": _ABSENT,
    "NAType": _ABSENT,
    "Timestamp": "call .to_pydatetime() after .floor('us'), since a datetime has no nanoseconds",
    "Timedelta": "call .to_pytimedelta() after .floor('us'), since a timedelta has no nanoseconds",
    "datetime64": "call .astype('datetime64[us]').item().replace(tzinfo=datetime.UTC)",
    "timedelta64": "call .astype('timedelta64[us]').item()",
}


def is_foreign(value: object) -> bool:
    """Return whether a value is one of NumPy or pandas.

    >>> import numpy as np
    >>> is_foreign(np.float64(1.5)), is_foreign(1.5)
    (True, False)
    """
    cls: Any = type(value)
    return _is_foreign(cls)


@lru_cache(maxsize=1024)
def _is_foreign(cls: Any) -> bool:
    modules = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
    return not modules.isdisjoint(("numpy", "pandas"))


def foreign_hint(value: object) -> str:
    """Return advice about a value of NumPy or pandas, as the end of a message; empty for any other
    value.

    >>> import numpy as np
    >>> foreign_hint(np.int64(5)), foreign_hint(5)
    (': call .item()', '')
    """
    cls: type[Any] = type(value)
    if not is_foreign(value):
        return ""
    names = [base.__name__ for base in cls.__mro__]
    if "datetime64" in names or "timedelta64" in names:
        try:
            if value != value:
                return f": it is NaT, and {_ABSENT}"
        except CALL_FAILURES:
            return ""
    hint = next((_HINTS[name] for name in names if name in _HINTS), None)
    if hint is None:
        is_array = getattr(value, "ndim", 0) != 0
        hint = "call .tolist()" if is_array else "call .item()"
    return f": {hint}"
