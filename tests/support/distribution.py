"""How tests are distributed among the processes that run them."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.support.durations import file_of

SPARK = "tests/spark/"
"""One process runs these: they share a session, which takes longer to start than most of them."""


def scope_of(test: str) -> str:
    """Return what a test is run together with, by one process.

    >>> scope_of("tests/unit/test_a.py::test_sum[a::b]"), scope_of("tests/spark/test_b.py::test_c")
    ('tests/unit/test_a.py', 'tests/spark/')
    """
    return SPARK if test.startswith(SPARK) else file_of(test)


class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each process the tests of one scope after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
