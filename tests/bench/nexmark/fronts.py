"""What a query takes of the events: some columns of some rows, under names that suit it.

What lives here: `Front`, which does that to an Arrow table and to a frame of Spark. What does not:
the queries (`queries`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:  # without Spark, nothing here needs it
    from pyspark.sql import DataFrame

__all__ = ["Front"]


@dataclass(frozen=True)
class Front:
    """A projection and a filter in front of a source.

    Parameters:
        kind: of the events: `person`, `auction` or `bid`.
        columns: the names of fields by those of the event's columns.
        where: the values that a column may have.
    """

    kind: str
    columns: Mapping[str, str]
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def of_columns(self, table: pa.Table) -> pa.Table:
        """The same of a table of events of this kind."""
        for column, values in self.where.items():
            table = table.filter(pc.is_in(table[column], pa.array(values)))
        return pa.table({name: table[column] for name, column in self.columns.items()})

    def of_table(self, table: pa.Table) -> list[dict[str, Any]]:
        """Records, as `Job.run` takes them."""
        return list(self.of_columns(table).to_pylist())

    def of_frame(self, events: DataFrame) -> DataFrame:
        """The same of events of all kinds, as `Events.table` has them."""
        return self.of_kind(events.where(f"{self.kind} is not null").select(f"{self.kind}.*"))

    def of_kind(self, events: DataFrame) -> DataFrame:
        """The same of events of this kind alone."""
        for column, values in self.where.items():
            events = events.where(events[column].isin(*values))
        return events.selectExpr(*(f"{column} as {name}" for name, column in self.columns.items()))
