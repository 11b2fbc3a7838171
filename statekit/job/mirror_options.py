"""`MirrorOptions`: tables that are kept equal to states of a job, as the option `mirror=`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.leases.reader_lease import LEASE_TTL, check_reader_name, lease_ttl_us
from statekit.errors import StateTypeError
from statekit.job.plan import Plan
from statekit.number_faults import int_fault
from statekit.shown import shown
from statekit.sinks.protocol.sink import TableSink
from statekit.timestamp import duration_to_micros

MirrorMode = Literal["table", "changes", "history"]
"""The rows of a state, a log of its changes, or the versions of its rows."""

LEASE_PREFIX = "mirror-"
"""The beginning of the names of leases, by which metrics distinguish mirrors from readers."""


@dataclass(frozen=True)
class MirrorOptions:
    """A mirror that runs beside a job, in a process of its own.

    Parameters:
        tables: the operator and the state, such as "totals.sum", each with the sink of its table.
            After each step, all tables are at the same epoch.
        mode: "table" for the rows of the state; "changes" for a log of all changes; "history" for
            the versions of its rows, with `valid_from` and `valid_until`.
        name: of the mirror, under which the checkpoint keeps its position and its lease. None for a
            name made of the states. Two mirrors of one state need two names.
        replace: replace the rows of a table that has rows of others. None of them are kept.
        every: the shortest time from one step to the next; a timedelta or text.
        catch_up_within: how long the end of the job waits for the last step of the mirror. Then the
            mirror is ended, and the next start of the job continues it. With "0 seconds" the job
            does not wait, and the mirror takes its last step alone.
        compact: rewrite the small files of a Delta or Iceberg table as large ones as soon as there
            are so many; 0 for never.
        poll: the time between two requests for a new epoch; a timedelta or text. None for 20
            milliseconds on a local disk, and a second on an object store.
        lease_ttl: time to keep the epochs of the mirror after it has stopped; a timedelta or text.
        wide_ints: give ints the type decimal(20, 0), for states with ints of 2^63 or more.
        allow_pickle: unpickle values. Unpickling can run any code that the writer of the checkpoint
            chose.
        directory: of the local copy of states that can be cleared or expire; None for `TMPDIR`.
        rocksdb: memory limits of that copy.

    Raises:
        StateTypeError: an argument is not valid.

    >>> from statekit import sinks
    >>> MirrorOptions({"totals.sum": sinks.parquet("/data/totals")}).known_as
    'totals.sum'
    """

    tables: Mapping[str, TableSink]
    _: KW_ONLY
    mode: MirrorMode = "table"
    name: str | None = None
    replace: bool = False
    every: dt.timedelta | str = "500 ms"
    catch_up_within: dt.timedelta | str = "1 minute"
    compact: int = 100
    poll: dt.timedelta | str | None = None
    lease_ttl: dt.timedelta | str = LEASE_TTL
    wide_ints: bool = False
    allow_pickle: bool = False
    directory: str | Path | None = None
    rocksdb: RocksOptions | None = None

    def __post_init__(self) -> None:
        _check_tables(self.tables)
        if self.mode not in get_args(MirrorMode):
            raise StateTypeError(
                f"mode={shown(self.mode, 50)}: give 'table', 'changes' or 'history'"
            )
        for state, sink in self.tables.items():
            if self.mode == "history" and sink.by_key(["key"], "deleted") is None:
                raise StateTypeError(
                    f"mirror of {state}: mode='history' changes rows by their key, which "
                    f"{shown(sink, 100)} cannot: choose sinks.delta, sinks.iceberg or "
                    "sinks.postgres"
                )
        if fault := int_fault(self.compact, "give a number of files, or 0", least=0):
            raise StateTypeError(f"compact={shown(self.compact)}{fault}")
        check_reader_name("name", self.known_as)
        check_reader_name("name", self.lease_name)
        lease_ttl_us(self.lease_ttl, "lease_ttl")
        _ = self.every_s, self.catch_up_within_s

    @property
    def known_as(self) -> str:
        """The name of the mirror."""
        return "-".join(self.tables) if self.name is None else self.name

    @property
    def lease_name(self) -> str:
        """The name of the lease of the mirror."""
        return f"{LEASE_PREFIX}{self.known_as}"

    @property
    def every_s(self) -> float:
        """The shortest time from one step to the next, in seconds."""
        return duration_to_micros(self.every, "every") / 1e6

    @property
    def catch_up_within_s(self) -> float:
        """How long the end of the job waits for the last step, in seconds."""
        return duration_to_micros(self.catch_up_within, "catch_up_within") / 1e6

    def check_states(self, job: Plan) -> None:
        """Check that a job has the states.

        Raises:
            StateTypeError: it does not have one of them.
        """
        for text in self.tables:
            operator, state = parted(text)
            if not job.is_operator(operator):
                known = [of.name for of in job.operators]
                raise StateTypeError(
                    f"mirror= has {text!r:.200}, and job {job.name!r} has no operator "
                    f"{shown(operator)}: it has {', '.join(known) or 'none'}. Nothing was written"
                )
            states = [spec.name for spec in job.operator(operator).declared.states]
            if state not in states:
                raise StateTypeError(
                    f"mirror= has {text!r:.200}, and operator {operator!r} has no state "
                    f"{shown(state)}: it has {', '.join(states) or 'none'}. Nothing was written"
                )


MirrorOption = Mapping[str, TableSink] | MirrorOptions | Sequence[MirrorOptions]
"""The option `mirror=` of a run: the tables of one mirror, or its description, or several."""


def mirrors_of(job: Plan, given: MirrorOption | None) -> tuple[MirrorOptions, ...]:
    """Return the mirrors that the option `mirror=` describes.

    Raises:
        StateTypeError: it describes none, the job does not have a state, or two mirrors have one
            name or one table.
    """
    found: Any = given
    if given is None:
        found = ()
    elif isinstance(given, Mapping):
        found = (MirrorOptions(given),)
    elif isinstance(given, MirrorOptions):
        found = (given,)
    if not isinstance(found, Sequence) or not all(isinstance(of, MirrorOptions) for of in found):
        raise StateTypeError(
            f"mirror={shown(given)}: give a sink per state, such as "
            "{'totals.sum': sinks.delta(path)}, or MirrorOptions, or a list of those"
        )
    names: set[str] = set()
    targets: dict[object, str] = {}
    for mirror in found:
        mirror.check_states(job)
        if mirror.known_as in names:
            raise StateTypeError(
                f"mirror= has two mirrors with the name {mirror.known_as!r}: give one of them "
                "another name=. Nothing was written"
            )
        names.add(mirror.known_as)
        _check_own_tables(mirror.tables, targets)
    return tuple(found)


def _check_tables(tables: object) -> None:
    """Check the tables of a mirror.

    Raises:
        StateTypeError: there is none, one has no sink of tables, or two states have one table.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise StateTypeError(
            f"mirror of {shown(tables)}: give a sink for each state, as a dict such as "
            "{'totals.sum': sinks.delta(path)}. Nothing was written"
        )
    for state, sink in tables.items():
        parted(state)
        if not isinstance(sink, TableSink) or not sink.is_table:
            raise StateTypeError(
                f"mirror of {state}: {shown(sink, 100)} is no sink of a table: choose "
                "sinks.delta, sinks.iceberg, sinks.postgres or sinks.parquet"
            )
    _check_own_tables(tables, {})


def _check_own_tables(tables: Mapping[str, TableSink], targets: dict[object, str]) -> None:
    """Check that no two states have one table, and add their targets.

    Raises:
        StateTypeError: two have.
    """
    for state, sink in tables.items():
        if sink.target in targets:
            raise StateTypeError(
                f"mirror of {targets[sink.target]} and {state}: both have one table, in which the "
                "rows of one would replace those of the other. Nothing was written: give each "
                "state a table of its own"
            )
        targets[sink.target] = state


def parted(state: object) -> tuple[str, str]:
    """Return the operator and the state of a name such as "totals.sum".

    Raises:
        StateTypeError: it is no such name.

    >>> parted("totals.sum")
    ('totals', 'sum')
    """
    operator, _, name = str(state).rpartition(".")
    if not (operator and name):
        raise StateTypeError(
            f"{state!r:.200}: give the operator and the state, such as 'totals.sum'. Nothing was "
            "written"
        )
    return operator, name
