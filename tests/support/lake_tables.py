"""Tables in a lake, as tests write and read them: Delta Lake and Iceberg alike."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

import statekit as sk
from statekit.sinks import Sink
from tests.support.sinks import Spent


@dataclass(frozen=True)
class LakeTable(ABC):
    """A table at a place, which a sink of statekit and others write."""

    place: str

    @abstractmethod
    def sink(self, **options: Any) -> Sink:
        """A sink that writes the table."""

    @abstractmethod
    def read(self) -> pa.Table:
        """The rows of the table."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Append rows as another writer."""

    @abstractmethod
    def commits(self) -> int:
        """The number of commits that wrote or removed rows."""

    def rows(self) -> list[Spent]:
        """The rows of the job of `tests.support.sinks`, sorted."""
        return sorted(Spent(row["customer"], row["cents"]) for row in self.read().to_pylist())


class DeltaFolder(LakeTable):
    """A Delta Lake table."""

    def sink(self, **options: Any) -> Sink:
        return sk.sinks.delta(self.place, **options)

    @property
    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.place)

    def read(self) -> pa.Table:
        return self.table.to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.place, rows, mode="append")

    def commits(self) -> int:
        written = ("WRITE", "MERGE", "RESTORE")
        return sum(commit["operation"] in written for commit in self.table.history())


class IcebergTable(LakeTable):
    """An Iceberg table in a warehouse in the place."""

    def sink(self, **options: Any) -> Sink:
        return sk.sinks.iceberg("shop.spent", warehouse=self.place, **options)

    @contextlib.contextmanager
    def loaded(self) -> Iterator[Any]:
        """The table as it is now."""
        from pyiceberg.catalog import load_catalog

        uri, warehouse = f"sqlite:///{self.place}/catalog.db", f"file://{self.place}"
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=warehouse)
        try:
            yield catalog.load_table("shop.spent")
        finally:
            catalog.close()

    def read(self) -> pa.Table:
        with self.loaded() as table:
            return table.scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        with self.loaded() as table:
            table.append(rows)

    def commits(self) -> int:
        with self.loaded() as table:
            return len(table.metadata.snapshots)


def in_class(cls: type[Any], sink: Sink) -> Any:
    """A sink with the options of another one, of a class of the test."""
    options: Any = sink
    return cls(**{field.name: getattr(sink, field.name) for field in fields(options) if field.init})


def spent(*rows: tuple[str, int]) -> pa.Table:
    """Rows of other writers."""
    return pa.table({"customer": [name for name, _ in rows], "cents": [cents for _, cents in rows]})


LAKES: dict[str, type[LakeTable]] = {"delta": DeltaFolder, "iceberg": IcebergTable}


def lake(kind: str, place: Path | str) -> LakeTable:
    """A table of a kind at a place."""
    return LAKES[kind](str(place))
