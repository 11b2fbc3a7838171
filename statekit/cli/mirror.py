"""`statekit mirror`: keep tables equal to states of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from statekit import sinks
from statekit.checkpoint.leases.reader_lease import LEASE_TTL
from statekit.checkpoint.repository import Repository
from statekit.cli.arguments import AllowPickle, Checkpoint, WideInts
from statekit.cli.tables import say
from statekit.errors import StateTypeError
from statekit.job.mirror_options import MirrorMode
from statekit.mirrors.mirror import Mirror, mirror
from statekit.mirrors.registered import forget_mirror
from statekit.sinks.protocol.sink import TableSink

_STATE = "{state}"
"""The part of a target that is replaced by the name of each state."""


def mirror_states(
    checkpoint: Checkpoint,
    states: Annotated[
        list[str] | None, typer.Argument(help="OPERATOR.STATE, one or several.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="delta:PATH, parquet:PATH, iceberg:WAREHOUSE#TABLE or postgres:URL#TABLE. The "
            "warehouse is a local directory, or the name of a configured catalog. {state} stands "
            "for OPERATOR_STATE."
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="table: the rows of the state. changes: a log of all changes. history: the "
            "versions of its rows."
        ),
    ] = "table",
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new epochs, until it is stopped.")
    ] = False,
    until: Annotated[int | None, typer.Option(help="Follow up to this epoch.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the mirror; made of the states.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the rows of a table that others wrote.")
    ] = False,
    token: Annotated[
        str | None, typer.Option(help="A text by which a new run takes over at once.")
    ] = None,
    lease_ttl: Annotated[
        str, typer.Option(help="Time to keep the epochs of the mirror after it has stopped.")
    ] = LEASE_TTL,
    poll: Annotated[
        str | None, typer.Option(help="Time between two requests for a new epoch, such as 5s.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Of the local copy of rows; the default is TMPDIR.")
    ] = None,
    wide_ints: WideInts = False,
    allow_pickle: AllowPickle = False,
    forget: Annotated[
        str | None,
        typer.Option(help="Remove the mirror of this name, which has ended. Its tables stay."),
    ] = None,
) -> None:
    """Keep tables equal to states, epoch by epoch. It can be stopped and killed at any time."""
    if forget is not None:
        forget_mirror(Repository(checkpoint, create=False), forget)
        return
    if not states or to is None:
        raise StateTypeError("give OPERATOR.STATE and --to, or --forget. Nothing was written")
    targets = {state: target_of(to, state, is_alone=len(states) == 1) for state in states}
    if mode not in get_args(MirrorMode):
        raise StateTypeError(f"--mode {mode}: give table, changes or history. Nothing was written")
    with mirror(
        checkpoint,
        targets,
        mode=cast(MirrorMode, mode),
        name=name,
        replace=replace,
        token=token,
        lease_ttl=lease_ttl,
        poll=poll,
        directory=directory,
        wide_ints=wide_ints,
        allow_pickle=allow_pickle,
    ) as mirrored:
        _run(mirrored, follow=follow or until is not None, until=until)


def _run(mirrored: Mirror, *, follow: bool, until: int | None) -> None:
    if follow:
        for epoch in mirrored.follow(until):
            say(f"epoch {epoch}")
        return
    epoch_or_none = mirrored.catch_up()
    say("no epoch is committed yet" if epoch_or_none is None else f"epoch {epoch_or_none}")


def target_of(to: str, state: str, *, is_alone: bool) -> TableSink:
    """Return the sink of a target, such as "delta:/lake/{state}".

    Parameters:
        to: the target.
        state: the operator and the state, such as "sales.total".
        is_alone: whether it is the only state of the mirror.

    Raises:
        StateTypeError: it is no target, or several states would be in one table.

    >>> target_of("parquet:/lake/{state}", "sales.total", is_alone=False)
    Files(path='/lake/sales_total', format='parquet')
    """
    if not is_alone and _STATE not in to:
        raise StateTypeError(
            f"--to {_without_url(to)}: each state needs a table of its own. Write {_STATE}, which "
            f"stands for its name, as in delta:/lake/{_STATE}"
        )
    kind, _, place = to.replace(_STATE, state.replace(".", "_")).partition(":")
    make = _TARGETS.get(kind)
    if make is None or not place:
        raise StateTypeError(
            f"--to {_without_url(to)}: give delta:PATH, parquet:PATH, iceberg:WAREHOUSE#TABLE or "
            "postgres:URL#TABLE. Nothing was written"
        )
    return make(place)


def _without_url(to: str) -> str:
    """Return the kind of a target: its address may have a password."""
    kind, colon, _ = to.partition(":")
    return f"{kind[:20]}{colon}{'…' if colon else ''}"


def _iceberg(place: str) -> TableSink:
    warehouse, table = _place_and_table(place)
    if "/" in warehouse:
        return sinks.iceberg(table, warehouse=warehouse)
    return sinks.iceberg(table, catalog=warehouse)


def _postgres(place: str) -> TableSink:
    url, table = _place_and_table(place)
    return sinks.postgres(url, table)


def _place_and_table(place: str) -> tuple[str, str]:
    """Return the address and the table of a place such as "/warehouse#shop.totals".

    Raises:
        StateTypeError: one of them is missing.
    """
    address, _, table = place.rpartition("#")
    if not address or not table:
        raise StateTypeError(
            "--to: the table is missing. Write it behind the address, as in "
            "iceberg:/warehouse#shop.totals or postgres:postgresql://db/shop#totals"
        )
    return address, table


_TARGETS: dict[str, Callable[[str], TableSink]] = {
    "delta": sinks.delta,
    "parquet": sinks.parquet,
    "iceberg": _iceberg,
    "postgres": _postgres,
}
