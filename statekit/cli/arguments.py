"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.query.tables import read
from statekit.state.closed_bounds import ClosedBounds

Checkpoint = Annotated[str, typer.Argument(help="Directory or URL of a checkpoint.")]
JobName = Annotated[
    str, typer.Argument(help="module:attribute, or the path of a document (.json).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="An argument of a source or sink: source.NAME.PARAMETER=VALUE. Any number of times.",
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module", help="A package that a document may import; any by default. Any number."
    ),
]
AllowDroppedState = Annotated[
    bool, typer.Option("--allow-dropped-state", help="Continue without a state of before.")
]
Restart = Annotated[
    str | None, typer.Option(help="Start it again after failures: '5 in 10 minutes'.")
]
Trigger = Annotated[
    str | None, typer.Option(help="The shortest time between epochs, such as '10 seconds'.")
]
Heartbeat = Annotated[
    str | None, typer.Option(help="The longest time between epochs, such as '1 minute'.")
]
Epoch = Annotated[int | None, typer.Option(help="Look at this epoch instead of the last one.")]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Unpickle; only for checkpoints that you trust like code."),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        help="Only keys that begin with this text, with these bytes, or with the parts of a JSON "
        "array. With a key: only such map keys.",
        show_default=False,
    ),
]
Start = Annotated[
    str | None,
    typer.Option(help="Only this key and later ones; with a key, map keys.", show_default=False),
]
End = Annotated[
    str | None,
    typer.Option(help="Only keys before this one; with a key, map keys.", show_default=False),
]
Closed = Annotated[
    ClosedBounds, typer.Option(help="Which of --start and --end are themselves in the range.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")]
WideInts = Annotated[
    bool, typer.Option("--wide-ints", help="Make ints decimal(20, 0), for ints of 2^63 or more.")
]
WideIntsAsText = Annotated[
    bool, typer.Option("--wide-ints-as-text", help="Make ints text, for ints of 2^63 or more.")
]


def ints_as(wide_ints: bool, as_text: bool) -> read.WideInts:
    """Return how ints are read, of both options."""
    return "text" if as_text else wide_ints
