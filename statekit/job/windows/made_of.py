"""What the operators of windows and aggregates do, as data, of which a model can be made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

from statekit.job.windows.definitions import Window
from statekit.state.options import Aggregate


class OwnAggregate(NamedTuple):
    """An aggregate of the user's, of records or of a field."""

    aggregate: Aggregate[Any, Any, Any]
    field: str | None


class WindowedResult(NamedTuple):
    """What the operator of a window does.

    Parameters:
        window: the kind of windows.
        allowed_lateness: how long a window is kept for late records after it has fired.
        at_change: whether a window fires at each record.
        of: the aggregate: a `FieldAggregate` or an `OwnAggregate`.
        make: creates a result from the key fields, start, end and value of a window.
    """

    window: Window
    allowed_lateness: dt.timedelta
    at_change: bool
    of: Any
    make: Any


class AggregatedFields(NamedTuple):
    """What the operator of aggregates without windows does.

    Parameters:
        of: the aggregates by name.
        make: creates a result from the key fields and the values.
    """

    of: Mapping[str, Any]
    make: Any
