"""Bad records of process functions: what happens if the function fails, and the failed record as
data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from statekit.errors import StateTypeError
from statekit.number_faults import int_fault
from statekit.shown import shown

OnError = Literal["fail", "drop", "collect"]
"""The handling of failed calls of a process function."""


class FailedRecord(NamedTuple):
    """A record, or a timer, for which the process function failed: an element of `Stream.errors`.

    Parameters:
        operator: the name of the operator.
        input: the name of the input of the record; None for a timer.
        key: the key as JSON text.
        record: the record as JSON text; None for a timer.
        timer: the timer as JSON text; None for a record.
        error: the class of the error, such as `ZeroDivisionError`.
        message: the text of the error.

    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> from statekit.testing import Harness
    >>> @sk.process(key="user", on_error="collect")
    ... def ratio(record: dict) -> Iterator[float]:
    ...     yield record["clicks"] / record["views"]
    >>> harness = Harness(ratio)
    >>> harness.send({"user": "a", "clicks": 1, "views": 0}, {"user": "b", "clicks": 1, "views": 2})
    [0.5]
    >>> (failed,) = harness.errors
    >>> failed.key, failed.record, failed.error
    ('"a"', '{"user":"a","clicks":1,"views":0}', 'ZeroDivisionError')
    """

    operator: str
    input: str | None
    key: str
    record: str | None
    timer: str | None
    error: str
    message: str


@dataclass(frozen=True)
class ErrorPolicy:
    """The handling of failed calls of a process function.

    Parameters:
        on_error: "fail" ends the epoch, "drop" and "collect" go on with the next record, and
            "collect" emits the failed one.
        max_errors: the job ends if more calls than this have failed; None for no limit.
    """

    on_error: OnError = "fail"
    max_errors: int | None = None

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise StateTypeError(
                f'@process(on_error={shown(self.on_error)}): use "fail", "drop" or "collect"'
            )
        if self.max_errors is None:
            return
        if fault := int_fault(self.max_errors, "give a number of failed records, 0 or more"):
            raise StateTypeError(f"@process(max_errors={shown(self.max_errors)}){fault}")
        if not self.goes_on:
            raise StateTypeError(
                f"@process(max_errors={self.max_errors}): the first error ends the job; declare "
                'on_error="collect" or "drop", too'
            )

    @property
    def goes_on(self) -> bool:
        """True if processing goes on after a failed call."""
        return self.on_error != "fail"


FAILS = ErrorPolicy()
"""The policy of functions that declare none."""
