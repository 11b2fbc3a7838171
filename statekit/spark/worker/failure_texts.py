"""Errors of a Spark worker on their way to the driver, which receives them as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from statekit.errors import CALL_FAILURES, ProcessError, RetryError, StatekitError
from statekit.shown import shown_error, shown_text

T = TypeVar("T")

LINE = "\n│ "
"""The separator of a message's lines. It keeps texts of users from being parsed as another
error.
"""

_CAUSE_MAX = 10_000
"""The maximum number of characters of a user's exception that a worker sends to the driver."""

_CAUSES_MAX = 20


def readable_errors(
    step: Callable[[Any, Iterator[T]], Iterator[T]],
) -> Callable[[Any, Iterator[T]], Iterator[T]]:
    """Return a step whose errors reach the driver, regardless of the user's exceptions.

    Spark sends an error as text in UTF-8. An exception that cannot be written so would break the
    connection, and one of a hundred megabytes the driver.
    """

    @wraps(step)
    def run(self: Any, batches: Iterator[T]) -> Iterator[T]:
        try:
            yield from step(self, batches)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, in another form
            failed = error
        else:
            return
        raise _sendable(failed) from _cause(failed.__cause__ or failed.__context__)

    return run


def _sendable(error: BaseException) -> BaseException:
    """Return an error of a worker in the form for sending."""
    cls: type[StatekitError] = type(error) if isinstance(error, StatekitError) else ProcessError
    text = shown_text(error, _CAUSE_MAX) if isinstance(error, StatekitError) else shown_error(error)
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, Exception) and not isinstance(error, StatekitError):
        return _cause(error) or error  # of Spark or of statekit itself
    if issubclass(cls, RetryError):
        return error
    lines = "\n".join([text, *notes]).encode("utf-8", "backslashreplace").decode().splitlines()
    message = LINE.join(lines)
    return cls(message).with_traceback(error.__traceback__)


def _cause(error: BaseException | None, depth: int = 0) -> BaseException | None:
    """Return the cause of an error in a form whose text can be sent."""
    if error is None or depth > _CAUSES_MAX:
        return None
    if _can_be_sent(error):
        error.__cause__ = _cause(error.__cause__ or error.__context__, depth + 1)
        return error
    sent = _SentError(shown_error(error)).with_traceback(error.__traceback__)
    sent.__cause__ = _cause(error.__cause__ or error.__context__, depth + 1)
    return sent


class _SentError(Exception):
    """The substitute for a user's exception whose text cannot be sent."""


def _can_be_sent(error: BaseException) -> bool:
    """Return whether the text of an exception can be sent, and the texts of those in its group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_can_be_sent, error.exceptions))
    notes = getattr(error, "__notes__", ())
    return shown_text(error, _CAUSE_MAX) == _text_of(error) and not notes


def _text_of(error: BaseException) -> str | None:
    try:
        return str(error)
    except CALL_FAILURES:
        return None
