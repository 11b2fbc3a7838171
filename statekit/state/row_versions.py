"""Row versions: rows that were written before the type of their state changed.

Each change to a type that cannot read the stored rows begins a generation. A row of generation 0 is
a value and nothing else, so a state whose type never changed in this way has no overhead. Every
other row is marked:

    C1 00 + generation (1 byte) + value

Stamps of rows with a TTL begin with C1 too, and come before the mark. The byte after it is their
era, which is never 0. So rows with and without a stamp are distinguished, whether expiry was turned
on before or after the generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statekit.checkpoint.job_file import ROW_MARK, PastState, StateRecord
from statekit.codec.field_renaming import FieldRenaming
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import json_value_decoder
from statekit.codec.schema_evolution import is_same_type, why_unreadable
from statekit.codec.value_codec import ValueCodec
from statekit.errors import (
    CALL_FAILURES,
    CorruptCheckpointError,
    ProcessError,
    StateSchemaError,
    StateTypeError,
)
from statekit.shown import shown, shown_error, shown_text
from statekit.state.key_scope import KeyScope

_MARK = ROW_MARK + b"\x00"
_MARK_BYTES = len(_MARK) + 1

Decode = Callable[[bytes], Any]


def marked(generation: int) -> bytes:
    """Return the mark at the start of all rows of a generation.

    >>> marked(0), marked(2).hex(" ")
    (b'', 'c1 00 02')
    """
    return _MARK + bytes([generation]) if generation else b""


def generation_of(row: bytes) -> tuple[int, bytes]:
    """Return the generation and the value of a row without a stamp.

    Raises:
        CorruptCheckpointError: the mark is cut short.

    >>> generation_of(marked(2) + b"value"), generation_of(b"value")
    ((2, b'value'), (0, b'value'))
    """
    if not row.startswith(_MARK):
        return 0, row
    if len(row) < _MARK_BYTES:
        raise CorruptCheckpointError(
            f"a row of {len(row)} bytes, {row.hex()}, is cut short within its mark: restore an "
            "earlier epoch"
        )
    return row[_MARK_BYTES - 1], row[_MARK_BYTES:]


def value_schema(state: StateRecord | PastState) -> Schema:
    """Return the type of a state's values, elements, entry values or accumulators."""
    return Schema.from_json(state.types["value"])


# ------------------------------------------------------------------------------------- hooks


@dataclass(frozen=True)
class Hook:
    """A function that converts a value of an earlier type to the present type of a state.

    Parameters:
        fn: takes the old value, returns the new one.
        codec: of the old type, as its parameter is annotated; None if it takes plain data.
    """

    fn: Callable[[Any], Any]
    codec: ValueCodec[Any] | None

    @property
    def name(self) -> str:
        return self.fn.__name__

    def takes(self, rows: Sequence[PastState]) -> bool:
        """Return whether the hook accepts rows of a generation, given its declarations, oldest
        first.

        The annotated type must read the rows of all declarations. It may lack fields that a later
        declaration of the generation removed. It must have those of the last one, so that a hook
        for an older type does not drop fields that were added since.
        """
        if self.codec is None:
            return all(state.codec == "msgpack" for state in rows)
        wanted, last = self.codec.schema, value_schema(rows[-1])
        return (
            all(state.codec == self.codec.name for state in rows)
            and all(why_unreadable(value_schema(state), wanted) is None for state in rows)
            and why_unreadable(last, wanted, drops_fields=False) is None
        )

    def is_meant_for(self, state: PastState) -> bool:
        """Return whether the hook's annotation is exactly the type of a declaration."""
        codec = self.codec
        return (
            codec is not None
            and codec.name == state.codec
            and is_same_type(codec.schema, value_schema(state))
        )

    def reader(self, rows: Sequence[PastState]) -> Decode:
        """Return a decoder from rows of one generation to the hook's argument."""
        if self.codec is not None:
            return self.codec.decode
        return json_value_decoder(value_schema(rows[-1]), rows[-1].codec, as_stored=True)


@dataclass(frozen=True)
class RenamedFields(Hook):
    """Reads values with records whose fields were renamed. It calls no function.

    Parameters:
        declared: the codec of the declared type.
        renaming: the fields.
    """

    declared: ValueCodec[Any]
    renaming: FieldRenaming

    @classmethod
    def of(cls, declared: ValueCodec[Any], renaming: FieldRenaming) -> RenamedFields:
        """Return the hook of a state."""
        return cls(_itself, None, declared, renaming)

    @property
    def name(self) -> str:
        return "renamed="

    def takes(self, rows: Sequence[PastState]) -> bool:
        return all(map(self.is_meant_for, rows))

    def is_meant_for(self, state: PastState) -> bool:
        if state.codec != self.declared.name:
            return False
        stored, declared = value_schema(state), self.declared.schema
        as_stored = self.renaming.as_stored(declared, stored)
        return as_stored != declared and why_unreadable(stored, as_stored) is None

    def reader(self, rows: Sequence[PastState]) -> Decode:
        return self.renaming.reader(self.declared)


def _itself(value: Any) -> Any:
    return value


def hook_for(hooks: Sequence[Hook], rows: Sequence[PastState]) -> Hook | None:
    """Return the hook for rows of one generation; None if there is none.

    A hook that is annotated with the exact type comes first, then one that can read it, then one
    without an annotation, then the names of `renamed=`.

    Raises:
        StateSchemaError: several hooks are equally suitable.
    """
    taking = [hook for hook in hooks if hook.takes(rows)]
    given = [hook for hook in taking if not isinstance(hook, RenamedFields)]
    for candidates in (
        [hook for hook in given if hook.is_meant_for(rows[-1])],
        [hook for hook in given if hook.codec is not None],
        given,
        taking,
    ):
        if len(candidates) > 1:
            names = " and ".join(hook.name for hook in candidates)
            raise StateSchemaError(
                f"has several hooks for values of type {value_schema(rows[-1]).brief}, {names}: "
                "annotate the one that is meant with just that type, or leave the others out"
            )
        if candidates:
            return candidates[0]
    return None


def generation_codec(
    codec: ValueCodec[Any], state: StateRecord, hooks: Sequence[Hook], scope: KeyScope
) -> ValueCodec[Any]:
    """Return a codec that writes rows of the state's generation and reads rows of all generations.

    Parameters:
        codec: of the declared type.
        state: the state's generation and its earlier declarations.
        scope: the key scope, for messages.
    """
    mark, encode, decode = marked(state.generation), codec.encode, codec.decode
    skip = len(mark)
    converters = {
        generation: _converter(codec, rows, hook, f"state {state.name!r}", scope)
        for generation, rows in state.past_generations.items()
        if (hook := hook_for(hooks, rows)) is not None
    }
    decode_older = _by_generation(state.name, converters)

    def read(row: bytes) -> Any:
        return decode(row[skip:]) if row.startswith(mark) else decode_older(row)

    return replace(codec, encode=lambda value: mark + encode(value), decode=read)


def _by_generation(state: str, decoders: Mapping[int, Decode]) -> Decode:
    """Return a decoder of marked rows, from decoders of the values of each generation."""

    def decode(row: bytes) -> Any:
        generation, value = generation_of(row)
        if generation not in decoders:
            raise CorruptCheckpointError(
                f"a row of state {state!r} is of generation {generation}, which the job file does "
                "not contain: restore an earlier epoch"
            )
        return decoders[generation](value)

    return decode


def _converter(
    codec: ValueCodec[Any], rows: Sequence[PastState], hook: Hook, state: str, scope: KeyScope
) -> Decode:
    """Return a decoder from rows of an earlier generation to values of the declared type."""
    read = hook.reader(rows)

    def where() -> str:
        return (
            f"migrate hook {hook.name!r} of {state} of operator {scope.operator!r} {scope.place} "
            f"in epoch {scope.epoch}"
        )

    def convert(row: bytes) -> Any:
        old = read(row)
        old_text = f"the old value was {shown(old, 200)}"
        try:
            new = hook.fn(old)
        except CALL_FAILURES as error:
            raise ProcessError(
                f"{where()} failed with {shown_error(error)}; {old_text}. Nothing of "
                "this epoch is committed: correct the hook, then start again"
            ) from error
        if not codec.accepts(new):
            raise StateTypeError(
                f"{where()} returned {shown(new, 200)}: {codec.reason(new)}; {old_text}. Nothing "
                "of this epoch is committed: return a value of the declared type"
            )
        # As it would be stored: the caller owns it, and nothing of it belongs to the hook.
        try:
            return codec.decode(codec.encode(new))
        except StateTypeError as error:
            raise StateTypeError(f"{where()}: {shown_text(error)}; {old_text}") from None

    return convert


# ------------------------------------------------------------------------- without the classes


def row_decoder(state: StateRecord, allow_pickle: bool = False) -> Decode:
    """Return a decoder of a state's rows without stamps. It does not need the user's classes.

    Rows of each generation are shown as the last type of their time.

    Raises:
        QueryError: they are pickled and `allow_pickle` is False.
    """
    own = json_value_decoder(value_schema(state), state.codec, allow_pickle)
    if not state.generation:
        return own
    decoders = {state.generation: own}
    for generation, rows in state.past_generations.items():
        last = rows[-1]
        decoders[generation] = json_value_decoder(value_schema(last), last.codec, allow_pickle)
    return _by_generation(state.name, decoders)
