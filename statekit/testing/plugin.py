"""The pytest plugin: fixtures, the depth of checks, and differences of records as tables.

pytest loads it by itself, as `statekit`. It starts no JVM that no test asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from statekit.testing.counterexamples import Depth, set_default_depth
from statekit.testing.record_table import differing_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statekit.testing.harness import Harness
    from statekit.testing.job_harness import JobHarness

_OPTION = "--statekit-depth"
_SLOW = "statekit_slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the depth of checks."""
    parser.getgroup("statekit").addoption(
        _OPTION,
        choices=get_args(Depth),
        default="normal",
        help="how many histories statekit's checks try; 'deep' also runs tests marked as "
        f"{_SLOW} (default: normal)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and set the depth."""
    config.addinivalue_line("markers", f"{_SLOW}: runs with {_OPTION}=deep only, or if selected")
    set_default_depth(config.getoption(_OPTION))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests, unless the checks are deep or the tests were asked for by their mark."""
    if config.getoption(_OPTION) == "deep" or _SLOW in (config.getoption("markexpr") or ""):
        return
    skipped = pytest.mark.skip(reason=f"{_SLOW}: runs with {_OPTION}=deep")
    for item in items:
        if item.get_closest_marker(_SLOW) is not None:
            item.add_marker(skipped)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show records that differ, and states by key, as a table."""
    if op != "==":
        return None
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return differing_rows(list(left.items()), list(right.items()), by_key=True)
    if isinstance(left, list) and isinstance(right, list):
        return differing_rows(left, right)
    return None


@pytest.fixture
def harness() -> Callable[..., Harness | JobHarness]:
    """Make a harness of a process function, a stream or a job: `harness(count, parallelism=3)`."""
    from statekit.job.job import Job
    from statekit.testing.harness import Harness
    from statekit.testing.job_harness import JobHarness

    def made(given: Any, *arguments: Any, **options: Any) -> Harness | JobHarness:
        kind: Any = JobHarness if isinstance(given, Job) else Harness
        driven: Harness | JobHarness = kind(given, *arguments, **options)
        return driven

    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The path of a checkpoint that does not exist yet."""
    return tmp_path / "checkpoint"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores for all tests of the run, which logs errors only."""
    from statekit.testing.spark_session import quiet_session

    session = quiet_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
