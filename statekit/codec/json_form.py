"""JSON form of scalars: the one form in which every reader shows a value.

The forms are those of pydantic's `mode="json"`, with three exceptions: bytes are hex, because they
need not be UTF-8; the days of a duration are never years, because readers of ISO 8601 disagree on
their length; and NaN and infinities are text, because JSON has no such numbers. The table of all
types is in docs/guide/json-form.md.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""The floats that are text in JSON."""


def json_form(value: Any) -> Any:
    """Return a scalar as JSON-able data: None, a bool, an int, a float or text.

    Raises:
        TypeError: it is no scalar.

    >>> json_form(dt.timedelta(hours=2)), json_form(dt.datetime(2026, 1, 31, 6, tzinfo=dt.UTC))
    ('PT2H', '2026-01-31T06:00:00Z')
    >>> json_form(bytes([255])), json_form(float("-inf")), json_form(Decimal("1.50"))
    ('ff', '-Infinity', '1.50')
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _not_finite(value)
        case bytes():
            return value.hex()
        case dt.datetime():
            return instant_text(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return duration_text(value // dt.timedelta(microseconds=1))
        case Decimal() | uuid.UUID():
            return str(value)
    raise TypeError(f"a {type(value).__name__} is no scalar")


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def instant_text(at: dt.datetime) -> str:
    """Return a time as ISO 8601 text, with Z for UTC.

    >>> instant_text(dt.datetime(2026, 1, 31, 6, 0, 0, 250_000, dt.UTC))
    '2026-01-31T06:00:00.250000Z'
    """
    text = at.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def duration_text(micros: int, months: int = 0) -> str:
    """Return a duration as ISO 8601 text: days, hours, minutes and seconds.

    Parameters:
        months: of an interval of SQL. They have no fixed number of days, so that they stay months,
            and each part has a sign of its own.

    >>> duration_text(93_784_500_000), duration_text(-1), duration_text(0)
    ('P1DT2H3M4.5S', '-PT0.000001S', 'PT0S')
    >>> duration_text(-60_000_000, months=14)
    'P14MT-1M'
    """
    seconds, part = divmod(abs(micros), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    sign = "-" if micros < 0 else ""
    first, each = ("", sign) if months else (sign, "")
    fraction = f".{part:06}".rstrip("0") if part else ""
    times = (
        (hours, f"{hours}H"),
        (minutes, f"{minutes}M"),
        (seconds or part, f"{seconds}{fraction}S"),
    )
    date = (f"{months}M" if months else "") + (f"{each}{days}D" if days else "")
    time = "".join(f"{each}{text}" for number, text in times if number)
    return f"{first}P{date}" + (f"T{time}" if time else "" if date else "T0S")
