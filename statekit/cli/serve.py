"""`statekit serve` and `statekit server`: serve committed state, and run jobs, over HTTP."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from statekit.cli.tables import say
from statekit.optional_packages import check_installed
from statekit.server.admission.options import JobServerOptions, ServerOptions


def serve_checkpoints(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help="Directories or URLs of checkpoints; NAME= gives one a name in addresses.",
            metavar="[NAME=]CHECKPOINT...",
            show_default=False,
        ),
    ],
    **given: Any,
) -> None:
    """Serve the committed state of jobs over HTTP, while they run and when they are down.

    Needs the extra `server` (pip install 'statekit\\[server]').
    """
    for package in ("starlette", "uvicorn"):
        check_installed("serve", package, "server")
    from statekit.server.serve import named_checkpoints, serve

    serve(named_checkpoints(checkpoints), ServerOptions(**given), say)


def serve_jobs(
    registry: Annotated[
        str, typer.Argument(help="Directory or URL in which the submitted jobs are kept.")
    ],
    **given: Any,
) -> None:
    """Run submitted jobs, each in a process of its own, and show them over HTTP.

    Jobs run again when the server is started again. Several servers may have one registry: one of
    them runs the jobs. Needs the extra `server` (pip install 'statekit\\[server]').
    """
    for package in ("starlette", "uvicorn"):
        check_installed("server", package, "server")
    from statekit.server.serve import job_service, named_checkpoints, serve

    options = JobServerOptions(**given)
    service = job_service(registry, options)
    serve(named_checkpoints(options.serve), options, say, service)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter of the command for an option of the server."""
    bounds = {bound: getattr(own, bound) for own in field.metadata for bound in own.__slots__}
    option = typer.Option(
        *([f"--{name.replace('_', '-')}"] if field.annotation is bool else []),
        help=field.description,
        min=bounds.get("ge"),
        max=bounds.get("le"),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.get_default(call_default_factory=True),
        annotation=Annotated[field.annotation, option],
    )


def _declare_options(command: Any, options: type[ServerOptions]) -> None:
    """Give a command the options of a server. Typer reads them from its signature."""
    first, *_ = inspect.signature(command, eval_str=True).parameters.values()
    found = [
        _parameter(name, field)
        for name, field in options.model_fields.items()
        if field.description is not None
    ]
    command.__signature__ = inspect.Signature([first, *found])


_declare_options(serve_checkpoints, ServerOptions)
_declare_options(serve_jobs, JobServerOptions)
