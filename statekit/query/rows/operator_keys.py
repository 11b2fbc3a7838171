"""Operator keys: conversion of the keys of users to the encoded keys in row keys, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statekit.checkpoint.job_file import OperatorRecord
from statekit.codec.key_codec import KeyCodec, schema_key_codec
from statekit.codec.schema_codec import generic_key_decoder, generic_key_encoder, json_key_encoder
from statekit.errors import QueryError, StateTypeError
from statekit.functions.process import Process
from statekit.keygroup import GROUP_BYTES, key_group, pack_group
from statekit.stored_types import key_schema


class OperatorKeys:
    """The keys of one operator.

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
        self._key_groups = key_groups
        self._is_typed = function is not None
        schema = key_schema(operator)
        self._is_text = schema.kind in ("str", "dynamic")
        self._of_json, self._of_text = json_key_encoder(schema), generic_key_encoder(schema)
        if function is not None:
            _check_key(function, operator)
            self._codec: KeyCodec[Any] = function.key_codec
            self._decode = function.key_codec.decode
        else:
            self._codec = schema_key_codec(schema)
            self._decode = generic_key_decoder(schema)

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

    def from_json(self, data: Any) -> Any:
        """Return a JSON key with the types of the operator's key.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        return self._codec.decode(self._of_json(data))[0]

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

    def encode(self, key: Any) -> bytes:
        """Return the encoding of a key, without its key group.

        Raises:
            StateTypeError: it is not a key of the operator.
        """
        return self.prefix(key)[GROUP_BYTES:]

    def split(self, row_key: bytes) -> tuple[Any, int]:
        """Return the key of a row key, and the offset of its end. Without the function, the key is
        `hashable`.

        Raises:
            CorruptCheckpointError: the row key does not begin with a key of this type.
        """
        key, end = self._decode(row_key, GROUP_BYTES)
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
