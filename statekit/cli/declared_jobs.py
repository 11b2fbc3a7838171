"""The jobs that commands name: of a module, or of a document, with settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statekit.documents.settings import with_settings
from statekit.errors import StateTypeError
from statekit.job.job import Job
from statekit.job.loader import load_job


class SettingError(StateTypeError):
    """A setting of the command line is not valid."""


def declared_job(text: str, settings: Sequence[str], modules: Sequence[str] | None) -> Job:
    """Return the job of a command.

    Parameters:
        text: `module:attribute`, or the path of a document.
        settings: as for `with_settings`.
        modules: as for `Job.from_json`.

    Raises:
        StateTypeError: there is no such job or document.
        SettingError: a setting is not valid.
    """
    if not text.endswith(".json"):
        job = load_job(text)
        return job if not settings else _with_settings(job.to_json(), settings, None)
    document = read_text(text)
    if settings:
        return _with_settings(document, settings, modules)
    return Job.from_json(document, modules=modules)


def _with_settings(document: str, settings: Sequence[str], modules: Sequence[str] | None) -> Job:
    """Return the job of a document with settings. The fault is theirs if it has a job without
    them.
    """
    try:
        return Job.from_json(with_settings(document, settings), modules=modules)
    except StateTypeError as error:
        Job.from_json(document, modules=modules)
        raise SettingError(str(error)) from error


def read_text(path: str) -> str:
    """Return the text of a document.

    Raises:
        StateTypeError: it cannot be read.
    """
    try:
        return Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise StateTypeError(
            f"the document {path} cannot be read: {error}. Give the path of a file that has "
            "the text of Job.to_json()"
        ) from error
