"""Display of values and errors of users in messages.

The code of a user may fail or never end where a message is made: in `__repr__`, in the `__str__` of
an exception. Then the message must still name the error that it is about.
"""

from __future__ import annotations

from statekit.errors import CALL_FAILURES

SHOWN_MAX = 400
"""The maximum number of characters of a value in a message."""

_TEXT_MAX = 2_000

_NAME_MAX = 100


def shown(value: object, limit: int = SHOWN_MAX) -> str:
    """Return the repr of a value for a message. Never fails, however large or broken the value is.

    Parameters:
        limit: the most characters of the repr.

    >>> shown({"user": "ann"})
    "{'user': 'ann'}"
    >>> shown("a" * 1000, limit=5)
    "'aaaa… (1002 characters)"
    >>> class Order:
    ...     def __repr__(self) -> str:
    ...         return self.lines
    >>> shown(Order())
    '<Order, whose repr() fails with AttributeError>'
    """
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type_name(value)}"
    except CALL_FAILURES as error:
        if type(value) is int:  # of more digits than Python prints
            return f"an int of {value.bit_length()} bits"
        return f"<{type_name(value)}, whose repr() fails with {type_name(error)}>"
    return _bounded(text, limit)


def shown_error(error: BaseException, limit: int = _TEXT_MAX) -> str:
    """Return the class and the text of an error for a message. Never fails.

    >>> shown_error(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    text = shown_text(error, limit)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def shown_text(error: BaseException, limit: int = _TEXT_MAX) -> str:
    """Return the text of an error for a message, without its class. Never fails.

    >>> shown_text(ValueError("no such user"))
    'no such user'
    """
    try:
        text = str(error)
    except RecursionError:
        return "its text is nested too deeply"
    except CALL_FAILURES as failed:
        return f"<its str() fails with {type_name(failed)}>"
    return _bounded(text, limit)


def type_name(value: object) -> str:
    """Return the name of a value's class. It includes the module if the class could be confused
    with another one.

    >>> type_name(1.5), type_name(type(None))
    ('float', 'type')
    """
    cls = type(value)
    try:
        name, module = str(cls.__name__), str(cls.__module__).partition(".")[0]
    except CALL_FAILURES:  # of a metaclass
        return "object"
    if module in ("numpy", "pandas"):
        name = f"{module}.{name.removesuffix('Type')}"
    return _bounded(name, _NAME_MAX)


def _bounded(text: str, limit: int) -> str:
    """Return text of bounded length that is valid UTF-8, as a plain str."""
    size = str.__len__(text)  # a subclass may count in another way
    start = str.__getitem__(text, slice(0, limit))
    start = start.encode("utf-8", "backslashreplace").decode()
    return start if size <= limit else f"{start}… ({size} characters)"
