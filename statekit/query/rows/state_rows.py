"""State rows: the conversion of the rows of one state to keys, places and values.

A reader outside of the job decodes a state by its record in the job file, and may have the process
function too. With the function, keys and values have the user's classes, and migrate hooks convert
old values. Without it, they have JSON types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple, cast

from statekit.backend.interface import prefix_end
from statekit.backend.mutation import Batch
from statekit.checkpoint.era import PERMANENT
from statekit.checkpoint.job_file import JobFile, OperatorRecord, StateRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.state_kinds import POSITION_BYTES, RowShape
from statekit.codec.key_codec import KeyCodec, schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import (
    is_shown_as_scalar,
    json_key_decoder,
    json_key_encoder,
    json_value_encoder,
    key_prefix_encoder,
    text_key_encoder,
)
from statekit.codec.value_codec import PickleCodec
from statekit.errors import QueryError, StateTypeError
from statekit.functions.process import Process
from statekit.job.plan import Operator
from statekit.job.state_succession import succession
from statekit.keygroup import GROUP_BYTES, key_group, pack_group
from statekit.state.base import StateSpec
from statekit.state.closed_bounds import ClosedBounds, closed_ends
from statekit.state.key_scope import KeyScope
from statekit.state.row_versions import generation_codec, row_decoder, value_schema
from statekit.state.ttl import expired_until, unstamped, without_stamp
from statekit.stored_types import key_schema
from statekit.watermark import BEGINNING

Row = tuple[bytes, bytes]
"""A row key and a row."""


def record_of_operator(job: JobFile, name: str) -> OperatorRecord:
    """Return an operator of a job file.

    Raises:
        QueryError: there is none of that name.
    """
    record = job.operator(name)
    if record is None:
        names = ", ".join(operator.name for operator in job.operators) or "no operator"
        raise QueryError(f"job {job.name!r} has no operator {name!r}: it has {names}")
    return record


def record_of_state(operator: OperatorRecord, name: str) -> StateRecord:
    """Return a state of an operator.

    Raises:
        QueryError: there is none of that name.
    """
    for state in operator.states:
        if state.name == name:
            return state
    names = ", ".join(state.name for state in operator.states) or "no state"
    raise QueryError(f"operator {operator.name!r} has no state {name!r}: it has {names}")


def expiry_time_us(manifest: EpochManifest, operator: str, state: StateRecord) -> int:
    """Return the time of an epoch by the clock of a state's TTL, in microseconds."""
    if state.ttl is None or state.ttl.clock == "processing":
        return manifest.processing_time_us
    watermark = manifest.operators[operator].watermark_us
    return BEGINNING if watermark is None else watermark


class KeyRange(NamedTuple):
    """A range of encoded keys.

    Parameters:
        first: the first key that may be in it.
        last: the key after it; None if all later keys are in it.
    """

    first: bytes = b""
    last: bytes | None = None

    @classmethod
    def between(
        cls, start: bytes | None, end: bytes | None, closed: ClosedBounds = "left"
    ) -> KeyRange:
        """Return the range between two keys; None for no bound.

        Parameters:
            closed: the bounds that are in the range.

        Raises:
            StateTypeError: `closed` is no choice of bounds.

        >>> KeyRange.between(b"a", b"c"), KeyRange.between(b"a", b"c", "right")
        (KeyRange(first=b'a', last=b'c'), KeyRange(first=b'b', last=b'd'))
        """
        has_start, has_end = closed_ends(closed)
        first, last = start or b"", end
        if end is not None and has_end:
            last = _behind(end)
        if start is not None and not has_start:
            behind = _behind(start)
            return KeyRange(first, first) if behind is None else KeyRange(behind, last)
        return KeyRange(first, last)

    def of_prefix(self, prefix: bytes) -> KeyRange:
        """Return the keys of the range that begin with these bytes.

        >>> KeyRange(b"a", b"bb").of_prefix(b"b")
        KeyRange(first=b'b', last=b'bb')
        """
        ends = [end for end in (self.last, _behind(prefix)) if end is not None]
        return KeyRange(max(self.first, prefix), min(ends, default=None))

    def after(self, key: bytes, *, reverse: bool) -> KeyRange:
        """Return the keys of the range that a scan reads after a key.

        >>> KeyRange(b"a").after(b"c", reverse=False), KeyRange(b"a").after(b"c", reverse=True)
        (KeyRange(first=b'd', last=None), KeyRange(first=b'a', last=b'c'))
        """
        if reverse:
            return KeyRange(self.first, key if self.last is None else min(self.last, key))
        behind = _behind(key)
        return (
            KeyRange(key, key) if behind is None else KeyRange(max(self.first, behind), self.last)
        )

    def within(self, owner: bytes) -> tuple[bytes, bytes]:
        """Return the first row key of the range, and the one behind it.

        Parameters:
            owner: with what all row keys begin: a key group, or the key of a map.
        """
        return owner + self.first, prefix_end(owner) if self.last is None else owner + self.last


def _behind(prefix: bytes) -> bytes | None:
    """Return the first key behind all keys that begin with some bytes; None if all are 0xff."""
    return prefix_end(b"\0" + prefix)[1:] or None


class TextRange(NamedTuple):
    """A range of keys, or of map keys of one key, as texts that `statekit get` parses.

    Parameters:
        start, end: the first one, and the one behind the last.
        prefix: the beginning of a text or of bytes, or a JSON array of the first parts.
        closed: the bounds that are in the range.
    """

    start: str | None = None
    end: str | None = None
    prefix: str | None = None
    closed: ClosedBounds = "left"


ALL_ROWS = TextRange()


class KeyForms:
    """Conversion of the keys of one type: as users give them, as JSON, and encoded.

    Parameters:
        schema: the type.
        codec: of the class that the process function declares; None for plain data.
    """

    def __init__(self, schema: Schema, codec: KeyCodec[Any] | None) -> None:
        self._is_typed = codec is not None
        self._codec: KeyCodec[Any] = schema_key_codec(schema) if codec is None else codec
        self.decode = json_key_decoder(schema) if codec is None else codec.decode
        self._of_json, self._of_text = json_key_encoder(schema), text_key_encoder(schema)
        self._prefix_of_json = key_prefix_encoder(schema, is_text=False)
        self._prefix_of_text = key_prefix_encoder(schema, is_text=True)
        self._has_texts = schema.kind in ("str", "bytes", "dynamic")

    def encode(self, key: Any) -> bytes:
        """Return the bytes of a key: as the function has it; without the function also as JSON, or
        its text.

        Raises:
            StateTypeError: it is not of this type.
        """
        try:
            return self._codec.encode(key)
        except StateTypeError:
            if self._is_typed:
                raise
            return self._of_text(key)

    def encode_prefix(self, prefix: Any) -> bytes:
        """Return the bytes with which the keys with a prefix begin. The prefix has the form of a
        key for `encode`, or that of JSON.

        Raises:
            StateTypeError: keys of this type have no such prefix.
        """
        try:
            return self._codec.encode_prefix(tuple(prefix) if isinstance(prefix, list) else prefix)
        except StateTypeError:
            if self._is_typed:
                raise
            return self._prefix_of_json(prefix)

    def range(self, start: Any, end: Any, prefix: Any, closed: ClosedBounds = "left") -> KeyRange:
        """Return the range of the keys between two keys that have a prefix.

        Parameters:
            start, end: as for `encode`; None for no bound.
            prefix: as for `encode_prefix`; None for all keys.
            closed: the bounds that are in the range.

        Raises:
            StateTypeError: one of them is not of this type, or `closed` is no choice of bounds.
        """
        first, last = (None if bound is None else self.encode(bound) for bound in (start, end))
        bounds = KeyRange.between(first, last, closed)
        return bounds if prefix is None else bounds.of_prefix(self.encode_prefix(prefix))

    def text_range(self, given: TextRange) -> KeyRange:
        """Return the same range of texts, which are parsed as `statekit get` parses a key."""
        texts = given.start, given.end
        first, last = (None if bound is None else self._of_text(bound) for bound in texts)
        bounds = KeyRange.between(first, last, given.closed)
        if given.prefix is None:
            return bounds
        return bounds.of_prefix(self._prefix_of_text(given.prefix))

    def json_of_texts(self, given: TextRange) -> dict[str, Any]:
        """Return the bounds and the prefix of a range of texts as `range` takes them: without the
        function, as JSON. Leave out those that are None.

        Raises:
            StateTypeError: a text is not of this type.
        """
        bounds = {"start": given.start, "end": given.end}
        found = {
            name: self.decode(self._of_text(text))[0]
            for name, text in bounds.items()
            if text is not None
        }
        if given.prefix is not None:
            self._prefix_of_text(given.prefix)
            found["prefix"] = given.prefix if self._has_texts else json.loads(given.prefix)
        return found

    def from_json(self, data: Any) -> Any:
        """Return a JSON key with the declared type.

        Raises:
            StateTypeError: it is not of this type.
        """
        return self._codec.decode(self._of_json(data))[0]


class OperatorKeys(KeyForms):
    """The keys of one operator, and their key groups.

    Parameters:
        operator: as in the job file.
        key_groups: of the checkpoint.
        function: the process function, for typed keys; None for plain data.

    Raises:
        QueryError: the function has another key than the operator, or the operator has no key.
    """

    def __init__(
        self, operator: OperatorRecord, key_groups: int, function: Process[Any, Any, Any] | None
    ) -> None:
        schema = key_schema(operator)
        if function is not None:
            _check_key(function, operator)
        super().__init__(schema, None if function is None else function.key_codec)
        self._key_groups = key_groups
        self._is_text = schema.kind in ("str", "dynamic")

    def prefix(self, key: Any) -> bytes:
        """Return the first bytes of the row keys of a key: its key group and its encoding.

        Parameters:
            key: a key as the function has it; without the function also as JSON, or its text. A
                tuple, or a list, if the operator has several key fields.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        try:
            encoded = self._codec.encode(key)
        except StateTypeError:
            if self._is_typed:
                raise
            encoded = self._of_text(key)
            key = self._codec.decode(encoded)[0]
        return pack_group(key_group(key, self._key_groups)) + encoded

    def from_text(self, text: str) -> Any:
        """Return the key of a text, as `statekit get` parses it: `null` is None if the key is
        optional. A key of unknown type is the text.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        if self._is_text:
            return text
        return self._codec.decode(self._of_text(text))[0]

    def prefixes(self, keys: Sequence[Any]) -> list[bytes]:
        """Return the `prefix` of each key, in that order.

        Raises:
            StateTypeError: one of the keys is not a key of the operator.
        """
        try:
            encoded = self._codec.encode_all(keys)
        except StateTypeError:
            return list(map(self.prefix, keys))  # names the key, or takes it as JSON
        groups = self._key_groups
        return [
            pack_group(key_group(key, groups)) + data
            for key, data in zip(keys, encoded, strict=True)
        ]

    def split(self, row_key: bytes) -> tuple[Any, int]:
        """Return the key of a row key, and the offset of its end. Without the function, the key is
        `hashable`.

        Raises:
            CorruptCheckpointError: the row key does not begin with a key of this type.
        """
        key, end = self.decode(row_key, GROUP_BYTES)
        return hashable(key), end

    def regrouped(self, row_key: bytes) -> bytes:
        """Replace the key group of a row key, from a checkpoint with other key groups."""
        key = self._codec.decode(row_key, GROUP_BYTES)[0]
        return pack_group(key_group(key, self._key_groups)) + row_key[GROUP_BYTES:]


def hashable(key: Any) -> Any:
    """Return a JSON key that can be hashed: arrays become tuples.

    >>> hashable(["UA", [1, 31]])
    ('UA', (1, 31))
    """
    return tuple(map(hashable, key)) if isinstance(key, list) else key


def _check_key(function: Process[Any, Any, Any], operator: OperatorRecord) -> None:
    names = tuple(field.name for field in operator.key)
    if function.key != names:
        raise QueryError(
            f"process function {function.name!r} has the key {function.key}, and operator "
            f"{operator.name!r} of the checkpoint the key {names}: pass the function of that "
            "operator"
        )


class StateRows:
    """Decoder of the rows of one state.

    Parameters:
        job: the job file of the epoch.
        operator: the operator's name.
        state: the state's name.
        function: the process function, for typed keys and values; None for plain data.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.

    Raises:
        QueryError: there is no such operator or state; or its values are pickled and `allow_pickle`
            is False.
        StateSchemaError: the function declares a type that would misread stored rows.
    """

    def __init__(
        self,
        job: JobFile,
        operator: str,
        state: str,
        function: Process[Any, Any, Any] | None = None,
        *,
        allow_pickle: bool = False,
    ) -> None:
        self.operator = record_of_operator(job, operator)
        self.state = record_of_state(self.operator, state)
        self.is_local = self.state.is_local
        self.shape = self.state.shape
        self.result: Callable[[Any], Any] | None = None
        """Converts a decoded accumulator to its result; None for states without an aggregate."""
        self._default_row: bytes | None = None
        self._decode_all: Callable[[Sequence[bytes]], list[Any]] | None = None
        self._has_dicts = True
        self._era, self._ttl = self.state.expiry_era, self.state.ttl
        self._has_stamps = self.state.era > 0
        self.may_expire = self._ttl is not None or bool(self._era.ended)
        """True if stored rows may have expired."""
        if not self.is_local:
            self.keys = OperatorKeys(self.operator, job.key_groups, function)
        if function is None:
            self._plain(allow_pickle)
        else:
            self._typed(function, allow_pickle)

    # ------------------------------------------------------------------------------- the codecs

    def _plain(self, allow_pickle: bool) -> None:
        self.decode: Callable[[bytes], Any] = row_decoder(self.state, allow_pickle)
        if self.shape is RowShape.ENTRIES:
            schema = Schema.from_json(self.state.types["key"])
            self._places = KeyForms(schema, None)
            self._has_dicts = is_shown_as_scalar(schema)

    def _typed(self, function: Process[Any, Any, Any], allow_pickle: bool) -> None:
        spec = next((spec for spec in function.states if spec.name == self.state.name), None)
        if spec is None:
            names = ", ".join(spec.name for spec in function.states) or "no state"
            raise QueryError(
                f"process function {function.name!r} declares no state {self.state.name!r}: it "
                f"declares {names}. Pass the function of operator {self.operator.name!r}"
            )
        if self.state.codec == PickleCodec.name and not allow_pickle:
            row_decoder(self.state, allow_pickle=False)  # raises the error that explains it
        self.decode = self._typed_decoder(function, spec)
        if self.decode is spec.codec.decode:
            self._decode_all = spec.codec.decode_all
        if spec.key_codec is not None:
            self._places = KeyForms(Schema.from_json(self.state.types["key"]), spec.key_codec)
        if spec.aggregate is not None:
            self.result = spec.aggregate.result
        if spec.default is not None:
            self._default_row = spec.codec.encode(spec.default)

    def _typed_decoder(
        self, function: Process[Any, Any, Any], spec: StateSpec
    ) -> Callable[[bytes], Any]:
        """Return the decoder of rows. It converts rows of earlier types with the hooks."""
        name = self.operator.name
        inputs, broadcasts = self.operator.inputs, self.operator.broadcasts
        declared = Operator(name, function, inputs, broadcasts).record()
        record = next(state for state in declared.states if state.name == spec.name)
        continued = succession(name, self.state, record, spec.hooks).allowed()
        if not continued.generation:
            return spec.codec.decode
        scope = KeyScope(name, 0, Batch(), lambda: None)
        return generation_codec(spec.codec, continued, spec.hooks, scope).decode

    @property
    def absent(self) -> Any:
        """Value to return for an absent value: None, or the default that the function declares."""
        return None if self._default_row is None else self.decode(self._default_row)

    @property
    def places(self) -> KeyForms:
        """Forms of the map keys.

        Raises:
            QueryError: the state has no map keys.
        """
        if self.shape is not RowShape.ENTRIES:
            raise QueryError(
                f"state {self.state.name!r} of operator {self.operator.name!r} has no map keys: it "
                f"is a {self.state.kind} state"
            )
        return self._places

    def encode_place(self, place: Any) -> bytes:
        """Return the bytes of a map key.

        Raises:
            StateTypeError: it is not a map key of the state.
        """
        return self._places.encode(place)

    def place_from_json(self, data: Any) -> Any:
        """Return a JSON map key with the types of the state's map keys.

        Raises:
            StateTypeError: it is not a map key of the state.
        """
        return self._places.from_json(data)

    # --------------------------------------------------------------------------------- decoding

    def key_end(self, row_key: bytes) -> int:
        """Return the offset of the end of the key in a row key."""
        if self.is_local:
            return GROUP_BYTES
        if self.shape is RowShape.VALUE:
            return len(row_key)
        if self.shape is RowShape.ELEMENTS:
            return len(row_key) - POSITION_BYTES
        return self.keys.split(row_key)[1]

    def place(self, row_key: bytes, end: int) -> Any:
        """Return the place of a row among the rows of its key.

        Parameters:
            end: the offset of the end of the key in the row key.

        Returns:
            A map key; for a list element its position, as text that sorts like the elements; None
            for a state with one row per key.
        """
        if self.shape is RowShape.ENTRIES:
            return hashable(self._places.decode(row_key, end)[0])
        return row_key[end:].hex() if self.shape is RowShape.ELEMENTS else None

    def value(self, row: bytes) -> Any:
        """Return the value of a row, as the state returns it to the process function."""
        value = self.decode(without_stamp(row) if self._has_stamps else row)
        return value if self.result is None else self.result(value)

    def value_of_json(self, data: Any) -> Any:
        """Return the value, with the function's type, of a JSON value as answers show it.

        Raises:
            QueryError: the state has rows of several stored types.
            StateTypeError: the JSON value may be of several members of a union.
        """
        if self.state.generation:
            raise QueryError(
                f"values of {self.operator.name}.{self.state.name} have several stored types, and "
                "JSON does not say which: use get or scan, or convert the rows with `statekit "
                "migrate`"
            )
        if data is None:
            return None
        value = self.decode(json_value_encoder(value_schema(self.state))(data))
        return value if self.result is None else self.result(value)

    def values(self, rows: Sequence[bytes | None]) -> list[Any]:
        """Return the values of rows of several keys, in that order. A row of None is absent."""
        absent, decode_all = self.absent, self._decode_all
        if decode_all is None or self._has_stamps or self.result is not None:
            return [absent if row is None else self.value(row) for row in rows]
        if all(rows):  # no row is empty
            return decode_all(cast("Sequence[bytes]", rows))
        of_rows = iter(decode_all([row for row in rows if row is not None]))
        return [absent if row is None else next(of_rows) for row in rows]

    def deadline_us(self, row: bytes) -> int | None:
        """Return the deadline of a row by the clock of its TTL, in microseconds; None if permanent.

        Downtime that does not count moves the deadline. The result includes the downtime so far.
        """
        if self._ttl is None:
            return None
        written = unstamped(row, self._era)[1]
        if written == PERMANENT:
            return None
        return written + self._ttl.duration_us + self._era.paused_us

    def is_expired(self, row: bytes, now_us: int) -> bool:
        """Return whether a row has expired at a time of the clock of its TTL."""
        if not self.may_expire:
            return False
        written = unstamped(row, self._era)[1]
        return written <= expired_until(self._ttl, self._era, now_us)

    def unexpired(self, rows: Iterable[Row], now_us: int) -> Iterator[Row]:
        """Return the rows that have not expired."""
        if not self.may_expire:
            return iter(rows)
        era, until = self._era, expired_until(self._ttl, self._era, now_us)
        return (row for row in rows if unstamped(row[1], era)[1] > until)

    def whole(self, rows: Iterable[Row], end: int) -> Any:
        """Return the value of a state for a key from all rows of the key that have not expired.

        Parameters:
            end: the offset of the end of the key in their row keys.

        Returns:
            A value, a list, or the entries of a map as a dict; for plain data as a list of pairs,
            unless all keys of that type are text or ints in JSON. An absent value is None, or the
            default that the function declares.
        """
        if self.shape is RowShape.ELEMENTS:
            return [self.value(row) for _, row in rows]
        if self.shape is RowShape.VALUE:
            first = next(iter(rows), None)
            return self.absent if first is None else self.value(first[1])
        entries = [(self._places.decode(row_key, end)[0], self.value(row)) for row_key, row in rows]
        return dict(entries) if self._has_dicts else list(map(list, entries))

    def by_key(
        self, rows: Iterable[Row], most: int | None = None
    ) -> Iterator[tuple[bytes, list[Row]]]:
        """Group rows in key order by key: yield the prefix of its row keys, and its rows.

        Parameters:
            most: limit of the rows of each key; None for all.
        """
        for prefix, own in groupby(rows, lambda row: row[0][: self.key_end(row[0])]):
            yield prefix, list(islice(own, most))
