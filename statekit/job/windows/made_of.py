"""Descriptions of the operators of windows and aggregates as data, from which a model of them can
be built.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

from statekit.job.windows.definitions import Window
from statekit.job.windows.field_aggregates import FieldAggregate


class WindowedResult(NamedTuple):
    """The description of a window operator.

    Parameters:
        window: the kind of windows.
        allowed_lateness: how long a window is kept for late records after it has fired.
        at_change: whether a window fires at each record.
        of: the aggregates by name.
        make: creates a result from the key fields, start, end and values of a window.
    """

    window: Window
    allowed_lateness: dt.timedelta
    at_change: bool
    of: Mapping[str, FieldAggregate]
    make: Any


class AggregatedFields(NamedTuple):
    """The description of an operator of aggregates without windows.

    Parameters:
        of: the aggregates by name.
        make: creates a result from the key fields and the values.
    """

    of: Mapping[str, FieldAggregate]
    make: Any
