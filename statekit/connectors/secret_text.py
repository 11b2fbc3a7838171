"""`secret`: passwords and other secrets, by where they are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from statekit.errors import StateTypeError


class SecretText(str):
    """A secret as a text, which knows where it came from. Created by `secret`.

    It goes wherever a text goes. Its repr and a document of a job contain its place alone.
    """

    place: dict[str, str]
    """`{"env": name}` or `{"file": path}`."""

    __slots__ = ("place",)

    def __new__(cls, value: str, place: dict[str, str]) -> SecretText:
        made = super().__new__(cls, value)
        made.place = place
        return made

    def __repr__(self) -> str:
        ((kind, name),) = self.place.items()
        return f"secret({kind}={name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SecretText, (str(self), self.place)


def secret(*, env: str | None = None, file: str | Path | None = None) -> SecretText:
    """Read a secret for an option of a source or a sink, such as a password.

    A document of a job refers to its place: each process that reads the document reads the secret
    there.

    Parameters:
        env: the name of an environment variable.
        file: the path of a file, without the end of line at its end.

    Raises:
        StateTypeError: there is no such variable or file, it is empty, or both are given.

    >>> import os
    >>> os.environ["EXAMPLE_PASSWORD"] = "quite secret"
    >>> password = secret(env="EXAMPLE_PASSWORD")
    >>> password
    secret(env='EXAMPLE_PASSWORD')
    >>> password == "quite secret"
    True
    """
    if (env is None) == (file is None):
        raise StateTypeError("secret() takes env=, the name of a variable, or file=, a path")
    if env is not None:
        value, place = os.environ.get(env), {"env": env}
        if not value:
            raise StateTypeError(
                f"secret(env={env!r}): there is no such environment variable, or it is empty: set "
                "it where this process starts"
            )
        return SecretText(value, place)
    try:
        text = Path(str(file)).read_text().rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise StateTypeError(
            f"secret(file={str(file)!r}): it cannot be read ({error}): give a file with the secret "
            "that this process may read"
        ) from error
    if not text:
        raise StateTypeError(f"secret(file={str(file)!r}): the file is empty: write the secret")
    return SecretText(text, {"file": str(file)})
