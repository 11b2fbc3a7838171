"""`statekit serve`: serve committed state over HTTP."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from statekit.byte_size import size_bytes
from statekit.cli.tables import say
from statekit.errors import StatekitError


def serve_checkpoints(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help="Directories or URLs of checkpoints; NAME= gives one a name in addresses.",
            metavar="[NAME=]CHECKPOINT...",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8321,
    tokens: Annotated[
        Path | None,
        typer.Option(help="A file of tokens, and of what each may read.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without tokens.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name that requests may call the server by; repeat it."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(help="Where copies of the state are kept, for a fast start; else temporary."),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, max=1000, help="How many of the last epochs can be read.")
    ] = 16,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, help="Requests per second of one token.", show_default=False),
    ] = None,
    refusals: Annotated[
        float, typer.Option(min=0.1, help="Requests per second of one address that are refused.")
    ] = 10.0,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="A proxy whose X-Forwarded-For is trusted; repeat it.", metavar="ADDRESS|CIDR"
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line to stdout for each request.")
    ] = False,
    connections: Annotated[
        int, typer.Option(min=1, help="How many connections may be open.")
    ] = 1_000,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds until the answer of a request has to begin.")
    ] = 120.0,
    tables: Annotated[
        int, typer.Option(min=1, help="How many files of states may be asked for at a time.")
    ] = 16,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for copies of the state, as 512MB.", show_default=False),
    ] = None,
    disk: Annotated[
        str | None, typer.Option(help="Disk for copies and files, as 50GB.", show_default=False)
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may read, as https://example.com; repeat it."),
    ] = None,
) -> None:
    """Serve the committed state of jobs over HTTP, while they run and when they are down.

    Needs the extra `server` (pip install 'statekit\\[server]').
    """
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise StatekitError("serve needs Starlette and uvicorn: pip install 'statekit[server]'")
    from statekit.server.limits import Limits
    from statekit.server.serve import ServerOptions, named_checkpoints
    from statekit.server.serve import serve as run

    named = named_checkpoints(checkpoints)
    options = ServerOptions(
        host=host,
        port=port,
        tokens=tokens,
        insecure=insecure,
        hosts=tuple(allow_host or ()),
        directory=directory,
        epochs=epochs,
        limits=Limits(requests_per_s=rate, refusals_per_s=refusals, tables=tables, seconds=timeout),
        connections=connections,
        memory_bytes=None if memory is None else size_bytes(memory, "--memory"),
        disk_bytes=None if disk is None else size_bytes(disk, "--disk"),
        origins=tuple(allow_origin or ()),
        trusted_proxies=tuple(trusted_proxy or ()),
        access_log=access_log,
    )
    run(named, options, say)
