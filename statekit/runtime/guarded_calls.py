"""Guarded calls: calls of the user's function that may fail without ending the epoch.

A function declared with `on_error="collect"` or `"drop"` is called here. Its outputs are gathered
until the call ends. If the call fails, its outputs are dropped, and the undo log takes back what it
has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from statekit.codec.record_text import record_text
from statekit.codec.schema_codec import json_key_decoder
from statekit.errors import ProcessError, is_of_call
from statekit.functions.failed_record import FailedRecord
from statekit.functions.process import Process
from statekit.functions.signature import Bound
from statekit.keygroup import GROUP_BYTES
from statekit.records.output_copy import copier
from statekit.shown import shown, shown_error, shown_text, type_name
from statekit.state.key_scope import KeyScope
from statekit.state.undo_log import UndoLog

Collect = Callable[[FailedRecord], None]
"""Takes the failed records of a shard, one by one."""


class GuardedCalls:
    """Calls the function of one shard, and keeps count of failed calls.

    Parameters:
        process: the process function.
        scope: the key scope of the shard.
        place: where calls fail, for messages: the key scope, or the scope of the shard if there is
            no key.
        undo: takes back the changes of a call.
        failed_before: the number of failed calls of all epochs before.
        collect: takes the failed records; None to count them only.

    Attributes:
        failed: the number of failed calls.
        last: the last failed call, as text for messages; empty without any.
    """

    def __init__(
        self,
        process: Process[Any, Any, Any],
        scope: KeyScope,
        place: KeyScope,
        undo: UndoLog,
        failed_before: int,
        collect: Collect | None,
    ) -> None:
        self._process = process
        self._scope = scope
        self._place = place
        self._undo = undo
        self._failed_before = failed_before
        self._collect = collect if process.errors.on_error == "collect" else None
        self._copy = None if process.output_type is None else process.output_type.copy
        # The function may change a record before it fails.
        self._keep = copier(process.record_type.cls) if self._collect is not None else None
        self.failed = 0
        self.last = ""

    def call_each(self, bound: Bound, inputs: Iterator[Any]) -> Iterator[list[Any]]:
        """Call the function with each input, and yield the outputs of each call."""
        return (self.call("record", one, bound) for one in inputs)

    def call(self, kind: str, handled: Any, bound: Bound) -> list[Any]:
        """Call a function of the user, and return its outputs; none if it fails.

        Parameters:
            kind: "record" or "timer".
            handled: the record or timer.
            bound: the function with its arguments.
        """
        function, arguments = bound
        undo, kept = self._undo, handled
        undo.begin()
        try:
            if self._keep is not None and kind == "record":
                kept = self._keep(handled)
            emitted = function(handled, *arguments)
            outputs = [] if emitted is None else list(self._copied(emitted))
        except BaseException as error:
            undo.undo()
            if not is_of_call(error):
                raise
            self.note(kind, kept, error)
            return []
        undo.end()
        return outputs

    def _copied(self, emitted: Iterable[Any]) -> Iterable[Any]:
        """Copy mutable outputs when they are emitted."""
        return emitted if self._copy is None else map(self._copy, emitted)

    def note(self, kind: str, handled: Any, error: BaseException, attempts: str = "") -> None:
        """Count a failed call, and collect its record or timer.

        Parameters:
            attempts: how many attempts there were, as text; empty for a function that is called
                once.

        Raises:
            ProcessError: more calls have failed than the function allows.
        """
        self.failed += 1
        place, after = self._place.place, f" ({attempts})" if attempts else ""
        self.last = f"{place} with {shown_error(error)}{after}; the {kind} was {shown(handled)}"
        check_failed(
            self._scope.operator, self._process, self._failed_before + self.failed, self.last
        )
        if self._collect is not None:
            is_record = kind == "record"
            text = record_text(handled)
            self._collect(
                FailedRecord(
                    operator=self._scope.operator,
                    input=self._scope.input if is_record else None,
                    key=self._key_text,
                    record=text if is_record else None,
                    timer=None if is_record else text,
                    error=type_name(error),
                    message=f"{shown_text(error)}{after}",
                )
            )

    @property
    def _key_text(self) -> str:
        """The current key as JSON text; `[]` without a key."""
        if not self._process.key:
            return "[]"
        decode = json_key_decoder(self._process.key_codec.schema)
        return record_text(decode(self._scope.prefix, GROUP_BYTES)[0])


def check_failed(operator: str, process: Process[Any, Any, Any], failed: int, last: str) -> None:
    """Check that no more calls have failed than the function of an operator allows.

    Parameters:
        failed: the number of failed calls of all epochs.
        last: the last failed call, as text.

    Raises:
        ProcessError: more have.
    """
    most = process.errors.max_errors
    if most is not None and failed > most:
        raise ProcessError(
            f"operator {operator!r} has failed for {failed:,} records so far, and max_errors="
            f"{most} allows no more than {most:,}; the last time {last}. Nothing of this epoch is "
            "committed: correct the function or the records, or raise max_errors, then start the "
            "job again"
        )
