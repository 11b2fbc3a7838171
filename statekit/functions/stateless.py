"""Stateless functions: `map`, `filter`, `flat_map` and `select` of a stream, and `of`, which
selects the records of one type.

A stateless function takes one record and sees no state, no context and no clock. So it may run
anywhere between the operators of a job, and any number of times.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress
from operator import length_hint
from typing import Any, Literal, Self

from statekit.errors import ProcessError, StateTypeError, is_users
from statekit.expressions.compiled import CompiledExpression, condition
from statekit.expressions.expression import Expression
from statekit.functions.projection import Projection
from statekit.functions.signature import hints_of, outputs_annotation
from statekit.functions.state_parameters import annotation_text
from statekit.records.output_union import AnyOutput, output_type_of
from statekit.records.union import Records, records_of
from statekit.shown import shown, shown_error

Kind = Literal["of", "select", "map", "filter", "flat_map"]


class Stateless:
    """A function from a record to zero or more records.

    Parameters:
        kind: what the function returns: a record ("map"), whether to keep the record ("filter"), an
            iterable of records ("flat_map"). "of" has no function and keeps the records of a class.
            "select" makes records of the fields of others.
        fn: the function; the class for "of"; a `Projection` for "select"; a `CompiledExpression`
            for a "filter" by a condition.
        takes: the classes of the records it takes.
        emits: the annotation of the records it emits.
        where: the declaration, for messages.
    """

    def __init__(
        self, kind: Kind, fn: Callable[[Any], Any], takes: tuple[Any, ...], emits: Any, where: str
    ) -> None:
        self.kind = kind
        self.fn = fn
        self._takes = takes
        self._emits = emits
        self._where = where

    @classmethod
    def selection(cls, records: Records, member: Any) -> Self:
        """Return the selection of the records of one class.

        Parameters:
            records: of the stream, several types.
            member: one of their classes.
        """
        return cls("of", member, _classes(records), member, records.where)

    @classmethod
    def projection(cls, projection: Projection, where: str) -> Self:
        """Return the function that applies a projection."""
        return cls("select", projection, (projection.taken.cls,), projection.into.cls, where)

    @classmethod
    def of(cls, kind: Kind, fn: Any, records: Records, into: Any = None) -> Self:
        """Return a stateless function of a user.

        Parameters:
            fn: the function; for a filter, also a condition as an expression or SQL text.
            records: of the stream that it is for.
            into: the type of the records it emits; None for the annotation of the function.

        Raises:
            StateTypeError: the function takes other records, or does not say what it returns.
        """
        if kind == "filter" and isinstance(fn, str | Expression):
            return cls._by_condition(fn, records)
        name, where = name_of(fn), f"{kind}({name_of(fn)})"
        if not callable(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise StateTypeError(
                f"{where}: give an ordinary function of one record, not {shown(fn)}"
            )
        hints = hints_of(fn) if inspect.isfunction(fn) else {}
        _check_takes(fn, hints, records, where)
        if kind == "filter":
            _check_says_whether(hints, where)
            into = records.cls
        elif into is None:
            into = _emitted(kind, name, hints, where)
        stateless = cls(kind, fn, _classes(records), into, where)
        assert stateless.output_type is not None, "made now, so that its faults are found here"
        return stateless

    @classmethod
    def _by_condition(cls, fn: str | Expression, records: Records) -> Self:
        """Return the filter by a condition over the fields of the records."""
        where = f"filter({fn})"
        if len(records.members) > 1:
            raise StateTypeError(
                f"{where}: the stream has {records.name}, and a condition is over the fields of "
                "one type: select one with of(), or use a function"
            )
        checked = condition(fn, records.members[0], where)
        return cls("filter", checked, _classes(records), records.cls, where)

    @functools.cached_property
    def record_type(self) -> Records:
        """The type of the input records."""
        return records_of(*self._takes, where=self._where)

    @functools.cached_property
    def output_type(self) -> AnyOutput:
        """The type of the output records."""
        noun = "record" if self.keeps_records else "output"
        return output_type_of(self._emits, self._where, noun)

    @property
    def keeps_records(self) -> bool:
        """True if the outputs are unchanged records of the input."""
        return self.kind in ("of", "filter")

    @property
    def selects_columns(self) -> bool:
        """True if the outputs follow from the columns of the input, so that no function is called
        with a record.
        """
        if isinstance(self.fn, Projection):
            return not self.fn.needs_records
        if isinstance(self.fn, CompiledExpression):
            return not self.record_type.may_change_fields
        return self.kind == "of"

    @property
    def selects_type(self) -> bool:
        """True if it selects the records of one type."""
        return self.kind == "of" and len(self._takes) > 1

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments of the constructor for pickle. Types are compiled again on
        demand.
        """
        compiled = ("record_type", "output_type")
        return {name: of for name, of in self.__dict__.items() if name not in compiled}

    def apply(self, records: list[Any], stream: str, epoch: int) -> list[Any]:
        """Return the outputs for some records.

        Parameters:
            stream: the name of its outputs, for messages.
            epoch: of the records, for messages.

        Raises:
            ProcessError: the function failed, or what it returned does not fit its annotation.
        """
        if self.keeps_records:
            return list(compress(records, self.kept(records, stream, epoch)))
        fn, copy, following = self.fn, self.output_type.copy, iter(records)
        with self._failures(records, following, stream, epoch):
            if isinstance(fn, Projection):
                emitted = fn.of_records(following)
                return emitted if copy is None else list(map(copy, emitted))
            # A generator, as `map` would end silently if the function raised StopIteration.
            outputs: Iterable[Any] = (fn(record) for record in following)
            if self.kind == "flat_map":
                outputs = _flattened(outputs)
            return list(outputs if copy is None else map(copy, outputs))

    def kept(self, records: list[Any], stream: str, epoch: int, *, own: bool = False) -> list[bool]:
        """Return whether each record is kept. For functions whose outputs are unchanged records.

        Parameters:
            epoch: of the records, for messages.
            own: nothing else uses the records, so that the function may change them. Else it gets
                copies of records that can change: what it does to them is seen nowhere.

        Raises:
            ProcessError: the function failed.
        """
        fn, following = self.fn, iter(records)
        if self.kind == "of":
            return [type(record) is fn for record in following]
        if isinstance(fn, CompiledExpression):
            with self._failures(records, following, stream, epoch):
                return fn.are_true(following)
        copy = None if own else self.output_type.copy
        with self._failures(records, following, stream, epoch):
            own_records = following if copy is None else map(copy, following)
            return [bool(fn(record)) for record in own_records]

    @contextmanager
    def _failures(
        self, records: list[Any], following: Iterator[Any], stream: str, epoch: int
    ) -> Iterator[None]:
        """Convert errors of the function to ProcessError. Add a note to other errors.

        Parameters:
            following: the records that the function has not taken.
        """
        try:
            yield
        except BaseException as error:
            record = records[max(0, len(records) - length_hint(following) - 1)]
            if not is_users(error):
                error.add_note(
                    f"while {self.kind} {stream!r} handled {shown(record)} in epoch {epoch}"
                )
                raise
            raise ProcessError(
                f"{self.kind} {stream!r} failed in epoch {epoch} with {shown_error(error)}; the "
                f"record was {shown(record)}. Nothing of this epoch is committed: correct the "
                "function or the record, then start the job again"
            ) from error


def _classes(records: Records) -> tuple[Any, ...]:
    return tuple(member.cls for member in records.members)


def name_of(fn: Any) -> str:
    """Return the name of a function for messages and streams; `<lambda>` for a lambda."""
    if isinstance(fn, str | Expression):
        return "filtered"
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


def _flattened(emitted: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for one in emitted:
        if one is not None:
            yield from one


def _check_takes(
    fn: Callable[[Any], Any], hints: dict[str, Any], records: Records, where: str
) -> None:
    """Check that a function accepts one record of a type, according to its annotation if it has
    one.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions of C have no signature
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (2, 4)]
    if not parameters or len(needed) > 1:
        raise StateTypeError(
            f"{where}: the function must take one argument, the record; it takes "
            f"{', '.join(p.name for p in needed) or 'none'}. State, timers and the context are for "
            "process functions: use @process"
        )
    hint = hints.get(parameters[0].name)
    if hint is None or hint is Any:
        return
    taken = {member.cls for member in records_of(hint, where=where).members}
    if not taken.issuperset(member.cls for member in records.members):
        raise StateTypeError(
            f"{where}: the function takes {annotation_text(hint)}, and the stream has "
            f"{records.name}: declare both with the same type"
        )


def _check_says_whether(hints: dict[str, Any], where: str) -> None:
    """Check that the function of a filter returns a bool, according to its annotation if it has
    one.
    """
    if hints.get("return", bool) not in (bool, Any):
        raise StateTypeError(
            f"{where}: the function returns {annotation_text(hints['return'])}, and a filter keeps "
            "the records for which it returns True: annotate it with bool"
        )


def _emitted(kind: Kind, name: str, hints: dict[str, Any], where: str) -> Any:
    """Return the type of the emitted records, according to the annotation."""
    if "return" not in hints:
        example = "Iterator[T] for outputs of type T" if kind == "flat_map" else "their type"
        raise StateTypeError(
            f"{where}: the type of its outputs is not known: annotate what the function returns "
            f"with {example}, or give {kind}(…, into=T)"
        )
    hint = hints["return"]
    if kind == "flat_map":
        return outputs_annotation(name, hint)
    if hint is None or hint is type(None):
        raise StateTypeError(
            f"{where}: the function returns None, and a map emits one record for each: annotate "
            "its type, or use flat_map"
        )
    return hint
