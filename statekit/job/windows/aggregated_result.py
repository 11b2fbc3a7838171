"""`AggregatedResult`: an operator of aggregates, by key or by window, described as data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from statekit.checkpoint.job_file import Clock
from statekit.job.windows.early_results import EarlyTimes
from statekit.job.windows.field_aggregates import FieldAggregate
from statekit.job.windows.window_kind import Window
from statekit.records.result_type import Make, ResultRecords
from statekit.shown import shown

Emit = Literal["epoch", "always", "change", "final"]
"""When an operator of aggregates by key emits the result of a key: once per epoch with records, for
each record, once per epoch if the result has changed, or once when event time has ended.
"""


class AggregatedResult(NamedTuple):
    """The description of an operator of aggregates as data, from which a model of it can be built.

    Parameters:
        of: the aggregates by name.
        make: creates a result from the key fields, the start and end of a window, and the values.
        window: the kind of windows; None without windows.
        allowed_lateness: how long a window is kept for late records after it has fired.
        at_change: whether a window fires at each record.
        early: when open windows fire before their end. `make` then gets whether a result is final.
        clock: the clock of windows.
        emit: without windows, when results are emitted. "ranks" emits, once per epoch, a result for
            each place of the only aggregate whose record has changed; `make` gets the fields of
            the record and the place.
    """

    of: Mapping[str, FieldAggregate]
    make: Make
    window: Window | None = None
    allowed_lateness: dt.timedelta = dt.timedelta(0)
    at_change: bool = False
    early: EarlyTimes | None = None
    clock: Clock = "event"
    emit: Emit | Literal["ranks"] = "epoch"


def check_aggregates(results: ResultRecords, aggregates: Mapping[str, Any]) -> None:
    """Check the aggregates that a user gave by name.

    Raises:
        StateTypeError: there are none, or one is none.
    """
    if not aggregates:
        raise results.error("name an aggregate, such as orders=Count() or cents=Sum('cents')")
    for name, of in aggregates.items():
        if not isinstance(of, FieldAggregate):
            raise results.error(
                f"{name}={shown(of)}: give Count(), or Sum, Min, Max, Mean or Collect of a field, "
                "or Top, Last or Collect of the records, or an OwnAggregate"
            )
