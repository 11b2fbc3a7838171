"""Sink that prints the outputs of each epoch as a table, for trying things."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from statekit.declared_call import declarable
from statekit.errors import StateTypeError
from statekit.number_faults import int_fault
from statekit.printable import printable
from statekit.records.json_rows import json_values
from statekit.shown import shown
from statekit.sinks.protocol.sink import Attempt, Guarantee, Outputs, Part, Receipt, Sink

_CELL_MAX = 200
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Console(Sink):
    """Tables on the terminal. See `console`.

    Parameters:
        limit: the most rows of an epoch that are shown.
    """

    limit: int = 20

    guarantee: ClassVar[Guarantee] = "at least once"

    def __post_init__(self) -> None:
        if fault := int_fault(self.limit, "give a number of rows, from 0"):
            raise StateTypeError(f"limit={shown(self.limit)}{fault}")

    def probe(self, declared: Outputs, limit_s: float) -> Iterator[str]:
        yield "it prints to the terminal"

    def write(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        rows: list[list[str]] = []
        count = 0
        for batch in batches:
            first = batch.slice(0, self.limit - len(rows))
            rows += (list(map(_cell, row)) for row in json_values(first))
            count += batch.num_rows
        return {"rows": rows, "count": count}

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        count = sum(receipt["count"] for receipt in receipts)
        if not count:
            return
        # Imported here: each worker process imports the sinks, and none of them prints.
        from rich.console import Console as Terminal
        from rich.table import Table
        from rich.text import Text

        rows = itertools.chain.from_iterable(receipt["rows"] for receipt in receipts)
        table = Table()
        for column in attempt.outputs.schema:
            is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            heading = Text(printable(column.name))
            table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
        for row in itertools.islice(rows, self.limit):
            table.add_row(*map(Text, row))
        terminal = Terminal(highlight=False)  # of this moment: stdout may have been redirected
        terminal.print(Text(f"{attempt.outputs.sink}, epoch {attempt.epoch}: {count:,} rows"))
        terminal.print(table)
        if count > self.limit:
            terminal.print(Text(f"and {count - self.limit:,} more"))


@declarable("sinks.console")
def console(limit: int = 20) -> Console:
    """Return a sink that prints the outputs of each epoch as a table, in any runtime.

    An epoch that runs again is printed again. On Spark the driver prints. Values have the JSON form
    of answers and exports, and characters that a terminal would interpret are escaped.

    Parameters:
        limit: the most rows of an epoch that are shown; of the others, the number is.

    Raises:
        StateTypeError: `limit` is no number of rows.

    >>> console(limit=5)
    Console(limit=5)
    """
    return Console(limit)


def _cell(value: Any) -> str:
    """Return a value as text of a table.

    >>> _cell("\\x1b[31m"), _cell(None), _cell({"town": "Rome"})
    ('\\\\x1b[31m', '–', '{"town":"Rome"}')
    """
    if value is None:
        return "–"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = printable(text)
    return text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}…"
