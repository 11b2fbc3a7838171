"""Places: the checkpoints and directories of the server, which answers must not contain.

Errors of statekit contain them for the operator of the job. A client of the server gets the name of
the job instead.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from statekit.server.answers.problems import Problem

_SERVER = "a file of the server"
_REST = r"[^\s'\",;:()\[\]]*"
"""Pattern of the rest of a path in a text."""


class Places:
    """Hides the places of a server in texts.

    Parameters:
        checkpoints: URLs and absolute paths, by their names for clients.
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
        """Return a text in which names replace the places."""
        return self._place.sub(lambda found: self._names[found[1] or found[2]], text)

    def hidden(self, problem: Problem) -> Problem:
        """Replace the places in the text of a problem by their names, and return the problem."""
        problem.detail = self.hide(problem.detail)
        return problem
