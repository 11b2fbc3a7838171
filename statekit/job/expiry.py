"""Expiry across runs: new eras, changed TTLs and downtime.

All of it is in the job file, which every manifest references. So whoever reads an epoch knows when
its rows expire, and no row is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from statekit.checkpoint.job_file import Clock, JobFile, OperatorRecord, PastEra, StateRecord
from statekit.checkpoint.manifest import EpochManifest
from statekit.state.ttl import expired_until
from statekit.watermark import BEGINNING

Times = Mapping[Clock, int]
"""The time of each clock for one operator."""


def continued_expiry(stored: JobFile, wanted: JobFile, last: EpochManifest) -> JobFile:
    """Return the job file of a start, with the eras and write times of expiry from the checkpoint.

    Rows that had expired in the last epoch stay expired, whatever the TTL is now. The era of a new
    state of an operator with rows has not begun.

    Parameters:
        stored: the job file of the last epoch.
        wanted: the next one, with the eras that the code declares.
        last: the last epoch.
    """

    def continued(operator: OperatorRecord, state: StateRecord) -> StateRecord:
        before = stored.operator(operator.name)
        if before is None:
            return state
        had = next((each for each in before.states if each.name == state.name), None)
        if had is None:
            is_new = state.ttl is not None and any(_rows_of(last, operator).values())
            return state.model_copy(update={"since_us": None}) if is_new else state
        if had.ttl is None or (had.era == state.era and had.ttl == state.ttl):
            return state
        now_us = _times_of(last, operator)[had.ttl.clock]
        if now_us == BEGINNING:
            return state
        floor_us = expired_until(had.ttl, had.expiry_era, now_us)
        if had.era == state.era:
            return state.model_copy(update={"floor_us": floor_us})
        ended = PastEra(era=had.era, since_us=had.since_us, floor_us=floor_us)
        return state.model_copy(update={"past_eras": (*had.past_eras, ended)})

    return _with_states(wanted, continued)


def begun_expiry(
    job_file: JobFile,
    last: EpochManifest | None,
    times_of: Callable[[str], Times],
    *,
    new_run: bool,
) -> JobFile:
    """Return the job file for an epoch, with the eras that begin in it and the downtime before it.

    Parameters:
        job_file: of the epoch before, or of the start.
        last: the epoch before; None for the first.
        times_of: returns the times of an operator in the epoch.
        new_run: whether the job did not run between the last epoch and this one.
    """

    def begun(operator: OperatorRecord, state: StateRecord) -> StateRecord:
        if state.ttl is None:
            return state
        changes: dict[str, int] = {}
        now_us = times_of(operator.name)[state.ttl.clock]
        if new_run and last is not None and not state.ttl.downtime:
            downtime_us = max(0, now_us - last.processing_time_us)
            changes["paused_us"] = state.paused_us + downtime_us
        if state.since_us is None and now_us != BEGINNING:
            changes["since_us"] = now_us - changes.get("paused_us", state.paused_us)
        return state.model_copy(update=changes) if changes else state

    return _with_states(job_file, begun)


def begun_states(
    before: JobFile, now: JobFile, operator: str, last: EpochManifest | None
) -> dict[str, Clock]:
    """Return the clocks of the states of an operator whose era begins and that have rows.

    Parameters:
        before, now: the job files before the epoch and in it.
        last: the epoch before.
    """
    record, had = now.operator(operator), before.operator(operator)
    if last is None or record is None or had is None or operator not in last.operators:
        return {}
    not_begun = {state.name for state in had.states if state.since_us is None}
    rows = _rows_of(last, record)
    return {
        state.name: state.ttl.clock
        for state in record.states
        if state.ttl is not None
        and state.since_us is not None
        and state.name in not_begun
        and rows.get(state.name)
    }


def _rows_of(last: EpochManifest, operator: OperatorRecord) -> dict[str, int]:
    """Return the rows of each state of an operator in an epoch."""
    epoch = last.operators.get(operator.name)
    rows = {} if epoch is None else epoch.rows
    return {state.name: rows.get(state.name, 0) for state in operator.states}


def _times_of(manifest: EpochManifest, operator: OperatorRecord) -> Times:
    epoch = manifest.operators.get(operator.name)
    watermark_us = None if epoch is None else epoch.watermark_us
    return {
        "processing": manifest.processing_time_us,
        "event": BEGINNING if watermark_us is None else watermark_us,
    }


def _with_states(
    job_file: JobFile, changed: Callable[[OperatorRecord, StateRecord], StateRecord]
) -> JobFile:
    """Return a job file with changed states; the same if none changes."""

    def states(operator: OperatorRecord) -> Iterator[StateRecord]:
        return (changed(operator, state) for state in operator.states)

    operators: tuple[Any, ...] = tuple(
        operator.model_copy(update={"states": tuple(states(operator))})
        for operator in job_file.operators
    )
    if operators == job_file.operators:
        return job_file
    return job_file.model_copy(update={"operators": operators})
