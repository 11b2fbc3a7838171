"""What tests share: places, a Spark session, an S3 server, a broker, and the processes that run
them.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import settings

from tests.support.collection import Collection
from tests.support.distribution import Scopes, scope_of
from tests.support.durations import LONG_S, Durations, Measured
from tests.support.effort import SOAK
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statekit.working_copy.copies import DiskCopies
    from tests.support.kafka_broker import KafkaBroker
    from tests.support.postgres import PostgresSchema, PostgresServer
    from tests.support.s3_server import FaultyProxy


# As in an environment that was activated: PySpark starts `python3` for frames made of Python rows.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

# Other programs run beside tests: how long an example takes says nothing.
settings.register_profile("statekit", deadline=None)
settings.load_profile("statekit")

# Nor does it say anything how long an answer takes. It is 5 s if a test gives no timeout.
_timeout = inspect.signature(httpx.get).parameters["timeout"].default
_timeout.connect = _timeout.read = _timeout.write = _timeout.pool = 60

SLOW = ("tests/crash/", "tests/model/", "tests/store/")
"""Tests that kill, fuzz and compare with models. With all others that take long, they are
`make test-slow`.
"""

ONCE = (
    "tests/browser/test_dashboard.py::test_a_user_finds_a_key_by_clicks",
    "tests/docs/test_testing_page.py::test_the_examples_of_the_first_page",
    "tests/spark/test_order_and_parallelism.py::test_state_survives_every_change_of_parallelism",
    "tests/spark/test_runtimes.py::test_an_error_of_the_users_function_comes_with",
    "tests/spark/test_runtimes.py::test_two_sources_feed_two_operators_of_one_job",
    "tests/spark/test_sinks.py::test_a_replayed_epoch_leaves_no_duplicate_in_parquet",
    "tests/spark/test_sources.py::test_a_filter_for_one_key_reads_one_key_group",
    "tests/spark/test_time.py::test_static_frames_end_with_all_timers_fired",
)
"""Long tests that are in `make test` all the same: it has something of each part that users see."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole",
        action="store_true",
        help="run all parameters of each test that is not for the soak",
    )
    parser.addoption(
        "--store-durations", action="store_true", help="store how long tests take (make durations)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Collection(_in_run(config.option.markexpr)))
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured())


def _in_run(marks: str) -> Callable[[Path], bool]:
    """Return a function that returns whether a file may have tests of a run: to import all of them
    takes longer than most tests.

    Parameters:
        marks: the marks that select the tests of the run, as for `pytest -m`.
    """
    match marks:
        case "slow":
            return _may_be_slow
        case "not slow":
            return lambda file: not _name_of(file).startswith(SLOW)
        case _:
            return lambda _: True


def _may_be_slow(file: Path) -> bool:
    name = _name_of(file)
    is_long = name.startswith(SLOW) or Durations.stored().has_long(name)
    return is_long or "mark.slow" in file.read_text()


def _name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations = Durations.stored()
    for item in items:
        is_long = durations.of(item.nodeid) > LONG_S and not item.nodeid.startswith(ONCE)
        if is_long or item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if not SOAK:
        _leave_to_soak(config, items, durations)
    of_scopes: defaultdict[str, float] = defaultdict(float)
    for item in items:
        of_scopes[scope_of(item.nodeid)] += durations.of(item.nodeid)
    items.sort(key=lambda item: _place(item, of_scopes[scope_of(item.nodeid)]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scopes | None:
    return Scopes(config, log) if config.getoption("dist") == "loadscope" else None


def _leave_to_soak(config: pytest.Config, items: list[pytest.Item], durations: Durations) -> None:
    """Leave out what runs in `make soak` alone, unless it is named with its parameters."""
    always = (*ONCE, *(name for name in config.args if "[" in name))
    share = {item.nodeid for item in items if not item.get_closest_marker("soak")}
    if not config.getoption("--whole"):
        share = durations.share_of(item.nodeid for item in items if item.nodeid in share)
    left = [
        item for item in items if item.nodeid not in share and not item.nodeid.startswith(always)
    ]
    config.hook.pytest_deselected(items=left)
    left_out = set(left)
    items[:] = [item for item in items if item not in left_out]


def _place(item: pytest.Item, seconds: float) -> tuple[float, str]:
    """Return the place of a test among others. Those that take longest together come first, so that
    all processes end together.

    Parameters:
        seconds: of its scope.
    """
    return -seconds, scope_of(item.nodeid)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a checkpoint is to be."""
    return tmp_path / "c"


@pytest.fixture
def copies(tmp_path: Path) -> DiskCopies:
    """Working copies on the disk."""
    from statekit.working_copy.copies import DiskCopies

    return DiskCopies(tmp_path / "local")


@pytest.fixture(autouse=True)
def uploads_end_with_the_test() -> Iterator[None]:
    """Uploads of a test are given up at its end. One that waits for a server that is gone is left
    to its thread, and later tests have another one.
    """
    yield
    uploads = sys.modules.get("statekit.working_copy.uploader")
    if uploads is None:
        return
    own = uploads.uploader()
    if not own.drain(0) and not own.give_up("", timeout_s=1):
        uploads._in_process.clear()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark on two cores. Starting it takes seconds, so all tests share it."""
    from tests.support.spark_runs import new_session

    # Part of the tests: without it, statekit has to find this interpreter for the workers.
    os.environ.pop("PYSPARK_PYTHON", None)
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An S3 server on loopback with a bucket `bucket`, for all tests that ask for it."""
    from tests.support.s3_server import s3_server

    with s3_server(tmp_path_factory.mktemp("s3") / "log") as port:
        yield port


@pytest.fixture
def s3(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own on a server that does what it is asked."""
    from statekit.clock import unique_id
    from tests.support.s3_server import set_environment

    set_environment(monkeypatch, s3_port)
    return f"s3://bucket/{unique_id()}"


@pytest.fixture
def proxy(s3: str, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """The same server behind a proxy, which does nothing wrong yet."""
    from tests.support.s3_server import FaultyProxy, set_environment

    with FaultyProxy(s3_port) as between:
        set_environment(monkeypatch, between.port)
        yield between


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker in memory, for all tests that ask for it. Tests choose names of topics."""
    from tests.support.kafka_broker import memory_broker

    with memory_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name that no other test has for its topic."""
    from statekit.clock import unique_id

    return f"t-{unique_id()}"


@pytest.fixture
def killable_kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that keeps its records when it is killed, for one test."""
    from tests.support.kafka_broker import durable_broker

    with durable_broker(tmp_path) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server on loopback, for all tests that ask for it."""
    from tests.support.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresSchema:
    """An empty schema of its own on the server."""
    return postgres_server.new_schema()
