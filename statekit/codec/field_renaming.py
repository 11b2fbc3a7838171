"""Field renaming: read stored structs whose fields were renamed since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from statekit.codec.schema import Schema
from statekit.codec.value_codec import checked_decode
from statekit.codec.value_plan import ENCODER
from statekit.codec.value_union import split_member, tagged_value
from statekit.codec.value_walk import Structs, ValueWalk

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
        stored_names = {field.name for part in stored.walk() for field in part.fields}
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
        walk = _PresentNames(self)

        def renamed(row: bytes) -> bytes:
            return ENCODER.encode(walk.value(schema, _READ(row)))

        with_names = checked_decode(schema.brief, renamed, None)
        return lambda row: decode(with_names(row) if any(map(row.__contains__, formers)) else row)


class _PresentNames(ValueWalk):
    """Gives decoded MessagePack values of a declared type their present field names."""

    def __init__(self, renaming: FieldRenaming) -> None:
        self._renaming = renaming

    def struct(self, schema: Schema, value: dict[str, Any], outer: Structs) -> dict[str, Any]:
        fields = {field.name: field.schema for field in schema.fields}
        renamed = self._renaming.renamed if schema.name in self._renaming.structs else {}
        # A field that was removed may have had the name that another one has now.
        former = {renamed[name]: part for name, part in value.items() if name in renamed}
        kept = {name: part for name, part in value.items() if name not in renamed}
        return {
            name: self.value(fields[name], part, outer) if name in fields else part
            for name, part in (kept | former).items()
        }

    def entries(self, key: Schema, item: Schema, value: dict[Any, Any], outer: Structs) -> Any:
        return {name: self.value(item, part, outer) for name, part in value.items()}

    def union(self, schema: Schema, value: Any, outer: Structs) -> Any:
        member, untagged = split_member(schema, value)
        present = self.value(member, untagged, outer)
        return (
            tagged_value(member.brief, present)
            if isinstance(value, msgspec.msgpack.Ext)
            else present
        )
