"""Token file: adds and removes tokens. The file has only their digests."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from statekit.clock import unique_id
from statekit.errors import StateTypeError, StorageError
from statekit.names import name_fault
from statekit.server.admission.access import Token, digest_of, tokens_of

_TOKEN_BYTES = 32


def add_token(
    file: Path, name: str, read: Sequence[str], manage: Sequence[str] = (), *, replace: bool = False
) -> str:
    """Add a new token to a file, and return the token. Create the file if it is absent.

    Parameters:
        name: of the token.
        read: its scopes: "*", jobs, operators and states.
        manage: the submitted jobs that it may change, or "*".
        replace: replace a token of that name.

    Raises:
        StateTypeError: the file has that name already, or it is not a file of tokens; or a scope is
            not valid.
        StorageError: the file cannot be written.
    """
    for scope in read:
        _check_scope(scope)
    for job in manage:
        if job != "*" and (fault := name_fault(job)) is not None:
            raise StateTypeError(f"{job!r} is no job that a token may manage: {fault} (--manage)")
    secret = secrets.token_urlsafe(_TOKEN_BYTES)
    token = Token(name=name, sha256=digest_of(secret), read=tuple(read), manage=tuple(manage))
    with _changing(file) as path:
        tokens = tokens_of(path) if path.exists() else ()
        if any(own.name == name for own in tokens) and not replace:
            raise StateTypeError(
                f"{file} has a token {name!r} already: it was not changed. Choose another name, or "
                "replace it with --replace"
            )
        _write(path, (*(own for own in tokens if own.name != name), token))
    return secret


def remove_token(file: Path, name: str) -> None:
    """Remove a token from a file.

    Raises:
        StateTypeError: the file has no such token, or it is not a file of tokens.
        StorageError: the file cannot be written.
    """
    with _changing(file) as path:
        tokens = tokens_of(path)
        if all(own.name != name for own in tokens):
            names = ", ".join(repr(own.name) for own in tokens) or "none"
            raise StateTypeError(f"{file} has no token {name!r}: it has {names}")
        _write(path, tuple(own for own in tokens if own.name != name))


def _check_scope(scope: str) -> None:
    """Check that a scope may be that of a job, an operator or a state.

    Raises:
        StateTypeError: it is not valid.
    """
    parts = scope.split("/")
    if scope != "*" and (len(parts) > 3 or any(map(name_fault, parts[1:])) or not parts[0]):
        raise StateTypeError(
            f"{scope!r} is nothing that a token may read: give '*', a job, an operator as in "
            "shop/sales, or a state as in shop/sales/total (--read)"
        )


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[Path]:
    """Lock the directory of a file against other writers, and yield the resolved path."""
    try:
        path = file.resolve()
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(file, error) from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield path
    except OSError as error:
        raise _unwritable(file, error) from error
    finally:
        os.close(directory)


def _write(path: Path, tokens: Sequence[Token]) -> None:
    """Replace the file atomically. Only its owner may read it."""
    data = {"tokens": [token.model_dump(exclude_defaults=True) for token in tokens]}
    draft = path.with_name(f".{unique_id()}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as written:
            written.write(json.dumps(data, indent=2) + "\n")
            written.flush()
            os.fsync(descriptor)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _unwritable(file: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the file of tokens {file} cannot be written: {error}. It was not changed: check that its "
        "directory exists and may be written (--tokens)"
    )
