"""`statekit query`: read or follow state that a server serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statekit.cli.arguments import Closed, End, Prefix, Start
from statekit.cli.tables import print_line, print_values
from statekit.optional_packages import check_installed
from statekit.query.rows.state_rows import ALL_ROWS, TextRange

if TYPE_CHECKING:
    from statekit.query.client import Client


def print_query(
    url: Annotated[str, typer.Argument(help="Address of the server.")],
    job: Annotated[str, typer.Argument(help="Name of the job, as it is served.")],
    operator: Annotated[str, typer.Argument(help="Name of the operator.")],
    state: Annotated[str, typer.Argument(help="Name of the state.")],
    key: Annotated[
        str | None,
        typer.Argument(help="The key, as for `statekit get`. Leave it out for all keys."),
    ] = None,
    prefix: Prefix = None,
    start: Start = None,
    end: End = None,
    closed: Closed = "left",
    limit: Annotated[
        int | None, typer.Option(min=0, help="The number of keys.", show_default=False)
    ] = None,
    offset: Annotated[
        int, typer.Option(min=0, help="The number of keys to leave out before the first one.")
    ] = 0,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="From the last key to the first.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Print the number of rows of the keys.")
    ] = False,
    epoch: Annotated[int | None, typer.Option(help="This epoch instead of the last one.")] = None,
    min_epoch: Annotated[
        int | None, typer.Option(help="Wait for this epoch or a later one.", show_default=False)
    ] = None,
    wait: Annotated[float, typer.Option(min=0, max=60, help="So many seconds at most.")] = 10.0,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Print the events of all keys, or of a prefix, as they happen."
        ),
    ] = False,
) -> None:
    """Print state that a server serves as JSON; null if there is none.

    With a key, --prefix, --start, --end, --closed, --limit, --offset, --reverse and --count are of
    the entries of a map.

    The token of the server is in the environment variable STATEKIT_TOKEN. Needs the extra `client`
    (pip install 'statekit\\[client]').
    """
    check_installed("query", "httpx", "client")
    within = TextRange(start, end, prefix, closed)
    window: dict[str, Any] = {}
    window |= {} if limit is None else {"limit": limit}
    window |= {"offset": offset} if offset else {}
    window |= {"reverse": True} if reverse else {}
    choice: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
    if min_epoch is not None:
        choice |= {"min_epoch": min_epoch, "wait": wait}
    others = within._replace(prefix=None) != ALL_ROWS
    if follow and (key is not None or count or window or choice or others):
        raise typer.BadParameter(
            "--follow prints the events of all keys, or of those with --prefix: leave the rest out"
        )
    if count and window:
        raise typer.BadParameter(
            "--count counts all rows of a range: leave --limit, --offset and --reverse out"
        )
    from statekit.query.client import Client

    with Client(url, token=os.environ.get("STATEKIT_TOKEN"), timeout="75 seconds") as client:
        place = job, operator, state
        if follow:
            begins = {}
            if prefix is not None:
                begins = client.range_of_texts(*place, within, of_entries=False)
            for event in client.follow(job, operator, state, **begins):
                print_line({"event": event.name, "id": event.id, **event.data}, at_once=True)
        elif key is not None and not (count or window or within != ALL_ROWS):
            print_values(client.get_text(*place, key, **choice).value)
        else:
            _print_range(client, place, key, within, choice if count else choice | window, count)


def _print_range(
    client: Client,
    place: tuple[str, str, str],
    key: str | None,
    within: TextRange,
    choice: dict[str, Any],
    count: bool,
) -> None:
    """Print a range of keys with their values, or of the entries of a key; or their number."""
    job, operator, state = place
    if within != ALL_ROWS:
        bounds = client.range_of_texts(job, operator, state, within, of_entries=key is not None)
        choice = choice | bounds | {"closed": within.closed}
    if key is not None:
        choice = choice | {"key": client.key_of_text(job, operator, state, key)}
    if count:
        print_values(client.count(job, operator, state, **choice).value)
        return
    read: Any = client.scan if key is None else client.entries
    for own, value in read(job, operator, state, **choice):
        print_line([own, value], at_once=True)
