"""Broadcast handlers: functions that every shard calls with broadcast records.

Every shard gets every broadcast record, and must derive the same state from it. So a handler has
access to nothing that differs between shards: no keyed state, no other operator state and no
context. This is checked when the handler is declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statekit.errors import StateTypeError
from statekit.functions.context import Context
from statekit.functions.signature import Bound, Signature
from statekit.functions.state_parameters import annotation_text
from statekit.records.record_type import RecordType
from statekit.records.union import Records, records_of
from statekit.state.base import State
from statekit.state.operator_state import BroadcastState


class Handlers:
    """The functions that handle the broadcast records of an operator, one per record type.

    Parameters:
        declared: the signature of the process function.

    Attributes:
        record_type: the type of broadcast records; None without handlers.
        signatures: of the functions, in the order of their declaration.
    """

    def __init__(self, declared: Signature) -> None:
        self._declared = declared
        self._by_class: dict[type, Signature] = {}
        self.record_type: Records | None = None

    @property
    def signatures(self) -> list[Signature]:
        return list(self._by_class.values())

    def take(self, handler: Signature) -> None:
        """Add a handler.

        Raises:
            StateTypeError: it could have different effects in different shards; the message names
                the parameter.
        """
        where = f"{handler.name}, parameter {handler.first!r}"
        cls = RecordType.of(handler.hints[handler.first], where=where).cls
        if cls in self._by_class:
            raise StateTypeError(
                f"{where}: {self._by_class[cls].name} handles {cls.__name__} already"
            )
        _check_effects(handler)
        handler.check_declared_by(self._declared)
        types = (*self._by_class, cls)
        self.record_type = records_of(*types, where=f"{self._declared.name}.on_broadcast")
        self._by_class[cls] = handler

    def bind(self, states: dict[str, State], context: Context) -> Callable[[Any], Bound]:
        """Return a function from a record to its handler, called as `handler(record,
        *arguments)`.
        """
        bound = {cls: of.bind(states, context) for cls, of in self._by_class.items()}
        if len(bound) == 1:  # takes dicts and subclasses, too
            (only,) = bound.values()
            return lambda record: only
        return lambda record: bound[type(record)]


def _check_effects(handler: Signature) -> None:
    """Check that a handler only uses state that is equal in all shards."""
    if handler.emits is not None:
        raise StateTypeError(
            f"{handler.name}: it returns {annotation_text(handler.hints['return'])}, which each "
            "shard would emit: return None, and emit outputs from the process function"
        )
    if handler.context_parameter is not None:
        raise StateTypeError(
            f"{handler.name}, parameter {handler.context_parameter!r}: a broadcast record is "
            "handled at no key, and the same in all shards: take no Context"
        )
    for spec in handler.states:
        if not issubclass(spec.state_class, BroadcastState):
            raise StateTypeError(
                f"{handler.name}, parameter {spec.name!r}: a broadcast record is handled at no "
                f"key, and the same in all shards, and {spec.state_class.__name__} is not: use "
                "BroadcastState"
            )
