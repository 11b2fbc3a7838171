"""Record types of whole columns: fields have the values that Arrow gives for the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statekit.records.record_type import RecordType


@dataclass(frozen=True, slots=True)
class ColumnRecords(RecordType):
    """Records whose keys and times are read from their columns, without a conversion.

    Parameters:
        derived: SQL expressions of the key columns that a record does not contain, by column name.
    """

    derived: Mapping[str, str] = field(default_factory=dict, compare=False)
