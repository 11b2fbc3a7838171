"""Priority: single reads run before requests that take long.

Single reads run on the thread of the event loop. Pages, requests for many keys and files of small
states need the same interpreter. So `Admission` runs only a few of them at a time, and their
threads give way to the event loop soon. Processes of queries, rankings and files of large states
have a lower priority than the server.
"""

from __future__ import annotations

import gc
import sys

NICENESS = 7
"""Niceness of the processes of queries, rankings and files. On a core with the server, one of them
gets a sixth of the time.
"""

_SWITCH_S = 0.0001


def prefer_single_reads() -> None:
    """Shorten the waits of single reads for other work in this process. Call it before serving.

    Threads give way to the event loop after a tenth of a millisecond. Python's default is 5 ms, and
    each request would wait that long several times. Garbage collection skips all present objects,
    such as modules: otherwise it would stop the event loop for 0.1 s every other second.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
