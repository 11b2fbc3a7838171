"""A job by name: `module:attribute`, as command lines take it.

What lives here: finding it. What does not: what is done with it (`cli`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from statekit.errors import StateTypeError
from statekit.job import Job

__all__ = ["load_job"]


def load_job(text: str) -> Job:
    """The job that `module:attribute` names.

    The attribute is a `Job`, or a function without arguments that returns one. The current
    directory is where modules are looked for first.

    Raises:
        StateTypeError: there is no such module or attribute, or it is no job.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise StateTypeError(f"{text!r} names no job: write module:attribute, as in fleet:job")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise StateTypeError(
            f"{text!r}: the module {module_name} cannot be imported from {here} "
            f"({type(error).__name__}: {error}): correct it, or go to the directory that has it"
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise StateTypeError(f"{text!r}: {module_name} has no {attribute}")
        found = getattr(found, name)
    job: object = found
    if callable(job) and not isinstance(job, Job):
        try:
            job = job()
        except Exception as error:
            raise StateTypeError(
                f"{text!r} was called to make a job, and failed with {type(error).__name__}: "
                f"{error}: give a function that needs no arguments"
            ) from error
    if not isinstance(job, Job):
        raise StateTypeError(f"{text!r} is {job!r:.100}, and no Job: name one, or what makes one")
    return job
