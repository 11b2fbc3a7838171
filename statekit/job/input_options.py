"""Options of an input of a job, checked when it is declared."""

from __future__ import annotations

import datetime as dt
from typing import Any, TypedDict, get_args

from statekit.errors import StateTypeError
from statekit.functions.failed_record import OnError
from statekit.job.plan import Input
from statekit.number_faults import int_fault
from statekit.records.union import Records
from statekit.shown import shown
from statekit.sources.history import history_then
from statekit.sources.source import Source
from statekit.sources.spark import AnySource, SparkSource
from statekit.timestamp import duration_to_micros


class InputArguments(TypedDict, total=False):
    """Options of an input, as arguments. `Job.source` describes each."""

    idle_after: dt.timedelta | str | None
    on_error: OnError
    max_errors: int | None
    history: Source | None
    then: Source | None
    boundary: dict[str, Any] | None


def input_of(
    name: str, records: Records, source: AnySource | None, where: str, options: InputArguments
) -> Input:
    """Return an input with its options.

    Parameters:
        where: for messages.

    Raises:
        StateTypeError: an option is not valid.
    """
    if unknown := options.keys() - InputArguments.__annotations__.keys():
        names = ", ".join(InputArguments.__annotations__)
        raise TypeError(f"source() has no option {min(unknown)!r}: it has {names}")
    history, then = options.get("history"), options.get("then")
    boundary = options.get("boundary")
    if (history, then, boundary) != (None, None, None):
        if source is not None:
            raise StateTypeError(f"{where}: give a source, or history= and then=, and not both")
        source = history_then(history, then, boundary, records, where)
    on_error, max_errors = options.get("on_error", "fail"), options.get("max_errors")
    if on_error not in get_args(OnError):
        choices = ", ".join(map(repr, get_args(OnError)))
        raise StateTypeError(f"{where}: on_error={shown(on_error)}: use one of {choices}")
    if max_errors is not None:
        if fault := int_fault(max_errors, "give a number of records", least=0):
            raise StateTypeError(f"{where}: max_errors={shown(max_errors)}{fault}")
        if on_error == "fail":
            raise StateTypeError(
                f'{where}: max_errors= is for on_error="drop" or "collect": with "fail" the first '
                "bad record ends the job"
            )
    if on_error != "fail" and len(records.members) > 1:
        raise StateTypeError(
            f"{where}: on_error={on_error!r} is for records of one type: declare a source for each"
        )
    if on_error != "fail" and isinstance(source, SparkSource):
        raise StateTypeError(
            f"{where}: on_error={on_error!r} is for sources that statekit reads, and Spark decides "
            'about rows that it cannot read: use an option of the format, such as "mode" of JSON, '
            "and leave out on_error="
        )
    idle_us = _idle_after_us(options.get("idle_after"), where)
    return Input(name, records, idle_us, source, on_error, max_errors)


def _idle_after_us(idle_after: dt.timedelta | str | None, where: str) -> int | None:
    if idle_after is None:
        return None
    idle_us = duration_to_micros(idle_after, "idle_after")
    if idle_us <= 0:
        raise StateTypeError(f"{where}: idle_after={shown(idle_after)} must be longer than 0")
    return idle_us
