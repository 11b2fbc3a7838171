"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.errors import StateTypeError

Checkpoint = Annotated[str, typer.Argument(help="Directory or URL of a checkpoint.")]
Epoch = Annotated[int | None, typer.Option(help="Look at this epoch instead of the last one.")]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Unpickle; only for checkpoints that you trust like code."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what it would do.")]


_UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def size_bytes(text: str, option: str) -> int:
    """Return the bytes that a size names.

    Raises:
        StateTypeError: it is none.

    >>> size_bytes("512MB", "--memory"), size_bytes("1.5 gb", "--disk")
    (536870912, 1610612736)
    """
    number, unit = text.strip()[:-2], text.strip()[-2:].upper()
    try:
        size = float(number) * _UNITS[unit]
        if 1 <= size < 2**60:
            return int(size)
    except (ValueError, KeyError):
        pass
    raise StateTypeError(
        f"{option}={text!r:.50} is no size: give a number with KB, MB, GB or TB, as in 512MB"
    )
