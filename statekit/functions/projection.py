"""Projections for `Stream.select`: new records from fields of others, and from expressions over
them, without a function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from statekit.codec.annotations import Field, peel, show
from statekit.codec.kept_fields import only_stores
from statekit.errors import StateTypeError
from statekit.expressions.compiled import CompiledExpression, as_field
from statekit.expressions.expression import Expression
from statekit.expressions.python_code import compile_construction
from statekit.expressions.tree import ColumnNode
from statekit.expressions.typed import Typed
from statekit.expressions.typing_rules import typed_tree
from statekit.records.arrow_reader import record_builder
from statekit.records.record_type import RecordType
from statekit.shown import shown

WHOLE = "*"
"""Represents the complete record, in place of one of its fields."""


class Projection:
    """Creates records of one class from the fields of records of another class.

    Parameters:
        taken: the class of the records.
        into: the class of the new records.
        given: for fields of `into`, the field of `taken` that they get, "*" for the record, or an
            expression. Every other field of `into` gets the field of its own name, if there is one.
        where: the declaration, for messages.

    Raises:
        StateTypeError: a field is not there, or has another type.
    """

    def __init__(
        self, taken: Any, into: Any, given: Mapping[str, str | Expression], where: str
    ) -> None:
        self._classes = (taken, into)
        self._where = where
        self.fields = self._checked(given)

    def __call__(self, record: Any) -> Any:
        return self.of_records((record,))[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickle, without those that are compiled from the classes on
        demand.
        """
        compiled = ("taken", "into", "of_records")
        return {name: of for name, of in self.__dict__.items() if name not in compiled}

    @functools.cached_property
    def taken(self) -> RecordType:
        """The type of the input records."""
        return RecordType.of(self._classes[0], where=self._where)

    @functools.cached_property
    def into(self) -> RecordType:
        """The type of the new records."""
        return RecordType.of(self._classes[1], where=self._where)

    @property
    def copied_fields(self) -> dict[str, str]:
        """The source of each field that is copied: a field, or the record."""
        return {name: of for name, of in self.fields.items() if isinstance(of, str)}

    @functools.cached_property
    def needs_records(self) -> bool:
        """True if record objects must be created, because copying columns is not enough.

        A class may change values or add defaults while a record is made, and a field of another
        type may store a value in another form.
        """
        if self.into.may_change_fields or set(self.fields) != set(self.into.field_names):
            return True
        into, taken = self.into.fields or {}, self.taken.fields or {}
        copied = self.copied_fields
        if self.taken.may_change_fields and any(of != WHOLE for of in self.fields.values()):
            return True
        pairs = [(into[name], taken[of]) for name, of in copied.items() if of != WHOLE]
        return any(_stored_form(new) != _stored_form(given) for new, given in pairs)

    @functools.cached_property
    def of_records(self) -> Callable[[Iterable[Any]], list[Any]]:
        """The function from records to the list of the new ones."""
        cls, names = self.into.cls, list(self.fields)
        parts = [self._part(name) for name in self.fields.values()]
        if self.into.flavour in ("pydantic", "typeddict"):  # aliases, and keys that may be absent
            build = record_builder(self.into, names)
            places = "".join("[{}], " for _ in names)
            form = f"build(({places}), 1)[0]"
            return compile_construction(form, {"build": build}, parts, self.taken.cls)
        if self.into.flavour == "namedtuple" and len(names) == len(self.into.field_names):
            places = "{}, " * len(names)
            form = f"new(cls, ({places}))" if only_stores(cls) else f"cls({places})"
        else:
            form = f"cls({', '.join(f'{name}={{}}' for name in names)})"
        known = {"cls": cls, "new": tuple.__new__}  # twice as fast as the constructor
        return compile_construction(form, known, parts, self.taken.cls)

    def _part(self, of: str | CompiledExpression) -> Typed | None:
        """Return the source of a field as an expression; None for the record."""
        if isinstance(of, CompiledExpression):
            return of.typed
        if of == WHOLE:
            return None
        return typed_tree(ColumnNode((of,)), self.taken.cls, self._where)

    def _checked(
        self, given: Mapping[str, str | Expression]
    ) -> dict[str, str | CompiledExpression]:
        """Check the fields, and return the source of each field of the new records, in their
        order.
        """
        into, taken = self.into, self.taken
        if into.fields is None or taken.fields is None:
            raise StateTypeError(
                f"{self._where}: a dict does not say which fields it has: use a record class"
            )
        if unknown := [name for name in given if name not in into.fields]:
            raise StateTypeError(
                f"{self._where}: {into.name} has no field {', '.join(map(repr, unknown))}: choose "
                f"from {', '.join(into.field_names)}"
            )
        if computed := [name for name in given if not into.fields[name].init]:
            raise StateTypeError(
                f"{self._where}: {into.name} computes {', '.join(map(repr, computed))} itself "
                "(init=False): leave it out"
            )
        return dict(self._pairs(given))

    def _pairs(
        self, given: Mapping[str, str | Expression]
    ) -> Iterator[tuple[str, str | CompiledExpression]]:
        taken = self.taken.fields or {}
        for name, field in (self.into.fields or {}).items():
            of = given.get(name, name)
            wanted = self.into.column_annotation(field)
            if not field.init:
                continue
            if isinstance(of, Expression):
                field_name = f"{self.into.name}.{name}"
                yield name, as_field(of, self.taken, wanted, field_name, self._where)
                continue
            if of == WHOLE:
                self._check_type(name, wanted, self.taken.cls, "the record")
            elif of in taken:
                found = self.taken.column_annotation(taken[of])
                self._check_type(name, wanted, found, f"{self.taken.name}.{of}")
            elif name not in given and not field.required:
                continue
            else:
                raise StateTypeError(
                    f"{self._where}: {self.taken.name} has no field {shown(of)} for "
                    f"{self.into.name}.{name} (it has {', '.join(taken)}): name the field that it "
                    f"gets, as in select({self.into.name}, {name}=...), or give an expression such "
                    f"as {name}=sk.expr('…')"
                )
            yield name, of

    def _check_type(self, name: str, wanted: Any, found: Any, what: str) -> None:
        """Check that a field accepts all values of another one."""
        members, nullable, _ = peel(found)
        accepted, may_be_none, _ = peel(wanted)
        if set(members) <= set(accepted) and (may_be_none or not nullable):
            return
        raise StateTypeError(
            f"{self._where}: {self.into.name}.{name} is {show(wanted)}, and {what} is "
            f"{show(found)}: declare both with the same type, or convert it with map()"
        )


def _stored_form(field: Field) -> tuple[set[Any], tuple[Any, ...]]:
    """Return the parts of a field's type that determine the stored form of its values."""
    members, _, metadata = peel(field.annotation)
    return set(members), metadata
