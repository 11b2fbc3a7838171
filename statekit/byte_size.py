"""Sizes in bytes as text, such as "512MB"."""

from __future__ import annotations

from statekit.errors import StateTypeError
from statekit.shown import shown

_UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def size_bytes(text: str, option: str) -> int:
    """Parse a size, and return the number of bytes.

    Parameters:
        option: what it is the value of, for the error.

    Raises:
        StateTypeError: it is none.

    >>> size_bytes("512MB", "--memory"), size_bytes("1.5 gb", "--disk")
    (536870912, 1610612736)
    """
    try:
        number, unit = text.strip()[:-2], text.strip()[-2:].upper()
        size = float(number) * _UNITS[unit]
        if 1 <= size < 2**60:
            return int(size)
    except (ValueError, KeyError, AttributeError):
        pass
    raise StateTypeError(
        f"{option}={shown(text, 50)} is no size: give a number with KB, MB, GB or TB, as in 512MB"
    )


def size_text(size: float) -> str:
    """Return a number of bytes as text.

    >>> size_text(100), size_text(1_234_567), size_text(3 << 40)
    ('100 bytes', '1.2 MB', '3.0 TB')
    """
    name, unit = "bytes", 1
    for larger, of in _UNITS.items():
        if size >= of:
            name, unit = larger, of
    return f"{size:,.0f} bytes" if unit == 1 else f"{size / unit:,.1f} {name}"
