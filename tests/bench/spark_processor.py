"""The running count as a stateful processor of Spark's, in Spark's own idiom.

It keeps state once per key and micro-batch, and runs unchanged on Spark and through statekit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ["HELD", "CountProcessor"]

HELD = sql.StructType().add("count", "long").add("sum", "long")


class CountProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.held = handle.getValueState("held", HELD)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        held = self.held.get()
        count, total = (held[0], held[1]) if held else (0, 0)
        for row in rows:
            count, total = count + 1, total + row.value
            yield Row(key=key[0], count=count, sum=total)
        self.held.update((count, total))

    def close(self) -> None:
        pass
