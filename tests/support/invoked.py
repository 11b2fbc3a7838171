"""Run the command line in this process."""

from __future__ import annotations

import functools
from typing import Any

import typer
from typer import testing

from statekit.cli.app import app

# Typer makes all commands anew for each call, which takes longer than most of them.
vars(testing)["_get_command"] = functools.cache(typer.main.get_command)


def invoked(*words: object, **options: Any) -> testing.Result:
    """Run `statekit WORDS…` and return its exit code, what it printed, and its error.

    Parameters:
        options: such as `env`, for `CliRunner.invoke`.
    """
    return testing.CliRunner().invoke(app, [str(word) for word in words], **options)
