"""Compare the fields that stored state depends on with the fields that the code names.

Types alone do not tell: with another key field of the same type, a start would read the state of
other keys. So the names are compared, and a field that has another name now must be in `renamed=`.
"""

from __future__ import annotations

from collections.abc import Sequence

from statekit.checkpoint.job_file import OperatorRecord
from statekit.codec.schema import Schema
from statekit.codec.schema_diff import side_by_side
from statekit.errors import StateSchemaError
from statekit.functions.field_names import FieldNames
from statekit.job.plan import Operator


def check_same_fields(stored: OperatorRecord, declared: OperatorRecord, operator: Operator) -> None:
    """Check that the key, the event time and the aggregates of an operator use the stored fields.

    Raises:
        StateSchemaError: one is of another field; the message shows both.
    """
    names = operator.declared.field_names
    _check_key(stored, declared, names)
    _check_event_time(stored, declared, names)
    _check_selected_times(stored, operator)
    _check_definition(stored, declared, operator)


def _check_key(stored: OperatorRecord, declared: OperatorRecord, names: FieldNames) -> None:
    before, now = _key_names(stored), _key_names(declared)
    if _is_same(before, now, names):
        return
    parts = [
        [(field.name, Schema.from_json(field.type)) for field in of.key]
        for of in (stored, declared)
    ]
    comparison = side_by_side("key", parts[0], "key", parts[1])
    again = repr(before[0] if len(before) == 1 else before)
    raise StateSchemaError(
        f"operator {stored.name!r} is keyed by other fields than its state in the checkpoint:\n"
        f"{comparison}\nA key would get the state of another one: {_why(before, now, names)}. "
        f"Nothing was changed. Declare key={again}, {_renaming(before, now, names)}or give the "
        "operator another name=, and let the state of the old one go with allow_dropped_state=True"
    )


def _check_event_time(stored: OperatorRecord, declared: OperatorRecord, names: FieldNames) -> None:
    before, now = stored.event_time, declared.event_time
    if before is None or now is None or _is_same([before], [now], names):
        return
    raise StateSchemaError(
        f"operator {stored.name!r} takes its event time from {before!r} in the checkpoint and from "
        f"{now!r} in the code: {_why([before], [now], names)}, and the watermark, timers and "
        f"buffered records of the checkpoint are of {before!r}. Nothing was changed. Declare "
        f"event_time={before!r}, {_renaming([before], [now], names)}or give the operator another "
        "name=, and let the state of the old one go with allow_dropped_state=True"
    )


def _check_selected_times(stored: OperatorRecord, operator: Operator) -> None:
    """Check the fields that supply the event time of selected records. A field that is missing may
    have been renamed.
    """
    for field in operator.times:
        before = stored.time_fields.get(field.input, field.name)
        if before == field.name or before not in field.others:
            continue
        raise StateSchemaError(
            f"operator {stored.name!r} takes the event time of input {field.input!r} from "
            f"{before!r} in the checkpoint and from {field.name!r} in the code: {before!r} is "
            "still a field, and the watermark, timers and buffered records of the checkpoint are "
            f"of it. Nothing was changed. Take it from {before!r} again, or give the operator "
            "another name, and let the state of the old one go with allow_dropped_state=True"
        )


def _check_definition(stored: OperatorRecord, declared: OperatorRecord, operator: Operator) -> None:
    """Check that the definition of an operator is unchanged. Aggregates may be added and removed
    with their states.
    """
    before, now = stored.definition or {}, declared.definition or {}
    definition = operator.declared.traits.definition
    if stored.definition is None or definition is None:
        changed = [*before, *now]
    else:
        either = [definition(former) for former in operator.declared.field_names.formers()]
        changed = [
            name
            for name in before
            if name in now and before[name] not in {of[name] for of in either}
        ]
    if not changed:
        return
    lines = [
        f"  {name}: {before.get(name, 'nothing')} in the checkpoint, {now.get(name, 'nothing')} in "
        "the code"
        for name in changed
    ]
    raise StateSchemaError(
        f"operator {stored.name!r} is declared in another way than its state was made:\n"
        + "\n".join(lines)
        + "\nNothing was changed. Declare it as it was; or, if only a field has another name now, "
        'give renamed={"old": "new"}; or give the operator another name= and let the old one go '
        "with allow_dropped_state=True"
    )


# -------------------------------------------------------------------------------------- in words


def _key_names(operator: OperatorRecord) -> tuple[str, ...]:
    return tuple(field.name for field in operator.key)


def _is_same(before: Sequence[str], now: Sequence[str], names: FieldNames) -> bool:
    """Return whether declared fields are the stored ones, possibly under other names."""
    return [*before] == [*now] or [names.present(name) for name in before] == [*now]


def _why(before: Sequence[str], now: Sequence[str], names: FieldNames) -> str:
    """Return the reason why declared fields are not the stored ones."""
    if sorted(before) == sorted(now):
        return "the same fields are in another order"
    differ = [name for name, new in zip(before, now, strict=True) if names.present(name) != new]
    still = [name for name in differ if names.is_field(name)]
    if still:
        which = " and ".join(map(repr, still))
        return f"{which} {'is' if len(still) == 1 else 'are'} still in {names.records}"
    which = " and ".join(map(repr, differ))
    return f"nothing says that {which} {'has' if len(differ) == 1 else 'have'} another name now"


def _renaming(before: Sequence[str], now: Sequence[str], names: FieldNames) -> str:
    """Return advice to declare new names; empty if no field was renamed."""
    pairs = {
        name: new
        for name, new in zip(before, now, strict=True)
        if name != new and not names.is_field(name) and name not in now and new not in before
    }
    return f"or renamed={pairs} if these are new names of the same fields, " if pairs else ""
