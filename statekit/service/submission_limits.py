"""What a submitted document may name: checkpoints, files, secrets and masters of Spark.

Nothing is imported and nothing is opened here. Modules are checked by `document_check`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from statekit.checkpoint.store_url import local_path, remote_url
from statekit.documents.job_document import JobDocument, WindowDocument, read_document
from statekit.errors import StateTypeError
from statekit.service.connector_limits import check_connector
from statekit.service.job_record import SubmittedJob
from statekit.shown import shown

_NETWORK = ("http://", "https://", "postgresql://", "postgresql+")
"""What the URLs of catalogs and other services begin with."""


@dataclass(frozen=True)
class SubmissionLimits:
    """What documents may name on a server.

    Parameters:
        modules: packages and modules that they may import.
        checkpoints_below: directories or URLs below which checkpoints are.
        data_below: directories or URLs below which files of sources and sinks are, and URLs of
            catalogs.
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

    def check_record(self, record: SubmittedJob) -> None:
        """Check a job that was submitted earlier, perhaps to a server that allowed more.

        Raises:
            StateTypeError: something is not allowed, or the document cannot be read.
        """
        self.check_master(record.run.spark)
        self.checkpoint(record.name, record.run.checkpoint)
        self.check(read_document(record.document))

    def check(self, document: JobDocument) -> None:
        """Check the names in a document.

        Raises:
            StateTypeError: something is not allowed. The message begins with its place.
        """
        for number, step in enumerate(document.steps):
            of = step.of.arguments if isinstance(step.of, WindowDocument) else {}
            parts = {"with": step.arguments, "of.with": of}
            for at, form in _objects(parts, f"steps.{number}"):
                try:
                    self._check(form)
                except StateTypeError as error:
                    raise StateTypeError(f"{at}: {error}") from error

    def _check(self, form: Mapping[str, Any]) -> None:
        if "$secret" in form:
            self._check_secret(form["$secret"])
        name = form.get("$call")
        if isinstance(name, str) and name.startswith(("sources.", "sinks.")):
            check_connector(name, form.get("with", {}), self._check_place)

    def _check_place(self, option: str, value: object) -> None:
        if not isinstance(value, str):
            raise StateTypeError(f"{option}={shown(value, 100)}: give the place as a text")
        roots = list(self.data_below)
        if value.startswith(_NETWORK):
            _check_url(value, roots, option)
            return
        # Certificates and keys may be where secrets are.
        if option.startswith("ssl"):
            roots += [each for each in self.secrets if "/" in each]
        _below(value, roots, option, "--data-below")

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


def _check_url(given: str, roots: Sequence[str], option: str) -> None:
    """Check that the URL of a catalog or of another service is one of the roots or below it.

    Raises:
        StateTypeError: it is not.
    """
    asked = urlsplit(given)
    is_plain = not asked.query and not asked.fragment and re.fullmatch(r"[\w/.~-]*", asked.path)
    for root in roots:
        allowed = urlsplit(root)
        same = _service(asked) == _service(allowed)
        below = f"{asked.path.rstrip('/')}/".startswith(f"{allowed.path.rstrip('/')}/")
        if is_plain and same and below and ".." not in asked.path.split("/"):
            return
    named = ", ".join(roots) or "none"
    raise StateTypeError(
        f"{option} is not the URL of a service that this server allows: allowed are {named} "
        "(--data-below)"
    )


def _service(url: SplitResult) -> tuple[str, str]:
    """Return the scheme without a driver, and the host with its port."""
    return url.scheme.partition("+")[0], url.netloc.rpartition("@")[2].lower()


def _is_within(plain: str, root: str) -> bool:
    path = local_path(root)
    try:
        own = remote_url(root) if path is None else os.path.realpath(path)
    except StateTypeError:  # the URL of a catalog, which has no files
        return False
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
