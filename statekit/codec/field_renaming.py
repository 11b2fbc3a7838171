"""Field renaming: read stored structs whose fields were renamed since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from statekit.codec.schema import Schema
from statekit.codec.value_codec import checked_decode
from statekit.codec.value_plan import ENCODER, is_map
from statekit.codec.value_union import UNION_EXT, split_member

_READ = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True)
class FieldRenaming:
    """The renamed fields of some structs.

    Parameters:
        structs: the names of the structs.
        renamed: the present names of their fields by their former ones.

    >>> from typing import NamedTuple
    >>> from statekit.codec.value_codec import value_codec
    >>> class Order(NamedTuple):
    ...     buyer: str
    >>> row = value_codec(Order).encode(Order("ann"))
    >>> class Order(NamedTuple):
    ...     customer: str
    >>> codec = value_codec(Order)
    >>> FieldRenaming(frozenset({"Order"}), {"buyer": "customer"}).reader(codec)(row)
    Order(customer='ann')
    """

    structs: Collection[str]
    renamed: Mapping[str, str]

    def as_stored(self, declared: Schema, stored: Schema) -> Schema:
        """Return a declared type with the field names of the stored type."""
        stored_names = set(_field_names(stored))
        former = {now: name for name, now in self.renamed.items() if name in stored_names}
        return self._named(declared, former) if former else declared

    def _named(self, schema: Schema, names: Mapping[str, str]) -> Schema:
        is_meant = schema.kind == "struct" and schema.name in self.structs
        return replace(
            schema,
            items=tuple(self._named(item, names) for item in schema.items),
            fields=tuple(
                replace(
                    field,
                    name=names.get(field.name, field.name) if is_meant else field.name,
                    schema=self._named(field.schema, names),
                )
                for field in schema.fields
            ),
        )

    def reader(self, codec: Any) -> Callable[[bytes], Any]:
        """Return a decoder of rows with former or present names.

        Parameters:
            codec: of the declared type.
        """
        schema, decode = codec.schema, codec.decode
        # A row with a former name contains it as text. Most rows do not, and are not taken apart.
        formers = [name.encode() for name in self.renamed]

        def renamed(row: bytes) -> bytes:
            return ENCODER.encode(self._present(schema, _READ(row), {}))

        with_names = checked_decode(schema.brief, renamed, None)
        return lambda row: decode(with_names(row) if any(map(row.__contains__, formers)) else row)

    def _present(self, schema: Schema, wire: Any, outer: Mapping[str, Schema]) -> Any:
        """Return a decoded MessagePack value with present field names.

        Parameters:
            schema: the declared type of the value.
            outer: the structs around it, by name.
        """
        match schema.kind:
            case "ref":
                return self._present(outer[schema.name], wire, outer)
            case "optional":
                return None if wire is None else self._present(schema.items[0], wire, outer)
            case "list" | "set" | "frozenset" | "variadic":
                return [self._present(schema.items[0], part, outer) for part in wire]
            case "tuple":
                parts = zip(schema.items, wire, strict=True)
                return [self._present(item, part, outer) for item, part in parts]
            case "dict":
                return self._dict(schema, wire, outer)
            case "struct":
                return self._struct(schema, wire, {**outer, schema.name: schema})
            case "union":
                member, value = split_member(schema, wire)
                present = self._present(member, value, outer)
                if not isinstance(wire, msgspec.msgpack.Ext):
                    return present
                return msgspec.msgpack.Ext(UNION_EXT, ENCODER.encode((member.brief, present)))
        return wire

    def _dict(self, schema: Schema, wire: Any, outer: Mapping[str, Schema]) -> Any:
        key, item = schema.items
        if is_map(schema):
            return {name: self._present(item, part, outer) for name, part in wire.items()}
        return [[self._present(key, k, outer), self._present(item, v, outer)] for k, v in wire]

    def _struct(self, schema: Schema, wire: Any, outer: Mapping[str, Schema]) -> Any:
        fields = {field.name: field.schema for field in schema.fields}
        renamed = self.renamed if schema.name in self.structs else {}
        # A field that was removed may have had the name that another one has now.
        former = {renamed[name]: part for name, part in wire.items() if name in renamed}
        kept = {name: part for name, part in wire.items() if name not in renamed}
        return {
            name: self._present(fields[name], part, outer) if name in fields else part
            for name, part in (kept | former).items()
        }


def _field_names(schema: Schema) -> Iterator[str]:
    for part in schema.items:
        yield from _field_names(part)
    for field in schema.fields:
        yield field.name
        yield from _field_names(field.schema)
