"""Calls of services from a stream: the operator of `Stream.map_async`.

It is an operator, and not a transform: Spark may compute a transform once for each of its readers,
and the answers of a service are asked for once.
"""

from __future__ import annotations

import datetime as dt
import inspect
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from statekit.calls.event_loops import Client
from statekit.calls.service_call import ServiceCall
from statekit.codec.annotations import peel
from statekit.errors import StateTypeError
from statekit.functions.failed_record import ErrorPolicy, OnError
from statekit.functions.process import Process, Traits
from statekit.functions.signature import declare, hints_of
from statekit.functions.state_parameters import annotation_text
from statekit.functions.stateless import name_of
from statekit.number_faults import int_fault
from statekit.records.output_copy import copier
from statekit.records.union import Records, records_of
from statekit.shown import shown
from statekit.timestamp import duration_to_micros

_LISTS = (list, Sequence, Iterator, Iterable)


class ServiceArguments(TypedDict, total=False):
    """Options of `Stream.map_async`.

    Parameters:
        concurrency: the largest number of open calls per task; 100 by default.
        timeout: of each attempt, a timedelta or a text; "2 seconds" by default.
        retries: after an attempt that raises an error or has no answer in time, so many more are
            made, after a pause of at most 0.1 s, and then twice as long each time, up to 10 s; 3 by
            default.
        ordered: emit outputs in the order of the records of a partition (the default), or in the
            order of the answers.
        client: a class, or function, whose result is opened with `async with` once per process and
            given to each call, such as `httpx.AsyncClient`.
        on_error, max_errors: as for `@process`, if all attempts for a record have failed.
        into: the type of the outputs, for a function without annotations.
        name: of the operator; by default the function's.
    """

    concurrency: int
    timeout: dt.timedelta | str
    retries: int
    ordered: bool
    client: Client | None
    on_error: OnError
    max_errors: int | None
    into: Any
    name: str | None


@dataclass(frozen=True)
class _Options:
    """Checked options of `Stream.map_async`.

    Raises:
        StateTypeError: an option is not valid; the message names it.
    """

    batch: int | None
    concurrency: int = 100
    timeout: dt.timedelta | str = "2 seconds"
    retries: int = 3
    ordered: bool = True
    client: Client | None = None
    on_error: OnError = "fail"
    max_errors: int | None = None
    into: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        if fault := int_fault(self.concurrency, "give a number of open calls, 1 or more", least=1):
            raise StateTypeError(f"map_async(concurrency={shown(self.concurrency)}){fault}")
        if fault := int_fault(self.retries, "give a number of further attempts, 0 or more"):
            raise StateTypeError(f"map_async(retries={shown(self.retries)}){fault}")
        most = "give a number of records per call, 1 or more"
        if self.batch is not None and (fault := int_fault(self.batch, most, least=1)):
            raise StateTypeError(f"map_async(batch={shown(self.batch)}){fault}")
        if self.timeout_s == 0:
            raise StateTypeError(
                f"map_async(timeout={shown(self.timeout)}): no answer arrives in no time: give a "
                'duration such as "2 seconds"'
            )
        if self.client is not None and not callable(self.client):
            raise StateTypeError(
                f"map_async(client={shown(self.client)}): give a class or a function without "
                "arguments that returns the client, such as httpx.AsyncClient, so that each worker "
                "opens one of its own"
            )

    @property
    def timeout_s(self) -> float:
        """The timeout of an attempt in seconds."""
        return duration_to_micros(self.timeout, "timeout") / 1_000_000


def service_operator(
    fn: Any, records: Records, batch: int | None, given: ServiceArguments
) -> Process[Any, Any, Any]:
    """Return the process function that calls a service for each record.

    Parameters:
        fn: an `async` function of the user.
        records: the type of the records.
        batch: the largest number of records of a call; None for a function of one record.
        given: the options.

    Raises:
        StateTypeError: an option is not valid, the function takes other records, or the type of its
            outputs is not known.
    """
    options = _Options(batch, **given)
    name = options.name or name_of(fn)
    where = f"map_async({name})"
    _check_is_async(fn, where)
    hints = hints_of(fn) if inspect.isfunction(fn) or inspect.ismethod(fn) else {}
    _check_takes(fn, hints, records, options, where)
    output, many = _outputs(hints, options, where)
    call = ServiceCall(
        fn,
        name,
        many,
        options.concurrency,
        options.timeout_s,
        options.retries,
        options.ordered,
        options.batch,
        options.client,
        copier(records.cls),
    )
    emitted = None if output is None else Iterator[output]  # type: ignore[valid-type]
    declaration = {"record": records.cls, "return": emitted}
    function = declare(call.outputs_of_record, name, declaration)
    errors = ErrorPolicy(options.on_error, options.max_errors)
    traits = Traits(calls=call, made_of=call)
    return Process(function, (), declaration, errors=errors, traits=traits)


def _check_is_async(fn: Any, where: str) -> None:
    called = fn if inspect.isfunction(fn) or not callable(fn) else type(fn).__call__
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called):
        return
    advice = "use map for a function that is not async"
    if inspect.isasyncgenfunction(called):
        advice = "return a list of outputs, and do not yield them"
    raise StateTypeError(
        f"{where}: give an async function of one record, not {shown(fn)}: {advice}"
    )


def _check_takes(
    fn: Any, hints: dict[str, Any], records: Records, options: _Options, where: str
) -> None:
    """Check the parameters of a function: the record, or a list of records, and the client."""
    parameters = list(inspect.signature(fn).parameters.values())
    wanted = 1 if options.client is None else 2
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (2, 4)]
    if len(parameters) < wanted or len(needed) > wanted:
        takes = "the record" if options.batch is None else "a list of records"
        takes += "" if options.client is None else ", then the client"
        raise StateTypeError(
            f"{where}: the function must take {takes}; it takes "
            f"{', '.join(p.name for p in needed) or 'none'}. A client needs client=. State, timers "
            "and the context are for process functions: use @process for the answers"
        )
    hint = hints.get(parameters[0].name)
    if hint is None or hint is Any:
        return
    if options.batch is not None:
        if typing.get_origin(hint) not in (list, Sequence):
            raise StateTypeError(
                f"{where}: with batch={options.batch} the function takes lists, not "
                f"{annotation_text(hint)}: annotate {parameters[0].name!r} with "
                f"list[{records.name}]"
            )
        (hint,) = typing.get_args(hint)
    taken = {member.cls for member in records_of(hint, where=where).members}
    if not taken.issuperset(member.cls for member in records.members):
        raise StateTypeError(
            f"{where}: the function takes {annotation_text(hint)}, and the stream has "
            f"{records.name}: declare both with the same type"
        )


def _outputs(hints: dict[str, Any], options: _Options, where: str) -> tuple[Any, bool]:
    """Return the type of the outputs, None for no outputs, and whether a result is a list of them,
    according to the annotation.
    """
    if "return" not in hints:
        if options.into is None:
            raise StateTypeError(
                f"{where}: the type of its outputs is not known: annotate what the function "
                "returns, or give map_async(…, into=T)"
            )
        return options.into, False
    hint = hints["return"]
    if options.batch is not None and hint is not Any:
        if typing.get_origin(hint) not in (list, Sequence):
            raise StateTypeError(
                f"{where}: with batch={options.batch} the function returns a list with one result "
                f"per record, not {annotation_text(hint)}: annotate it with list[T]"
            )
        (hint,) = typing.get_args(hint)
    if hint is None or hint is type(None):
        return None, False
    origin, args = typing.get_origin(_without_none(hint)), typing.get_args(_without_none(hint))
    many = origin in _LISTS
    return options.into or (args[0] if many else _without_none(hint)), many


def _without_none(hint: Any) -> Any:
    """Return an annotation without None, which is no output."""
    members, nullable, _ = peel(hint)
    return typing.Union[tuple(members)] if nullable else hint  # noqa: UP007 - of a tuple
