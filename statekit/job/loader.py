"""Load a job by name: `module:attribute`, as commands take it."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from statekit.errors import CALL_FAILURES, StateTypeError
from statekit.job.job import Job
from statekit.shown import shown, shown_error

_T = TypeVar("_T")


def load_job(text: str) -> Job:
    """Load the job `module:attribute`.

    The attribute is a `Job`, or a function without arguments that returns one. Modules are searched
    in the current directory first.

    Raises:
        StateTypeError: there is no such module or attribute, or it is not a job.
    """
    return load_named(text, Job, "a job")


def load_named(text: str, kind: type[_T], what: str) -> _T:
    """Load the object `module:attribute`.

    The attribute is such an object, or a function without arguments that returns one. Modules are
    searched in the current directory first.

    Parameters:
        kind: its class.
        what: what it is, for messages.

    Raises:
        StateTypeError: there is no such module or attribute, or it is something else.
    """
    loaded = load_attribute(text)
    if callable(loaded) and not isinstance(loaded, kind):
        try:
            loaded = loaded()
        except CALL_FAILURES as error:
            raise StateTypeError(
                f"{text!r} was called to make {what}, and failed with "
                f"{shown_error(error)}: give a function that needs no arguments"
            ) from error
    if not isinstance(loaded, kind):
        raise StateTypeError(
            f"{text!r} is {shown(loaded, 100)}, and no {kind.__name__}: name one, or what makes one"
        )
    return loaded


def load_attribute(text: str) -> object:
    """Load the object `module:attribute` as it is. Modules are searched in the current directory
    first.

    Raises:
        StateTypeError: there is no such module or attribute.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise StateTypeError(f"{text!r} names nothing: write module:attribute, as in fleet:job")
    container: object = load_module(text, module_name)
    for part in attribute.split("."):
        if not hasattr(container, part):
            close = get_close_matches(part, dir(container), n=1)
            meant = f"did you mean {close[0]}?" if close else "give a name that the module defines"
            raise StateTypeError(f"{text!r}: {module_name} has no {attribute}: {meant}")
        container = getattr(container, part)
    return container


def load_module(text: str, name: str) -> object:
    """Import the module of `module:attribute`, from the current directory first.

    Raises:
        StateTypeError: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except CALL_FAILURES as error:
        raise StateTypeError(
            f"{text!r}: the module {name} cannot be imported from {here} "
            f"({shown_error(error)}{_line_text(error, name)}): correct it, or go to the directory "
            "that has it"
        ) from error


def _line_text(error: BaseException, name: str) -> str:
    """Return the innermost line of a module's package that raised an error; empty if none did."""
    package, line = name.partition(".")[0], ""
    at = error.__traceback__
    while at is not None:
        if str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
            line = f" at line {at.tb_lineno} of {at.tb_frame.f_code.co_filename}"
        at = at.tb_next
    return line


def check_runs_alone(job: Job) -> None:
    """Check that every source and sink of a job has its place in the job.

    Raises:
        StateTypeError: one of them has none.
    """
    if missing := [sink.name for sink in job.plan.sinks if sink.target is None]:
        raise StateTypeError(
            f"sink {missing[0]!r} has no target, and a command has no other place for its records: "
            'give it one in the job, as in .sink("totals", sk.sinks.console())'
        )
    without = [each.name for each in job.plan.sources if each.source is None and not each.errors_of]
    if without:
        raise StateTypeError(
            f"source {without[0]!r} does not say where its records come from: give it a source in "
            f'the job, as in job.source("{without[0]}", …, sk.sources.json_lines(path))'
        )
