"""Succession: the next version of a stored state whose declaration changed.

A declaration that reads all rows of the present generation continues it, and the previous one is
kept in `past`: so a field that was removed and comes back with another type is detected. Otherwise
a new generation begins, and hooks convert the rows of all earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from statekit.checkpoint.job_file import PastState, StateRecord
from statekit.codec.schema import Schema
from statekit.codec.schema_diff import side_by_side
from statekit.codec.schema_evolution import is_same_type, keeps_keys, why_unreadable
from statekit.errors import StateSchemaError
from statekit.shown import shown_text
from statekit.state.row_versions import Hook, hook_for, value_schema

T = TypeVar("T")

GENERATIONS_MAX = 255


@dataclass(frozen=True)
class Succession:
    """A stored state and its next declaration.

    Parameters:
        operator: its operator.
        stored: the record in the checkpoint.
        record: the next record; as declared if it is refused.
        verdict: "same": all rows are of the declared type. "compatible": the type reads them all.
            "migrated": hooks convert some. "refused": some would be misread.
        problem: why it is refused, and what to do.
    """

    operator: str
    stored: StateRecord
    record: StateRecord
    verdict: Literal["same", "compatible", "migrated", "refused"]
    problem: str = ""

    def allowed(self) -> StateRecord:
        """Return the next record.

        Raises:
            StateSchemaError: it is refused.
        """
        if self.problem:
            raise StateSchemaError(self.problem)
        return self.record


class _RefusedError(Exception):
    """A refused declaration. The text is the reason, as a part of the message."""


def succession(
    operator: str, stored: StateRecord, declared: StateRecord, hooks: Sequence[Hook]
) -> Succession:
    """Return the succession of a stored state.

    Parameters:
        declared: as in the code, in its first era and generation.
        hooks: as declared with it.
    """
    try:
        record = _in_its_era(_in_its_generation(stored, declared, hooks), stored)
        _check_hooks(record, hooks)
        _check_reducer(stored, record)
    except (_RefusedError, StateSchemaError) as error:
        problem = f"state {stored.name!r} of operator {operator!r} {shown_text(error)}"
        return Succession(operator, stored, declared, "refused", problem)
    verdict: Literal["same", "compatible", "migrated"] = "compatible" if record.past else "same"
    return Succession(operator, stored, record, "migrated" if record.generation else verdict)


def _in_its_era(declared: StateRecord, stored: StateRecord) -> StateRecord:
    """Return the declaration with its era of expiry.

    A new era has not begun: `job.expiry` begins it, and ends the one before.
    """
    clocks = {ttl.clock if ttl is not None else None for ttl in (stored.ttl, declared.ttl)}
    if len(clocks) == 1:
        kept = ("era", "since_us", "floor_us", "paused_us", "past_eras")
        return declared.model_copy(update={name: getattr(stored, name) for name in kept})
    era = stored.era + 1
    if era > 255:
        raise _RefusedError(
            "would begin another era of expiry: its TTL was turned on or off, or moved to another "
            "clock, 255 times; give the state another name"
        )
    return declared.model_copy(update={"era": era, "since_us": None, "past_eras": stored.past_eras})


def _in_its_generation(
    stored: StateRecord, declared: StateRecord, hooks: Sequence[Hook]
) -> StateRecord:
    """Return the declaration with its generation and all earlier ones."""
    if stored.kind != declared.kind or not _keeps_map_keys(stored, declared):
        raise _RefusedError(
            f"changed what it is, and no hook can convert that:\n{_compared(stored, declared)}\n"
            "Declare it as it was, or give the state another name"
        )
    before, generation = stored.as_past, stored.generation
    rows = [*(state for state in stored.past if state.generation == generation), before]
    why = next((reason for state in rows if (reason := _why(state, declared))), "")
    if why or _is_converted(before, declared, hooks):
        if hook_for(hooks, rows) is None:
            why = why or "a hook is for its last type, and does not take rows of those before it"
            raise _RefusedError(_changed_text(stored, declared, why))
        generation += 1
    if generation > GENERATIONS_MAX:
        raise _RefusedError(
            f"changed its type {GENERATIONS_MAX} times in a way that needs a hook: run `statekit "
            "migrate CHECKPOINT --app module:job` with the code of before, which rewrites all rows "
            "and counts from there"
        )
    record = declared.model_copy(update={"generation": generation})
    return record.model_copy(update={"past": former((*stored.past, before), record.as_past)})


def _keeps_map_keys(stored: StateRecord, declared: StateRecord) -> bool:
    """Return whether the keys of a stored map are keys of the declared one."""
    types = [Schema.from_json(of.types["key"]) for of in (stored, declared) if "key" in of.types]
    return len(types) != 2 or keeps_keys(*types)


def former(declared: Sequence[T], now: T) -> tuple[T, ...]:
    """Return the distinct earlier declarations, without the present one."""
    distinct: list[T] = []
    for declaration in declared:
        if declaration not in (now, *distinct):
            distinct.append(declaration)
    return tuple(distinct)


def _why(stored: PastState, declared: StateRecord) -> str | None:
    """Return the reason why rows of an earlier declaration would be misread; None if they would
    not.
    """
    if stored.codec != declared.codec:
        return f"rows were written by the codec {stored.codec} and would be by {declared.codec}"
    return why_unreadable(value_schema(stored), value_schema(declared), declared.shape.value)


def _is_converted(before: PastState, declared: StateRecord, hooks: Sequence[Hook]) -> bool:
    """Return whether a hook takes exactly the type that changed. It is then called even if the rows
    could be read without it.
    """
    if is_same_type(value_schema(before), value_schema(declared)):
        return False
    return any(hook.is_meant_for(before) for hook in hooks)


def _check_hooks(record: StateRecord, hooks: Sequence[Hook]) -> None:
    """Check that a hook converts the rows of every earlier generation."""
    for rows in record.past_generations.values():
        if hook_for(hooks, rows) is None:
            last = record.model_copy(update={"types": rows[-1].types, "codec": rows[-1].codec})
            raise _RefusedError(
                "may still have rows of a type that it had before, and no hook takes "
                f"them:\n{_compared(last, record)}\nKeep the hook for them in "
                f"{_hook_text(record)}, or the names in renamed=, or run `statekit migrate "
                "CHECKPOINT --app module:job` with it once, which rewrites the rows"
            )


def _check_reducer(stored: StateRecord, record: StateRecord) -> None:
    """Check that stored and new values are combined by the same reducer, unless a hook converts
    them.
    """
    before, now = stored.reducer, record.reducer
    if None in (before, now) or before == now or record.generation > stored.generation:
        return
    raise _RefusedError(
        f"is combined by {before} in the checkpoint and by {now} in the code: its stored values "
        f"are no results of {now}. Nothing was changed. Declare {before} again, or give the state "
        "another name"
    )


# ------------------------------------------------------------------------------------ messages


def _changed_text(stored: StateRecord, declared: StateRecord, why: str) -> str:
    return (
        "changed its type, and stored rows would be misread: "
        f"{why}.\n{_compared(stored, declared)}\nDeclare the stored type again, or give a new "
        f"field a default, or give {_hook_text(stored)} a function that converts old values; or "
        "give the state another name"
    )


def _hook_text(state: StateRecord) -> str:
    return f"@process(migrate={{{state.name!r}: …}})"


def _compared(stored: StateRecord, declared: StateRecord) -> str:
    return side_by_side(_heading(stored), _parts(stored), _heading(declared), _parts(declared))


def _heading(state: StateRecord) -> str:
    return f"{state.kind} state" if state.codec == "msgpack" else f"{state.kind} state, pickled"


def _parts(state: StateRecord) -> list[tuple[str, Schema]]:
    key = [("key", Schema.from_json(state.types["key"]))] if "key" in state.types else []
    return [*key, (state.shape.value, value_schema(state))]
