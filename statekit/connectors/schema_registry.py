"""Schemas of Avro from a schema registry, over its HTTP interface."""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from statekit.connectors.growing_pauses import GrowingPauses
from statekit.errors import ConnectorError, StateTypeError

_REQUEST_S = 10.0
"""The time limit of one request, in seconds."""

_PASSING = {408, 429, 500, 502, 503, 504}
"""Statuses after which another try can help."""


@dataclass
class SchemaRegistry:
    """A schema registry. Its repr has no password.

    Parameters:
        url: such as `http://user:password@registry:8081`.
        retry_seconds: how long a request is tried again while the registry does not answer.

    Raises:
        StateTypeError: the URL is not valid.

    >>> SchemaRegistry("https://ada:secret@registry.example:8081")
    SchemaRegistry('https://registry.example:8081')
    """

    url: str
    retry_seconds: float = 60.0
    _schemas: dict[int, Any] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StateTypeError(
                "the URL of the schema registry is not valid, and not shown, because of its "
                "password: write it as http://user:password@host:8081"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    @property
    def _request_s(self) -> float:
        return min(_REQUEST_S, self.retry_seconds) or _REQUEST_S

    @property
    def place(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    def schema(self, number: int) -> Any:
        """Return the schema of a number, as data of JSON. It is asked for once.

        Raises:
            ValueError: the registry has no such schema.
            ConnectorError: the registry does not answer, or refuses.
        """
        if number not in self._schemas:
            found = self._asked(f"/schemas/ids/{number}")
            if found is None:
                raise ValueError(f"the schema registry at {self.place} has no schema {number}")
            self._schemas[number] = msgspec.json.decode(found["schema"])
        return self._schemas[number]

    def within(self, limit_s: float) -> SchemaRegistry:
        """Return the same registry with a time limit for requests and their retries, in seconds."""
        return SchemaRegistry(self.url, limit_s / 2)

    def check_answers(self) -> None:
        """Check that the registry answers this user.

        Raises:
            ConnectorError: it does not answer, or refuses.
        """
        self._asked("/schemas/ids/1")  # whether there is such a schema does not matter

    def _asked(self, path: str) -> Any:
        """Return the answer to a request; None if there is nothing at this path."""
        pauses = GrowingPauses()
        while True:
            try:
                with urllib.request.urlopen(self._request(path), timeout=self._request_s) as answer:
                    return msgspec.json.decode(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                helps, why = error.code in _PASSING, f"status {error.code} {error.reason}"
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                helps, why = True, str(error)
            failed = f"the schema registry at {self.place} does not return {path}: {why}"
            if not helps or pauses.elapsed_s > self.retry_seconds:
                raise ConnectorError(
                    f"{failed}. Nothing of this epoch is committed: check registry= and its user "
                    "and password, and that it is reachable, then start the job again"
                ) from None
            pauses.sleep(failed)

    def _request(self, path: str) -> urllib.request.Request:
        parts = urlsplit(self.url)
        request = urllib.request.Request(self.place + path)
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        return request
