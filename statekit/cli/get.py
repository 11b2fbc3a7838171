"""`statekit get`: print the state of one key, or operator state."""

from __future__ import annotations

from typing import Annotated

import typer

from statekit.cli.arguments import AllowPickle, Checkpoint, Epoch
from statekit.cli.tables import print_values
from statekit.query.rows.reader import CheckpointReader


def print_key(
    checkpoint: Checkpoint,
    operator: Annotated[str, typer.Argument(help="Name of the operator.")],
    state: Annotated[str, typer.Argument(help="Name of the state.")],
    key: Annotated[
        str | None,
        typer.Argument(
            help="The key; several fields as a JSON array. Leave it out for operator state."
        ),
    ] = None,
    epoch: Epoch = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Print the state of one key as JSON; null if there is none.

    For operator state: a list with the state of each shard.
    """
    reader = CheckpointReader(checkpoint, epoch=epoch, allow_pickle=allow_pickle)
    if key is None:
        print_values(reader.operator_state(operator, state))
    else:
        print_values(reader.get(operator, state, key))
