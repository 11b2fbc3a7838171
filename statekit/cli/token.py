"""`statekit token`: make and remove tokens of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statekit.cli.tables import say
from statekit.optional_packages import check_installed


def token(
    name: Annotated[str, typer.Argument(help="The name of the token, in the file.")],
    read: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may read: '*', a job, an operator as in shop/sales, or a state as in "
            "shop/sales/total; repeat it.",
            show_default=False,
        ),
    ] = None,
    manage: Annotated[
        list[str] | None,
        typer.Option(
            help="A job that it may submit, start, stop and change with `statekit server`, or '*'; "
            "repeat it.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[Path, typer.Option(help="The file of tokens.")] = Path("tokens.json"),
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the token of that name.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the token of that name.")
    ] = False,
) -> None:
    """Make a token for `statekit serve --tokens FILE`, and print it, once.

    The file has its digest alone. A running server reads the file again.
    """
    check_installed("token", "starlette", "server")
    from statekit.server.admission.token_file import add_token, remove_token

    if remove:
        if read or manage or replace:
            raise typer.BadParameter("--remove goes without --read, --manage and --replace")
        remove_token(tokens, name)
        say(f"removed the token {name} from {tokens}")
        return
    if not (read or manage):
        raise typer.BadParameter("say what it may read: --read JOB, or --read '*'")
    print(add_token(tokens, name, read or (), manage or (), replace=replace))
