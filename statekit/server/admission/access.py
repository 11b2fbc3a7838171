"""Access: the tokens of a server, and the jobs, operators and states that each may read.

A file of tokens is JSON. It has the digests of the tokens, and not the tokens themselves:

    {"tokens": [{"name": "reports", "sha256": "…", "read": ["shop", "shop/orders/total"]}]}

`sha256` is the digest of the token, in hex. `read` names jobs, operators and states: "*" is every
job, "shop" all of a job, "shop/orders" an operator, "shop/orders/total" a state. `manage` names
submitted jobs: "*" is every job.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from statekit.errors import StateTypeError
from statekit.server.answers.problems import Problem


class Token(BaseModel):
    """A token, and the names of the jobs, operators and states that it may read, and of the
    submitted jobs that it may submit, start, stop and change.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=200)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    read: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()

    def may_manage(self, job: str) -> bool:
        """Return whether the token may submit, start, stop and change a job.

        >>> token = Token(name="deploy", sha256="0" * 64, manage=("shop",))
        >>> token.may_manage("shop"), token.may_manage("bank"), token.may_read("shop")
        (True, False, False)
        """
        return not {"*", job}.isdisjoint(self.manage)

    @property
    def may_read_all(self) -> bool:
        """True if the token may read every job."""
        return "*" in self.read

    def may_read(self, *place: str) -> bool:
        """Return whether the token may read all of a place: job, operator and state, or less.

        >>> token = Token(name="reports", sha256="0" * 64, read=("shop/orders",))
        >>> token.may_read("shop", "orders", "total"), token.may_read("shop")
        (True, False)
        """
        if self.may_read_all:
            return True
        names = [part for part in place if part]
        wider = {"/".join(names[:depth]) for depth in range(1, len(names) + 1)}
        return not wider.isdisjoint(self.read)

    def sees(self, *place: str) -> bool:
        """Return whether the token may read any state of a job, or of an operator."""
        inside = "/".join((*place, ""))
        return self.may_read(*place) or any(name.startswith(inside) for name in self.read)


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: tuple[Token, ...]


EVERYTHING = Token(name="anyone", sha256="0" * 64, read=("*",), manage=("*",))
"""The token of every request to a server without tokens."""


class Access:
    """Finds tokens by their digests. The file is read again when it has changed.

    Parameters:
        file: the file of tokens; None to let everyone read everything.

    Raises:
        StateTypeError: the file cannot be read, or is not a file of tokens.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()
        if file is not None:
            self._stamp, self._tokens = _stamp(file), tokens_of(file)

    @property
    def is_open(self) -> bool:
        """True if everyone may read everything."""
        return self._file is None

    def token(self, digest: str) -> Token | None:
        """Return the token that has a digest; None if there is none, or if the digest is empty.

        Parameters:
            digest: as in the file.
        """
        if self._file is None:
            return EVERYTHING
        self._refresh(self._file)
        found = None
        for token in self._tokens:  # all of them, so that the time does not depend on the token
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def _refresh(self, file: Path) -> None:
        """Read the file again if it has changed. If it cannot be read, no token is accepted."""
        try:
            stamp = _stamp(file)
            if stamp != self._stamp:
                self._stamp, self._tokens = stamp, tokens_of(file)
        except StateTypeError:
            self._stamp, self._tokens = None, ()


def forbidden(place: str) -> Problem:
    """Return the problem for a token that may not read a place."""
    return Problem(403, "forbidden", f"this token may not read {place}: ask for one that may")


def digest_of(token: str) -> str:
    """Return the digest of a token, as in the file: SHA-256 in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise StateTypeError(f"the file of tokens {file} cannot be read: {error}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def tokens_of(file: Path) -> tuple[Token, ...]:
    """Return the tokens of a file.

    Raises:
        StateTypeError: it cannot be read, or is not a file of tokens.
    """
    try:
        return _TokenFile.model_validate_json(file.read_bytes()).tokens
    except (OSError, ValidationError) as error:
        raise StateTypeError(
            f"the file of tokens {file} cannot be read: {error}. It is JSON such as "
            '{"tokens": [{"name": "reports", "sha256": "…", "read": ["shop/orders"]}]}'
        ) from error
