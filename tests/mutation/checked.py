"""`python -m tests.mutation.checked NAME DEPTH [PROPERTY …]`: check a function of a user, and say
which property does not hold.
"""

from __future__ import annotations

import os
import re
import sys
from typing import cast

from statekit.errors import StatekitError
from statekit.testing import check
from statekit.testing.effort import Depth
from tests.mutation.cases import Case
from tests.mutation.right_functions import RIGHT
from tests.mutation.wrong_memory import WRONG as WRONG_MEMORY
from tests.mutation.wrong_results import WRONG as WRONG_RESULTS

CASES = {each.name: each for each in (*WRONG_MEMORY, *WRONG_RESULTS, *RIGHT)}


def found(case: Case, holds: list[str] | None = None, depth: Depth | None = None) -> str | None:
    """Return which property does not hold for a function, or the error of the check; None if all
    hold.
    """
    try:
        check(case.given, holds=holds, depth=depth)
    except AssertionError as error:
        if os.environ.get("STATEKIT_SHOW"):
            print(error)
        which = re.search(r": ('[A-Za-z ]+') does not hold", str(error))
        return which[1] if which else str(error)
    except StatekitError as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Check the function that was asked for."""
    name, depth, *holds = sys.argv[1:]
    what = found(CASES[name], holds or None, cast("Depth", depth))
    if what is not None:
        print(what)
        sys.exit(1)


if __name__ == "__main__":
    main()
