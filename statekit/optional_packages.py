"""Packages that only a part of statekit needs, and that are installed by an extra."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from statekit.errors import StatekitError


def check_installed(user: str, package: str, extra: str, module: str = "") -> None:
    """Check that a package is installed, without an import of it.

    Parameters:
        user: what needs it, for the message.
        package: its name on PyPI.
        extra: of statekit, which installs it.
        module: its module; "" if it has the name of the package.

    Raises:
        StatekitError: it is not installed.

    >>> check_installed("this example", "pyarrow", "spark")
    >>> check_installed("this example", "absent-package", "spark", "absent_package")
    Traceback (most recent call last):
        ...
    statekit.errors.StatekitError: this example needs the package absent-package, which is not \
installed: pip install 'statekit[spark]'
    """
    if importlib.util.find_spec(module or package) is None:
        raise _missing(user, package, extra)


def imported(module: str, user: str, package: str, extra: str) -> Any:
    """Return a module of a package, as for `check_installed`.

    Raises:
        StatekitError: the package is not installed.

    >>> imported("pyarrow.compute", "this example", "pyarrow", "spark").sum([1, 2]).as_py()
    3
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(user, package, extra) from error


def _missing(user: str, package: str, extra: str) -> StatekitError:
    return StatekitError(
        f"{user} needs the package {package}, which is not installed: pip install "
        f"'statekit[{extra}]'"
    )
