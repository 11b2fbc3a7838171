"""`statekit serve`: serve committed state over HTTP."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from statekit.cli.tables import say
from statekit.optional_packages import check_installed
from statekit.server.admission.options import ServerOptions


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


# Typer reads the options of a command from its signature.
_OPTIONS = [
    _parameter(name, field)
    for name, field in ServerOptions.model_fields.items()
    if field.description is not None
]
_CHECKPOINTS = inspect.signature(serve_checkpoints, eval_str=True).parameters["checkpoints"]
serve_checkpoints.__signature__ = inspect.Signature([_CHECKPOINTS, *_OPTIONS])  # type: ignore[attr-defined]
