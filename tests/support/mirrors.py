"""Tables of mirrors, and targets that die at a commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.sinks.delta import Delta
from statekit.sinks.lake.lake_columns import Writing
from statekit.sinks.postgres import Postgres
from statekit.sinks.protocol.sink import Attempt, Publication, Receipt


class Sale(NamedTuple):
    """A sale; with 0 cents, what is stored for the user is cleared."""

    user: str
    cents: int


@sk.process(key="user")
def sales(
    sale: Sale,
    total: sk.ValueState[int],
    by_cents: sk.MapState[int, str],
    last: Annotated[sk.ListState[int], sk.TTL("1 hour")],
) -> None:
    if not sale.cents:
        total.clear()
        by_cents.clear()
        return
    total.update((total.get() or 0) + sale.cents)
    by_cents[sale.cents] = sale.user
    last.append(sale.cents)


class Killed(BaseException):
    """The end of a process, as far as a test in one process can show it."""


class Dying:
    """Tables whose process dies at a commit.

    Attributes:
        dies: the number of the commit of any table, and whether the table has it; None for never.
    """

    dies: ClassVar[tuple[int, bool] | None] = None

    @staticmethod
    @contextmanager
    def at_commit() -> Iterator[None]:
        """Die before or after what is done in the block, if it is the commit at which to die."""
        number, after = (-1, False) if Dying.dies is None else Dying.dies
        if number >= 0:
            Dying.dies = number - 1, after
        if number == 0 and not after:
            raise Killed
        yield
        if number == 0:
            raise Killed


class DyingDelta(Delta):
    """A Delta table whose process dies at a commit."""

    @classmethod
    def at(cls, path: Path) -> Self:
        return cls(str(path), Writing())

    def publish(self, attempt: Attempt, receipts: Sequence[Receipt]) -> None:
        with Dying.at_commit():
            super().publish(attempt, receipts)


class DyingPostgres(Postgres):
    """A table of PostgreSQL whose process dies at a commit."""

    def publish_all(self, publications: Sequence[Publication]) -> None:
        with Dying.at_commit():
            super().publish_all(publications)


def state_rows(
    checkpoint: str | Path | Repository, operator: str, state: str, epoch: int | None
) -> pa.Table:
    """The rows of a state, without the positions of lists, which a table has in another form."""
    rows = sk.read(checkpoint, operator, state, epoch).read_all()
    return rows.select([name for name in rows.column_names if name not in ("position", "written")])


def delta_rows(path: Path | str) -> pa.Table:
    """The rows of a Delta table."""
    from deltalake import DeltaTable

    return DeltaTable(str(path)).to_pyarrow_table()


def logged_rows(path: Path | str) -> pa.Table:
    """The rows of a Delta table to which rows were only added, in their order."""
    from deltalake import DeltaTable

    files = DeltaTable(str(path)).file_uris()
    parts = [pq.read_table(file) for file in sorted(files)]
    return pa.concat_tables(parts) if parts else pa.table({})


def file_rows(path: Path | str) -> pa.Table:
    """The rows of the Parquet files in a directory."""
    files = sorted(Path(path).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]) if files else pa.table({})


def shown(rows: pa.Table, like: pa.Table) -> list[str]:
    """The columns that another table has, as sorted text."""
    if not rows.num_rows:
        return []
    found: list[dict[str, Any]] = rows.select(like.column_names).to_pylist()
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in found)
