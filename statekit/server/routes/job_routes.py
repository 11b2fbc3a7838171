"""Routes of a job: its status, as the dashboard shows it.

/{job}/epochs                  records, times and sizes of the last epochs
/{job}/shards?operator=        the shards of an operator, with their rows and bytes
/{job}/top?operator=           the largest or most written keys, and rows per key group
/{job}/key?operator=&key=      all states and timers of a key
/{job}/history?operator=&state=&key=    the values of a key in the epochs that can be read
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from statekit.checkpoint.job_file import OperatorRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.errors import QueryError
from statekit.query.replica.key_facts import key_facts
from statekit.query.replica.view import View
from statekit.query.tables.top import Measure
from statekit.server.admission.access import forbidden
from statekit.server.answers.values import answer
from statekit.server.jobs.rankings import LIMIT_MAX
from statekit.server.jobs.wanted import Checksum, EpochNumber, Seconds, Wanted
from statekit.server.routes.call import RouteCall
from statekit.server.routes.histories import history_of
from statekit.server.routes.parameters import JsonText, of_shapes
from statekit.server.routes.reads import AskedPart, json_of
from statekit.server.routes.responses import INSIGHT, OF_A_JOB
from statekit.server.routes.route_table import RouteTable
from statekit.timestamp import instant
from statekit.watermark import BEGINNING

routes = RouteTable()

MayRead = Callable[[str, str], bool]
"""Returns whether a state of an operator, or all of an operator, may be read."""

_ROWS_OF_KEY = 1_000
"""Limit of the rows of each state of a key, and of its timers."""

EPOCHS_MAX = 500
"""Limit of the epochs of one answer."""


class _EpochsParameters(BaseModel, extra="forbid"):
    after: EpochNumber = None
    manifest: Checksum = None
    limit: Annotated[int, Field(ge=1, le=EPOCHS_MAX)] = 100
    wait: Seconds = 0.0
    operator: str | None = None


@routes.get("/{job}/epochs", INSIGHT, problems=OF_A_JOB)
async def epochs(call: RouteCall, asked: _EpochsParameters) -> Response:
    """Return the facts of the last epochs, in order; with `operator`, also the sizes of its states.

    With `after` and `wait`, wait for an epoch after that one, and return only the new epochs, with
    `is_continued`. If the epoch is not known, or its `manifest` has another checksum, as after the
    checkpoint was replaced, return all epochs.
    """
    own, after, manifest = call.job, asked.after, asked.manifest
    is_continued = False
    if after is None:
        view = own.last()
    else:
        known = Wanted(epoch=after, manifest=manifest)
        view = await own.other_than(known, asked.wait, call.wait)
    facts = await run_in_threadpool(own.history.until, view.manifest, asked.limit)
    if after is not None and any(each.epoch == after for each in facts):
        is_continued = manifest is None or any(map(known.is_of, own.views()))
    if is_continued:
        facts = [each for each in facts if after is None or each.epoch > after]
    items = epoch_items(call.may_read, view, facts, asked.operator)
    return answer(items, {"is_continued": is_continued, **own.facts(view)}, call.known_tag)


def epoch_items(
    may_read: MayRead, view: View, facts: Sequence[EpochManifest], sized: str | None = None
) -> list[dict[str, Any]]:
    """Return the facts of epochs that a token may read. The records of sources are of the whole
    job: a token that may read only some states does not see them.

    Parameters:
        sized: the operator whose states' sizes are added.
    """
    readable = {name: _readable(may_read, view.record(name)) for name in view.operators}
    is_whole = all(len(own) == len(view.record(name).holds) for name, own in readable.items())
    items = [_epoch(each, readable, sized) for each in facts]
    for item, each in zip(items, facts, strict=True):
        item["records_by_source"] = each.records_by_source if is_whole else {}
    return items


def _epoch(
    facts: EpochManifest, readable: dict[str, list[str]], sized: str | None
) -> dict[str, Any]:
    operators: dict[str, dict[str, Any]] = {}
    for name, states in readable.items():
        of = facts.operators.get(name)
        if of is None or not states:
            continue
        operators[name] = {
            "records_in": of.records_in,
            "records_out": of.records_out,
            "records_by_input": of.records_by_input,
            "late": of.late,
            "failed": of.failed,
            "bytes_written": of.bytes_written,
            "watermark": _time(of.watermark_us),
            "rows": sum(of.rows.get(state, 0) for state in states),
            "bytes": sum(of.bytes.get(state, 0) for state in states),
        }
        if name == sized:
            operators[name]["states"] = {
                state: {"rows": of.rows.get(state, 0), "bytes": of.bytes.get(state, 0)}
                for state in states
            }
    return {
        "epoch": facts.epoch,
        "cause": facts.cause,
        "processing_time": _time(facts.processing_time_us),
        "committed_at": _time(facts.committed_at_us),
        "parallelism": facts.parallelism,
        "operators": operators,
    }


class _ShardsParameters(Wanted):
    operator: str
    state: str | None = None


@routes.get("/{job}/shards", INSIGHT, problems=OF_A_JOB)
async def shards(call: RouteCall, asked: _ShardsParameters) -> Response:
    """Return the shards of an operator, with the rows and bytes of one state, or of the states that
    the token may read. They are null in a shard that was divided, and whose rows were not counted
    since.
    """
    operator, state = asked.operator, asked.state
    _check(call, operator, state)
    view = await call.view(asked, operator)
    found = shard_items(call, view, operator, state)
    value = {"key_groups": view.manifest.key_groups, "shards": found}
    return answer(value, call.job.facts(view, operator), call.known_tag)


def shard_items(
    call: RouteCall, view: View, operator: str, state: str | None
) -> list[dict[str, Any]]:
    """Return the shards of an operator, with the sizes that a token may read.

    Parameters:
        state: the state whose rows and bytes are returned; None for all that it may read.

    Raises:
        Problem: it may not read the state, or nothing of the operator.
        QueryError: there is no such operator or state.
    """
    states = _readable_of(call, view, operator)
    if state is not None:
        states = [_one_of(states, state, view, operator)]
    return [
        {
            "shard": number,
            "key_groups": list(shard.groups),
            "changed": shard.changed,
            "rows": None if shard.is_part else _sum(shard.rows, states),
            "bytes": None if shard.is_part else _sum(shard.bytes, states),
        }
        for number, shard in enumerate(view.manifest.operators[operator].shards)
    ]


class _TopParameters(_ShardsParameters):
    by: Measure = "size"
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 10


@routes.get("/{job}/top", INSIGHT, problems=(*OF_A_JOB, 413))
async def top(call: RouteCall, asked: _TopParameters) -> Response:
    """Return the largest or the most written keys of a state, or of all states that the token may
    read, and the number of rows per key group.

    This reads all rows, in a process of its own.
    """
    operator = asked.operator
    _check(call, operator, asked.state)
    view = await call.view(asked, operator)
    found = await ranking_of(call, view, operator, asked.state, asked.by, asked.limit)
    return answer(found, call.job.facts(view, operator), call.known_tag)


async def ranking_of(
    call: RouteCall, view: View, operator: str, state: str | None, by: Measure, limit: int
) -> msgspec.Raw:
    """Return the ranking of the keys of a state, or of all states that a token may read, as JSON.

    Raises:
        Problem: it may not read the state, or nothing of the operator; or as for `Rankings.top`.
        QueryError: there is no such operator or state.
    """
    own = call.job
    by_key = set(view.record(operator).holds_by_key)
    states = [name for name in _readable_of(call, view, operator) if name in by_key]
    if state is not None:
        states = [_one_of(states, state, view, operator)]
    if not states and not call.may_read(operator):
        raise forbidden(f"{own.alias}/{operator}")
    name = None if call.served.access.is_open else call.token.name
    return await call.served.rankings.top(call, name, own, view, operator, states, by, limit)


class _KeyParameters(Wanted):
    operator: str
    key: JsonText


@routes.get("/{job}/key", INSIGHT, problems=OF_A_JOB)
async def everything_of_key(call: RouteCall, asked: _KeyParameters) -> Response:
    """Return the values of an operator's states for a key, their expiry times and the timers of the
    key: the first 1,000 rows of each.
    """
    operator, data = asked.operator, json_of(asked.key, "key")
    view = await call.view(asked, operator)
    value = await states_of_key(call, view, operator, data)
    return answer(value, call.job.facts(view, operator), call.known_tag)


async def states_of_key(call: RouteCall, view: View, operator: str, data: Any) -> dict[str, Any]:
    """Return the states and timers of a key that a token may read.

    Parameters:
        data: the key, as JSON-able data.

    Raises:
        Problem: the token may read nothing of the operator.
        QueryError, StateTypeError: as for `key_facts`.
    """
    record = view.record(operator)
    readable = set(_readable_of(call, view, operator))
    keyed = [s.name for s in record.states if not s.is_local and s.name in readable]
    sees_timers = call.may_read(operator)
    return await call.served.admission.read(
        key_facts, view, operator, data, keyed, _ROWS_OF_KEY, timers=sees_timers
    )


class _HistoryParameters(BaseModel, extra="forbid"):
    operator: str
    state: str
    key: JsonText
    entry: Annotated[str | None, of_shapes(any="key")] = None


@routes.get("/{job}/history", INSIGHT, problems=OF_A_JOB)
async def history(call: RouteCall, asked: _HistoryParameters) -> Response:
    """Return the values of a state for a key in the epochs that can be read: the first value and
    each change, in order, at most 2 MB. Epochs that were rolled back are left out.
    """
    operator, state = asked.operator, asked.state
    own = call.served.job(call.token, call.job.alias, operator, state)
    data, part = json_of(asked.key, "key"), AskedPart(entry=asked.entry)
    last = own.last()
    last.state(operator, state).key_from_json(data)
    read = partial(history_of, own, operator, state, data, part)
    found = await call.served.admission.run("histories", read, call)
    facts = {"is_cut": found.is_cut, **own.facts(last, operator)}
    return answer(found.entries, facts, call.known_tag)


# ------------------------------------------------------------------------------------ helpers


def _readable(may_read: MayRead, record: OperatorRecord) -> list[str]:
    """Return the states of an operator that a token may read. Timers and buffered records need the
    right to read all of the operator.
    """
    states = {state.name for state in record.states}
    return [name for name in record.holds if may_read(record.name, name if name in states else "")]


def _readable_of(call: RouteCall, view: View, operator: str) -> list[str]:
    """Return the states of an operator that a token may read, as `_readable`.

    Raises:
        Problem: the token may read nothing of the operator.
        QueryError: there is no such operator.
    """
    if not call.token.sees(call.job.alias, operator):
        raise forbidden(f"{call.job.alias}/{operator}")
    return _readable(call.may_read, view.record(operator))


def _check(call: RouteCall, operator: str, state: str | None) -> None:
    """Check that the token may read the state of a request, if it has one.

    Raises:
        Problem: the token may not read it.
    """
    if state is not None:
        call.served.job(call.token, call.job.alias, operator, state)


def _one_of(readable: list[str], state: str, view: View, operator: str) -> str:
    """Check that the token may read a state of an operator, and return its name.

    Raises:
        QueryError: the operator has no such rows.
        Problem: the token may not read them.
    """
    if state in readable:
        return state
    names = view.record(operator).holds
    if state in names:
        raise forbidden(f"{operator}/{state}")
    raise QueryError(f"operator {operator!r} has no state {state!r}: it has {', '.join(names)}")


def _sum(counts: dict[str, int], states: Iterable[str]) -> int:
    return sum(counts.get(state, 0) for state in states)


def _time(micros: int | None) -> str | None:
    return None if micros is None or micros == BEGINNING else instant(micros).isoformat()
