"""Schema evolution: the changes of a type that keep stored values readable.

The rules follow from the format (docs/reference/format.md): a struct is a map by field name, a
missing field takes its default, an unknown field is skipped, and a float field reads an int. A
union writes the first member of each family untagged, and all others with their names. Any other
change is refused.
`tests/unit/codec/test_schema_evolution.py` checks each rule against the codecs.
"""

from __future__ import annotations

from statekit.codec.schema import Schema
from statekit.codec.value_union import tagged_members

_NEVER_IN_UNIONS = frozenset({"null", "pickle", "dynamic"})


def why_unreadable(
    stored: Schema, declared: Schema, root: str = "value", *, drops_fields: bool = True
) -> str | None:
    """Return the reason why rows of one type cannot be read as another; None if they can.

    Parameters:
        root: the name of the value in messages; the names of its parts begin with it.
        drops_fields: a stored field that is no longer declared may be skipped.

    >>> from statekit.codec.schema import schema_of
    >>> why_unreadable(schema_of(list[int]), schema_of(list[float | None])) is None
    True
    >>> why_unreadable(schema_of(dict[str, float]), schema_of(dict[str, int]))
    'value[…] was float and is int'
    """
    return _Comparison(drops_fields).reason(stored, declared, root)


def is_same_type(one: Schema, other: Schema) -> bool:
    """Return whether two types have the same stored form, so that each reads the other completely.

    >>> from statekit.codec.schema import schema_of
    >>> is_same_type(schema_of(int), schema_of(float))
    False
    """
    pairs = ((one, other), (other, one))
    return all(why_unreadable(a, b, drops_fields=False) is None for a, b in pairs)


def keeps_keys(stored: Schema, declared: Schema) -> bool:
    """Return whether all keys of one type are also keys of the other type, with the same bytes.

    No key contains the names of classes and the defaults of fields. An Enum or a Literal may have
    more members.

    >>> from statekit.codec.schema import schema_of
    >>> from typing import NamedTuple
    >>> Day, Tag = (NamedTuple(name, [("year", int)]) for name in ("Day", "Tag"))
    >>> keeps_keys(schema_of(Day), schema_of(Tag)), keeps_keys(schema_of(int), schema_of(float))
    (True, False)
    """
    return _Comparison(drops_fields=False).keeps_keys(stored, declared)


class _Comparison:
    """Compares the parts of a stored type with those of a declared type.

    Attributes:
        stored, declared: the structs compared so far, by name: a "ref" names one of them.
        open: pairs of names of structs that are being compared. They are readable unless a
            difference is found.
        open_keys: the same for keys.
    """

    def __init__(self, drops_fields: bool) -> None:
        self.drops_fields = drops_fields
        self.stored: dict[str, Schema] = {}
        self.declared: dict[str, Schema] = {}
        self.open: frozenset[tuple[str, str]] = frozenset()
        self.open_keys: frozenset[tuple[str, str]] = frozenset()

    def reason(self, stored: Schema, declared: Schema, path: str) -> str | None:
        if declared.kind == "optional":
            inner = stored.items[0] if stored.kind == "optional" else stored
            return self.reason(inner, declared.items[0], path)
        if stored.kind == "optional":
            return _changed(stored, declared, path)
        kinds = {stored.kind, declared.kind}
        if "union" in kinds and not kinds & _NEVER_IN_UNIONS:
            return self.union(stored, declared, path)
        stored = self.stored[stored.name] if stored.kind == "ref" else stored
        declared = self.declared[declared.name] if declared.kind == "ref" else declared
        if stored.kind != declared.kind:
            widened = (stored.kind, declared.kind) == ("int", "float")
            return None if widened else _changed(stored, declared, path)
        match stored.kind:
            case "struct":
                return self.struct(stored, declared, path)
            case "enum" | "literal":
                return _lost_value(stored, declared, path)
            case "set" | "frozenset":
                is_kept = self.keeps_keys(stored, declared)
                return None if is_kept else _changed(stored, declared, path)
            case "dict" if not self.keeps_keys(stored.items[0], declared.items[0]):
                return _changed(stored.items[0], declared.items[0], f"{path}.keys()")
            case "pickle" if stored.name != declared.name:
                return _changed(stored, declared, path)
        return self.items(stored, declared, path)

    def items(self, stored: Schema, declared: Schema, path: str) -> str | None:
        """Compare two containers of the same kind, item by item. A scalar has no items."""
        if len(stored.items) != len(declared.items):
            return _changed(stored, declared, path)
        for index, (one, other) in enumerate(zip(stored.items, declared.items, strict=True)):
            part = f"{path}[{index if stored.kind == 'tuple' else '…'}]"
            if reason := self.reason(one, other, part):
                return reason
        return None

    def keeps_keys(self, stored: Schema, declared: Schema) -> bool:
        """Return whether all keys (or sets) of one type are also keys (or sets) of the other, with
        the same bytes.
        """
        if "union" in (stored.kind, declared.kind):
            return self.is_equal(stored, declared)  # members are written with their names
        stored = self.stored[stored.name] if stored.kind == "ref" else stored
        declared = self.declared[declared.name] if declared.kind == "ref" else declared
        if (stored.kind, stored.flavour) != (declared.kind, declared.flavour):
            return False
        match stored.kind:
            case "struct":
                return self.keeps_structs(stored, declared)
            case "enum" | "literal":
                return _lost_value(stored, declared, "") is None
            case "pickle":
                return stored.name == declared.name
        return len(stored.items) == len(declared.items) and all(
            map(self.keeps_keys, stored.items, declared.items)
        )

    def keeps_structs(self, stored: Schema, declared: Schema) -> bool:
        pair, open_pairs = (stored.name, declared.name), self.open_keys
        if pair in open_pairs:
            return True
        self.open_keys = open_pairs | {pair}
        self.stored[stored.name], self.declared[declared.name] = stored, declared
        is_kept = len(stored.fields) == len(declared.fields) and all(
            before.name == now.name and self.keeps_keys(before.schema, now.schema)
            for before, now in zip(stored.fields, declared.fields, strict=True)
        )
        if not is_kept:
            self.open_keys = open_pairs  # conclusions since then relied on this pair
        return is_kept

    def is_equal(self, stored: Schema, declared: Schema) -> bool:
        """Return whether two types are equal, and also the structs that their refs name."""
        return stored == declared and all(
            self.stored.get(part.name) == self.declared.get(part.name)
            for part in stored.walk()
            if part.kind == "ref"
        )

    def struct(self, stored: Schema, declared: Schema, path: str) -> str | None:
        pair, open_pairs = (stored.name, declared.name), self.open
        if pair in open_pairs:
            return None
        self.open = open_pairs | {pair}
        self.stored[stored.name], self.declared[declared.name] = stored, declared
        reason = self.fields(stored, declared, path)
        if reason:
            self.open = open_pairs  # conclusions since then relied on this pair
        return reason

    def fields(self, stored: Schema, declared: Schema, path: str) -> str | None:
        before = {field.name: field for field in stored.fields}
        now = {field.name: field for field in declared.fields}
        lost = [name for name in before if name not in now]
        if before and len(lost) == len(before) and now:
            return f"{path} would lose all its fields, {', '.join(lost)}"
        if lost and not self.drops_fields:
            return f"{path}.{lost[0]} would be lost"
        may_lack = stored.flavour == "typeddict"
        for name, field in now.items():
            part = f"{path}.{name}"
            if name not in before:
                reason = f"{part} is new and has no default" if field.required else None
            elif field.required and may_lack and not before[name].required:
                reason = f"{part} may be absent in stored rows, and has no default"
            else:
                reason = self.reason(before[name].schema, field.schema, part)
            if reason:
                return reason
        return None

    def union(self, stored: Schema, declared: Schema, path: str) -> str | None:
        """Compare two unions. Each member must keep its tag, or stay untagged."""
        before, now = members(stored), members(declared)
        named_before, named_now = tagged_members(before), tagged_members(now)
        by_name = {member.brief: member for member in now}
        for member in before:
            name = member.brief
            if name not in by_name:
                plain = [other for other in now if other.brief not in named_now]
                if name in named_before or all(self.reason(member, other, "") for other in plain):
                    return f"{path} was {name} and is {declared.brief}"
            elif (name in named_before) != (name in named_now):
                return (
                    f"{path}: {name} is written with its name in only one of {stored.brief} and "
                    f"{declared.brief}; add members at the end"
                )
            elif reason := self.reason(member, by_name[name], path):
                return reason
        return None


def members(schema: Schema) -> tuple[Schema, ...]:
    """Return the members of a union; for any other type, the type itself."""
    return schema.items if schema.kind == "union" else (schema,)


def _changed(stored: Schema, declared: Schema, path: str) -> str:
    return f"{path} was {stored.brief} and is {declared.brief}"


def _lost_value(stored: Schema, declared: Schema, path: str) -> str | None:
    lost = [name for name, value in stored.values if (name, value) not in declared.values]
    enumeration = stored.name or "the Literal"
    return f"{path}: {enumeration} has no longer {lost[0]} as it was" if lost else None
