"""Secrets among the options of other systems: no message and no repr contains their values."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"password|passphrase|secret|token|key|credential|certificate\.pem|jaas|oauthbearer\.config"
    r"|(?<![a-z])sas(?![a-z])",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether the name of an option says that its value is a secret. The location of a key
    is none.

    >>> [name for name in ("sasl.password", "ssl.key.location", "path") if is_secret(name)]
    ['sasl.password']
    """
    return bool(_SECRET_NAME.search(name)) and not name.lower().endswith("location")


def without_secrets(text: str, options: Mapping[str, object]) -> str:
    """Return a text without the values of the options that are secrets.

    >>> without_secrets("no user ada with pw", {"user": "ada", "password": "pw"})
    'no user ada with ***'
    """
    secrets = {str(value) for name, value in options.items() if is_secret(name)} - {""}
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "***")
    return text
