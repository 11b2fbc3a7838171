"""How tests are distributed among the processes that run them."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.support.durations import file_of

SPARK = "tests/spark/"
"""One process runs these: they share a session, which takes longer to start than most of them."""

WITH_SESSION = ("tests/docs/test_kv_store_page.py", "tests/docs/test_readme.py")
"""Tests elsewhere that use the session, too."""

WITHOUT_SESSION = ("tests/spark/test_cluster.py", "tests/spark/test_demo_play.py")
"""Tests there that start long drivers of their own only, beside those that use the session."""


def scope_of(test: str) -> str:
    """Return what a test is run together with, by one process.

    >>> scope_of("tests/unit/test_a.py::test_sum[a::b]"), scope_of("tests/spark/test_b.py::test_c")
    ('tests/unit/test_a.py', 'tests/spark/')
    """
    file = file_of(test)
    has_session = file.startswith(SPARK) or file in WITH_SESSION
    return SPARK if has_session and file not in WITHOUT_SESSION else file


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process the tests of one scope after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
