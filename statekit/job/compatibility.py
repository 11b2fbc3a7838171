"""Compare the contents of a checkpoint with the declarations in the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from statekit.checkpoint.job_file import TIMERS, WAITING, JobFile, OperatorRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.codec.schema import Schema
from statekit.codec.schema_diff import side_by_side
from statekit.codec.schema_evolution import keeps_keys, members, why_unreadable
from statekit.errors import RescaleError, RestoreError, StateSchemaError
from statekit.functions.field_names import FieldNames
from statekit.job.field_changes import check_same_fields
from statekit.job.plan import Operator, Plan
from statekit.job.state_succession import Succession, former, succession
from statekit.state.event_time_buffer import INPUTS_MAX
from statekit.stored_types import key_text


def continued_job_file(
    stored: JobFile, job: Plan, url: str, *, allow_dropped_state: bool
) -> JobFile:
    """Return the job file of a job, if the state of a checkpoint allows it.

    Parameters:
        url: of the checkpoint, for messages.
        allow_dropped_state: continue although the code no longer declares a stored state.

    Raises:
        RescaleError: the number of key groups differs.
        StateSchemaError: stored and declared state do not match.
    """
    if job.key_groups not in (None, stored.key_groups):
        raise RescaleError(
            f"{url} has {stored.key_groups} key groups, the job asks for {job.key_groups}: leave "
            "key_groups out to keep the stored number; `statekit rescale --key-groups` changes it"
        )
    return next_job_file(stored, job.operators, allow_dropped_state=allow_dropped_state)


def check_job_name(stored: JobFile, job: Plan, url: str) -> None:
    """Check that a checkpoint belongs to this job.

    Raises:
        RestoreError: it belongs to another job.
    """
    if stored.name != job.name:
        raise RestoreError(
            f"{url} is a checkpoint of job {stored.name!r}, not of {job.name!r}: pass another "
            "checkpoint, or give the job its old name"
        )


def next_job_file(
    stored: JobFile, operators: Sequence[Operator], *, allow_dropped_state: bool
) -> JobFile:
    """Return the job file for the declared operators, if the stored one allows it.

    Parameters:
        operators: of the job, as the code declares them.
        allow_dropped_state: continue although the code no longer declares a stored state.

    Raises:
        StateSchemaError: stored and declared state do not match.
    """
    for operator in stored.operators:
        _check_operator(operator, operators, allow_dropped_state)
    declared = tuple(_continued(operator, stored) for operator in operators)
    dropped = {
        record.name: _dropped_names(record, stored, operator.declared.traits.options_of)
        for record, operator in zip(declared, operators, strict=True)
    }
    named = {name: states for name, states in dropped.items() if states}
    return stored.model_copy(update={"operators": declared, "dropped": named})


def schema_problems(
    stored: JobFile, operators: Sequence[Operator], *, allow_dropped_state: bool
) -> Iterator[tuple[str, str]]:
    """Yield all reasons for which `next_job_file` refuses the declared operators, each with the
    name of its operator. Those of single states are in `successions`.

    Parameters:
        operators, allow_dropped_state: as for `next_job_file`.
    """
    refused = {each.operator for each in successions(stored, operators) if each.problem}
    for record in stored.operators:
        if problem := _problem(partial(_check_operator, record, operators, allow_dropped_state)):
            refused.add(record.name)
            yield record.name, problem
    for operator in operators:
        if operator.name not in refused and (problem := _problem(partial(_next, stored, operator))):
            yield operator.name, problem


def _next(stored: JobFile, operator: Operator) -> None:
    options_of = operator.declared.traits.options_of
    _dropped_names(_continued(operator, stored), stored, options_of)


def _problem(check: Callable[[], object]) -> str:
    """Return the message of the error of a check; empty if there is none."""
    try:
        check()
    except StateSchemaError as error:
        return str(error)
    return ""


def without_empty_buffers(stored: JobFile, last: EpochManifest) -> JobFile:
    """Return a job file without the types and inputs of buffered records for each operator that has
    none buffered. Its next buffered records may have any type.

    Parameters:
        last: the epoch that is continued.
    """
    nothing = {"ordered": None, "ordered_past": (), "buffered_inputs": (), "dropped_types": ()}
    operators = tuple(
        operator
        if operator.name in last.operators and last.operators[operator.name].rows.get(WAITING)
        else operator.model_copy(update=nothing)
        for operator in stored.operators
    )
    return stored.model_copy(update={"operators": operators})


def successions(stored: JobFile, operators: Sequence[Operator]) -> list[Succession]:
    """Return the succession of each state that is stored and still declared."""
    return [
        succession
        for operator in operators
        if (before := stored.operator(operator.name)) is not None
        for succession in _state_successions(operator, before)
    ]


def _state_successions(operator: Operator, before: OperatorRecord) -> Iterator[Succession]:
    declared = {state.name: state for state in operator.record().states}
    hooks = {spec.name: spec.hooks for spec in operator.declared.states}
    for state in before.states:
        if state.name in declared:
            yield succession(operator.name, state, declared[state.name], hooks[state.name])


def _continued(operator: Operator, stored: JobFile) -> OperatorRecord:
    """Return the job file's record of an operator, as successor of the stored one.

    Raises:
        StateSchemaError: rows of a state would be misread.
    """
    declared, before = operator.record(), stored.operator(operator.name)
    if before is None:
        return declared
    ordered = _buffered_type(before, declared)
    followed = {each.record.name: each.allowed() for each in _state_successions(operator, before)}
    states = tuple(followed.get(state.name, state) for state in declared.states)
    return declared.model_copy(
        update={
            "states": states,
            "ordered": ordered,
            "ordered_past": _past_buffered_types(before, ordered),
            "dropped_types": _types_not_taken(before, declared),
            "buffered_inputs": _buffered_inputs(before, declared),
            "widths": {**before.widths, **declared.widths},  # a removed field may come back
        }
    )


def _buffered_type(before: OperatorRecord, declared: OperatorRecord) -> Any:
    """Return the type of buffered records: the members of the stored union in their order, as they
    are declared now, then new members.

    The first member of a union is written without its name, so it has to stay the first.
    """
    if before.ordered is None or declared.ordered is None:
        return declared.ordered
    stored, now = Schema.from_json(before.ordered), Schema.from_json(declared.ordered)
    if _is_renamed(before, declared):
        return declared.ordered
    by_name = {member.brief: member for member in members(stored)}
    by_name |= {member.brief: member for member in members(now)}
    types = tuple(by_name.values())
    return (Schema("union", types) if len(types) > 1 else now).to_json()


def _types_not_taken(before: OperatorRecord, declared: OperatorRecord) -> tuple[str, ...]:
    if before.ordered is None or declared.ordered is None:
        return ()
    stored = members(Schema.from_json(_buffered_type(before, declared)))
    taken = {member.brief for member in members(Schema.from_json(declared.ordered))}
    return tuple(member.brief for member in stored if member.brief not in taken)


def _is_renamed(before: OperatorRecord, declared: OperatorRecord) -> bool:
    """Return whether the single type of buffered records was renamed: an input is still the
    same.
    """
    names = [Schema.from_json(of).brief for of in (before.ordered, declared.ordered)]
    is_one = not before.buffered_types and not declared.buffered_types
    had = before.buffered_inputs or declared.inputs  # earlier versions did not store inputs
    return is_one and names[0] != names[1] and not set(had).isdisjoint(declared.inputs)


def _past_buffered_types(before: OperatorRecord, ordered: Any) -> tuple[Any, ...]:
    """Return the earlier types of buffered records, without the present one."""
    if before.ordered is None or ordered is None:
        return before.ordered_past
    return former((*before.ordered_past, before.ordered), ordered)


def _buffered_inputs(before: OperatorRecord, declared: OperatorRecord) -> tuple[str, ...]:
    """Return the inputs of buffered records: the stored inputs in their order, then new ones.

    Raises:
        StateSchemaError: there are too many.
    """
    new = (name for name in declared.buffered_inputs if name not in before.buffered_inputs)
    names = (*before.buffered_inputs, *new)
    if len(names) > INPUTS_MAX:
        raise StateSchemaError(
            f"operator {declared.name!r} has had {len(names)} inputs with other names, and its "
            f"buffered records can be of {INPUTS_MAX}. Nothing was changed. Give the inputs the "
            "names that they had, or give the operator another name"
        )
    return names


def _dropped_names(
    declared: OperatorRecord, stored: JobFile, options_of: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the dropped states of an operator.

    Parameters:
        options_of: see `Traits`.

    Raises:
        StateSchemaError: it declares one of them again.
    """
    names = declared.holds
    before = stored.operator(declared.name)
    given_up = stored.dropped.get(declared.name, ()) if before else ()
    again = [name for name in names if name in given_up]
    if again:
        raise StateSchemaError(_dropped_text(declared.name, again, options_of))
    had = before.holds if before else ()
    return (*given_up, *(name for name in had if name not in names))


# What an operator declares with timers and with buffered records, what such rows are and would do
# when they were dropped, and what the user can remove.
_DROPPED = {
    TIMERS: ("has callbacks for timers", "timers", "fire", "the callbacks"),
    WAITING: ("is ordered", "buffered records", "be processed", "ordered=True"),
}


def _dropped_text(operator: str, again: list[str], options_of: Mapping[str, str]) -> str:
    """Return the reason why dropped states cannot be declared again."""
    for family, (declares, rows, effect, remedy) in _DROPPED.items():
        if family in again:
            return (
                f"operator {operator!r} {declares}, but its earlier {rows} were dropped: they are "
                f"still in the checkpoint and would {effect}; remove {remedy}, or give the "
                "operator another name="
            )
    for state, declared in options_of.items():
        if state in again:
            return (
                f"key-value store {operator!r} is declared {declared} again, after a run in which "
                f"it was not: the checkpoint still has earlier rows of {again}, which that run "
                "dropped. Nothing was changed. To keep the values, write a savepoint with "
                "`statekit savepoint` and start a new checkpoint with from_savepoint=. To start "
                "without values, give the store another name= and pass allow_dropped_state=True. "
                "Or declare the store as in the last run"
            )
    return (
        f"operator {operator!r} declares {again}, names of dropped states: their rows are still in "
        "the checkpoint; choose other names"
    )


def _keeps_keys(stored: OperatorRecord, declared: OperatorRecord) -> bool:
    """Return whether the keys of a stored operator are keys of the declared one."""
    types = [[Schema.from_json(field.type) for field in of.key] for of in (stored, declared)]
    return len(types[0]) == len(types[1]) and all(map(keeps_keys, *types))


def _check_operator(
    stored: OperatorRecord, operators: Sequence[Operator], allow_dropped_state: bool
) -> None:
    operator = next((each for each in operators if each.name == stored.name), None)
    if operator is None:
        if stored.holds and not allow_dropped_state:
            raise StateSchemaError(
                f"the checkpoint has an operator {stored.name!r} with {_contents_text(stored)}, "
                "the job has none of that name: give the operator its old name=, or pass "
                "allow_dropped_state=True to give its state up"
            )
        return
    declared = operator.record()
    if not _keeps_keys(stored, declared):
        raise StateSchemaError(
            f"operator {stored.name!r} is keyed by {key_text(stored)} in the checkpoint and by "
            f"{key_text(declared)} in the code: keys cannot change their types; give the operator "
            "another name, or start a new checkpoint"
        )
    check_same_fields(stored, declared, operator)
    _check_widths(stored, declared)
    if stored.timers and not allow_dropped_state:
        _check_timers(stored, declared, f"@{operator.declared.name}.on_timer")
    _check_buffered(stored, declared, operator.declared.field_names, allow_dropped_state)
    names = {state.name for state in declared.states} | operator.declared.traits.dropped_states
    for state in stored.states:
        if state.name not in names and not allow_dropped_state:
            raise StateSchemaError(
                f"state {state.name!r} of operator {stored.name!r} is in the checkpoint and no "
                "longer declared: declare it, or pass allow_dropped_state=True to give it up"
            )


def _check_widths(stored: OperatorRecord, declared: OperatorRecord) -> None:
    """Check that stored numbers fit the declared types. Called before any row is read."""
    for name, bits in declared.widths.items():
        if bits < stored.widths.get(name, bits):
            raise StateSchemaError(
                f"operator {stored.name!r}: numbers of {stored.widths[name]} bits are stored as "
                f"{name}, and its type has {bits} now, so that some may not fit: declare the wider "
                "type again, or give the new one another name"
            )


def _check_timers(stored: OperatorRecord, declared: OperatorRecord, on_timer: str) -> None:
    """Check that stored timers have a callback. Called before any timer is due."""
    if not declared.timers:
        raise StateSchemaError(
            f"operator {stored.name!r} handled timers and no longer does: decorate a function with "
            f"{on_timer}, or pass allow_dropped_state=True to give the timers up"
        )
    if stored.event_time is not None and declared.event_time is None:
        raise StateSchemaError(
            f"operator {stored.name!r} had the event time {stored.event_time!r} and has none in "
            "the code: timers by event time would never fire. Nothing was changed. Declare "
            f"event_time={stored.event_time!r}, or pass allow_dropped_state=True if all timers are "
            "by processing time, or may be lost"
        )
    handled = declared.timer_names or ()
    lost = [name for name in stored.timer_names or () if name not in handled]
    if lost and None not in handled:
        name = lost[0]
        which = "all timers without one of their own" if name is None else f"timers named {name!r}"
        again = on_timer if name is None else f"{on_timer}({name!r})"
        raise StateSchemaError(
            f"operator {stored.name!r} had a callback for {which} and no longer has: some may be "
            f"set. Decorate a function with {again}, if only one that does nothing, or pass "
            "allow_dropped_state=True to give them up: those that come due are then dropped"
        )


def _check_buffered(
    stored: OperatorRecord, declared: OperatorRecord, names: FieldNames, allow_dropped_state: bool
) -> None:
    """Check that stored buffered records can be handled. Called before any of them is due. Records
    of types that are still declared are read, even if other types are dropped.
    """
    if stored.ordered is None:
        return
    if declared.ordered is None:
        if allow_dropped_state:
            return
        raise StateSchemaError(
            f"records of operator {stored.name!r} wait in the checkpoint, and it is no longer "
            "ordered: declare ordered=True, or pass allow_dropped_state=True to give them up"
        )
    lost = set(_types_not_taken(stored, declared)).difference(stored.dropped_types)
    if lost and not allow_dropped_state:
        raise StateSchemaError(
            f"records of operator {stored.name!r} wait in the checkpoint, some of them perhaps of "
            f"{', '.join(sorted(lost))}, which it no longer takes: declare it again, under this "
            "name, or pass allow_dropped_state=True: those that come due are then dropped. To lose "
            "none, let the version that takes it run without new ones until the watermark has "
            "passed the last (an input without records may need idle_after=)"
        )
    now = Schema.from_json(_buffered_type(stored, declared))
    for type_ in (stored.ordered, *stored.ordered_past):
        before = Schema.from_json(type_)
        if why := why_unreadable(before, names.renaming.as_stored(now, before), root="record"):
            comparison = side_by_side("waits", [("record", before)], "waits", [("record", now)])
            raise StateSchemaError(
                f"records of operator {stored.name!r} wait in the checkpoint, and changed their "
                f"type: {why}.\n{comparison}\nDeclare the stored type again, give a new field a "
                "default, or take the new type beside the old one, under another name"
            )


def _contents_text(operator: OperatorRecord) -> str:
    contents = [f"states {[state.name for state in operator.states]}"] if operator.states else []
    contents += ["timers"] if operator.timers else []
    contents += ["buffered records"] if operator.ordered is not None else []
    return " and ".join(contents)
