"""Errors of values: numbers that leave their range, divisors of zero, texts that are no numbers.

Users see them as ProcessError with the record.
"""

from __future__ import annotations

from typing import NoReturn

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def out_of_range(value: object, text: str) -> NoReturn:
    """Raise the error for a result that its type cannot hold.

    Parameters:
        text: of the expression.
    """
    raise OverflowError(f"{text} is {value}, which its type cannot hold")


def divided_by_zero(text: str) -> NoReturn:
    """Raise the error for a divisor that is zero."""
    raise ZeroDivisionError(f"{text} divides by zero: use NULLIF(divisor, 0) for NULL instead")


def not_a_number(value: object, text: str) -> NoReturn:
    """Raise the error for a value that a CAST cannot convert without loss."""
    raise ValueError(f"{text} cannot convert {value!r} exactly")
