"""Description of a job: its operators and states, with their types and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any  # noqa: F401 - see below

from msgspec import Meta  # noqa: F401 - Python 3.14 evaluates the types of Facts in this module
from typing_extensions import TypedDict

from statekit.checkpoint.job_file import JobFile, OperatorRecord, StateRecord
from statekit.query.replica.view import View
from statekit.server.jobs.served_job import Count, Facts, InstantText
from statekit.stored_types import held_back_as_data, state_text


class DescribedState(TypedDict):
    """A state, with its types and sizes."""

    state: str
    kind: str
    type: str
    is_local: bool
    types: dict[str, Any]
    rows: Count
    bytes: Count


class DescribedOperator(TypedDict):
    """An operator and its states. `waits_for` is the source that its event time waits for."""

    operator: str
    inputs: list[str]
    broadcasts: list[str]
    event_time: str | None
    has_timers: bool
    key: list[dict[str, Any]]
    watermark: InstantText | None
    waits_for: dict[str, str | None] | None
    states: list[DescribedState]


class DescribedJob(Facts):
    """The operators and states of a job."""

    readable_epochs: list[int]
    key_groups: int
    operators: list[DescribedOperator]


def described(view: View, may_read: Callable[[str, str], bool]) -> list[DescribedOperator]:
    """Return the operators of a job after an epoch.

    Parameters:
        may_read: returns whether a state of an operator, or all of an operator, may be shown.
    """
    found = []
    for operator in view.operators:
        record, sizes = view.record(operator), view.sizes(operator)
        states = [
            _state(state, *sizes[state.name])
            for state in record.states
            if may_read(operator, state.name)
        ]
        if states or may_read(operator, ""):
            found.append(_operator(record, view, states))
    return found


def readable_types(job: JobFile, may_read: Callable[[str, str], bool]) -> JobFile:
    """Return a job file with the states that may be read.

    Parameters:
        may_read: returns whether a state of an operator may be read.
    """
    operators = []
    for operator in job.operators:
        states = tuple(of for of in operator.states if may_read(operator.name, of.name))
        if states:
            operators.append(operator.model_copy(update={"states": states}))
    return job.model_copy(update={"operators": tuple(operators), "dropped": {}})


def _operator(
    record: OperatorRecord, view: View, states: list[DescribedState]
) -> DescribedOperator:
    watermark, held = view.watermark(record.name), view.held_back(record.name)
    return {
        "operator": record.name,
        "inputs": list(record.inputs),
        "broadcasts": list(record.broadcasts),
        "event_time": record.event_time,
        "has_timers": record.timers,
        "key": [{"name": field.name, "type": field.type} for field in record.key],
        "watermark": None if watermark is None else watermark.isoformat(),
        "waits_for": None if held is None else held_back_as_data(held),
        "states": states,
    }


def _state(state: StateRecord, rows: int, size: int) -> DescribedState:
    return {
        "state": state.name,
        "kind": state.kind,
        "type": state_text(state),
        "is_local": state.is_local,
        "types": dict(state.types),
        "rows": rows,
        "bytes": size,
    }
