"""`check`: search for a history for which a property of correct functions does not hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import TypeAdapter, ValidationError

from statekit.clock import stopwatch_s
from statekit.errors import StateTypeError
from statekit.functions.process import Process
from statekit.job.job import Job
from statekit.job.stream import Stream
from statekit.shown import shown
from statekit.testing.check_report import Checked, Report, add_report
from statekit.testing.checks.divergence import explained_difference
from statekit.testing.checks.properties import PROPERTIES, own_properties
from statekit.testing.checks.property import Property
from statekit.testing.checks.search import Found, Search, SharedHistories
from statekit.testing.effort import Depth, Effort
from statekit.testing.runs.quiet_logs import quiet_logs
from statekit.testing.runs.source_records import Events, History
from statekit.testing.runs.subject import Subject


def check(
    given: Process[Any, Any, Any] | Stream[Any] | Job,
    events: Events = None,
    *,
    holds: Collection[str] | None = None,
    excused: Mapping[str, str] | None = None,
    depth: Depth | None = None,
    history: Sequence[Any] | None = None,
    examples: int | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    invariant: Callable[[Any, Any], Any] | None = None,
    model: Callable[[Any], Any] | None = None,
) -> Report:
    """Check that the results of a function, or of a job, survive crashes, errors of the store,
    other parallelism and other cuts of the input.

    The check generates histories from the record types: few keys, equal times, records out of order
    and too late. Each history runs once, and then again in another way: after crashes, with errors
    of the store, with other shards, on disk, cut into other epochs. Records and states must be the
    same. If they are not, the check shows the smallest such history, with a test that runs it
    again.

    Parameters:
        given: a process function, the stream of an operator, or a job.
        events: a Hypothesis strategy of records, or examples of records; by the names of the
            sources if there are several. None makes them of the record types.
        holds: the names of the properties to check; None for all that apply. A mapping also gives
            the disturbance of a run, as a failed check prints it.
        excused: properties that are not checked, each with the reason.
        depth: the number of histories: "quick", "normal" or "deep"; None for the depth that pytest
            was given with `--statekit-depth`, or "normal".
        history: check this history only: records by epoch, or by epoch and source.
        examples: the number of histories for each property, instead of that of the depth. Some
            properties try a multiple of it, or a part of it, at least one history.
        seed: selects the histories; None for the seed that pytest was given, or 0.
        seconds: the time limit of the search, in seconds; None for no limit.
        invariant: takes the records of a history, and the records that are emitted for them. It
            raises an AssertionError, or returns False, if they are wrong. Both are lists; with
            several sources or sinks, dicts of lists.
        model: returns the records to emit for the records of a history, in any order.

    Returns:
        The report: one line per property, with the number of its histories, or the reason why it
        was left out.

    Raises:
        AssertionError: a property does not hold.
        StateTypeError: there is no such property, or records cannot be made.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="customer")
    ... def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    ...     total.update((total.get() or 0) + order.cents)
    ...     yield total.get() or 0
    >>> def each_has_a_total(orders: list[Order], totals: list[int]) -> bool:
    ...     return len(orders) == len(totals)
    >>> report = check(spent, examples=10, invariant=each_has_a_total)
    >>> report.properties[-1].histories
    10
    """
    __tracebackhide__ = True  # what pytest shows is the message, and not this function
    subject = Subject(given)
    effort = Effort(depth, examples, seed, seconds).filled()
    properties = [*PROPERTIES, *own_properties(invariant, model)]
    _check_arguments(subject, holds, excused, history)
    left_out = _left_out(subject, properties, holds, dict(excused or {}))
    chosen = [each for each in properties if left_out[each.name] is None]
    done = {name: Checked(name, left_out=reason) for name, reason in left_out.items()}
    with contextlib.suppress(StateTypeError):
        _ = subject.pickled  # before the first run; where it is needed, it says what is wrong
    if history is None:
        histories = subject.sources.histories(events)
    else:
        histories = st.just(_by_source(subject, history))
    if isinstance(holds, Mapping):  # each run is disturbed in one way
        chosen = [replace(each, arguments=st.just(holds[each.name])) for each in chosen]
    is_printed = isinstance(holds, Mapping) and history is not None
    try:
        with quiet_logs():
            tried = _tried(subject, chosen, histories, effort, is_printed)
            done |= {each.name: each for each in tried}
    finally:
        subject.memory.restore()
    if chosen and left_out["errors"] is not None:
        _check_that_most_run(subject, chosen)
    report = Report(subject.name, effort.seed or 0, tuple(done.values()))
    add_report(report)
    return report


def _tried(
    subject: Subject,
    properties: Sequence[Property],
    histories: SearchStrategy[History],
    effort: Effort,
    is_printed: bool,
) -> Iterator[Checked]:
    """Try properties on histories, and yield the numbers of histories and records of each.

    Parameters:
        is_printed: whether there is one history, disturbed in one way, as in a test that a check
            printed. It is run in new processes, too, if it passes here.

    Raises:
        AssertionError: a property does not hold.
    """
    until_s = None if effort.seconds is None else stopwatch_s() + effort.seconds
    while properties:
        shared = SharedHistories(subject, properties, histories, effort, until_s)
        failed = shared.first_failed()
        ended = len(properties) if failed is None else failed.place + 1
        why = f"stopped after {effort.seconds:g} seconds" if shared.is_late() else None
        for place, each in enumerate(properties[:ended]):
            search = Search(shared, place)
            found: Found | None = None
            if failed is not None and place == failed.place:
                found = search.found_again(failed.drawn)
            elif is_printed:
                found = search.found_in_new_processes()
            if found is not None:
                raise AssertionError(explained_difference(subject, each, *found))
            sizes = shared.sizes[place]
            yield Checked(each.name, len(sizes), sum(sizes), why, search.only_here)
        properties = properties[ended:]


def _check_arguments(subject: Subject, holds: object, excused: object, history: Any) -> None:
    """Check the forms of the arguments of `check`.

    Raises:
        StateTypeError: one is wrong.
    """
    if isinstance(holds, str) or not isinstance(holds, Collection | None):
        raise StateTypeError(
            f"holds={shown(holds)}: give a list of properties, as holds=['errors']"
        )
    if holds is not None and not holds:
        raise StateTypeError(f"holds={shown(holds)} names no property: leave it out to check all")
    if isinstance(holds, Mapping):
        _check_disturbances(holds)
    if not isinstance(excused, Mapping | None):
        raise StateTypeError(
            f"excused={shown(excused)}: give a dict with a reason for each property, as "
            "excused={'repeats': 'order numbers may have gaps'}"
        )
    if history is None:
        return
    is_list = isinstance(history, Sequence) and not isinstance(history, str)
    if not is_list or not all(map(_is_epoch, history)):
        raise StateTypeError(
            f"history={shown(history, 100)}: give a list of epochs, each a list of records, as "
            "history=[[...], [...]]; of several sources, each a dict of such lists"
        )
    for epoch in history:
        if isinstance(epoch, Mapping):
            subject.sources.check_sources("history", epoch)
    for epoch in _by_source(subject, history):
        subject.sources.check_records("history", epoch)


def _check_disturbances(holds: Mapping[Any, Any]) -> None:
    """Check the disturbances in `holds`.

    Raises:
        StateTypeError: a run cannot be disturbed in such a way.
    """
    for each in PROPERTIES:
        if each.name in holds:
            try:
                TypeAdapter(each.takes).validate_python(holds[each.name], strict=True)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise StateTypeError(
                    f"holds={{{each.name!r}: {shown(holds[each.name], 100)}}}: {reason}. Give what "
                    f"a failed check printed, or holds=[{each.name!r}] to try all ways"
                ) from None


def _is_epoch(epoch: object) -> bool:
    """Return whether something is the records of an epoch: a list, or a dict of lists."""
    if isinstance(epoch, Mapping):
        return all(_is_epoch(records) for records in epoch.values())
    return isinstance(epoch, list | tuple) and not hasattr(epoch, "_fields")


def _left_out(
    subject: Subject,
    properties: Sequence[Property],
    holds: Collection[str] | None,
    excused: Mapping[str, str],
) -> dict[str, str | None]:
    """Return the reasons why properties are not checked, by name; None for those that are.

    Raises:
        StateTypeError: there is no such property, or one is excused without a reason.
    """
    names = [each.name for each in properties]
    for name in [*(holds or ()), *excused]:
        if name not in names:
            raise StateTypeError(
                f"there is no property {shown(name)}: there are {', '.join(names)}"
            )
    given: Mapping[Any, Any] = excused
    for name, reason in given.items():
        if not (isinstance(reason, str) and reason.strip()):
            raise StateTypeError(
                f"excused={{{shown(name)}: {shown(reason)}}}: say why, in a sentence"
            )

    def reason_of(each: Property) -> str | None:
        if each.name in excused:
            return f"excused: {excused[each.name]}"
        if holds is not None:
            return None if each.name in holds else "not in holds="
        return each.applies(subject)

    return {each.name: reason_of(each) for each in properties}


def _check_that_most_run(subject: Subject, checked: Sequence[Property]) -> None:
    """Check that most runs succeed: a failed run is compared with nothing.

    Raises:
        StateTypeError: most fail.
    """
    if 2 * len(subject.failed) > subject.runs:
        what = "the check" if len(checked) > 1 else repr(checked[0].name)
        raise StateTypeError(
            f"{what} checks nothing: {len(subject.failed)} of {subject.runs} runs of "
            f"{subject.name!r} fail. The first error: {subject.failed[0]}"
        )


def _by_source(subject: Subject, history: Sequence[Any]) -> History:
    """Return a history by epoch and source: records alone are those of the first source."""
    name = subject.job.plan.sources[0].name
    return [dict(each) if isinstance(each, Mapping) else {name: list(each)} for each in history]
