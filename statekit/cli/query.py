"""`statekit query`: read or follow state that a server serves."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from statekit.cli.tables import print_line, print_values
from statekit.optional_packages import check_installed


def print_query(
    url: Annotated[str, typer.Argument(help="Address of the server.")],
    job: Annotated[str, typer.Argument(help="Name of the job, as it is served.")],
    operator: Annotated[str, typer.Argument(help="Name of the operator.")],
    state: Annotated[str, typer.Argument(help="Name of the state.")],
    key: Annotated[
        str | None,
        typer.Argument(help="The key, as for `statekit get`. Leave it out for all keys."),
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="This epoch instead of the last one.")] = None,
    min_epoch: Annotated[
        int | None, typer.Option(help="Wait for this epoch or a later one.", show_default=False)
    ] = None,
    wait: Annotated[float, typer.Option(min=0, max=60, help="So many seconds at most.")] = 10.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the events of all keys as they happen.")
    ] = False,
) -> None:
    """Print state that a server serves as JSON; null if there is none.

    The token of the server is in the environment variable STATEKIT_TOKEN. Needs the extra `client`
    (pip install 'statekit\\[client]').
    """
    check_installed("query", "httpx", "client")
    if follow and key is not None:
        raise typer.BadParameter("--follow prints the events of all keys: leave the key out")
    from statekit.query.client import Client

    options: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
    if min_epoch is not None:
        options |= {"min_epoch": min_epoch, "wait": wait}
    with Client(url, token=os.environ.get("STATEKIT_TOKEN"), timeout="75 seconds") as client:
        if follow:
            for event in client.follow(job, operator, state):
                print_line({"event": event.name, "id": event.id, **event.data}, at_once=True)
        elif key is None:
            for own, value in client.scan(job, operator, state):
                print_line([own, value], at_once=True)
        else:
            print_values(client.get_text(job, operator, state, key, **options).value)
