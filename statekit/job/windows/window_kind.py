"""Kinds of windows: the properties of a kind, and the classes that keep its windows.

A kind is one module: its `Window`, the functions that create it, the rows of a key, and the columns
of many keys: `sliding`, `calendar_windows`, `sessions` and `count_windows`.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from statekit.job.windows.open_windows import Deadlines, WindowRows
from statekit.job.windows.window_columns import WindowColumns
from statekit.job.windows.window_values import WindowValues
from statekit.records.panes import Panes
from statekit.records.preaggregate import Combiner
from statekit.records.result_type import Make
from statekit.state.options import Aggregate


class Window(ABC):
    """A kind of windows. Its text is stored: a job with another one does not continue.

    A kind that declares only its text, its rows and the ends of windows adds records one by one,
    and its windows have timers. With `panes`, records are combined before the shuffle. With
    `columns`, windows of many keys fire together, without timers.

    Attributes:
        merges: whether windows of a key merge when a record arrives between them.
        has_times: whether windows are intervals of time. Those that are not need no event time.
        overlaps: whether a record may be in several windows.
        in_order: whether records are handled in order of event time, as with `ordered=True`.
        opens_few: whether a key has few open windows at a time, so that a scan of all of them finds
            those that are due. The kind then needs `columns`.
        durations: the durations that the kind is declared with. Checks make records such durations
            apart.
        edges: the instants at which all windows begin or end, each as the time from one to the next
            and the first one after 1970-01-01 00:00 UTC. Checks make records there.
    """

    merges: ClassVar[bool] = False
    has_times: ClassVar[bool] = True

    @property
    def overlaps(self) -> bool:
        return False

    @property
    def in_order(self) -> bool:
        return False

    @property
    def opens_few(self) -> bool:
        return False

    @property
    def durations(self) -> Sequence[dt.timedelta]:
        return ()

    @property
    def edges(self) -> Sequence[tuple[dt.timedelta, dt.timedelta]]:
        return ()

    @abstractmethod
    def rows(self, functions: Aggregate[Any, Any, Any], deadlines: Deadlines) -> WindowRows:
        """Return the open windows of a key, as rows.

        Parameters:
            functions: add values to the value of a row.
        """

    @abstractmethod
    def end_of(self, row: Any, stored: Any) -> dt.datetime:
        """Return the end of a window, from its row and the value of that."""

    def panes(self, event_time: str) -> Panes | None:
        """Return the panes that records are combined by; None if they are added one by one.

        Parameters:
            event_time: the field with the time of a record.
        """
        return None

    def columns(
        self, values: WindowValues, make: Make, deadlines: Deadlines, combiner: Combiner | None
    ) -> WindowColumns:
        """Return the windows of many keys. The parameters are those of `WindowColumns`."""
        raise NotImplementedError(f"{self} has few open windows, and no columns")
