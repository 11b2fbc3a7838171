"""A sink of Apache Iceberg tables, with each epoch in one snapshot."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statekit.checkpoint.object_store import without_credentials
from statekit.checkpoint.store import Store
from statekit.checkpoint.store_url import local_path
from statekit.declared_call import declarable
from statekit.errors import ConnectorError, StatekitError, StateTypeError
from statekit.optional_packages import check_installed
from statekit.secret_options import without_secrets
from statekit.shown import shown, shown_error
from statekit.sinks.lake.iceberg_files import (
    LOCAL_CATALOG,
    file_name,
    table_store,
    with_field_ids,
    write_data_file,
)
from statekit.sinks.lake.lake_columns import WriteMode, Writing
from statekit.sinks.lake.lake_sink import LakeSink
from statekit.sinks.protocol.sink import Outputs, Part, Receipt

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from statekit.sinks.lake.iceberg_log import IcebergLog

_STORE_PROPERTIES = {"AWS_ENDPOINT_URL": "s3.endpoint", "AWS_REGION": "s3.region"}
"""Variables of the environment that checkpoints use, and the properties of a catalog for them."""


@dataclass
class Iceberg(LakeSink):
    """Rows of an Iceberg table, with each epoch in one snapshot. See `iceberg`.

    Parameters:
        table: namespace and name.
        catalog: the name of a catalog that is configured for pyiceberg, or its properties.
        writing: how the table is changed.
    """

    table: str
    catalog: str | Mapping[str, str] = field(repr=False)
    writing: Writing
    _location: str = field(default="", init=False, repr=False, compare=False)
    _columns: pa.Schema | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def target(self) -> object:
        if isinstance(self.catalog, str):
            return self.catalog, self.table
        uri = self.catalog.get("uri")  # a catalog may be reached with other properties, too
        others = frozenset(self.catalog.items())
        return others if uri is None else uri.rstrip("/"), self.table

    @property
    def place(self) -> str:
        named = self.catalog if isinstance(self.catalog, str) else self.catalog.get("warehouse", "")
        return f"iceberg:{without_credentials(named)}#{self.table}"

    @cached_property
    def store(self) -> Store:
        assert self._location, "a run begins its sinks"
        return table_store(self._location)

    @cached_property
    def _catalog(self) -> Catalog:
        from statekit.sinks.lake.iceberg_log import opened_catalog

        if isinstance(self.catalog, str):
            catalog = opened_catalog(self.catalog, {})
        else:
            environment = {
                name: os.environ[variable]
                for variable, name in _STORE_PROPERTIES.items()
                if variable in os.environ
            }
            properties = {**environment, **self.catalog}
            catalog = opened_catalog(properties.pop("name", "default"), properties)
        weakref.finalize(self, catalog.close)  # of a sink that was looked at without a run
        return catalog

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        for name in ("store", "_catalog"):  # each process opens the directory
            state.pop(name, None)
        if self._location:  # tasks do not use the catalog, which may have credentials
            state["catalog"] = ""
        return state

    def begin(self, outputs: Outputs) -> None:
        from statekit.sinks.lake.iceberg_log import IcebergLog

        schema = self.writing.schema_of_table(outputs)
        with self.failures():
            IcebergLog.create(self._catalog, self.table, schema)
            log = self.log(outputs)
            log.check_features()
            log.add_columns(schema)
            log = self.log(outputs)
            self._location = log.table.location()
            self._columns = with_field_ids(schema, log.columns)

    def create(self, outputs: Outputs) -> None:
        from statekit.sinks.lake.iceberg_log import IcebergLog

        with self.failures():
            IcebergLog.create(self._catalog, self.table, self.writing.schema_of_table(outputs))

    def is_dropped(self, outputs: Outputs) -> bool:
        with self.failures():
            return not self._catalog.table_exists(self.table)

    @property
    def may_exist(self) -> bool:
        uri = "" if isinstance(self.catalog, str) else self.catalog.get("uri", "")
        return not uri.startswith(LOCAL_CATALOG) or Path(uri[len(LOCAL_CATALOG) - 1 :]).exists()

    def files_place(self, declared: Outputs) -> str | None:
        if self.may_exist and not self.is_dropped(declared):
            location = self._catalog.load_table(self.table).location()
        else:
            location = "" if isinstance(self.catalog, str) else self.catalog.get("warehouse", "")
        return location.removeprefix("file://") or None

    def write_file(self, part: Part, batches: Iterator[pa.RecordBatch]) -> Receipt:
        assert self._columns is not None, "a run begins its sinks"
        name = file_name(part.outputs, part.epoch, part.number)
        return write_data_file(self.store, self._location, name, batches, self._columns)

    def with_writing(self, writing: Writing) -> Iceberg:
        return replace(self, writing=writing)

    def log(self, outputs: Outputs) -> IcebergLog:
        from statekit.sinks.lake.iceberg_log import IcebergLog

        return IcebergLog(self._catalog.load_table(self.table), outputs)

    def conflicts(self) -> type[Exception]:
        from pyiceberg.exceptions import CommitFailedException

        return CommitFailedException

    def close(self) -> None:
        if "_catalog" in vars(self):
            self._catalog.close()
            del self._catalog

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            is_outside = type(error).__module__.startswith(("pyiceberg", "sqlalchemy", "requests"))
            if isinstance(error, StatekitError) or not (is_outside or isinstance(error, OSError)):
                raise
            raise ConnectorError(
                f"the Iceberg table {self.table} failed with {self._in_one_line(error)}. Nothing "
                "of this epoch is committed: check that the catalog, the permissions and the store "
                "are as they should be, then start again"
            ) from None

    def _in_one_line(self, error: Exception) -> str:
        """Return an error of pyiceberg in one line, without credentials."""
        text = " ".join(shown_error(error).partition("\n")[0].split())
        properties = {} if isinstance(self.catalog, str) else self.catalog
        return without_credentials(without_secrets(text, properties))


@declarable("sinks.iceberg")
def iceberg(
    table: str,
    *,
    warehouse: object = None,
    catalog: str | Mapping[str, str] | None = None,
    mode: WriteMode = "append",
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
) -> Iceberg:
    """Return a sink that writes an Iceberg table, with each epoch exactly once, in any runtime.

    Tasks write data files. One commit of the driver makes all files of an epoch visible in a new
    snapshot, with the epoch in its properties and in those of the table. The table is created from
    the type of the outputs if there is none, and extended by new fields. Needs the extra `iceberg`.

    Parameters:
        table: namespace and name, such as `"shop.orders"`.
        warehouse: a local directory for tables. The catalog is the file `catalog.db` in it.
        catalog: in place of `warehouse`: the name of a catalog that is configured for pyiceberg, or
            its properties, such as `{"type": "rest", "uri": "https://…"}`.
        mode: `append` adds the rows of each epoch. `upsert` replaces the rows with the same key by
            the last output of each key. `overwrite` replaces all rows by those of an epoch that
            has any.
        key: the field or fields of the key, for `upsert`.
        delete: a boolean field of outputs, for `upsert`: if it is true, the row with this key is
            deleted. The table has no such column.

    Raises:
        StateTypeError: the options do not fit together.
        StatekitError: the package pyiceberg is not installed.

    >>> iceberg("shop.orders", warehouse="/data/warehouse").table
    'shop.orders'
    """
    check_installed("sinks.iceberg", "pyiceberg", "iceberg")
    if "." not in table or not all(table.split(".")):
        raise StateTypeError(
            f"sinks.iceberg({shown(table, 100)}): give namespace and name, such as 'shop.orders'"
        )
    if (warehouse is None) == (catalog is None):
        raise StateTypeError(
            "sinks.iceberg() takes either warehouse= a local directory, or catalog= the name or "
            "the properties of a catalog"
        )
    writing = Writing.of("sinks.iceberg", mode, key, delete)
    if catalog is not None:
        return Iceberg(table, catalog if isinstance(catalog, str) else dict(catalog), writing)
    return Iceberg(table, _in_warehouse(str(warehouse)), writing)


def _in_warehouse(warehouse: str) -> dict[str, str]:
    """Return the properties of the catalog in a local directory.

    Raises:
        StateTypeError: it is the address of an object store.
    """
    if (path := local_path(warehouse)) is None:
        raise StateTypeError(
            f"warehouse={warehouse!r} is no local directory, and the catalog in a file needs one: "
            "give catalog= the properties of a catalog, with this address as its 'warehouse'"
        )
    root = path.resolve()
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
