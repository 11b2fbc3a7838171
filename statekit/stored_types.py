"""The types and keys of stored operators and states, read from the job file."""

from __future__ import annotations

import datetime as dt
from typing import Any

from statekit.checkpoint.job_file import OperatorRecord, StateRecord
from statekit.checkpoint.manifest import HeldBack, OperatorEpoch
from statekit.codec.key_codec import schema_key_codec
from statekit.codec.schema import Schema
from statekit.codec.schema_codec import text_key_encoder
from statekit.errors import QueryError
from statekit.state.row_versions import value_schema
from statekit.state.ttl import ttl_text
from statekit.timestamp import instant


def state_text(state: StateRecord) -> str:
    """Return a state's type as readable text: `map[str → int]`."""
    types = {role: str(Schema.from_json(tree)) for role, tree in state.types.items()}
    key = f"{types['key']} → " if "key" in types else ""
    pickled = ", pickled" if state.codec == "pickle" else ""
    expires = "" if state.ttl is None else f", {ttl_text(state.ttl)}"
    former = dict.fromkeys(value_schema(past).brief for past in state.past)
    older = f", some rows may be of {', '.join(former)}" if former else ""
    return f"{state.kind}[{key}{types['value']}{pickled}]{expires}{older}"


def time_text(operator: OperatorRecord, epoch: OperatorEpoch) -> str:
    """Return an operator's event time as text; empty without event time."""
    if operator.event_time is None or epoch.watermark_us is None:
        return ""
    lateness = dt.timedelta(microseconds=operator.lateness_us)
    waits = "" if epoch.held_back is None else f"; it {held_back_text(epoch.held_back)}"
    return (
        f"event time {operator.event_time}, lateness {lateness}, watermark "
        f"{instant(epoch.watermark_us).isoformat()}, {epoch.late_so_far:,} late so far{waits}"
    )


def held_back_text(held: HeldBack) -> str:
    """Return text that names the input that holds an operator back, to follow the operator's name.

    >>> held_back_text(HeldBack(input="paid", source="payments", at_us=None, since_us=0))
    "waits for source 'payments' (input 'paid'), which has had no record, since 1970-01-01 00:00:00"
    """
    by = "" if held.input == held.source else f" (input {held.input!r})"
    at = "has had no record"
    if held.at_us is not None:
        at = f"is at {instant(held.at_us):%Y-%m-%d %H:%M:%S}"
    return (
        f"waits for source {held.source!r}{by}, which {at}, since "
        f"{instant(held.since_us):%Y-%m-%d %H:%M:%S}"
    )


def held_back_as_data(held: HeldBack) -> dict[str, Any]:
    """Return the input that holds an operator back as JSON-able data."""
    return {
        "source": held.source,
        "input": held.input,
        "at": None if held.at_us is None else instant(held.at_us).isoformat(),
        "since": instant(held.since_us).isoformat(),
    }


def key_text(operator: OperatorRecord) -> str:
    """Return an operator's key as readable text: `tailnum: str`."""
    return ", ".join(f"{field.name}: {Schema.from_json(field.type)}" for field in operator.key)


def encoded_keys(operator: OperatorRecord, key: Any) -> list[bytes]:
    """Return the possible encodings of a key: one, or two for text of unknown type.

    Parameters:
        key: as text or JSON; several key fields as a JSON array.

    Raises:
        StateTypeError: it is not a key of that operator.
    """
    schema = key_schema(operator)
    readings = [text_key_encoder(schema)(key)]
    if schema.kind == "dynamic" and isinstance(key, str):
        # Keys of plain dicts have no declared type: 42 may be meant as a number or as text.
        readings.append(schema_key_codec(schema).encode(key))
    return list(dict.fromkeys(readings))


def key_schema(operator: OperatorRecord) -> Schema:
    """Return the schema of the complete key: one field, or a tuple of the fields.

    Raises:
        QueryError: the operator has no key.
    """
    fields = [Schema.from_json(field.type) for field in operator.key]
    if not fields:
        raise QueryError(
            f"operator {operator.name!r} has no key and no keyed state: read its operator state "
            "with `statekit get`"
        )
    if len(fields) == 1 or fields[0].kind == "dynamic":
        return fields[0]
    return Schema(kind="tuple", items=tuple(fields))
