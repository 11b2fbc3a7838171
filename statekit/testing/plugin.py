"""The pytest plugin: fixtures, the depth of checks, and differences of records as tables.

pytest loads it by itself, as `statekit`. It starts no JVM that no test asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from statekit.codec.annotations import struct_fields, struct_flavour
from statekit.errors import StateTypeError
from statekit.testing.check_report import reports
from statekit.testing.effort import Depth, Effort, set_default_effort

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


# --------------------------------------------------------------------------- records that differ

_ROWS_MAX = 20
_CELL_MAX = 40
_ABSENT = "-"


def differing_rows(
    left: Sequence[Any], right: Sequence[Any], *, by_key: bool = False
) -> list[str] | None:
    """Return the lines of a table of the differences between two lists of records; None if they are
    no records.

    Parameters:
        by_key: they are pairs of a key and a value. A key that only one of them has is absent in
            the other.

    >>> from typing import NamedTuple
    >>> class Total(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> for line in differing_rows([Total("ada", 5), Total("bob", 1)], [Total("ada", 7)]) or []:
    ...     print(line)
    records differ (left of | is the first list)
         customer    cents
    0    ada         5 | 7
    1    bob | -     1 | -
    """
    pairs = _by_key(left, right) if by_key else _by_place(left, right)
    records = [record for _, one, other in pairs for record in (one, other) if record is not _NONE]
    if not records:
        return None
    names = _columns(records)
    if names is None:
        return None
    rows = [["", *names]]
    for label, one, other in pairs:
        if one is not _NONE and other is not _NONE and one == other:
            continue
        if len(rows) > _ROWS_MAX:
            rows.append(["…"])
            break
        cells = zip(_cells(one, names), _cells(other, names), strict=True)
        rows.append([label, *(_beside(a, b) for a, b in cells)])
    title = "records differ (left of | is the first list)"
    if by_key:
        title = "states differ (left of | is the first one)"
    return [title, *_aligned(rows)]


_NONE: Any = object()
_Pair = tuple[str, Any, Any]


def _by_place(left: Sequence[Any], right: Sequence[Any]) -> list[_Pair]:
    both = zip_longest(left, right, fillvalue=_NONE)
    return [(str(place), one, other) for place, (one, other) in enumerate(both)]


def _by_key(left: Iterable[Any], right: Iterable[Any]) -> list[_Pair]:
    first, second = dict(left), dict(right)
    keys = dict.fromkeys([*first, *second])
    return [(repr(key), first.get(key, _NONE), second.get(key, _NONE)) for key in keys]


def _columns(records: Sequence[Any]) -> list[str] | None:
    """Return the names of the fields of records of one class; None if they are something else."""
    classes = {type(record) for record in records}
    if len(classes) != 1:
        return None
    (cls,) = classes
    if struct_flavour(cls) is None:
        return None
    return [field.name for field in struct_fields(cls)]


def _cells(record: Any, names: Sequence[str]) -> list[Any]:
    return [_NONE if record is _NONE else getattr(record, name) for name in names]


def _beside(one: Any, other: Any) -> str:
    """Return the text of two values; of long ones the part in which they differ."""
    shown = _text(one), _text(other)
    if one is not _NONE and other is not _NONE and one != other and shown[0] == shown[1]:
        shown = repr(one), repr(other)  # such as 1 and "1"
    if shown[0] == shown[1]:
        return _short(shown[0], 0)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*shown, strict=False)))
    begin = max(0, same - _CELL_MAX // 2) if max(map(len, shown)) > _CELL_MAX else 0
    return " | ".join(_short(text, begin) for text in shown)


def _text(value: Any) -> str:
    if value is _NONE:
        return _ABSENT
    return value if isinstance(value, str) else repr(value)


def _short(text: str, begin: int) -> str:
    """Return a part of a text from a position on, with marks at the cuts."""
    left = "…" if begin else ""
    right = "…" if len(text) > begin + _CELL_MAX else ""
    return f"{left}{text[begin : begin + _CELL_MAX]}{right}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for row in rows:
        cells = zip_longest(row, widths, fillvalue="")
        lines.append("    ".join(f"{cell:<{width}}" for cell, width in cells).rstrip())
    return lines
