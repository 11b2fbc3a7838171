"""Relations of the user between the records of a history and the emitted records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from statekit.errors import StateTypeError
from statekit.shown import shown, shown_text
from statekit.testing.checks.properties import always, nothing
from statekit.testing.checks.property import Property, RunDifference, alone
from statekit.testing.runs.comparison import have_the_same
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject

Relation = Callable[..., Any]


def own_properties(invariant: Relation | None, model: Relation | None) -> Iterator[Property]:
    """Yield a property for each function that the user gave to a check.

    Raises:
        StateTypeError: one is no function.
    """
    for name, given, find, means in (
        ("invariant", invariant, _broken, "What has to hold for all records does not"),
        ("model", model, _unlike, "The model emits other records"),
    ):
        if given is None:
            continue
        if not callable(given):
            raise StateTypeError(f"{name}={shown(given, 100)}: give a function")
        found = partial(find, given)
        yield Property(name, means, always, nothing, found, is_confirmed=False, given=given)


def _broken(
    invariant: Relation, subject: Subject, history: History, _: None
) -> RunDifference | None:
    """Return the difference if an invariant raises an AssertionError or returns False; otherwise
    None.
    """
    observed = subject.plain_run(history, harness=subject.harness())  # it may be changed
    if observed is None:
        return None
    try:
        holds = invariant(_records(history), _emitted(observed)) if observed.epochs else True
    except AssertionError as error:
        return alone(f"the invariant fails: {shown_text(error)}", observed)
    return (
        None if holds is None or holds else alone(f"the invariant returns {shown(holds)}", observed)
    )


def _unlike(model: Relation, subject: Subject, history: History, _: None) -> RunDifference | None:
    """Return the difference if the records of a sink, in any order, are not those of a model;
    otherwise None.
    """
    observed = subject.plain_run(history, harness=subject.harness())  # it may be changed
    if observed is None or not observed.epochs:
        return None
    emitted, expected = _emitted(observed), model(_records(history))
    if not isinstance(emitted, dict):
        emitted, expected = {"outputs": emitted}, {"outputs": expected}
    for sink, records in emitted.items():
        if not have_the_same(records, list(expected[sink])):
            what = f"sink {sink!r}: the model emits {shown(list(expected[sink]), 500)}"
            return alone(what, observed)
    return None


def _records(history: History) -> Any:
    """Return the records of a history in the order of arrival; by source if there are several."""
    names = dict.fromkeys(name for epoch in history for name in epoch)
    by_source = {name: [one for epoch in history for one in epoch.get(name, ())] for name in names}
    return next(iter(by_source.values()), []) if len(by_source) < 2 else by_source


def _emitted(observed: Observed) -> Any:
    """Return all emitted records; by sink if there are others than `outputs` and `late`."""
    by_sink = {
        sink: [record for epoch in observed.epochs for record in epoch[sink]]
        for sink in observed.epochs[0]
    }
    return by_sink["outputs"] if by_sink.keys() <= {"outputs", "late"} else by_sink
