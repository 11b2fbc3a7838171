"""The environment of the processes of jobs: that of the server without its secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from statekit.secret_options import is_secret

_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_")
"""Variables with which checkpoints and files in object stores are reached."""

_OF_LIBRARIES = ("PG", "PYICEBERG_")
"""Variables with which libraries connect to whatever host a document names."""

_LOGIN = re.compile(r"://[^/@\s]*:[^/@\s]+@")

_WITHOUT_FILES = {"PGPASSFILE": "/dev/null", "PGSSLCERT": "/dev/null/none"}
"""So that libpq takes no password and no certificate from the home directory."""


def job_environment(
    secrets: Sequence[str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of a process that reads a document.

    Parameters:
        secrets: names of variables that documents may read.
        environment: of the server.

    >>> given = {"PATH": "/bin", "PGPASSWORD": "a", "SHOP_TOKEN": "b", "AWS_SECRET_ACCESS_KEY": "c"}
    >>> list(job_environment(["SHOP_TOKEN"], given))
    ['PGPASSFILE', 'PGSSLCERT', 'PATH', 'SHOP_TOKEN', 'AWS_SECRET_ACCESS_KEY']
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in secrets or not _is_of_server(name, value)
    }
    return {**_WITHOUT_FILES, **kept}


def _is_of_server(name: str, value: str) -> bool:
    """Return whether a variable is a secret, or a setting of the server's own connections."""
    upper = name.upper()
    if upper.startswith(_OF_STORES) or upper.endswith("_PROXY"):
        return False
    is_of_library = upper.startswith(_OF_LIBRARIES)
    return is_of_library or is_secret(name) or _LOGIN.search(value) is not None
