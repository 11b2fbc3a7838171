"""The pytest plugin: fixtures, the depth of checks, and differences of records as tables.

pytest loads it by itself, as `statekit`. It starts no JVM that no test asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from statekit.errors import StateTypeError
from statekit.testing.check_report import reports
from statekit.testing.effort import Depth, Effort, set_default_effort
from statekit.testing.record_table import differing_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statekit.testing.drivers.harness import Harness
    from statekit.testing.drivers.job_harness import JobHarness

_OPTION, _EXAMPLES = "--statekit-depth", "--statekit-examples"
_SEED, _SECONDS = "--statekit-seed", "--statekit-seconds"
_SLOW = "statekit_slow"
_REPORT = "statekit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the effort of checks."""
    group = parser.getgroup("statekit")
    group.addoption(
        _OPTION,
        choices=get_args(Depth),
        default="normal",
        help="how many histories statekit's checks try; 'deep' also runs tests marked as "
        f"{_SLOW} (default: normal)",
    )
    group.addoption(_EXAMPLES, type=int, help="how many they try, instead of those of the depth")
    group.addoption(_SEED, type=int, help="which histories they try (default: 0)")
    group.addoption(_SECONDS, type=float, help="how long each check may search, in seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and set the effort of checks."""
    config.addinivalue_line("markers", f"{_SLOW}: runs with {_OPTION}=deep only, or if selected")
    depth, *others = map(config.getoption, (_OPTION, _EXAMPLES, _SEED, _SECONDS))
    try:
        set_default_effort(Effort(depth, *others))
    except StateTypeError as error:
        raise pytest.UsageError(f"--statekit-{error}") from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the seed of the run, if there is one, so that it can be run again."""
    seed = config.getoption(_SEED)
    return None if seed is None else f"statekit: checks with {_SEED}={seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep the reports of the checks of a test."""
    with reports() as made:
        try:
            return (yield)
        finally:
            item.user_properties += [(_REPORT, str(each)) for each in made]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the reports of all checks with -v."""
    if terminalreporter.verbosity <= 0:
        return
    for tests in list(terminalreporter.stats.values()):
        for each in tests:
            texts = [text for name, text in getattr(each, "user_properties", ()) if name == _REPORT]
            if texts and getattr(each, "when", None) == "call":
                terminalreporter.section(f"statekit checked in {each.nodeid}", sep="-")
                for text in texts:
                    terminalreporter.line(text)


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
    from statekit.testing.drivers.harness import Harness
    from statekit.testing.drivers.job_harness import JobHarness

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
    from statekit.testing.drivers.spark_session import quiet_session

    session = quiet_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
