"""Places: checkpoints and directories of the server, which no answer names.

Errors of statekit name them for whoever runs the job. A client of the server gets the name of the
job instead.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from statekit.server.problems import Problem

_SERVER = "a file of the server"
_REST = r"[^\s'\",;:()\[\]]*"
"""The rest of a path in a text."""


class Places:
    """Hides the places of a server.

    Parameters:
        checkpoints: URLs and absolute paths, by what clients call them.
        directories: of the server.

    >>> Places({"job 'shop'": "/srv/shop"}, []).hide("file:///srv/shop/epochs/7 was collected")
    "job 'shop' was collected"
    """

    def __init__(self, checkpoints: Mapping[str, str], directories: list[Path]) -> None:
        self._names = {place.rstrip("/"): name for name, place in checkpoints.items()}
        temporary = Path(tempfile.gettempdir(), "statekit-")
        self._names |= {str(place): _SERVER for place in (*directories, temporary)}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._place = re.compile(
            f"(?:file://)?({'|'.join(map(re.escape, longest_first))})(?!\\w){_REST}"
            f"|(?:file://)?({re.escape(str(temporary))}){_REST}"
        )

    def hide(self, text: str) -> str:
        """Return a text without the places."""
        return self._place.sub(lambda found: self._names[found[1] or found[2]], text)

    def hidden(self, problem: Problem) -> Problem:
        """Return a problem without the places in its text."""
        problem.detail = self.hide(problem.detail)
        return problem
