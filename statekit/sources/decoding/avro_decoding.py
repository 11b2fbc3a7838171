"""From Avro with the number of a schema to records: `AvroDecoder`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from statekit.connectors.schema_registry import SchemaRegistry
from statekit.errors import CALL_FAILURES, ProcessError, is_users
from statekit.optional_packages import imported
from statekit.records.record_type import RecordType
from statekit.records.union import Records
from statekit.sources.decoding.decoder import BadRecord, Decoded, misfit_text, offset_text

_PREFIX = 5
"""Bytes before the data: a zero, and the number of the schema with the highest byte first."""

Read = Callable[[io.BytesIO], Any]
"""A function that returns the data of a value."""


@dataclass
class AvroDecoder:
    """Decodes batches with a column `value` of Avro, each with the number of its schema.

    Fields of a record get those of the same name. Of several record types, the one counts that has
    the name of the schema, without its namespace.

    Parameters:
        records: the type of the records.
        name: of the source in the job.
        registry: of the schemas.
        columns: the fields that other columns of the batch contain: the name of the column for the
            name of the field.
    """

    records: Records
    name: str
    registry: SchemaRegistry
    columns: Mapping[str, str]
    _readers: dict[int, tuple[RecordType, Read]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def __call__(self, partition: str, batch: pa.RecordBatch) -> Decoded:
        others = {name: _values(batch.column(of)) for name, of in self.columns.items()}
        records, bad = [], []
        for row, value in enumerate(batch.column("value").to_pylist()):
            try:
                records.append(self._record(value, {name: of[row] for name, of in others.items()}))
            except CALL_FAILURES as error:
                if not is_users(error) and not isinstance(error, ProcessError):
                    raise
                at, why = offset_text(batch, row), misfit_text(error)
                bad.append(BadRecord(self.name, partition, at, value or b"", why))
        return Decoded(records, bad)

    def _record(self, value: bytes | None, others: Mapping[str, Any]) -> Any:
        if value is None:
            raise ValueError("its value is null")
        if value[:1] != b"\0" or len(value) < _PREFIX:
            raise ValueError("it does not begin with a zero and the number of a schema")
        member, read = self._reader(int.from_bytes(value[1:_PREFIX], "big"))
        data = io.BytesIO(value)
        data.seek(_PREFIX)
        found = read(data)
        if data.tell() != len(value):
            raise ValueError(f"{len(value) - data.tell()} bytes follow the record")
        return member.coerce({**found, **others})

    def _reader(self, number: int) -> tuple[RecordType, Read]:
        """Return the type of the records of a schema, and the function that reads their data."""
        if number not in self._readers:
            schema = self.registry.schema(number)
            if not isinstance(schema, dict) or schema.get("type") != "record":
                raise ValueError(f"schema {number} is of no record")
            self._readers[number] = self._member(schema["name"]), _reader_of(schema)
        return self._readers[number]

    def _member(self, name: str) -> RecordType:
        members = self.records.members
        if len(members) == 1:
            return members[0]
        name = name.rpartition(".")[2]
        found = next((member for member in members if member.name == name), None)
        if found is None:
            raise ValueError(f"no record type has the name of its schema, {name!r}")
        return found


def check_avro_is_installed() -> None:
    """Check that Avro can be read.

    Raises:
        StatekitError: fastavro is not installed.
    """
    _fastavro()


def _reader_of(schema: Any) -> Read:
    library = _fastavro()
    parsed = library.parse_schema(schema)
    return lambda data: library.schemaless_reader(data, parsed, None)


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return list(map(dict, values)) if pa.types.is_map(column.type) else values


def _fastavro() -> Any:
    return imported("fastavro", "Avro", "fastavro", "avro")
