"""What a submitted document may name: checkpoints, files, secrets and masters of Spark.

Nothing is imported and nothing is opened here. Modules are checked by `document_check`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statekit.checkpoint.store_url import local_path, remote_url
from statekit.documents.job_document import JobDocument
from statekit.errors import StateTypeError
from statekit.shown import shown

_PATHS = re.compile(r"(.*[._])?(path|paths|warehouse|location|directory|file|passfile)")
"""Names of parameters and options of sources and sinks that are places of files."""

_CODE = re.compile(r"py-.*|plugin\..*|.*\.jars?|.*\.packages")
"""Names of options with which a library loads other code."""

_ANY = ("sources.spark", "sinks.writer")
"""Sources and sinks whose options are those of any format of Spark."""

_SQLITE = re.compile(r"sqlite[^:]*:/{0,3}")


@dataclass(frozen=True)
class SubmissionLimits:
    """What documents may name on a server.

    Parameters:
        modules: packages and modules that they may import.
        checkpoints_below: directories or URLs below which checkpoints are.
        data_below: directories or URLs below which files of sources and sinks are.
        secrets: names of environment variables, and files or directories of secrets.
        spark: masters of Spark.
    """

    modules: Sequence[str]
    checkpoints_below: Sequence[str]
    data_below: Sequence[str] = ()
    secrets: Sequence[str] = ()
    spark: Sequence[str] = ()

    def checkpoint(self, name: str, given: str | None) -> str:
        """Return the checkpoint of a job.

        Parameters:
            name: of the job: without a checkpoint, it has one of that name.
            given: a path or URL, or a path below the first allowed place; None for none.

        Raises:
            StateTypeError: it is not below an allowed place.
        """
        own = name if given is None else given
        is_relative = local_path(own) is not None and not own.startswith(("/", "file:", "~"))
        place = f"{self.checkpoints_below[0].rstrip('/')}/{own}" if is_relative else own
        return _below(place, self.checkpoints_below, "checkpoint", "--checkpoints-below")

    def check_master(self, master: str | None) -> None:
        """Check the master of Spark.

        Raises:
            StateTypeError: it is not allowed.
        """
        if master is not None and master not in self.spark:
            allowed = ", ".join(self.spark) or "none"
            raise StateTypeError(
                f"spark={shown(master)} is not allowed on this server: allowed are {allowed} "
                "(--spark)"
            )

    def check(self, document: JobDocument) -> None:
        """Check what a document names.

        Raises:
            StateTypeError: something is not allowed. The message begins with its place.
        """
        for number, step in enumerate(document.steps):
            for at, form in _objects(step.arguments, f"steps.{number}.with"):
                try:
                    self._check(form)
                except StateTypeError as error:
                    raise StateTypeError(f"{at}: {error}") from error

    def _check(self, form: Mapping[str, Any]) -> None:
        if "$secret" in form:
            self._check_secret(form["$secret"])
        name = form.get("$call")
        if not isinstance(name, str) or not name.startswith(("sources.", "sinks.")):
            return
        if name in _ANY:
            raise StateTypeError(
                f"{name} has options that the server cannot check: give a source or sink of "
                "statekit"
            )
        for option, value in _options(form.get("with", {})):
            if _CODE.fullmatch(option):
                raise StateTypeError(f"{option} loads code, which a document may not: leave it out")
            if isinstance(value, str) and (found := _SQLITE.match(value)):
                self._check_file(option, f"/{value[found.end() :]}")
            elif _PATHS.fullmatch(option) and not isinstance(value, dict):
                self._check_file(option, value)

    def _check_file(self, option: str, value: object) -> None:
        if not isinstance(value, str):
            raise StateTypeError(f"{option}={shown(value, 100)}: give the place as a text")
        _below(value, self.data_below, option, "--data-below")

    def _check_secret(self, place: object) -> None:
        given = next(iter(place.values()), None) if isinstance(place, dict) else None
        if not isinstance(given, str) or not isinstance(place, dict):
            raise StateTypeError(f"{shown(place, 100)} is no place of a secret")
        if "env" in place and given in self.secrets:
            return
        if "env" in place:
            raise StateTypeError(
                f"the environment variable {shown(given)} is not one that documents may read: name "
                "it with --secret"
            )
        roots = [each for each in self.secrets if "/" in each]
        _below(given, roots, "the file of a secret", "--secret")


def _below(given: str, roots: Sequence[str], what: str, option: str) -> str:
    """Return a path or URL in its plain form.

    Raises:
        StateTypeError: it is not below one of the roots.
    """
    path = local_path(given)
    plain = remote_url(given) if path is None else os.path.realpath(path)
    parts = re.split(r"[/\\]", given.lower().replace("%2e", ".").replace("%2f", "/"))
    is_absolute = path is None or path.is_absolute()
    if ".." not in parts and is_absolute and any(_is_within(plain, root) for root in roots):
        return plain
    allowed = ", ".join(roots) or "none"
    raise StateTypeError(
        f"{what}={shown(given, 200)} is not in a place that this server allows: allowed are "
        f"{allowed} ({option})"
    )


def _is_within(plain: str, root: str) -> bool:
    path = local_path(root)
    own = remote_url(root) if path is None else os.path.realpath(path)
    return plain.startswith(f"{own.rstrip('/')}/")


def _objects(value: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all objects of a document with their places."""
    if isinstance(value, dict):
        yield at, value
        for name, own in value.items():
            yield from _objects(own, f"{at}.{name}")
    elif isinstance(value, list):
        for number, own in enumerate(value):
            yield from _objects(own, f"{at}.{number}")


def _options(arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the arguments of a source or sink, and of options in them."""
    if isinstance(arguments, dict):
        for name, value in arguments.items():
            yield name, value
            yield from _options(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _options(value)
